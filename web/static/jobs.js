// The list of jobs: filters that apply at once, word of a server that has gone.
(() => {
    "use strict";

    const live = document.getElementById("jobs-live");
    const stale = document.getElementById("stale");
    live.addEventListener("htmx:after:request", event => {
        stale.hidden = event.detail.ctx.response.status < 400;
    });
    live.addEventListener("htmx:error", () => { stale.hidden = false; });

    const filters = document.getElementById("filters");
    filters.addEventListener("change", event => {
        if (event.target.matches("select")) filters.requestSubmit();
    });
    // An address without what was left open is one that can be read.
    filters.addEventListener("formdata", event => {
        for (const [name, value] of [...event.formData]) if (!value.trim()) event.formData.delete(name);
    });
})();
