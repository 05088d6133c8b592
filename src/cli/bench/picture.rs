//! A suite as one SVG of two panels: speed-up over the baseline, and the roofline; a dot per run, coloured by class.

use super::report::place;
use super::run::Run;
use crate::charts::{Label, Scale, Tick};
use askama::Template;
use std::collections::BTreeSet;

/// Pixels of the drawing, which is 960 wide and 900 high. The legend begins right of the panels.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 810.0;
const SPEEDUPS: [f64; 2] = [48.0, 400.0];
const ROOFLINE: [f64; 2] = [478.0, 850.0];
/// Distinguishable with colour blindness (Okabe and Ito); repeated if there are more classes.
const COLOURS: [&str; 7] =
    ["#d55e00", "#0072b2", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#555555"];

/// The whole picture: a file of its own, with no script and nothing to fetch.
#[derive(Template)]
#[template(path = "pictures/suite.svg")]
struct Suite<'a> {
    panels: [Panel; 2],
    legend: Vec<Entry<'a>>,
}

struct Panel {
    heading: &'static str,
    top: f64,
    bottom: f64,
    /// Labelled grid lines across and down.
    rows: Vec<Label>,
    columns: Vec<Label>,
    lines: Vec<Line>,
    dots: Vec<Dot>,
}

/// A line from the panel's left edge to its right edge, with a text at its right end.
struct Line {
    class: &'static str,
    from: f64,
    to: f64,
    text: String,
}

/// One run; its title appears under the pointer.
struct Dot {
    x: f64,
    y: f64,
    colour: &'static str,
    title: String,
}

/// A class and its colour.
struct Entry<'a> {
    class: &'a str,
    colour: &'static str,
    y: f64,
}

/// Both panels. Runs without a time are in neither, those without a baseline only in the second.
pub fn draw(runs: &[Run]) -> Result<String, askama::Error> {
    let shown = runs.iter().filter(|run| run.figures.is_some());
    // In the order of the tables.
    let classes: BTreeSet<(usize, &str)> = shown.map(|run| place(&run.class)).collect();
    let legend: Vec<Entry> = classes
        .into_iter()
        .enumerate()
        .map(|(at, (_, class))| Entry {
            class,
            colour: COLOURS[at % COLOURS.len()],
            y: SPEEDUPS[0] + 18.0 * at as f64 + 10.0,
        })
        .collect();
    let dot = |x: f64, y: f64, run: &Run, words: &str| {
        let entry = legend.iter().find(|entry| entry.class == run.class);
        let colour = entry.map_or(COLOURS[0], |entry| entry.colour);
        Dot { x, y, colour, title: format!("{}, {}: {words}", run.matrix, run.task) }
    };
    Suite { panels: [speedups(runs, dot), roofline(runs, dot)], legend }
        .render()
        .map(|svg| svg + "\n")
}

/// Speed-up over the baseline, sorted, on a logarithmic scale.
fn speedups(runs: &[Run], dot: impl Fn(f64, f64, &Run, &str) -> Dot) -> Panel {
    let [top, bottom] = SPEEDUPS;
    let mut sorted: Vec<(f64, &Run)> = runs
        .iter()
        .filter_map(|run| Some((run.figures.as_ref()?.speedup.filter(|s| *s > 0.0)?, run)))
        .collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    // 1 is among them: the line that separates wins from losses.
    let values = sorted.iter().map(|(speedup, _)| *speedup).chain([1.0]);
    let y = Scale::enclosing(values, 2.0, bottom, top);
    let step = (RIGHT - LEFT) / sorted.len().max(1) as f64;
    let at = |place: usize| LEFT + step * (place as f64 + 0.5);
    Panel {
        heading: "Speed-up over the baseline by the clock that chose, sorted",
        top,
        bottom,
        rows: labels(y.powers(2.0), "x"),
        columns: Vec::new(),
        lines: vec![Line { class: "axis", from: y.at(1.0), to: y.at(1.0), text: String::new() }],
        dots: sorted
            .iter()
            .enumerate()
            .map(|(place, (speedup, run))| {
                dot(at(place), y.at(*speedup), run, &format!("{speedup:.2}x"))
            })
            .collect(),
    }
}

