// The API page: RapiDoc in the colours of the style sheet, light or dark. RapiDoc cannot follow them by itself.
(() => {
    "use strict";

    const colours = { "bg-color": "--card", "text-color": "--text", "primary-color": "--accent" };

    // A variable that contains light-dark() is resolved only where it is used, so a hidden element uses it.
    const probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
    const hex = name => {
        probe.style.color = `var(${name})`;
        const parts = getComputedStyle(probe).color.match(/\d+/g).slice(0, 3);
        return `#${parts.map(part => Number(part).toString(16).padStart(2, "0")).join("")}`;
    };

    const paint = () => {
        const doc = document.querySelector("rapi-doc");
        const chosen = document.documentElement.dataset.theme;
        const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
        doc.setAttribute("theme", dark ? "dark" : "light");
        for (const [attribute, name] of Object.entries(colours)) doc.setAttribute(attribute, hex(name));
    };

    document.addEventListener("themechange", paint);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
    paint();
})();
