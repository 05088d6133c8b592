// The submit form: a matrix by upload or by digest, then the job. It sends the same requests as any client of the API.
(() => {
    "use strict";

    const $ = id => document.getElementById(id);
    const form = $("submit"), file = $("file"), drop = $("drop"), matrix = $("matrix"), op = $("op");
    const go = $("submit-go"), abort = $("submit-abort"), progress = $("upload-progress"), message = $("submit-message");

    // The request in progress; `null` between attempts.
    let upload = null, busy = false;
    // A file that has already been uploaded is not sent again if only the job was refused.
    let sent = null;
    // The idempotency key of a request without a response: repeating the request returns the same job.
    let attempt = null;

    const say = (text, tone = "") => {
        message.className = tone;
        // An error interrupts a screen reader, other messages wait.
        message.setAttribute("role", tone === "bad" ? "alert" : "status");
        message.textContent = text;
    };

    const size = bytes => {
        const units = ["B", "KiB", "MiB", "GiB"];
        let unit = 0;
        for (; bytes >= 1024 && unit < units.length - 1; unit += 1) bytes /= 1024;
        return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
    };

    // --- fields

    // What cannot be tuned with the chosen device, operation and values is not offered, and the form says why. What was chosen before
    // is remembered, and chosen again as soon as it can be.
    const device = $("device"), limits = JSON.parse(form.dataset.limits);
    const fieldOf = name => form.querySelector(`[data-member="problem.${name}"]`);
    const impossible = (name, value) => {
        const kind = device.selectedOptions[0]?.dataset.kind;
        return limits.find(limit => limit.op === op.value && limit.field === name && limit.value === value
            && (limit.on ? kind && kind !== limit.on : limit.with ? !limit.with.values.includes(fieldOf(limit.with.field).value) : true));
    };
    const restrict = () => {
        const reasons = new Set();
        const refuse = (limit, element) => {
            element.disabled = Boolean(limit);
            if (limit) reasons.add(limit.why);
        };
        for (const select of form.querySelectorAll('select[data-member^="problem."]')) {
            const name = select.dataset.member.slice("problem.".length);
            if (select.closest("[hidden]")) continue;
            const wanted = select.dataset.wanted ?? select.value;
            for (const option of select.options) refuse(impossible(name, option.value), option);
            const chosen = [...select.options].find(option => option.value === wanted);
            if (chosen && !chosen.disabled) {
                select.value = wanted;
                delete select.dataset.wanted;
            } else {
                select.dataset.wanted = wanted;
                select.value = [...select.options].find(option => !option.disabled)?.value ?? "";
            }
        }
        for (const box of form.querySelectorAll('input[type=checkbox][data-member^="problem."]')) {
            if (!box.closest("[hidden]")) refuse(impossible(box.dataset.member.slice("problem.".length), "true"), box);
        }
        $("submit-limits").textContent = reasons.size ? `Not offered: ${[...reasons].join(" · ")}.` : "";
    };
    const switchFields = () => {
        for (const part of form.querySelectorAll("[data-op]")) part.hidden = !part.dataset.op.split(" ").includes(op.value);
        restrict();
    };
    // The options of the search that the chosen strategy has, and the trials that it makes if nothing else is asked.
    const strategy = $("strategy");
    const switchStrategy = () => {
        const chosen = strategy.value || strategy.options[0].dataset[op.value];
        for (const part of form.querySelectorAll("[data-strategy]")) part.hidden = part.dataset.strategy !== chosen;
        const trials = [...strategy.options].find(option => option.value === chosen)?.dataset.trials;
        $("trials").placeholder = `${trials} (default)`;
    };
    op.addEventListener("change", () => { switchFields(); switchStrategy(); });
    strategy.addEventListener("change", switchStrategy);
    form.addEventListener("change", event => {
        if (event.target === op) return;
        delete event.target.dataset.wanted;
        if (event.target === device || event.target.dataset.member?.startsWith("problem.")) restrict();
    });

    const chosen = () => {
        const picked = file.files[0];
        $("drop-text").textContent = "";
        const strong = document.createElement("strong");
        strong.textContent = picked ? picked.name : "Choose a file";
        $("drop-text").append(strong, picked ? ` ${size(picked.size)}` : " or drop it here");
        drop.classList.toggle("chosen", Boolean(picked));
        if (picked) matrix.value = "";
        clearError(drop);
        say("");
    };
    file.addEventListener("change", chosen);
    matrix.addEventListener("input", () => {
        if (matrix.value && file.files.length) { file.value = ""; chosen(); }
    });

    // Entering a child also leaves its parent, so the depth is counted.
    let depth = 0;
    const over = by => { depth = Math.max(0, depth + by); drop.classList.toggle("over", depth > 0); };
    const card = $("submit-card");
    const holdsFiles = event => event.dataTransfer?.types.includes("Files");
    // Anywhere on the page: otherwise the browser would open a file that misses the drop zone.
    document.addEventListener("dragenter", event => { if (holdsFiles(event) && card.open) over(1); });
    document.addEventListener("dragleave", event => { if (holdsFiles(event)) over(-1); });
    document.addEventListener("dragover", event => {
        if (!holdsFiles(event)) return;
        event.preventDefault();
        if (!card.open || busy) event.dataTransfer.dropEffect = "none";
    });
    document.addEventListener("drop", event => {
        if (!holdsFiles(event)) return;
        event.preventDefault();
        depth = 0;
        over(0);
        if (busy || !card.open) return;
        if (event.dataTransfer.files.length !== 1) { say("One file at a time.", "bad"); return; }
        file.files = event.dataTransfer.files;
        chosen();
    });

    const clearError = field => {
        // The zone is the label of the focused input.
        for (const part of field === drop || field === file ? [drop, file] : [field]) {
            part.removeAttribute("aria-invalid");
            part.removeAttribute("aria-describedby");
        }
        if (field === file) field = drop;
        $(`${field.id || field.dataset.member}-error`)?.remove();
    };
    const clearErrors = () => { for (const field of form.querySelectorAll("[aria-invalid]")) clearError(field); };

    // Puts the message beside the field that it concerns; returns whether there is one.
    const showError = (pointer, text) => {
        const within = [...form.querySelectorAll("[data-pointer]")].filter(field => !field.closest("[hidden]"));
        const field = within.find(field => field.dataset.pointer === pointer && field !== (file.files.length ? matrix : drop))
            ?? within.find(field => pointer && field.dataset.pointer.startsWith(`${pointer}/`));
        if (!field) return false;
        const note = document.createElement("span");
        note.className = "field-error";
        note.id = `${field.id || field.dataset.member}-error`;
        note.textContent = text;
        for (const part of field === drop ? [drop, file] : [field]) {
            part.setAttribute("aria-invalid", "true");
            part.setAttribute("aria-describedby", note.id);
        }
        (field === drop ? drop : field.closest(".field") ?? field.parentElement).append(note);
        field.closest("details:not([open])")?.setAttribute("open", "");
        (field === drop ? file : field).focus();
        return true;
    };
    form.addEventListener("input", event => clearError(event.target));

    // --- the two requests

    // A refusal, in the server's words.
    class Refused extends Error {
        constructor(status, body) {
            let problem = {};
            try { problem = JSON.parse(body) ?? {}; } catch { /* a proxy may return an HTML page */ }
            let text = problem.detail || problem.title || `The server answered ${status}.`;
            if (problem.line !== undefined && !/\bline\b/.test(text)) text += ` (line ${problem.line})`;
            super(text);
            this.status = status;
            this.pointer = problem.pointer;
        }
    }

    // As the command line names matrices: without the endings of the formats.
    const endings = JSON.parse(form.dataset.endings);
    const fileName = name => {
        let plain = name;
        for (const ending of endings) {
            if (plain.endsWith(ending)) plain = plain.slice(0, -ending.length);
        }
        return [...(plain || name).replace(/[\u0000-\u001f\u007f-\u009f]/g, " ")].slice(0, Number(form.dataset.longestName)).join("");
    };

    // fetch does not report upload progress.
    const send = picked => new Promise((resolve, reject) => {
        upload = new XMLHttpRequest();
        upload.open("POST", `/v1/matrices?name=${encodeURIComponent(fileName(picked.name))}`);
        upload.setRequestHeader("Content-Type", "application/octet-stream");
        upload.upload.addEventListener("progress", event => {
            progress.max = event.total || 1;
            progress.value = event.loaded;
            say(`Uploading: ${size(event.loaded)} of ${size(event.total)}`);
        });
        upload.upload.addEventListener("load", () => {
            progress.removeAttribute("value");
            say("The server is reading the matrix.");
        });
        upload.addEventListener("load", () => {
            const good = upload.status === 200 || upload.status === 201;
            if (good) resolve(JSON.parse(upload.responseText));
            else reject(new Refused(upload.status, upload.responseText));
        });
        upload.addEventListener("error", () => reject(new Error("The upload was interrupted. The server may be unreachable, or may have refused the file before it had received all of it.")));
        upload.addEventListener("abort", () => reject(new DOMException("The upload was stopped.", "AbortError")));
        upload.send(picked);
    });
    abort.addEventListener("click", () => upload?.abort());

    const digestOf = async picked => {
        if (sent?.file === picked) return sent.digest;
        progress.hidden = abort.hidden = false;
        try {
            const { digest } = await send(picked);
            sent = { file: picked, digest };
            return digest;
        } catch (error) {
            // Every refusal at this point concerns the file.
            if (error instanceof Refused && error.status !== 401 && error.status < 500) error.pointer = "/matrix";
            throw error;
        } finally {
            upload = null;
            progress.hidden = abort.hidden = true;
        }
    };

    // The matrix that a digest, its first digits, a name or a part of one means.
    const digestFor = async text => {
        if (/^[0-9a-f]{64}$/i.test(text)) return text.toLowerCase();
        const response = await fetch(`/v1/matrices?limit=20&q=${encodeURIComponent(text)}`);
        const body = await response.text();
        if (!response.ok) throw new Refused(response.status, body);
        const found = JSON.parse(body).items;
        const called = found.filter(one => one.name?.toLowerCase() === text.toLowerCase());
        const one = called.length === 1 ? called[0] : !called.length && found.length === 1 ? found[0] : undefined;
        if (one) return one.digest;
        const told = found.slice(0, 6).map(each => `${each.name ?? "unnamed"} (${each.digest.slice(0, 10)})`).join(", ");
        const refused = new Refused(0, JSON.stringify({ detail: found.length
            ? `Several stored matrices match: ${told}${found.length > 6 ? " and more" : ""}. Write more of one's name, or the first digits of its digest.`
            : "No stored matrix has a name with this in it, or a digest that starts so." }));
        refused.pointer = "/matrix";
        throw refused;
    };

    const valueOf = field => {
        if (field.type === "checkbox") return field.checked ? true : undefined;
        if (field.value.trim() === "") return undefined;
        return field.type === "number" ? Number(field.value) : field.value;
    };

    const request = digest => {
        const body = { matrix: digest, problem: { op: op.value }, search: {} };
        for (const field of form.querySelectorAll("[data-member]")) {
            const value = field.disabled || field.closest("[hidden]") ? undefined : valueOf(field);
            if (value === undefined) continue;
            const [name, member] = field.dataset.member.split(".");
            if (member) body[name][member] = value; else body[name] = value;
        }
        return JSON.stringify(body);
    };

    // randomUUID is available only with https and on localhost.
    const freshKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, "0")).join("");

    const submit = async body => {
        if (attempt?.body !== body) attempt = { body, key: freshKey() };
        const response = await fetch("/v1/jobs", {
            method: "POST", body,
            headers: { "Content-Type": "application/json", "Idempotency-Key": attempt.key },
        });
        const text = await response.text();
        if (response.status < 500) attempt = null;
        if (!response.ok) throw new Refused(response.status, text);
        return JSON.parse(text).id;
    };

    // --- one attempt

    const invalid = () => {
        for (const field of form.querySelectorAll("[data-member]")) {
            if (field.closest("[hidden]") || field.validity.valid) continue;
            showError(field.dataset.pointer, field.validationMessage);
            return true;
        }
        return false;
    };

    const explain = error => {
        if (error.status === 401) {
            say("You are signed out. ", "bad");
            const link = document.createElement("a");
            link.href = "/login?next=/jobs";
            link.textContent = "Sign in again";
            message.append(link);
        } else if (error.name === "AbortError") {
            say(error.message);
        } else if (error instanceof TypeError) {
            say("The server does not respond. Submitting again will not create a second job.", "bad");
        } else if (error instanceof Refused && error.pointer && showError(error.pointer, error.message)) {
            say(error.pointer === "/matrix" && file.files.length ? "The matrix was refused." : "One field needs a different value.", "bad");
        } else {
            say(error.message, "bad");
        }
    };

    form.addEventListener("submit", async event => {
        event.preventDefault();
        if (busy) return;
        clearErrors();
        say("");
        const picked = file.files[0];
        const named = matrix.value.trim();
        if (!picked && !named) {
            matrix.focus();
            say("Choose a file, or a matrix that is stored already.", "bad");
            return;
        }
        if (invalid()) return;
        busy = go.disabled = true;
        try {
            const id = await submit(request(picked ? await digestOf(picked) : await digestFor(named)));
            say("Submitted.");
            location.assign(`/jobs/${encodeURIComponent(id)}`);
        } catch (error) {
            explain(error);
        } finally {
            busy = go.disabled = false;
        }
    });

    // A page restored from the browser's cache keeps its selections.
    switchFields();
    switchStrategy();
    if (file.files.length) chosen();
    // A link from another page may name the matrix, and with it the problem and the device. Because a link may come from
    // anywhere, it sets only values that could be chosen here, and no collapsed field: the user sees everything before it is
    // sent.
    const linkable = /^(problem\..+|device)$/;
    const fill = (field, value) => {
        if (field.type === "checkbox") field.checked = value === "true";
        else if (field.type === "number") { if (/^[0-9]{1,10}$/.test(value)) field.value = value; }
        else if ([...field.options].some(option => option.value === value)) field.value = value;
    };
    const linked = new URLSearchParams(location.hash.slice(1));
    const named = linked.get("submit");
    if (named !== null) {
        $("submit-card").open = true;
        if (/^[0-9a-f]{64}$/.test(named)) matrix.value = named;
        if (linked.has("problem.op")) { fill(op, linked.get("problem.op")); switchFields(); switchStrategy(); }
        for (const field of form.querySelectorAll("[data-member]")) {
            const value = linked.get(field.dataset.member);
            if (value === null || !linkable.test(field.dataset.member) || field.closest("[hidden]")) continue;
            fill(field, value);
            delete field.dataset.wanted;
        }
        const asked = linked.get("device");
        if (asked !== null && device.value !== asked) {
            say(`The link names the device ${asked.slice(0, 100)}, which is not known here: the job would go to ${device.value}.`, "bad");
        }
        restrict();
    }
})();
