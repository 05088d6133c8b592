// Runs before the first paint, so that the chosen theme appears at once: light, dark, or, if nothing is stored, the
// system's.
(() => {
    const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
    if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
