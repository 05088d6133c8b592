// The list of jobs: filters that apply immediately, and a message if the server does not respond.
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
    // Omits empty parameters, so that the address is readable.
    filters.addEventListener("formdata", event => {
        for (const [name, value] of [...event.formData]) if (!value.trim()) event.formData.delete(name);
    });
})();
