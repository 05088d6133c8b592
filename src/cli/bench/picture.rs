//! Speed-up over the vendor as an SVG: one dot a run, sorted, on a logarithmic scale, coloured by class.

use super::run::Run;
use super::subject::CLASSES;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 130.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 30.0;
/// One a class, then one for all others; apart for the colour-blind too (Okabe and Ito).
const COLOURS: [&str; 6] = ["#d55e00", "#e69f00", "#009e73", "#56b4e9", "#0072b2", "#555555"];

/// A text of its own, with no script and nothing to fetch. Runs without a vendor's time are not in it.
pub fn speedups(title: &str, runs: &[Run]) -> String {
    let mut dots: Vec<(f64, &Run)> =
        runs.iter().filter_map(|run| Some((run.figures.as_ref()?.speedup?, run))).collect();
    dots.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Whole powers of two around all dots, and 1 among them.
    let low = dots.first().map_or(0.0, |(least, _)| least.log2().floor()).min(0.0);
    let high = dots.last().map_or(1.0, |(most, _)| most.log2().ceil()).max(1.0);
    let y = |speedup: f64| TOP + (HEIGHT - TOP - BOTTOM) * (high - speedup.log2()) / (high - low);
    let x = |place: usize| {
        LEFT + (WIDTH - LEFT - RIGHT) * (place as f64 + 0.5) / dots.len().max(1) as f64
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    for power in low as i32..=high as i32 {
        let (at, speedup) = (y(2f64.powi(power)), 2f64.powi(power));
        let (stroke, end) = (if power == 0 { "#000" } else { "#ddd" }, WIDTH - RIGHT);
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{stroke}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{speedup}x</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for (place, (speedup, run)) in dots.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{}\"><title>{}, {}: {speedup:.2}x</title></circle>",
            x(place),
            y(*speedup),
            colour(&run.class),
            escaped(&run.matrix),
            escaped(&run.task)
        );
    }
    legend(&mut svg, &dots);
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String, dots: &[(f64, &Run)]) {
    let (x, mut y) = (WIDTH - RIGHT + 20.0, TOP + 10.0);
    let mut classes: Vec<&str> = CLASSES.iter().map(|(name, _)| *name).collect();
    classes.push("others");
    for (class, colour) in classes.iter().zip(COLOURS) {
        if dots.iter().any(|(_, run)| self::colour(&run.class) == colour) {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\">{}</text>",
                y - 4.0,
                x + 10.0,
                escaped(class)
            );
            y += 18.0;
        }
    }
}

fn colour(class: &str) -> &'static str {
    let at = CLASSES.iter().position(|(name, _)| *name == class);
    COLOURS[at.unwrap_or(CLASSES.len())]
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
