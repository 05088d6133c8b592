// A plan's page: highlights the kernel's text when it has been loaded.
(() => {
    "use strict";

    document.addEventListener("htmx:after:swap", () => {
        const code = document.querySelector("#source-code");
        if (!code || code.dataset.coloured) return;
        code.dataset.coloured = "yes";
        // The text is already readable; colours may appear a moment later.
        setTimeout(() => window.Prism?.highlightElement(code), 0);
    });
})();
