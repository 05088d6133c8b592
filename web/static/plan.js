// A plan's page: colours in the kernel's text once it is there.
(() => {
    "use strict";

    document.addEventListener("htmx:after:swap", () => {
        const code = document.querySelector("#source-code");
        if (!code || code.dataset.coloured) return;
        code.dataset.coloured = "yes";
        // The text is readable already; colours may come a moment later.
        setTimeout(() => window.Prism?.highlightElement(code), 0);
    });
})();
