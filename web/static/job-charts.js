// The two charts of a job's page, drawn by uPlot: best so far over trials, and measured against predicted. Colours are
// those of the style sheet, so both themes work; what a point is stands in a line below, for mouse and keyboard alike.
(() => {
    "use strict";

    const HEIGHT = 260;
    const HINT = "Point at a trial, or use the arrow keys, to see which it is.";

    // Three digits and a unit, as format.rs writes them.
    function digits(value) {
        if (!Number.isFinite(value)) return "–";
        const size = value === 0 ? 0 : Math.floor(Math.log10(Math.abs(value)));
        return value.toFixed(Math.min(Math.max(2 - size, 0), 9));
    }
    function micros(us) {
        if (us < 1e3) return `${digits(us)} µs`;
        return us < 1e6 ? `${digits(us / 1e3)} ms` : `${digits(us / 1e6)} s`;
    }
    // On an axis: no more digits than the number has.
    function tick(us) {
        const [value, unit] = us < 1e3 ? [us, "µs"] : us < 1e6 ? [us / 1e3, "ms"] : [us / 1e6, "s"];
        return `${Number(value.toPrecision(3))} ${unit}`;
    }

    const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

    // light-dark(a, b) is not resolved in a custom property; a probe element computes it.
    function palette() {
        const probe = document.createElement("span");
        document.body.append(probe);
        const read = name => { probe.style.color = colour(name); return getComputedStyle(probe).color; };
        const colours = Object.fromEntries(["accent", "warn", "good", "soft", "grid", "line", "text"].map(name => [name, read(`--${name}`)]));
        probe.remove();
        return colours;
    }

    // Round values, as many as a range has room for; even steps where it is too short for that.
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

    function around(values, low, high) {
        if (values.length === 0) return [1, 100];
        return [Math.min(...values) * low, Math.max(...values) * high];
    }

    // A logarithmic axis of times.
    const times = (colours, side, label) => ({
        side, label, labelSize: 18, labelFont: "11px system-ui, sans-serif", font: "11px system-ui, sans-serif",
        size: side === 3 ? 58 : 34, stroke: colours.soft, gap: 4,
        grid: { stroke: colours.grid, width: 1 }, ticks: { show: false },
        splits: (u, axis, low, high) => splits(low, high),
        filter: (u, found) => found,
        values: (u, found) => found.map(tick),
        space: side === 3 ? 24 : 60,
    });

    const named = trial => `${trial.family} ${trial.params}`.trim();

    // What both charts share: size, colours, readout, keys. `spec` says what is drawn.
    class Chart {
        constructor(id, spec) {
            this.spec = spec;
            this.readout = document.getElementById(`${id}-readout`);
            this.summary = document.getElementById(`${id}-summary`);
            this.host = document.getElementById(id);
            this.points = [];
            this.at = -1;
            new ResizeObserver(() => this.fit()).observe(this.host);
            this.host.addEventListener("keydown", event => this.key(event));
            this.host.addEventListener("blur", () => this.pick(-1));
        }

        set(trials) {
            const drawn = this.spec.data(trials);
            this.points = drawn.points;
            if (this.at >= this.points.length) this.at = -1;
            this.summary.textContent = drawn.summary;
            if (this.at < 0) this.readout.textContent = this.points.length > 0 ? HINT : "";
            this.ranges = drawn.ranges;
            this.data = drawn.data;
            if (this.plot && drawn.points.length > 0) this.plot.setData(drawn.data);
            else this.draw();
        }

        draw() {
            const width = this.host.clientWidth;
            if (!this.data || width === 0) return;
            this.plot?.destroy();
            this.plot = undefined;
            // Axes without a point would be of made-up ranges; the style sheet says that there is nothing.
            if (this.points.length === 0) return;
            const colours = palette();
            this.plot = new uPlot({
                width, height: HEIGHT,
                legend: { show: false },
                padding: [8, 20, 0, 0],
                cursor: { x: false, y: false, drag: { x: false, y: false }, points: { show: false } },
                ...this.spec.options(colours, this),
                hooks: { draw: [u => this.mark(u, colours)], ready: [u => this.follow(u)], drawAxes: [u => this.spec.behind?.(u, colours)] },
            }, this.data, this.host);
        }

        fit() {
            const width = this.host.clientWidth;
            if (!this.plot) this.draw();
            else if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
        }

        // The ring around the point that the line below tells of.
        mark(u, colours) {
            const point = this.points[this.at];
            if (!point) return;
            const ratio = devicePixelRatio;
            u.ctx.save();
            u.ctx.beginPath();
            u.ctx.arc(u.valToPos(point.x, "x", true), u.valToPos(point.y, "y", true), 6 * ratio, 0, 2 * Math.PI);
            u.ctx.lineWidth = 2 * ratio;
            u.ctx.strokeStyle = colours.text;
            u.ctx.stroke();
            u.ctx.restore();
        }

        follow(u) {
            u.over.addEventListener("mousemove", event => this.pick(this.nearest(u, event.offsetX, event.offsetY)));
            u.over.addEventListener("mouseleave", () => this.pick(-1));
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

    function progressData(trials) {
        const vendor = least(measuredOf(trials).filter(trial => trial.vendor));
        let best;
        const points = [], bests = [], each = [];
        trials.forEach((trial, n) => {
            if (trial.median > 0 && (!best || trial.median < best.median)) best = trial;
            bests.push(best?.median ?? null);
            each.push(trial.median ?? null);
            const came = trial.median > 0 ? micros(trial.median) : trial.state.replace("_", " ");
            const y = trial.median ?? best?.median;
            if (y) points.push({ x: n + 1, y, text: `Trial ${n + 1}: ${named(trial)}, ${came}; best so far ${micros(best.median)}` });
        });
        const level = vendor?.median;
        const known = [...measuredOf(trials).map(trial => trial.median)];
        const gain = level && best ? `, ${digits(level / best.median)}× the vendor's speed (${micros(level)})` : "";
        const summary = best
            ? `${known.length} of ${trials.length} trials measured; fastest ${named(best)}: ${micros(best.median)}${gain}.`
            : trials.length ? "No trial has come to a time." : "No trial yet.";
        const data = [trials.map((_, n) => n + 1), each, bests, trials.map(() => level ?? null)];
        return { data, points, summary, ranges: { y: around(known, 0.85, 1.15), x: [0.5, Math.max(trials.length, 1) + 0.5] } };
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
            }, times(colours, 3)],
            series: [
                {},
                scatterPoint(colours, "accent", 4),
                { stroke: colours.accent, width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, spanGaps: true },
                { stroke: colours.warn, width: 1.5, dash: [6, 4], points: { show: false } },
            ],
        };
    }

    function agreementData(trials) {
        const measured = measuredOf(trials);
        const both = measured.filter(trial => trial.predicted > 0).sort((a, b) => a.predicted - b.predicted);
        const without = measured.filter(trial => !(trial.predicted > 0));
        const [low, high] = around(both.map(trial => trial.predicted), 0.8, 1.25);
        // What has no prediction stands at the left edge, off the scale.
        const edge = low / (high / low) ** 0.06;
        const x = [edge / (high / low) ** 0.04, high];
        const text = trial => `${named(trial)}: measured ${micros(trial.median)}${trial.predicted > 0 ? `, predicted ${micros(trial.predicted)}` : ", not predicted"}`;
        const at = (trial, place) => ({ x: place, y: trial.median, text: text(trial) });
        const points = [...without.map(trial => at(trial, edge)), ...both.map(trial => at(trial, trial.predicted))];
        const logs = both.map(trial => Math.log(trial.median / trial.predicted));
        const ratio = Math.exp(logs.reduce((sum, value) => sum + value, 0) / (logs.length || 1));
        const off = ratio >= 1 ? `${digits(ratio)}× slower than predicted` : `${digits(1 / ratio)}× faster than predicted`;
        const summary = both.length
            ? `${both.length} predicted and measured, in the geometric mean ${off}; ${without.length} without a prediction.`
            : "No trial has both a prediction and a time.";
        const data = [
            [...without.map(() => edge), ...both.map(trial => trial.predicted)],
            [...without.map(() => null), ...both.map(trial => trial.median)],
            [...without.map(trial => trial.median), ...both.map(() => null)],
        ];
        return { data, points, summary, ranges: { x, y: around(measured.map(trial => trial.median), 0.85, 1.2) } };
    }

    function agreementOptions(colours, chart) {
        return {
            scales: { x: { time: false, distr: 3, range: () => chart.ranges.x }, y: { distr: 3, range: () => chart.ranges.y } },
            axes: [times(colours, 2, "predicted"), times(colours, 3)],
            series: [{}, scatterPoint(colours, "accent", 6), scatterPoint(colours, "warn", 6)],
        };
    }

    // The diagonal, where measured is what was predicted.
    function diagonal(u, colours) {
        const low = Math.max(u.scales.x.min, u.scales.y.min), high = Math.min(u.scales.x.max, u.scales.y.max);
        if (!(high > low)) return;
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
        return { set: trials => charts.forEach(chart => chart.set(trials)) };
    }

    window.jobCharts = { create, micros, digits };
})();