/// A run in the roofline panel.
struct Performance<'a> {
    run: &'a Run,
    /// Operations per compulsory byte.
    intensity: f64,
    gflops: f64,
    limit_fraction: f64,
}

impl<'a> Performance<'a> {
    /// `None` without a time or operations: a logarithmic axis has no zero.
    fn of(run: &'a Run) -> Option<Self> {
        let (figures, flops) = (run.figures.as_ref()?, run.flops()?);
        let intensity = flops / figures.bytes as f64;
        let gflops = flops / figures.us / 1e3;
        let limit_fraction = figures.limit_fraction;
        (flops > 0.0 && intensity.is_finite() && gflops.is_finite()).then_some(Self {
            run,
            intensity,
            gflops,
            limit_fraction,
        })
    }
}

/// The roofline (Williams, Waterman and Patterson, CACM 52(4), 2009) with the device's measured copy rate as its roof.
/// Runs that reuse data in a cache may stand above it.
fn roofline(runs: &[Run], dot: impl Fn(f64, f64, &Run, &str) -> Dot) -> Panel {
    let [top, bottom] = ROOFLINE;
    let shown: Vec<Performance> = runs.iter().filter_map(Performance::of).collect();
    let x = Scale::enclosing(shown.iter().map(|run| run.intensity), 2.0, LEFT, RIGHT);
    let mut rates: Vec<f64> =
        runs.iter().filter_map(|run| Some(run.figures.as_ref()?.copy_gbps)).collect();
    rates.retain(|rate| *rate > 0.0);
    rates.sort_by(f64::total_cmp);
    // A server measures its devices anew when it starts: rates that are the same but for noise are one roof.
    rates.dedup_by(|a, b| *a < *b * 1.02);
    let roofs = rates.iter().flat_map(|rate| x.ends().map(|intensity| rate * intensity));
    let values = shown.iter().map(|run| run.gflops).chain(roofs);
    let y = Scale::enclosing(values, 10.0, bottom, top);
    let roof = |rate: &f64| {
        let [from, to] = x.ends().map(|intensity| y.at(rate * intensity));
        Line { class: "roof", from, to, text: format!("copy {rate:.0} GB/s") }
    };
    Panel {
        heading: "Roofline: GFLOP/s by operations per compulsory byte",
        top,
        bottom,
        rows: labels(y.powers(10.0), ""),
        columns: labels(x.powers(2.0), ""),
        lines: rates.iter().map(roof).collect(),
        dots: shown
            .iter()
            .map(|shown| {
                let words = format!(
                    "{:.2} GFLOP/s at {:.2} flop/byte, {:.0} % of its bound",
                    shown.gflops,
                    shown.intensity,
                    100.0 * shown.limit_fraction
                );
                dot(x.at(shown.intensity), y.at(shown.gflops), shown.run, &words)
            })
            .collect(),
    }
}

fn labels(ticks: impl Iterator<Item = Tick>, unit: &str) -> Vec<Label> {
    ticks.map(|tick| Label { at: tick.at, text: format!("{}{unit}", tick.value) }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::run;
    use super::draw;

    #[test]
    fn each_run_is_a_dot_in_both_panels() {
        let runs = [
            run("f32", "b <c>", "m & n", Some(0.5)),
            run("f32", "a", "n", Some(3.0)),
            run("f32", "a", "failed", None),
        ];
        let svg = draw(&runs).unwrap();
        assert_eq!(svg.matches("<title>m &#38; n, f32: 0.50x").count(), 1, "{svg}");
        assert_eq!(svg.matches("<title>").count(), 4, "{svg}");
        assert!(svg.contains(">b &#60;c&#62;</text>") && svg.contains("copy 2 GB/s"), "{svg}");
        // 600 operations, 5000 bytes, 10 us.
        assert!(svg.contains("<title>n, f32: 0.06 GFLOP/s at 0.12 flop/byte, 25 %"), "{svg}");
        assert!(draw(&[]).unwrap().ends_with("</svg>\n"));
    }
}
