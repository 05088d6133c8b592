//! Speed-up over the vendor, sorted, on a logarithmic scale.

use super::{Axis, Drawing, LEFT, RIGHT, Rows};
use crate::cli::bench::run::Run;

pub fn panel(drawing: &mut Drawing, runs: &[Run], rows: Rows) {
    let mut dots: Vec<(f64, &Run)> = runs
        .iter()
        .filter_map(|run| Some((run.figures.as_ref()?.speedup.filter(|s| *s > 0.0)?, run)))
        .collect();
    dots.sort_by(|a, b| a.0.total_cmp(&b.0));
    // 1 is among them, the line that decides.
    let values = dots.iter().map(|(speedup, _)| *speedup).chain([1.0]);
    let y = Axis::around(values, 2.0, rows.bottom, rows.top);
    drawing.heading(rows, "Speed-up over the vendor, sorted");
    for power in y.powers(2.0) {
        let colour = if power == 1.0 { "#000" } else { "#ddd" };
        drawing.across(y.at(power), colour, &format!("{power}x"));
    }
    let step = (RIGHT - LEFT) / dots.len().max(1) as f64;
    for (place, (speedup, run)) in dots.iter().enumerate() {
        let x = LEFT + step * (place as f64 + 0.5);
        drawing.dot(x, y.at(*speedup), run, &format!("{speedup:.2}x"));
    }
}
