// Runs before the first paint, so that the chosen theme does not flash: light, dark, or (nothing stored) the system's.
(() => {
    const stored = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
    if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
