//! A suite as one SVG of two panels: speed-up over the vendor, and the roofline; a dot a run, coloured by class.

mod roofline;
mod speedups;

use super::report::place;
use super::run::Run;
use std::collections::BTreeSet;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 64.0;
/// Where the panels end and the legend begins.
const RIGHT: f64 = 810.0;
const GAP: f64 = 78.0;
const SPEEDUPS: Rows = Rows { top: 48.0, bottom: 400.0 };
const ROOFLINE: Rows = Rows { top: 400.0 + GAP, bottom: 850.0 };
const HEIGHT: f64 = 850.0 + 50.0;
/// Distinguishable with colour blindness (Okabe and Ito); repeated if there are more classes.
const COLOURS: [&str; 7] =
    ["#d55e00", "#0072b2", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#555555"];

/// Where a panel stands.
#[derive(Clone, Copy)]
struct Rows {
    top: f64,
    bottom: f64,
}

/// Both panels: a text of its own, with no script and nothing to fetch. Runs without a time are in neither, those
/// without a vendor's time only in the second.
pub fn draw(runs: &[Run]) -> String {
    let mut drawing = Drawing::of(runs);
    speedups::panel(&mut drawing, runs, SPEEDUPS);
    roofline::panel(&mut drawing, runs, ROOFLINE);
    drawing.legend();
    drawing.svg.push_str("</svg>\n");
    drawing.svg
}

/// A logarithmic axis: values from `low` to `high` go from pixel `from` to pixel `to`.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Whole powers of the base around all values, at least one apart.
    fn around(values: impl Iterator<Item = f64>, base: f64, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(value.log(base).floor()), high.max(value.log(base).ceil()));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let high = if low == high { high + 1.0 } else { high };
        Self { low: base.powf(low), high: base.powf(high), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + (self.to - self.from) * part
    }

    /// The powers of the base that are on it.
    fn powers(&self, base: f64) -> impl Iterator<Item = f64> {
        let power = |value: f64| value.log(base).round() as i32;
        (power(self.low)..=power(self.high)).map(move |power| base.powi(power))
    }
}

/// The text so far, and which class has which colour. Writing to a String cannot fail.
struct Drawing<'a> {
    svg: String,
    /// In the order of the tables.
    classes: Vec<&'a str>,
}

impl<'a> Drawing<'a> {
    fn of(runs: &'a [Run]) -> Self {
        let shown = runs.iter().filter(|run| run.figures.is_some());
        let classes: BTreeSet<(usize, &str)> = shown.map(|run| place(&run.class)).collect();
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        Self { svg, classes: classes.into_iter().map(|(_, class)| class).collect() }
    }

    fn colour(&self, class: &str) -> &'static str {
        let at = self.classes.iter().position(|known| *known == class).unwrap_or_default();
        COLOURS[at % COLOURS.len()]
    }

    fn heading(&mut self, rows: Rows, text: &str) {
        let y = rows.top - 16.0;
        let text = escaped(text);
        let _ = writeln!(self.svg, "<text x=\"{LEFT}\" y=\"{y}\" font-size=\"15\">{text}</text>");
    }

    /// A line across the panel and what it stands for.
    fn across(&mut self, y: f64, colour: &str, label: &str) {
        let _ = writeln!(
            self.svg,
            "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }

    /// A line down the panel, and its label below.
    fn down(&mut self, x: f64, rows: Rows, label: &str) {
        let Rows { top, bottom } = rows;
        let _ = writeln!(
            self.svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0
        );
    }

    /// One run; its words appear under the pointer.
    fn dot(&mut self, x: f64, y: f64, run: &Run, words: &str) {
        let _ = writeln!(
            self.svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{}\" fill-opacity=\"0.8\"><title>{}, {}: {}</title></circle>",
            self.colour(&run.class),
            escaped(&run.matrix),
            escaped(&run.task),
            escaped(words)
        );
    }

    fn legend(&mut self) {
        let x = RIGHT + 20.0;
        for (row, class) in self.classes.clone().into_iter().enumerate() {
            let y = SPEEDUPS.top + 18.0 * row as f64 + 10.0;
            let _ = writeln!(
                self.svg,
                "<circle cx=\"{x}\" cy=\"{:.1}\" r=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"{y}\">{}</text>",
                y - 4.0,
                self.colour(class),
                x + 10.0,
                escaped(class)
            );
        }
    }
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::run;
    use super::{Axis, draw};

    #[test]
    fn each_run_is_a_dot_in_both_panels() {
        let runs = [
            run("f32", "b <c>", "m & n", Some(0.5)),
            run("f32", "a", "n", Some(3.0)),
            run("f32", "a", "failed", None),
        ];
        let svg = draw(&runs);
        assert_eq!(svg.matches("<title>m &amp; n, f32: 0.50x").count(), 1, "{svg}");
        assert_eq!(svg.matches("<title>").count(), 4, "{svg}");
        assert!(svg.contains(">b &lt;c&gt;</text>") && svg.contains("copy 2 GB/s"), "{svg}");
        // 600 operations, 5000 bytes, 10 us.
        assert!(svg.contains("<title>n, f32: 0.06 GFLOP/s at 0.12 flop/byte, 25 %"), "{svg}");
        assert!(draw(&[]).ends_with("</svg>\n"));
    }

    #[test]
    fn axes_hold_whole_powers() {
        let axis = Axis::around([0.7, 9.0].into_iter(), 2.0, 100.0, 0.0);
        assert_eq!((axis.low, axis.high), (0.5, 16.0));
        assert_eq!(axis.powers(2.0).collect::<Vec<_>>(), [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]);
        assert!((axis.at(0.5) - 100.0).abs() < 1e-9 && (axis.at(2.0) - 60.0).abs() < 1e-9);
        let one = Axis::around([1.0].into_iter(), 10.0, 0.0, 1.0);
        assert_eq!((one.low, one.high), (1.0, 10.0));
    }
}
