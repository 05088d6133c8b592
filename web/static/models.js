// The buttons of learned models: train, activate, roll back. Each sends the same request as any client of the API.
(() => {
    "use strict";

    const message = document.getElementById("models-message");
    const say = (text, tone = "") => {
        message.className = tone;
        message.setAttribute("role", tone === "bad" ? "alert" : "status");
        message.textContent = text;
    };

    const asked = ({ train, activate, rollBack, class: device }) => {
        if (train) return ["/v1/models/train", { op: train, device: device || "auto" }, "The training is queued."];
        if (activate) return [`/v1/models/${encodeURIComponent(activate)}/activate`, {}, "The model is in use."];
        if (rollBack) return ["/v1/models/roll-back", { op: rollBack, device }, "The last change was rolled back."];
        return null;
    };

    document.addEventListener("click", async event => {
        const button = event.target.closest("button");
        const what = button && !button.disabled && asked(button.dataset);
        if (!what) return;
        const [path, body, done] = what;
        button.disabled = true;
        try {
            const response = await fetch(path, {
                method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
            });
            if (!response.ok) {
                const problem = await response.json().catch(() => ({}));
                throw new Error(response.status === 401 ? "You are signed out." : problem.detail || `The server answered ${response.status}.`);
            }
            say(done, "");
            htmx.trigger(document.getElementById("learned-live"), "refresh");
        } catch (error) {
            say(error instanceof TypeError ? "The server does not respond." : error.message, "bad");
        } finally {
            button.disabled = false;
        }
    });
})();
