// What a page is measured by; run inside it. Each gives a list of sentences, empty where all is well.
({
    // Nothing may push the page wider than the window; says who does.
    overflow() {
        const wide = document.documentElement.scrollWidth;
        if (wide <= innerWidth) return [];
        const guilty = [...document.body.querySelectorAll("*")].filter(element =>
            element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".scroll, pre, svg, nav"));
        return [`the page is ${wide} px wide in a window of ${innerWidth}: ${guilty.slice(0, 4).map(e => e.tagName + "." + e.className + "#" + e.id).join(", ")}`];
    },

    // WCAG 2: 4.5, or 3 for large text. What lies under a letter is asked of the layout, so that pictures count as well;
    // the window must be as tall as the page for that.
    contrast() {
        const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
        const known = new Map();
        const rgba = text => {
            if (!known.has(text)) {
                canvas.clearRect(0, 0, 1, 1);
                canvas.fillStyle = "rgba(0,0,0,0)";
                canvas.fillStyle = text;
                canvas.fillRect(0, 0, 1, 1);
                const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
                known.set(text, [r, g, b, a / 255]);
            }
            return known.get(text);
        };
        const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
        const luminance = colour => {
            const [r, g, b] = colour.map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const opacity = element => {
            let all = 1;
            for (let e = element; e; e = e.parentElement) all *= Number(getComputedStyle(e).opacity);
            return all;
        };
        const shape = element => element instanceof SVGElement && !element.matches("svg, g, text, tspan");
        const paint = element => {
            const style = getComputedStyle(element);
            if (element instanceof SVGElement && !element.matches("svg")) {
                if (!shape(element) || style.fill === "none" || style.fill.startsWith("url")) return [0, 0, 0, 0];
                const [r, g, b, a] = rgba(style.fill);
                return [r, g, b, a * Number(style.fillOpacity) * opacity(element)];
            }
            return rgba(style.backgroundColor);
        };
        const surface = (element, x, y) => {
            const stack = document.elementsFromPoint(x, y);
            const at = stack.indexOf(element);
            const layers = at >= 0 ? stack.slice(at) : [];
            if (at < 0) for (let e = element; e; e = e.parentElement) layers.push(e);
            return layers.reverse().reduce((under, layer) => over(paint(layer), under), [255, 255, 255]);
        };
        const found = new Map();
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        for (let node = walker.nextNode(); node; node = walker.nextNode()) {
            const element = node.parentElement;
            if (!node.data.trim() || element.closest(".sr-only, .skip, script, style, noscript, title, desc, :disabled, option")) continue;
            if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
            const range = document.createRange();
            range.selectNodeContents(node);
            const box = range.getClientRects()[0];
            if (!box || box.width < 2 || box.right < 0 || box.left > innerWidth) continue;
            const style = getComputedStyle(element);
            const svg = element instanceof SVGElement;
            const ink = rgba(svg ? style.fill : style.color);
            const under = surface(element, box.left + box.width / 2, box.top + box.height / 2);
            const ink_over = over([ink[0], ink[1], ink[2], ink[3] * opacity(element)], under);
            const [light, dark] = [luminance(ink_over), luminance(under)].sort((a, b) => b - a);
            const ratio = (light + 0.05) / (dark + 0.05);
            const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
            const needed = size >= 24 || bold && size >= 18.66 ? 3 : 4.5;
            if (ratio < needed - 0.005) {
                const text = `${ratio.toFixed(2)} of ${needed}: "${node.data.trim().slice(0, 40)}" in ${element.tagName.toLowerCase()}.${element.getAttribute("class") ?? ""}, ${ink_over.map(Math.round)} on ${under.map(Math.round)}`;
                found.set(`${element.tagName}${element.getAttribute("class")}${ratio.toFixed(2)}`, text);
            }
        }
        return [...found.values()];
    },

    // Bytes that a browser with nothing in its cache takes over the wire.
    weight: () => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .reduce((sum, entry) => sum + entry.transferSize, 0),
})
