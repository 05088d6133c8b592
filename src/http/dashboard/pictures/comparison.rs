//! Times of several plans side by side.

use crate::charts::{Label, Scale, thinned};
use crate::http::dashboard::format;
use askama::Template;

/// Where bars begin and end; their times are written at the right edge.
const LEFT: f64 = 2.0;
const RIGHT: f64 = 450.0;
/// Pixels from one bar to the next (including the label above it), and above a group for its name.
const STEP: f64 = 42.0;
const GROUP: f64 = 32.0;
/// If times differ by more than this factor the axis is logarithmic, so that the shortest bar stays visible.
const SPREAD: f64 = 20.0;

/// One plan's times in microseconds, per call or per column.
pub struct Timed {
    pub label: String,
    pub us: f64,
    pub vendor_us: Option<f64>,
    pub bound_us: f64,
    /// `at copy bandwidth`.
    pub bound: &'static str,
}

/// Plans that are compared with each other; the name may be empty if there is only one group.
pub struct Group {
    pub name: String,
    pub timed: Vec<Timed>,
}

struct Bar {
    label: String,
    y: f64,
    width: f64,
    time: String,
    vendor: Option<f64>,
    bound: f64,
    title: String,
}

struct Name {
    text: String,
    y: f64,
}

#[derive(Template)]
#[template(path = "pictures/comparison.html")]
pub struct Comparison {
    summary: String,
    height: f64,
    axis_y: f64,
    names: Vec<Name>,
    bars: Vec<Bar>,
    x_labels: Vec<Label>,
    pub logarithmic: bool,
}

/// Bars of the times, with the vendor's time and the bound as marks; `None` if there is nothing to draw.
pub fn of(summary: String, groups: &[Group]) -> Option<Comparison> {
    let (across, logarithmic) = axis(groups)?;
    let mut y = 0.0;
    let (mut names, mut bars) = (Vec::new(), Vec::new());
    for group in groups {
        if !group.name.is_empty() {
            y += GROUP;
            names.push(Name { text: group.name.clone(), y: y - 9.0 });
        }
        for timed in &group.timed {
            bars.push(bar(timed, &across, y));
            y += STEP;
        }
    }
    let ticks = across.ticks(6).into_iter();
    let x_labels = ticks.map(|tick| Label { at: tick.at, text: format::round_micros(tick.value) });
    let x_labels = thinned(x_labels);
    Some(Comparison { summary, height: y + 28.0, axis_y: y, names, bars, x_labels, logarithmic })
}

fn bar(timed: &Timed, across: &Scale, y: f64) -> Bar {
    let mut title = format!("{}: {}", timed.label, format::micros(timed.us));
    if let Some(vendor) = timed.vendor_us {
        title.push_str(&format!(", baseline {}", format::micros(vendor)));
    }
    title.push_str(&format!(", {} {}", timed.bound, format::micros(timed.bound_us)));
    Bar {
        label: timed.label.clone(),
        y,
        width: (across.at(timed.us) - LEFT).max(1.0),
        time: format::micros(timed.us),
        vendor: timed.vendor_us.map(|us| across.at(us)),
        bound: across.at(timed.bound_us),
        title,
    }
}

/// An axis for all times, and whether it is logarithmic.
fn axis(groups: &[Group]) -> Option<(Scale, bool)> {
    let times = groups.iter().flat_map(|group| &group.timed);
    let all = times.flat_map(|t| [Some(t.us), t.vendor_us, Some(t.bound_us)]).flatten();
    let all: Vec<f64> = all.filter(|us| us.is_finite() && *us > 0.0).collect();
    let low = all.iter().copied().reduce(f64::min)?;
    let high = all.iter().copied().reduce(f64::max)?;
    let logarithmic = high > SPREAD * low;
    let scale = if logarithmic {
        Scale::logarithmic(low / 2.0, high, LEFT, RIGHT)
    } else {
        Scale::linear(0.0, high, LEFT, RIGHT)
    };
    Some((scale, logarithmic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(us: f64, vendor_us: Option<f64>, bound_us: f64) -> Timed {
        Timed { label: "x".to_owned(), us, vendor_us, bound_us, bound: "" }
    }

    fn drawn(timed: Vec<Timed>) -> Comparison {
        of(String::new(), &[Group { name: "q".to_owned(), timed }]).unwrap()
    }

    #[test]
    fn bar_length_is_proportional_to_time() {
        let picture = drawn(vec![timed(10.0, None, 5.0), timed(20.0, Some(40.0), 5.0)]);
        assert!(!picture.logarithmic);
        assert!((picture.bars[1].width / picture.bars[0].width - 2.0).abs() < 1e-9);
        assert_eq!(picture.bars[1].vendor, Some(RIGHT));
        assert!(picture.bars[1].y > picture.bars[0].y);
    }

    #[test]
    fn widely_spread_times_use_a_logarithmic_axis_and_stay_visible() {
        let picture = drawn(vec![timed(1.0, None, 0.5), timed(1000.0, Some(3000.0), 100.0)]);
        assert!(picture.logarithmic);
        for bar in &picture.bars {
            assert!(bar.width >= 1.0 && LEFT + bar.width <= RIGHT, "{}", bar.width);
            assert!(bar.bound > LEFT);
        }
    }

    #[test]
    fn an_empty_comparison_is_not_drawn() {
        assert!(of(String::new(), &[]).is_none());
        assert!(of(String::new(), &[Group { name: String::new(), timed: vec![] }]).is_none());
    }
}
