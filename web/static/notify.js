// Notifications of the browser when jobs and trainings end. Only secure pages may show any; whoever wants none is never asked.
//
// <button data-notify="Notify me at the end">, and <... data-watch="id" data-state="running" data-says="title" data-told="more"> for what
// is watched: a row of the list, a training, whose state the server renews; a job's page tells of its end itself.
(() => {
    "use strict";

    const possible = "Notification" in window && isSecureContext;
    const wanted = () => { try { return localStorage.getItem("notify") === "yes"; } catch { return false; } };
    const on = () => possible && wanted() && Notification.permission === "granted";

    const offer = () => {
        for (const button of document.querySelectorAll("[data-notify]")) {
            button.hidden = !possible || Notification.permission === "denied";
            button.setAttribute("aria-pressed", String(on()));
            const text = on() ? "You are notified" : button.dataset.notify;
            if (button.textContent !== text) button.textContent = text;
        }
    };
    document.addEventListener("click", async event => {
        const button = event.target.closest("[data-notify]");
        if (!button) return;
        const granted = on() || await Notification.requestPermission() === "granted";
        try { localStorage.setItem("notify", !on() && granted ? "yes" : "no"); } catch { /* private windows keep nothing */ }
        offer();
    });
    window.notifyEnd = (title, text, address) => {
        if (!on() || !document.hidden && document.hasFocus()) return;
        const told = new Notification(title, { body: text, tag: address });
        told.addEventListener("click", () => {
            focus();
            if (location.pathname !== address) location.assign(address);
            told.close();
        });
    };

    // What was under way when it was last seen, by its id.
    const live = new Map();
    const isLive = state => state === "queued" || state === "running";
    const end = (id, title, state, text) => {
        live.delete(id);
        window.notifyEnd(`${title}: ${state}`, text, `/jobs/${encodeURIComponent(id)}`);
    };
    const look = () => {
        const shown = new Set();
        for (const { dataset: { watch, state, says, told } } of document.querySelectorAll("[data-watch]")) {
            shown.add(watch);
            if (isLive(state)) live.set(watch, says);
            else if (live.has(watch)) end(watch, says, state, told ?? "");
        }
        // What newer ones have pushed off the page is asked for by itself.
        for (const [id, title] of live) if (!shown.has(id)) ask(id, title);
    };
    const asking = new Set();
    const ask = async (id, title) => {
        if (!on() || asking.has(id)) return;
        asking.add(id);
        try {
            const response = await fetch(`/v1/jobs/${encodeURIComponent(id)}`);
            if (response.ok) {
                const { state } = await response.json();
                if (!isLive(state)) end(id, title, state, "");
            }
        } catch { /* asked again */ } finally {
            asking.delete(id);
        }
    };
    document.addEventListener("htmx:after:swap", () => { look(); offer(); });
    // Lists are not renewed while nobody sees them, unless somebody waits to be told.
    setInterval(() => {
        if (!document.hidden || !on() || live.size === 0) return;
        for (const part of document.querySelectorAll("[data-refresh]:has([data-watch])")) window.htmx?.trigger(part, "refresh");
    }, 5000);
    look();
    offer();
})();
