//! Charts of counts on a logarithmic axis, as dots, shared by histograms and profiles.

use crate::charts::{Label, Scale, Tick};
use crate::http::dashboard::format;
use askama::Template;

/// In the drawing's own pixels; the template is 560 wide, and the page scales it to the available width.
pub const LEFT: f64 = 58.0;
pub const RIGHT: f64 = 548.0;
pub const TOP: f64 = 14.0;

/// One column of the chart, drawn as a dot. The soft dot shows a second figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Dot {
    pub x: f64,
    pub width: f64,
    /// Upper end of the full part.
    pub y: f64,
    /// Upper end of the soft part, at or above that of the full part.
    pub soft_y: f64,
    pub title: String,
}

impl Dot {
    /// Where its dot stands.
    pub fn middle(&self) -> f64 {
        self.x + self.width / 2.0
    }

    /// Of its dot, which touches those beside it at most.
    pub fn radius(&self) -> f64 {
        (self.width / 2.0).clamp(1.2, 4.5)
    }
}

#[derive(Clone, Debug, PartialEq, Template)]
#[template(path = "pictures/dots.html")]
pub struct Dots {
    /// Text alternative of the picture.
    pub summary: String,
    /// Base line of the dots.
    pub bottom: f64,
    pub x_name: &'static str,
    pub y_name: &'static str,
    pub x_labels: Vec<Label>,
    pub y_labels: Vec<Label>,
    pub dots: Vec<Dot>,
}

/// A logarithmic vertical axis for counts from one to `most`; a count of one still has a visible height.
pub fn counts(most: u64, bottom: f64) -> Scale {
    Scale::logarithmic(0.5, (most as f64).max(2.0), bottom, TOP)
}

/// The labels of [`counts`].
pub fn count_labels(scale: &Scale) -> Vec<Label> {
    let whole = scale.ticks(4).into_iter().filter(|tick| tick.value >= 1.0);
    whole.map(label).collect()
}

pub fn label(tick: Tick) -> Label {
    Label { at: tick.at, text: compact(tick.value) }
}

/// `500`, `2k`, `3M`: short axis labels.
fn compact(value: f64) -> String {
    if value >= 1e6 {
        format!("{}M", plain(value / 1e6))
    } else if value >= 1e3 {
        format!("{}k", plain(value / 1e3))
    } else {
        format::count(value.round() as u64)
    }
}

fn plain(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_labels_are_short() {
        let values = [1.0, 500.0, 1000.0, 16_384.0, 2.5e6];
        assert_eq!(values.map(compact), ["1", "500", "1k", "16.4k", "2.5M"]);
    }

    #[test]
    fn one_of_a_million_is_still_visible() {
        let scale = counts(1_000_000, 182.0);
        assert!(182.0 - scale.at(1.0) > 5.0);
        assert_eq!(scale.at(1e6), TOP);
        assert!(count_labels(&counts(1, 182.0)).iter().all(|label| label.text != "0"));
    }
}
