//! The roofline (Williams, Waterman and Patterson, CACM 52(4), 2009) with the device's measured rate of copying as its
//! roof: operations a compulsory byte against operations a second. What is reused in a cache may stand above it.

use super::{Axis, Drawing, LEFT, RIGHT, Rows};
use crate::cli::bench::run::Run;
use std::fmt::Write;

/// A run as a dot.
struct Dot<'a> {
    run: &'a Run,
    /// Operations a byte.
    intensity: f64,
    gflops: f64,
    limit_fraction: f64,
}

impl<'a> Dot<'a> {
    fn of(run: &'a Run) -> Option<Self> {
        let (figures, flops) = (run.figures.as_ref()?, run.flops()?);
        let intensity = flops / figures.bytes as f64;
        let gflops = flops / figures.us / 1e3;
        // No entries, no logarithm.
        let dot = Self { run, intensity, gflops, limit_fraction: figures.limit_fraction };
        (flops > 0.0 && intensity.is_finite() && gflops.is_finite()).then_some(dot)
    }
}

pub fn panel(drawing: &mut Drawing, runs: &[Run], rows: Rows) {
    let dots: Vec<Dot> = runs.iter().filter_map(Dot::of).collect();
    let x = Axis::around(dots.iter().map(|dot| dot.intensity), 2.0, LEFT, RIGHT);
    let mut rates: Vec<f64> =
        runs.iter().filter_map(|run| Some(run.figures.as_ref()?.copy_gbps)).collect();
    rates.retain(|rate| *rate > 0.0);
    rates.sort_by(f64::total_cmp);
    // A server measures its devices anew when it starts: rates that are the same but for noise are one roof.
    rates.dedup_by(|a, b| *a < *b * 1.02);
    let roofs = rates.iter().flat_map(|rate| [rate * x.low, rate * x.high]);
    let gflops = dots.iter().map(|dot| dot.gflops);
    let y = Axis::around(gflops.chain(roofs), 10.0, rows.bottom, rows.top);

    drawing.heading(rows, "Roofline: GFLOP/s by operations a compulsory byte");
    for power in y.powers(10.0) {
        drawing.across(y.at(power), "#ddd", &power.to_string());
    }
    for power in x.powers(2.0) {
        drawing.down(x.at(power), rows, &power.to_string());
    }
    for rate in rates {
        roof(drawing, &x, &y, rate);
    }
    for dot in &dots {
        let words = format!(
            "{:.2} GFLOP/s at {:.2} flop/byte, {:.0} % of its limit",
            dot.gflops,
            dot.intensity,
            100.0 * dot.limit_fraction
        );
        drawing.dot(x.at(dot.intensity), y.at(dot.gflops), dot.run, &words);
    }
}

fn roof(drawing: &mut Drawing, x: &Axis, y: &Axis, rate: f64) {
    let (y1, y2) = (y.at(rate * x.low), y.at(rate * x.high));
    // Writing to a String cannot fail.
    let _ = writeln!(
        drawing.svg,
        "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" stroke=\"#000\"/>\
         <text x=\"{}\" y=\"{:.1}\">copy {rate:.0} GB/s</text>",
        RIGHT + 6.0,
        y2 + 4.0
    );
}
