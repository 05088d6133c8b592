// What tables and pictures offer beside themselves: sorting by a column, with the order in the address; rows to compare side by side;
// files to take away (CSV of a table, PNG of a picture); the title of a picture's part at the cursor.
(() => {
    "use strict";

    // --- sorting: <table data-sort-as="name">, <th data-sort>, and <td data-value> where the text is not what is compared

    // Behind the #, which is the page's own: the server orders nothing by it.
    const ordered = () => new URLSearchParams(location.hash.slice(1));
    const orderOf = table => {
        const [column, way] = (ordered().get(`sort-${table.dataset.sortAs}`) ?? "").split(".");
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
        if (at < 0) return;
        const body = table.tBodies[0], rows = [...body.rows];
        const sorted = rows.map((row, place) => ({ row, place, value: valueOf(row, at) })).sort((a, b) => {
            const by = compare(a.value, b.value);
            const turned = falling && a.value !== "" && b.value !== "" ? -by : by;
            return turned || a.place - b.place;
        });
        // Nothing is moved that is in its place: a moved element loses the focus.
        if (sorted.some(({ place }, n) => place !== n)) body.append(...sorted.map(({ row }) => row));
    };
    const sortAll = () => { for (const table of document.querySelectorAll("table[data-sort-as]")) sort(table); };
    document.addEventListener("click", event => {
        const head = event.target.closest("th[data-sort] > button.sort")?.parentElement;
        if (!head) return;
        const table = head.closest("table"), { column, falling } = orderOf(table);
        const orders = ordered(), name = `sort-${table.dataset.sortAs}`, by = head.dataset.sort;
        // Up, down, and as it was.
        if (column !== by) orders.set(name, by);
        else if (!falling) orders.set(name, `${by}.down`);
        else orders.delete(name);
        history.replaceState(null, "", `${location.pathname}${location.search}#${orders}`);
        if (orders.has(name)) sortAll();
        else location.reload();
    });
    addEventListener("hashchange", () => sortAll());

    // --- rows to compare: <input type="checkbox" data-compare="jobs" value="...">, <a data-compare-go="jobs">

    const MOST = 6;
    const chosen = new Map();
    const offer = () => {
        for (const box of document.querySelectorAll("[data-compare]")) box.checked = chosen.get(box.dataset.compare)?.has(box.value) ?? false;
        for (const link of document.querySelectorAll("[data-compare-go]")) {
            const what = link.dataset.compareGo, values = [...chosen.get(what) ?? []];
            link.hidden = values.length < 2;
            link.textContent = `Compare ${values.length} ${what}`;
            link.href = `/compare?${what}=${values.map(encodeURIComponent).join(",")}`;
        }
    };
    document.addEventListener("change", event => {
        const box = event.target.closest?.("[data-compare]");
        if (!box) return;
        const values = chosen.get(box.dataset.compare) ?? new Set();
        if (box.checked && values.size < MOST) values.add(box.value); else values.delete(box.value);
        chosen.set(box.dataset.compare, values);
        offer();
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
            for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "font-weight", "text-anchor"]) to.setAttribute(name, style.getPropertyValue(name));
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
        const chart = place.querySelector("canvas"), svg = place.querySelector("svg");
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
        const from = document.querySelector(button.dataset.csvOf ?? button.dataset.pngOf);
        const name = (button.dataset.name ?? "sparsetune").replace(/[^\w.-]+/g, "-").slice(0, 100);
        if (!from || button.dataset.pngOf && !from.querySelector("canvas, svg")) return;
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
    const again = () => { sortAll(); offer(); };
    document.addEventListener("htmx:after:swap", again);
    again();
})();
