// Common to all pages: theme, copy buttons, live fragments, ages, the address of this server. No framework except htmx, and
// no inline scripts, so that the content security policy can forbid them.
(() => {
    "use strict";

    const dark = () => document.documentElement.dataset.theme
        ? document.documentElement.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;

    document.addEventListener("click", event => {
        const toggle = event.target.closest("[data-theme-toggle]");
        if (!toggle) return;
        const next = dark() ? "light" : "dark";
        document.documentElement.dataset.theme = next;
        try { localStorage.setItem("theme", next); } catch { /* private windows keep nothing */ }
        // Charts drawn on a canvas read their colours from the style sheet once, so they have to be redrawn.
        document.dispatchEvent(new CustomEvent("themechange"));
    });

    // <button data-copy="text">, <button data-copy-from="#id">, or <button data-copy-address>: the address of the page, with its filters,
    // its order and what is chosen.
    const textOf = ({ copy, copyFrom }) => {
        if (copyFrom) return document.querySelector(copyFrom)?.textContent.trim() ?? "";
        return copy ?? location.href;
    };
    document.addEventListener("click", async event => {
        const button = event.target.closest("[data-copy], [data-copy-from], [data-copy-address]");
        if (!button) return;
        let done = "Copied";
        try { await navigator.clipboard.writeText(textOf(button.dataset)); } catch { done = "Not allowed"; }
        const before = button.textContent;
        button.textContent = done;
        setTimeout(() => { button.textContent = before; }, 1200);
    });

    // <div data-refresh="2" hx-get="..." hx-trigger="refresh">: refreshed at this interval in seconds while the page is
    // visible and no field in it has the focus; every data-hurry seconds while it contains an element with that attribute.
    // Uses its own timer, because htmx filters would need eval.
    setInterval(() => {
        // On a slow connection the timer may fire before htmx, which loads after this file, is there.
        if (document.hidden || !window.htmx) return;
        const now = Date.now();
        for (const live of document.querySelectorAll("[data-refresh]")) {
            const every = live.querySelector("[data-hurry]")?.dataset.hurry ?? live.dataset.refresh;
            const due = Number(live.dataset.refreshed ?? 0) + 1000 * Number(every);
            if (now < due || live.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) continue;
            live.dataset.refreshed = now;
            htmx.trigger(live, "refresh");
        }
    }, 250);

    // htmx does not keep entity tags. With the last tag of its address, an unchanged fragment is answered with 304, and the
    // page is not modified. Another address (another family, another filter) has another tag.
    const tags = new WeakMap();
    const renewed = event => event.target.closest?.("[data-refresh], #standing");
    document.addEventListener("htmx:before:request", event => {
        const { request } = event.detail.ctx, kept = tags.get(renewed(event));
        if (kept?.address === request.action) request.headers["If-None-Match"] = kept.tag;
    });
    document.addEventListener("htmx:after:request", event => {
        const { request, response } = event.detail.ctx, live = renewed(event);
        if (!live || response.status !== 200) return;
        const tag = response.headers.get("etag");
        if (tag) tags.set(live, { address: request.action, tag }); else tags.delete(live);
    });
    // The response may not have been inserted into the page.
    document.addEventListener("htmx:error", event => { tags.delete(renewed(event)); });

    // The same units as in the server's figures (format.rs).
    const length = seconds =>
        seconds < 120 ? `${Math.floor(seconds)} s`
        : seconds < 7200 ? `${Math.round(seconds / 60)} min`
        : seconds < 172800 ? `${Math.round(seconds / 3600)} h`
        : `${Math.round(seconds / 86400)} d`;

    // <time datetime="..." data-age> (or data-elapsed): the server writes absolute times, so that an unchanged fragment has
    // the same bytes; the ages are computed here.
    const tellAges = () => {
        for (const time of document.querySelectorAll("time[data-age], time[data-elapsed]")) {
            const seconds = Math.max(0, (Date.now() - Date.parse(time.dateTime)) / 1000);
            const text = "elapsed" in time.dataset ? length(seconds) : seconds < 1 ? "now" : `${length(seconds)} ago`;
            if (time.textContent !== text) time.textContent = text;
            time.title ||= new Date(time.dateTime).toLocaleString();
        }
    };
    // <span data-origin>, in commands: behind a proxy the server may know neither the scheme nor the host name of the
    // address.
    const tellOrigin = () => {
        for (const place of document.querySelectorAll("[data-origin]")) place.textContent = location.origin;
    };
    const tell = () => { tellAges(); tellOrigin(); };
    document.addEventListener("htmx:after:swap", tell);
    setInterval(() => { if (!document.hidden) tellAges(); }, 1000);
    tell();

    // <button data-cancel="job id">: asks for confirmation, and cancels on a second click within four seconds. A refresh in
    // between does not change the button.
    const disarm = button => {
        clearTimeout(Number(button.dataset.armed));
        delete button.dataset.armed;
        button.removeAttribute("hx-morph-skip");
        button.disabled = false;
        button.textContent = "Cancel";
    };
    const cancel = async button => {
        clearTimeout(Number(button.dataset.armed));
        button.textContent = "Cancelling…";
        button.disabled = true;
        try {
            const response = await fetch(`/v1/jobs/${encodeURIComponent(button.dataset.cancel)}`, { method: "DELETE" });
            if (!response.ok) throw new Error(response.status === 401 ? "Signed out" : "Not cancelled");
            const live = button.closest("[data-refresh]");
            if (live) htmx.trigger(live, "refresh");
            // A running job ends when its worker next checks; the button is removed when the job's state changes.
            setTimeout(disarm, 15000, button);
        } catch (error) {
            button.textContent = error instanceof TypeError ? "No response" : error.message;
            setTimeout(disarm, 3000, button);
        }
    };
    document.addEventListener("click", event => {
        const button = event.target.closest("button[data-cancel]");
        if (!button || button.disabled) return;
        if (button.dataset.armed) { cancel(button); return; }
        button.textContent = "Really cancel?";
        button.setAttribute("hx-morph-skip", "");
        button.dataset.armed = setTimeout(disarm, 4000, button);
    });

    // Boxes that scroll horizontally can be focused and scrolled with the keyboard; boxes that fit are not tab stops.
    const reach = () => {
        const names = new Set();
        for (const box of document.querySelectorAll(".scroll")) {
            let name = box.querySelector("caption")?.textContent ?? box.getAttribute("aria-label");
            // Tables of several parts of a page may have one caption: their parts tell them apart.
            if (names.has(name)) name = `${name}: ${box.closest("article, section")?.querySelector("h2, h3")?.textContent ?? names.size}`;
            names.add(name);
            if (box.scrollWidth > box.clientWidth) {
                box.tabIndex = 0;
                box.setAttribute("role", "region");
                if (name) box.setAttribute("aria-label", name);
            } else if (box.querySelector("table")) {
                for (const attribute of ["tabindex", "role", "aria-label"]) box.removeAttribute(attribute);
            }
        }
    };
    // The script is deferred, so the body exists. Swapped content may be new without changing the size.
    new ResizeObserver(reach).observe(document.body);
    document.addEventListener("htmx:after:swap", reach);
})();
