// The two charts of a job's page, drawn by uPlot: best time so far over trials, and measured against predicted time. The
// colours come from the style sheet, so both themes work. A line below describes the selected point, for mouse and keyboard.
(() => {
    "use strict";

    const HEIGHT = 260;
    const HINT = "Point at a trial or use the arrow keys to see its details.";

    // Three digits and a unit, as in format.rs.
    function digits(value) {
        if (!Number.isFinite(value)) return "–";
        const size = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(value)));
        return value.toFixed(Math.min(Math.max(2 - size, 0), 9));
    }
    function micros(us) {
        if (us < 1e3) return `${digits(us)} µs`;
        return us < 1e6 ? `${digits(us / 1e3)} ms` : `${digits(us / 1e6)} s`;
    }
    // On an axis: no more digits than necessary.
    function tick(us) {
        const [value, unit] = us < 1e3 ? [us, "µs"] : us < 1e6 ? [us / 1e3, "ms"] : [us / 1e6, "s"];
        return `${Number(value.toPrecision(6))} ${unit}`;
    }

    const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

    // light-dark(a, b) is not resolved in a custom property; a probe element computes it.
    function palette() {
        const probe = document.createElement("span");
        document.body.append(probe);
        const read = name => { probe.style.color = colour(name); return getComputedStyle(probe).color; };
        const colours = Object.fromEntries(["accent", "warn", "good", "bad", "soft", "grid", "line", "text"].map(name => [name, read(`--${name}`)]));
        probe.remove();
        return colours;
    }

    // Round values, as many as the range has room for; evenly spaced if it is too small for round values.
    function splits(low, high) {
        const found = [];
        if (high / low < 2.5) {
            const rough = (high - low) / 4;
            const power = 10 ** Math.floor(Math.log10(rough));
            const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= rough);
            for (let n = Math.ceil(low / step); n * step <= high; n += 1) found.push(n * step);
            return found;
        }
        const factors = high / low < 12 ? [1, 1.5, 2, 3, 5, 7] : high / low < 300 ? [1, 2, 5] : [1];
        for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
            for (const factor of factors) {
                const value = factor * 10 ** power;
                if (value >= low && value <= high) found.push(value);
            }
        }
        return found;
    }

    // The range of these values; `known` is false if there are none, and then the axis has no ticks.
    function around(values, low, high) {
        if (values.length === 0) return { low: 1, high: 10, known: false };
        return { low: Math.min(...values) * low, high: Math.max(...values) * high, known: true };
    }
    // A value this fraction beyond the end of a logarithmic axis.
    const beyond = ({ low, high }, share) => share < 0 ? low * (high / low) ** share : high * (high / low) ** share;

    // Trials without a time: counted by kind, in the colours of the trials table.
    const failedOf = trials => trials.filter(trial => !(trial.median > 0));
    function kinds(trials) {
        const counts = new Map();
        for (const { state } of failedOf(trials)) counts.set(state, (counts.get(state) ?? 0) + 1);
        return [...counts];
    }
    const counted = trials => kinds(trials).map(([state, count]) => `, ${count} ${state}`).join("");
    const reason = trial => trial.why ? `${trial.state}: ${trial.why}` : trial.state;

    // A logarithmic time axis, with ticks where `room` has values.
    const times = (colours, side, label, room) => ({
        side, label, labelSize: 18, labelFont: "11px system-ui, sans-serif", font: "11px system-ui, sans-serif",
        size: side === 3 ? 52 : 34, stroke: colours.soft, gap: 4,
        grid: { stroke: colours.grid, width: 1 }, ticks: { show: false },
        splits: () => room().known ? splits(room().low, room().high) : [],
        filter: (u, found) => found,
        values: (u, found) => found.map(tick),
        space: side === 3 ? 24 : 60,
    });

    const named = trial => `${trial.family} ${trial.params}`.trim();

    // Common to both charts: size, colours, readout, keys. `spec` defines what is drawn.
    class Chart {
        constructor(id, spec) {
            this.spec = spec;
            this.readout = document.getElementById(`${id}-readout`);
            this.summary = document.getElementById(`${id}-summary`);
            this.host = document.getElementById(id);
            this.failed = document.getElementById(`${id}-failed`);
            this.points = [];
            this.at = -1;
            new ResizeObserver(() => this.fit()).observe(this.host);
            this.host.addEventListener("keydown", event => this.key(event));
            this.host.addEventListener("blur", () => this.pick(-1));
        }

        set(trials, told) {
            const drawn = this.spec.data(trials, told);
            this.host.dataset.empty = told.ended ? "Nothing was measured" : "No trial yet";
            this.tones = told.tones;
            this.tellFailed(trials);
            this.points = drawn.points;
            if (this.at >= this.points.length) this.at = -1;
            this.summary.textContent = drawn.summary;
            if (this.at < 0) this.readout.textContent = this.points.length > 0 ? HINT : "";
            this.ranges = drawn.ranges;
            this.data = drawn.data;
            if (this.plot && drawn.points.length > 0) this.plot.setData(drawn.data);
            else this.draw();
        }

        // The colour of a kind of failure: that of its badge, but the soft colour if that is idle.
        colourOf(state) {
            const tone = this.tones[state] ?? "bad";
            return tone === "idle" ? "soft" : tone;
        }

        // A legend entry for each kind of failure.
        tellFailed(trials) {
            const text = JSON.stringify(kinds(trials));
            if (this.told === text) return;
            this.told = text;
            this.failed.replaceChildren(...kinds(trials).map(([state, count]) => {
                const entry = document.createElement("span"), cross = document.createElement("i");
                cross.className = `cross ${this.colourOf(state)}`;
                cross.textContent = "×";
                entry.append(cross, `${count} ${state}`);
                return entry;
            }));
        }

        draw() {
            const width = this.host.clientWidth;
            if (!this.data || width === 0) return;
            this.plot?.destroy();
            this.plot = undefined;
            // Without points the axes would have arbitrary ranges; the style sheet shows a message instead.
            if (this.points.length === 0) return;
            const colours = palette();
            this.plot = new uPlot({
                width, height: HEIGHT,
                legend: { show: false },
                padding: [12, 20, 0, 0],
                cursor: { x: false, y: false, drag: { x: false, y: false }, points: { show: false } },
                ...this.spec.options(colours, this),
                hooks: { draw: [u => this.mark(u, colours)], ready: [u => this.follow(u)], drawAxes: [u => this.spec.behind?.(u, colours, this.ranges)] },
            }, this.data, this.host);
        }

        fit() {
            const width = this.host.clientWidth;
            if (!this.plot) this.draw();
            else if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
        }

        // Drawn in addition to the series: a cross for each failure, a ring around the winner, and a ring around the point
        // that the line below describes.
        mark(u, colours) {
            const { ctx } = u, ratio = devicePixelRatio;
            const place = point => [u.valToPos(point.x, "x", true), u.valToPos(point.y, "y", true)];
            const ring = (point, radius, stroke) => {
                ctx.beginPath();
                ctx.arc(...place(point), radius * ratio, 0, 2 * Math.PI);
                ctx.strokeStyle = stroke;
                ctx.stroke();
            };
            ctx.save();
            // The last series may have used a dashed line.
            ctx.setLineDash([]);
            ctx.lineWidth = 2 * ratio;
            for (const point of this.points) {
                if (point.won) ring(point, 5, colours.good);
                if (!point.failed) continue;
                const [x, y] = place(point), arm = 3.5 * ratio;
                ctx.beginPath();
                ctx.moveTo(x - arm, y - arm);
                ctx.lineTo(x + arm, y + arm);
                ctx.moveTo(x - arm, y + arm);
                ctx.lineTo(x + arm, y - arm);
                ctx.strokeStyle = colours[this.colourOf(point.failed)];
                ctx.stroke();
            }
            const point = this.points[this.at];
            if (point) ring(point, 8, colours.text);
            ctx.restore();
        }

        follow(u) {
            u.over.addEventListener("mousemove", event => {
                this.pick(this.nearest(u, event.offsetX, event.offsetY));
                // The same words at the cursor: the line below may be far from it.
                window.showTip?.(this.points[this.at]?.text, event.clientX, event.clientY);
            });
            u.over.addEventListener("mouseleave", () => { this.pick(-1); window.showTip?.(); });
        }

        nearest(u, left, top) {
            let found = -1, least = 30 * 30;
            this.points.forEach((point, n) => {
                const across = u.valToPos(point.x, "x") - left, down = u.valToPos(point.y, "y") - top;
                const distance = across * across + down * down;
                if (distance < least) [found, least] = [n, distance];
            });
            return found;
        }

        key(event) {
            const last = this.points.length - 1;
            const next = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: last, Escape: -1 }[event.key];
            if (next === undefined || last < 0) return;
            event.preventDefault();
            this.pick(event.key === "Escape" ? -1 : Math.min(Math.max(next, 0), last));
        }

        pick(n) {
            if (n === this.at) return;
            this.at = n;
            this.readout.textContent = this.points[n]?.text ?? HINT;
            this.plot?.redraw(false, false);
        }
    }

    const measuredOf = trials => trials.filter(trial => trial.median > 0);
    const least = list => list.reduce((best, trial) => best && best.median <= trial.median ? best : trial, undefined);

    // What speed-ups are over: the fastest routine of the baseline, and its name.
    function baselineOf(trials) {
        const trial = least(measuredOf(trials).filter(one => one.baseline));
        return { trial, name: trial?.family ?? "the baseline" };
    }

    function progressData(trials, { ended, winner }) {
        const known = measuredOf(trials);
        const { trial: baseline, name } = baselineOf(trials);
        const room = around(known.map(trial => trial.median), 0.85, 1.15);
        // Failures are drawn at the top, above all times.
        const top = failedOf(trials).length ? beyond(room, 0.14) : room.high, edge = beyond(room, 0.08);
        let best;
        const points = [], bests = [], each = [];
        trials.forEach((trial, n) => {
            const measured = trial.median > 0, won = trial.ordinal === winner;
            if (measured && (!best || trial.median < best.median)) best = trial;
            bests.push(best?.median ?? null);
            each.push(measured ? trial.median : null);
            const so = best ? `; best so far ${micros(best.median)}` : "";
            const text = `Trial ${n + 1}: ${named(trial)}, ${measured ? micros(trial.median) : reason(trial)}${won ? ", the winner" : ""}${so}`;
            points.push({ x: n + 1, y: measured ? trial.median : edge, text, won, failed: measured ? "" : trial.state });
        });
        const level = baseline?.median;
        const gain = level && best !== baseline ? `, ${digits(level / best.median)}× over ${name} (${micros(level)})` : "";
        // The same words as in job/summaries.rs.
        const fastest = best ? `; fastest ${named(best)}: ${micros(best.median)}${gain}` : "";
        const summary = trials.length
            ? `${known.length} of ${trials.length} trials measured${counted(trials)}${fastest}.`
            : ended ? "No trial was made." : "No trial yet.";
        const data = [trials.map((_, n) => n + 1), each, bests, trials.map(() => level ?? null)];
        return { data, points, summary, ranges: { y: [room.low, top], x: [0.5, Math.max(trials.length, 1) + 0.5], times: room } };
    }

    const scatterPoint = (colours, colourName, size) => ({
        stroke: colours[colourName], paths: () => null,
        points: { show: true, size, width: 1, stroke: colours[colourName], fill: colours[colourName].replace("rgb(", "rgba(").replace(")", ", .45)") },
    });

    function progressOptions(colours, chart) {
        return {
            scales: {
                x: { time: false, range: () => chart.ranges.x },
                y: { distr: 3, range: () => chart.ranges.y },
            },
            axes: [{
                label: "trial", labelSize: 18, size: 34, gap: 4, stroke: colours.soft, font: "11px system-ui, sans-serif", labelFont: "11px system-ui, sans-serif",
                grid: { show: false }, ticks: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500],
            }, times(colours, 3, "time of a call, measured", () => chart.ranges.times)],
            series: [
                {},
                scatterPoint(colours, "accent", 4),
                { stroke: colours.accent, width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, spanGaps: true },
                { stroke: colours.warn, width: 1.5, dash: [6, 4], points: { show: false } },
            ],
        };
    }

    function agreementData(trials, { ended, winner }) {
        const measured = measuredOf(trials), failed = failedOf(trials);
        const predicted = trial => trial.predicted > 0;
        const both = measured.filter(predicted), without = measured.filter(trial => !predicted(trial));
        // The same range on both axes, so that the diagonal has its true slope.
        const all = [...trials.filter(predicted).map(trial => trial.predicted), ...measured.map(trial => trial.median)];
        const room = around(all, 0.85, 1.18);
        // Points without a prediction are drawn at the left edge, points without a time at the top edge, outside the scales.
        const left = beyond(room, -0.05), top = beyond(room, 0.06);
        const text = trial => `${named(trial)}: ${trial.median > 0 ? `measured ${micros(trial.median)}` : reason(trial)}${predicted(trial) ? `, predicted ${micros(trial.predicted)}` : ", not predicted"}${trial.ordinal === winner ? "; the winner" : ""}`;
        const points = trials.map(trial => ({
            x: predicted(trial) ? trial.predicted : left, y: trial.median > 0 ? trial.median : top, text: text(trial),
            won: trial.ordinal === winner, failed: trial.median > 0 ? "" : trial.state, predicted: predicted(trial),
        })).sort((a, b) => a.x - b.x || a.y - b.y);
        const logs = both.map(trial => Math.log(trial.median / trial.predicted));
        const ratio = Math.exp(logs.reduce((sum, value) => sum + value, 0) / (logs.length || 1));
        const off = ratio >= 1 ? `${digits(ratio)}× slower than predicted` : `${digits(1 / ratio)}× faster than predicted`;
        // The same words as in job/summaries.rs.
        const summary = both.length
            ? `${both.length} predicted and measured, in the geometric mean ${off}; ${without.length} without a prediction.`
            : trials.length ? "No trial has both a prediction and a time." : ended ? "No trial was made." : "No trial yet.";
        const column = wanted => points.map(point => !point.failed && wanted(point) ? point.y : null);
        const data = [points.map(point => point.x), column(point => point.predicted), column(point => !point.predicted)];
        const anyPredicted = trials.some(predicted);
        return { data, points, summary, ranges: {
            x: [without.length || failed.length ? beyond(room, -0.1) : room.low, room.high],
            y: [room.low, failed.length ? beyond(room, 0.12) : room.high],
            predicted: { ...room, known: anyPredicted }, measured: { ...room, known: measured.length > 0 },
        } };
    }

    function agreementOptions(colours, chart) {
        return {
            scales: { x: { time: false, distr: 3, range: () => chart.ranges.x }, y: { distr: 3, range: () => chart.ranges.y } },
            axes: [
                times(colours, 2, "time of a call, predicted", () => chart.ranges.predicted),
                times(colours, 3, "time of a call, measured", () => chart.ranges.measured),
            ],
            series: [{}, scatterPoint(colours, "accent", 6), scatterPoint(colours, "warn", 6)],
        };
    }

    // The diagonal, where measured and predicted times are equal.
    function diagonal(u, colours, { predicted, measured }) {
        const { low, high } = predicted;
        if (!predicted.known || !measured.known) return;
        const { ctx } = u;
        ctx.save();
        ctx.beginPath();
        ctx.moveTo(u.valToPos(low, "x", true), u.valToPos(low, "y", true));
        ctx.lineTo(u.valToPos(high, "x", true), u.valToPos(high, "y", true));
        ctx.strokeStyle = colours.soft;
        ctx.lineWidth = devicePixelRatio;
        ctx.stroke();
        ctx.restore();
    }

    function create() {
        const charts = [
            new Chart("best-chart", { data: progressData, options: progressOptions }),
            new Chart("trials-chart", { data: agreementData, options: agreementOptions, behind: diagonal }),
        ];
        const again = () => charts.forEach(chart => chart.draw());
        document.addEventListener("themechange", again);
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
        return {
            set(trials, told) {
                charts.forEach(chart => chart.set(trials, told));
                this.baseline = baselineOf(trials).name;
                const legend = document.getElementById("baseline-name");
                if (legend && legend.textContent !== this.baseline) legend.textContent = this.baseline;
            },
            // What speed-ups are over, in words.
            baseline: "the baseline",
        };
    }

    window.jobCharts = { create, micros, digits };
})();
