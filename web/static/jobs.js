// The list of jobs: ages, filters that apply at once, word of a server that has gone.
(() => {
    "use strict";

    // The units of the server's own figures (format.rs).
    const length = seconds =>
        seconds < 120 ? `${Math.floor(seconds)} s`
        : seconds < 7200 ? `${Math.round(seconds / 60)} min`
        : seconds < 172800 ? `${Math.round(seconds / 3600)} h`
        : `${Math.round(seconds / 86400)} d`;

    // The server writes moments, so that a list that stays is the same bytes; ages are told here.
    const tellAges = () => {
        for (const time of document.querySelectorAll("time[data-age], time[data-elapsed]")) {
            const seconds = Math.max(0, (Date.now() - Date.parse(time.dateTime)) / 1000);
            const text = "elapsed" in time.dataset ? length(seconds) : seconds < 1 ? "now" : `${length(seconds)} ago`;
            if (time.textContent !== text) time.textContent = text;
            time.title ||= new Date(time.dateTime).toLocaleString();
        }
    };
    const tellOrigin = () => {
        for (const place of document.querySelectorAll("[data-origin]")) place.textContent = location.origin;
    };

    const live = document.getElementById("jobs-live");
    const stale = document.getElementById("stale");
    // htmx keeps no tags. With this one the server answers 304 to most questions, and nothing of the page is touched.
    let tag = null;
    live.addEventListener("htmx:config:request", event => {
        if (tag) event.detail.ctx.request.headers["If-None-Match"] = tag;
    });
    live.addEventListener("htmx:after:request", event => {
        const { status, headers } = event.detail.ctx.response;
        stale.hidden = status < 400;
        if (status === 200) tag = headers.get("etag");
    });
    live.addEventListener("htmx:error", () => {
        stale.hidden = false;
        tag = null;
    });
    live.addEventListener("htmx:after:swap", () => { tellAges(); tellOrigin(); });

    const filters = document.getElementById("filters");
    filters.addEventListener("change", event => {
        if (event.target.matches("select")) filters.requestSubmit();
    });
    // An address without what was left open is one that can be read.
    filters.addEventListener("formdata", event => {
        for (const [name, value] of [...event.formData]) if (!value.trim()) event.formData.delete(name);
    });

    tellAges();
    tellOrigin();
    setInterval(() => { if (!document.hidden) tellAges(); }, 1000);
})();
