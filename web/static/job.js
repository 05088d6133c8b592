// A job's page while the job runs. Events of /v1/jobs/ID/events, received by the extension hx-sse, update badge, progress,
// best, charts and log; funnel, tile space and table are rendered by the server and requested again. Events and trials are
// numbered, so duplicates (after a reconnect, or because they were already on the page) are ignored.
(() => {
    "use strict";

    const job = document.getElementById("job");
    if (!job) return;
    const byId = id => document.getElementById(id);
    const { micros, digits } = window.jobCharts;
    const charts = window.jobCharts.create();
    const address = location.pathname;

    const trials = new Map();
    let budget, words, winner, lastSeq = Number(job.dataset.lastSeq);
    const sorted = () => [...trials.values()].sort((a, b) => a.ordinal - b.ordinal);
    const final = state => Boolean(words.states[state]?.final);

    function readIsland() {
        const data = JSON.parse(byId("trials").textContent);
        budget = data.seconds;
        words = data.words;
        const told = data.trials, baselines = new Set(data.baseline);
        told.ordinal.forEach((ordinal, n) => {
            const { family, names } = data.shapes[told.shape[n]];
            const values = told.values[n];
            trials.set(ordinal, {
                ordinal, family, state: data.states[told.state[n]], predicted: told.predicted[n], median: told.median[n],
                params: names.map((name, at) => `${name}=${values[at]}`).join(" "), at: data.from + told.at[n],
                baseline: baselines.has(ordinal), why: data.why[ordinal],
            });
        });
        winner = data.winner;
        for (const entry of job.querySelectorAll(".legend .won")) entry.hidden = winner === undefined;
        draw();
    }
    const draw = () => charts.set(sorted(), { ended: final(byId("job").dataset.state), winner, tones: words.tones });

    // Writes only changes, so that nothing is read aloud twice.
    const say = (id, text) => {
        const element = byId(id);
        if (element && element.textContent !== text) element.textContent = text;
    };
    // Of a library's routine the library, as on the server's pages.
    const familyOf = ({ family, params }) => words.libraries[params.algorithm] ?? family;
    const params = candidate => Object.entries(candidate.params).map(([name, value]) => `${name}=${value}`).join(" ");

    function tellCount() {
        say("count", now.total > 0 ? `${now.done} of ${now.total} trials` : "");
        if (now.total > 0) byId("progress").setAttribute("aria-valuetext", `${now.done} of ${now.total} trials`);
    }

    const shown = byId("progress").dataset;
    let now = { state: job.dataset.state, stage: shown.stage ?? "", done: Number(shown.done), total: Number(shown.total) };

    // The stage under way: how long it takes, and since when it lasts by this page's clock. Of a page that was loaded in between, by the
    // server's.
    let outlook;
    const expect = (began, seconds, late) => { outlook = { began, seconds, since: performance.now() - late }; };
    if (shown.outlook) {
        const [began, seconds] = shown.outlook.split(" ");
        expect(began, Number(seconds), Math.max(0, Date.now() - Date.parse(began)));
    }
    const inStage = () => outlook ? (performance.now() - outlook.since) / 1000 : 0;

    // The share of all work that is done, as in domain/job.rs: loading is the first tenth of the bar, the finals are the last.
    function share() {
        const within = outlook ? Math.min(inStage() / outlook.seconds, .95) : 0;
        if (now.stage === "loading") return .1 * within;
        if (now.stage === "pruning") return .1;
        if (now.stage === "finals") return .9 + .1 * within;
        if (now.stage !== "measuring") return final(now.state) ? 1 : 0;
        const spent = budget && since !== undefined ? elapsed() / budget : 0;
        return .1 + .8 * Math.min(Math.max(now.done / Math.max(now.total, 1), spent), 1);
    }
    // A bar does not go back, though an estimate may.
    function moveBar() {
        if (now.state !== "running") return;
        const bar = byId("progress"), value = Math.floor(1000 * share());
        if (value > bar.value) bar.value = value;
    }

    function tellJob(told) {
        const stageChanged = told.stage !== now.stage || told.state !== now.state;
        now = { state: told.state, stage: told.stage, done: told.progress.done, total: told.progress.total, started: told.started_at };
        byId("job").dataset.state = told.state;
        const badge = byId("state");
        const known = words.states[told.state];
        badge.className = `badge ${known?.tone ?? "idle"}`;
        say("state", told.state);
        say("stage", known?.stage ?? words.stages[told.stage] ?? told.stage);
        if (!told.outlook) outlook = undefined;
        else if (outlook?.began !== told.outlook.began) expect(told.outlook.began, told.outlook.seconds, 0);
        tellCount();
        if (told.best) {
            say("best-time", micros(told.best.median_us));
            const name = charts.baseline;
            say("best-speedup", told.best.candidate.role === "baseline" ? `the baseline itself, ${name}` : told.best.speedup ? `${digits(told.best.speedup)}× over ${name}` : "");
            const family = document.createElement("b");
            family.textContent = familyOf(told.best.candidate);
            byId("best-candidate").replaceChildren(family, ` ${params(told.best.candidate)}`);
        }
        if (told.started_at && since === undefined) startClock(0);
        moveBar();
        estimate();
        if (final(told.state)) end();
        else if (stageChanged) refresh();
    }

    function tellTrial(told) {
        const ordinal = Number(told.id.split("/").pop());
        if (trials.has(ordinal)) return;
        const family = familyOf(told.candidate);
        trials.set(ordinal, {
            ordinal, state: told.counted_as.replaceAll("_", " "), why: told.detail?.slice(0, 160), predicted: told.predicted_us, median: told.median_us, family,
            params: params(told.candidate), at: Date.parse(told.created_at),
            baseline: told.baseline,
        });
        drawSoon();
        refresh();
    }

    let drawing = false;
    function drawSoon() {
        if (drawing) return;
        drawing = true;
        setTimeout(() => { drawing = false; draw(); }, 200);
    }

    function tellLog(text, at) {
        const log = byId("log");
        const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
        const line = document.createElement("li");
        const time = document.createElement("time");
        time.dateTime = time.title = at;
        time.textContent = at.slice(11, 19);
        line.append(time, ` ${text}`);
        byId("log-lines").append(line);
        if (follows) log.scrollTop = log.scrollHeight;
    }

    const lasts = seconds => seconds < 1 ? "less than 1 s" : seconds < 120 ? `about ${Math.ceil(seconds)} s` : `about ${Math.round(seconds / 60)} min`;

    // The remaining time: of loading and the finals by what was expected, else at the pace of the last trials, but no more than is left
    // of the budget, which covers all.
    function estimate() {
        if (final(now.state)) return;
        if (now.state === "queued") return say("estimate", "starts when its device is free");
        const rest = budget && since !== undefined ? Math.max(budget - elapsed(), 0) : undefined;
        const over = rest === 0 ? "; the budget is spent, and what is under way is finished" : "";
        if (outlook) {
            const left = outlook.seconds - inStage();
            const what = now.stage === "finals" ? "to the end" : "of loading";
            const then = now.stage === "loading" && rest !== undefined && !over ? `, then at most ${lasts(Math.max(rest - Math.max(left, 0), 0)).replace("about ", "")}` : "";
            return say("estimate", left > 0 ? `${lasts(left)} ${what}${then}${over}` : `longer than the ${lasts(outlook.seconds).replace("about ", "")} that were expected${over}`);
        }
        const all = sorted(), last = all.slice(-12);
        const spent = last.length > 3 ? last.at(-1).at - last[0].at : 0;
        if (over) return say("estimate", over.slice(2));
        if (spent <= 0 || now.total <= now.done) return say("estimate", rest === undefined ? "estimating" : `at most ${lasts(rest).replace("about ", "")} left`);
        let left = spent / (last.length - 1) * (now.total - now.done) / 1000;
        if (rest !== undefined) left = Math.min(left, rest);
        const words = lasts(left);
        say("estimate", `${words} left`);
        tellEstimate(`${words} left`);
    }

    // Announced only occasionally: the estimate itself changes every second.
    let toldAt = 0;
    function tellEstimate(text) {
        if (toldAt && performance.now() - toldAt < 20000) return;
        toldAt = performance.now();
        say("estimate-told", `${now.done} of ${now.total} trials, ${text}`);
    }

    // Continues the elapsed time that the server sent, because the clocks of the two machines may differ.
    let since;
    const elapsed = () => (performance.now() - since) / 1000;
    function startClock(seconds) { since = performance.now() - seconds * 1000; }
    setInterval(() => {
        if (now.state !== "running" || since === undefined) return;
        const seconds = elapsed();
        say("elapsed", `running for ${seconds < 120 ? `${Math.floor(seconds)} s` : `${Math.round(seconds / 60)} min`}`);
        estimate();
        moveBar();
    }, 1000);

    // Refreshes funnel, tile space and table, at most once a second; a change in between causes one more request.
    let waiting = false;
    function refresh() {
        if (waiting || ended) return;
        waiting = true;
        setTimeout(() => {
            waiting = false;
            // Not while the user is choosing a family, because the response would close the list.
            if (document.activeElement?.id === "map-family") return refresh();
            // htmx may not have been loaded yet.
            if (!ended) window.htmx?.trigger(byId("standing"), "refresh");
        }, 1000);
    }

    // At the end, the server's page of the ended job, without the listening element, replaces this one.
    let ended = false;
    // A disabled button loses the focus, and so does a removed element; `within` tells whether the focus was last within the
    // job.
    let within = false;
    document.addEventListener("focusin", event => { within = byId("job").contains(event.target); });
    document.addEventListener("pointerdown", event => { within = byId("job").contains(event.target) && Boolean(event.target.closest("a, button, select, [tabindex]")); });
    async function end() {
        if (ended) return;
        ended = true;
        say("connection", "");
        window.notifyEnd?.(`${byId("matrix-link")?.textContent ?? "A job"}: ${now.state}`, [byId("best-time")?.textContent, byId("best-speedup")?.textContent].filter(Boolean).join(", "), address);
        // Without htmx the page cannot be replaced in place.
        if (!window.htmx) return location.reload();
        for (;;) {
            try {
                await htmx.ajax("GET", address + location.search, { target: "#job", swap: "outerMorph", select: "#job" });
            } catch { /* retried below */ }
            if (!byId("live")) break;
            await new Promise(resolve => setTimeout(resolve, 2000));
        }
        readIsland();
        // The focused element (the cancel button) was removed: the focus moves to the top of the job.
        if (within && document.activeElement === document.body) byId("job-title").focus();
    }

    // The watchdog: while there is no stream for any reason, the job itself is polled.
    async function poll() {
        try {
            const response = await fetch(`/v1/jobs/${encodeURIComponent(job.dataset.id)}`);
            if (response.ok && !ended) { tellJob(await response.json()); refresh(); }
        } catch { /* retried */ }
    }

    // The stream: `held` while the extension keeps it open, until it gives up or the element is removed.
    function listen(live) {
        let held = false, asked = Date.now(), lost = Date.now(), polled = 0;
        const connect = () => { asked = Date.now(); window.htmx?.trigger(live, "connect"); };
        const take = (name, tell) => live.addEventListener(name, event => {
            const data = JSON.parse(event.detail.data);
            if (data.seq <= lastSeq) return;
            lastSeq = data.seq;
            tell(data);
        });
        take("job", data => tellJob(data.job));
        take("trial", data => tellTrial(data.trial));
        take("log", data => tellLog(data.message, data.at));
        take("funnel", () => refresh());
        live.addEventListener("htmx:sse:before:connection", event => {
            // Nothing follows the final event; another connection would be answered with 204 forever.
            if (ended) event.preventDefault();
        });
        live.addEventListener("htmx:sse:after:connection", event => {
            held = true;
            lost = 0;
            say("connection", "");
            // Requests that could not be made in the meantime.
            refresh();
            if (event.detail.connection.status === 204) end();
        });
        const cut = () => {
            lost ||= Date.now();
            if (!ended) say("connection", "reconnecting…");
        };
        live.addEventListener("htmx:sse:error", cut);
        live.addEventListener("htmx:sse:close", () => { held = false; lost ||= Date.now(); });
        live.addEventListener("htmx:error", cut);
        const watch = setInterval(() => {
            if (ended || !live.isConnected) return clearInterval(watch);
            const time = Date.now();
            if (!held && time - asked > 4000) connect();
            // By then two attempts have failed.
            if (lost && time - lost > 8000 && time - polled > 2500) {
                polled = time;
                say("connection", "reconnecting…");
                poll();
            }
        }, 1000);
        // Before htmx has processed the element, nothing would listen.
        if (window.htmx) connect();
        else document.addEventListener("htmx:after:process", connect, { once: true });
    }

    // A server with a failure answers with an error page; the current content stays, and is requested again.
    document.addEventListener("htmx:before:swap", event => {
        if (event.detail.ctx.response?.status >= 400) event.preventDefault();
    });

    readIsland();
    const counted = byId("elapsed").dataset.seconds;
    if (counted !== undefined) startClock(Number(counted));
    estimate();
    byId("log").scrollTop = byId("log").scrollHeight;
    const live = byId("live");
    if (live) listen(live);
})();
