// What tables and pictures offer beside themselves: sorting by a column, and rows to compare side by side, both kept in the address; files
// to take away (CSV of a table, PNG of a picture); the title of a picture's part at the cursor.
(() => {
    "use strict";

    // --- sorting: <table data-sort-as="name">, <th data-sort>, and <td data-value> where the text is not what is compared

    // Behind the #, which is the page's own: the server orders nothing by it.
    const kept = () => new URLSearchParams(location.hash.slice(1));
    const hashOf = all => all.size ? `#${String(all).replaceAll("%2C", ",")}` : "";
    const keep = all => {
        history.replaceState(null, "", `${location.pathname}${location.search}${hashOf(all)}`);
        pass();
    };
    // <... data-keep>: links and forms that lead to other rows of the same list take order and choice along; <... data-keep="pick">: those that
    // lead to another order of the server's the choice alone.
    const pass = () => {
        const all = [...kept()];
        for (const part of document.querySelectorAll("[data-keep]")) {
            const own = part.dataset.keep === "pick" ? /^pick-/ : /^(sort|pick)-/;
            const hash = hashOf(new URLSearchParams(all.filter(([name]) => own.test(name))));
            if (part.matches("form")) part.action = `${part.getAttribute("action").split("#")[0]}${hash}`;
            for (const link of part.querySelectorAll("a[href]")) link.hash = hash;
        }
    };
    const orderOf = table => {
        const [column, way] = (kept().get(`sort-${table.dataset.sortAs}`) ?? "").split(".");
        return { column, falling: way === "down" };
    };
    const valueOf = (row, at) => {
        const cell = row.cells[at];
        const text = cell?.dataset.value ?? cell?.textContent.trim() ?? "";
        const number = text === "" ? NaN : Number(text);
        return Number.isNaN(number) ? text.toLowerCase() : number;
    };
    // What is absent comes last in either direction.
    const compare = (a, b) =>
        a === "" || b === "" ? (a === "") - (b === "")
        : typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0)
        : typeof a === "number" ? -1 : 1;

    const sort = table => {
        const heads = [...table.tHead.rows[0].cells], { column, falling } = orderOf(table);
        for (const head of heads) {
            if (head.dataset.sort === undefined) continue;
            if (!head.querySelector("button.sort")) {
                const button = document.createElement("button");
                button.type = "button";
                button.className = "sort";
                button.append(...head.childNodes);
                head.append(button);
            }
            if (head.dataset.sort === column) head.setAttribute("aria-sort", falling ? "descending" : "ascending");
            else head.removeAttribute("aria-sort");
        }
        const at = heads.findIndex(head => head.dataset.sort === column && column);
        // <th data-order>: the order of the server, which is told while no other is on top of it.
        for (const head of heads.filter(head => head.dataset.order)) {
            if (at < 0) head.setAttribute("aria-sort", head.dataset.order);
            else head.removeAttribute("aria-sort");
        }
        const body = table.tBodies[0], rows = [...body.rows];
        // The order of the server, to go back to: rows that came with another answer have none yet.
        if (rows.some(row => row.dataset.place === undefined)) rows.forEach((row, place) => { row.dataset.place = place; });
        for (const note of document.querySelectorAll(`[data-sorted="${table.dataset.sortAs}"]`)) note.hidden = at < 0;
        const sorted = rows.map((row, place) => ({ row, place, value: at < 0 ? Number(row.dataset.place) : valueOf(row, at) })).sort((a, b) => {
            const by = compare(a.value, b.value);
            const turned = falling && a.value !== "" && b.value !== "" ? -by : by;
            return turned || a.place - b.place;
        });
        // Nothing is moved that is in its place: a moved element loses the focus.
        if (sorted.some(({ place }, n) => place !== n)) body.append(...sorted.map(({ row }) => row));
    };
    // An order of a link from before the server sorted by that column: the address says nothing that does not hold.
    const forget = () => {
        const all = kept();
        for (const table of document.querySelectorAll("table[data-sort-as]")) {
            const { column } = orderOf(table);
            if (![...table.tHead.rows[0].cells].some(head => head.dataset.sort === column)) all.delete(`sort-${table.dataset.sortAs}`);
        }
        if (all.size < kept().size) keep(all);
    };
    const sortAll = () => { for (const table of document.querySelectorAll("table[data-sort-as]")) sort(table); };
    document.addEventListener("click", event => {
        const head = event.target.closest("th[data-sort] > button.sort")?.parentElement;
        if (!head) return;
        const table = head.closest("table"), { column, falling } = orderOf(table);
        const all = kept(), name = `sort-${table.dataset.sortAs}`, by = head.dataset.sort;
        // Up, down, and as the server has it.
        if (column !== by) all.set(name, by);
        else if (!falling) all.set(name, `${by}.down`);
        else all.delete(name);
        keep(all);
        sortAll();
    });
    addEventListener("hashchange", () => { forget(); sortAll(); offer(); });

    // --- rows to compare: <input type="checkbox" data-compare="jobs" value="...">, <a data-compare-go="jobs">, <button data-compare-none="jobs">

    const MOST = 6;
    const chosen = what => (kept().get(`pick-${what}`) ?? "").split(",").filter(Boolean);
    const choose = (what, values) => {
        const all = kept();
        if (values.length) all.set(`pick-${what}`, values.join(","));
        else all.delete(`pick-${what}`);
        keep(all);
        offer();
    };
    const offer = () => {
        for (const box of document.querySelectorAll("[data-compare]")) {
            const values = chosen(box.dataset.compare);
            box.checked = values.includes(box.value);
            box.disabled = !box.checked && values.length >= MOST;
            box.title = box.disabled ? `At most ${MOST} fit beside each other` : "";
        }
        for (const link of document.querySelectorAll("[data-compare-go]")) {
            const what = link.dataset.compareGo, values = chosen(what);
            link.hidden = values.length < 2;
            link.textContent = `Compare ${values.length} ${what}`;
            link.href = `/compare?${what}=${values.map(encodeURIComponent).join(",")}`;
        }
        // What was chosen on another page of the list cannot be unticked here.
        for (const button of document.querySelectorAll("[data-compare-none]")) {
            const here = [...document.querySelectorAll("[data-compare]")].map(box => box.value);
            button.hidden = chosen(button.dataset.compareNone).every(value => here.includes(value));
        }
    };
    document.addEventListener("change", event => {
        const box = event.target.closest?.("[data-compare]");
        if (!box) return;
        const others = chosen(box.dataset.compare).filter(value => value !== box.value);
        choose(box.dataset.compare, box.checked ? [...others, box.value].slice(0, MOST) : others);
    });
    document.addEventListener("click", event => {
        const button = event.target.closest("[data-compare-none]");
        if (button) choose(button.dataset.compareNone, []);
    });

    // --- files

    const save = (blob, name) => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(blob);
        link.download = name;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    };
    const quoted = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    // A text that a spreadsheet would take for a formula is marked as a text.
    const plain = text => /^[=+@\t\r]|^-(?![0-9.])/.test(text) ? `'${text}` : text;
    const csvOf = table => [...table.rows].map(row => [...row.cells]
        .filter(cell => cell.dataset.csv !== "no")
        .map(cell => quoted(plain(cell.dataset.value ?? cell.textContent.trim().replace(/\s+/g, " "))))
        .join(",")).join("\r\n") + "\r\n";

    const SCALE = 2;
    // A picture of the server's: what the style sheet gives it is written into a copy, which is drawn.
    const drawnSvg = svg => new Promise((resolve, reject) => {
        const copy = svg.cloneNode(true), box = svg.getBoundingClientRect();
        const pairs = [[svg, copy], ...[...svg.querySelectorAll("*")].map((from, n) => [from, copy.querySelectorAll("*")[n]])];
        for (const [from, to] of pairs) {
            const style = getComputedStyle(from);
            for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "opacity", "font-size", "font-family", "font-style", "font-weight", "text-anchor"]) to.setAttribute(name, style.getPropertyValue(name));
        }
        copy.setAttribute("width", box.width);
        copy.setAttribute("height", box.height);
        copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
        const image = new Image();
        image.onload = () => resolve([image, box.width, box.height]);
        image.onerror = () => reject(new Error("the picture cannot be drawn"));
        image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    });
    const pngOf = async place => {
        const chart = place.querySelector("canvas"), svg = place.matches("svg") ? place : place.querySelector("svg");
        const [source, width, height] = chart ? [chart, chart.clientWidth, chart.clientHeight] : await drawnSvg(svg);
        const canvas = document.createElement("canvas");
        canvas.width = width * SCALE;
        canvas.height = height * SCALE;
        const context = canvas.getContext("2d");
        // A picture on nothing is not readable on everything.
        const probe = place.closest(".card") ?? document.body;
        context.fillStyle = getComputedStyle(probe).backgroundColor;
        context.fillRect(0, 0, canvas.width, canvas.height);
        context.drawImage(source, 0, 0, canvas.width, canvas.height);
        return new Promise(resolve => canvas.toBlob(resolve, "image/png"));
    };
    document.addEventListener("click", async event => {
        const button = event.target.closest("[data-csv-of], [data-png-of]");
        if (!button) return;
        // Parts of a page may be alike: what stands with the button comes first.
        const place = button.dataset.csvOf ?? button.dataset.pngOf;
        const from = button.closest("[data-files], article, section")?.querySelector(place) ?? document.querySelector(place);
        const name = (button.dataset.name ?? "sparsetune").replace(/[^\w.-]+/g, "-").slice(0, 100);
        if (!from || button.dataset.pngOf && !from.matches("svg") && !from.querySelector("canvas, svg")) return;
        if (button.dataset.csvOf) save(new Blob([csvOf(from)], { type: "text/csv;charset=utf-8" }), `${name}.csv`);
        else save(await pngOf(from), `${name}.png`);
    });

    // --- the title of a picture's part at the cursor, at once and in the page's own letters

    const tip = document.createElement("div");
    tip.className = "tip";
    tip.setAttribute("aria-hidden", "true");
    tip.hidden = true;
    document.body.append(tip);
    const showTip = (text, x, y) => {
        tip.hidden = !text;
        if (!text) return;
        tip.textContent = text;
        const { width, height } = tip.getBoundingClientRect();
        tip.style.left = `${Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - width - 4))}px`;
        tip.style.top = `${y + 18 + height > innerHeight ? y - height - 10 : y + 18}px`;
    };
    // Charts that draw themselves say what is under the cursor.
    window.showTip = showTip;
    let cursor = null;
    const tell = under => {
        if (under?.closest?.(".chart")) return;
        const part = under?.closest?.("svg :is(g, rect, circle, path):has(> title)");
        showTip(part?.querySelector(":scope > title")?.textContent, ...cursor);
    };
    document.addEventListener("pointermove", event => {
        cursor = [event.clientX, event.clientY];
        tell(event.target);
    });
    document.addEventListener("pointerleave", () => { cursor = null; showTip(); });
    // A scroll moves the picture, not the cursor: what is under it now is told, as the next move would.
    document.addEventListener("scroll", () => {
        showTip();
        if (cursor) tell(document.elementFromPoint(...cursor));
    }, { passive: true, capture: true });

    // Swapped content is as the server ordered it, with nothing chosen.
    const again = () => { forget(); sortAll(); offer(); pass(); };
    document.addEventListener("htmx:after:swap", again);
    again();
})();
