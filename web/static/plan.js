// A plan's page: colours in the kernel's text once it is there, and commands with the address this page came from.
(() => {
    "use strict";

    // Behind a proxy the server knows neither the scheme nor the name that the browser used.
    for (const origin of document.querySelectorAll("[data-origin]")) origin.textContent = location.origin;

    document.addEventListener("htmx:after:swap", () => {
        const code = document.querySelector("#source-code");
        if (!code || code.dataset.coloured) return;
        code.dataset.coloured = "yes";
        // The text is readable already; colours may come a moment later.
        setTimeout(() => window.Prism?.highlightElement(code), 0);
    });
})();
