//! Predicted, measured, vendor and bound times: on the roofline of a device, and as bars.
//!
//! The only roof is the measured copy bandwidth. Peak arithmetic throughput is not measured, so no compute roof is drawn.

use super::super::format;
use crate::charts::{Label, Scale, Tick, thinned};
use askama::Template;

const LEFT: f64 = 72.0;
const RIGHT: f64 = 448.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 258.0;

/// One time per call, and how it is marked.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Short name, beside a point.
    pub name: &'static str,
    /// Full name, above a bar.
    pub label: String,
    pub us: f64,
    /// The 95 % confidence interval, if there were enough samples.
    pub ci95_us: Option<[f64; 2]>,
    /// Class of the mark: `ink`, `idle`, `warn`, `good`.
    pub tone: &'static str,
}

/// A product's performance points and the memory roof.
#[derive(Template)]
#[template(path = "pictures/roofline.html")]
pub struct Roofline {
    description: String,
    across: Vec<Label>,
    up: Vec<Label>,
    /// Ends of the roof.
    roof: [f64; 4],
    roof_label: String,
    at: f64,
    points: Vec<Point>,
}

struct Point {
    tone: &'static str,
    y: f64,
    /// Positions of the ends of the interval.
    whisker: Option<[f64; 2]>,
    label_y: f64,
    label: String,
}

impl Roofline {
    /// `None` if the number of operations is not known or the bandwidth was not measured.
    pub fn of(flops: f64, bytes: u64, copy_gbps: f64, marks: &[Mark]) -> Option<Self> {
        let intensity = flops / bytes as f64;
        if !(intensity > 0.0 && intensity.is_finite() && copy_gbps > 0.0 && !marks.is_empty()) {
            return None;
        }
        let gflops = |us: f64| flops / us.max(1e-3) / 1e3;
        let rates = marks.iter().map(|mark| gflops(mark.us)).chain([copy_gbps * intensity]);
        let (low, high) = rates.fold((f64::MAX, 0.0f64), |(l, h), r| (l.min(r), h.max(r)));
        let x = Scale::logarithmic(intensity / 4.0, intensity * 32.0, LEFT, RIGHT);
        let y = Scale::logarithmic(low / 2.0, high * 2.0, BOTTOM, TOP);
        let from = (intensity / 4.0).max(low / 2.0 / copy_gbps);
        let to = (intensity * 32.0).min(high * 2.0 / copy_gbps);
        let mut points: Vec<Point> = marks
            .iter()
            .map(|mark| Point {
                tone: mark.tone,
                y: y.at(gflops(mark.us)),
                whisker: mark.ci95_us.map(|ends| ends.map(|us| y.at(gflops(us)))),
                label_y: y.at(gflops(mark.us)),
                label: format!("{} {}", mark.name, rate(gflops(mark.us))),
            })
            .collect();
        points.sort_by(|a, b| a.y.total_cmp(&b.y));
        let mut places: Vec<f64> = points.iter().map(|point| point.y).collect();
        set_apart(&mut places, 20.0, TOP + 26.0, BOTTOM - 6.0);
        for (point, place) in points.iter_mut().zip(places) {
            point.label_y = place;
        }
        let named = |ticks: Vec<Tick>| {
            let label = |tick: Tick| Label { at: tick.at, text: short(tick.value) };
            ticks.into_iter().map(label).collect()
        };
        Some(Self {
            description: points.iter().map(|p| p.label.as_str()).collect::<Vec<_>>().join("; "),
            across: named(x.ticks(4)),
            up: named(y.ticks(5)),
            roof: [x.at(from), y.at(from * copy_gbps), x.at(to), y.at(to * copy_gbps)],
            roof_label: format!("roof: memory at {} GB/s", format::digits(copy_gbps)),
            at: x.at(intensity),
            points,
        })
    }
}

/// The same times as bars.
#[derive(Template)]
#[template(path = "pictures/times.html")]
pub struct Times {
    description: String,
    axis_y: f64,
    /// Position of the bound.
    bound: Option<f64>,
    rows: Vec<Row>,
    ticks: Vec<Label>,
    pub logarithmic: bool,
}

struct Row {
    label: String,
    tone: &'static str,
    y: f64,
    width: f64,
    whisker: Option<[f64; 2]>,
    value: String,
}

const BAR_LEFT: f64 = 2.0;
const BAR_RIGHT: f64 = 360.0;
const ROW: f64 = 46.0;
/// If times differ by more than this factor the axis is logarithmic, so that the shortest bar stays visible.
const SPREAD: f64 = 10.0;

impl Times {
    pub fn of(marks: &[Mark]) -> Self {
        let ends = marks.iter().flat_map(|mark| {
            let interval = mark.ci95_us.into_iter().flatten();
            interval.chain([mark.us]).filter(|us| us.is_finite() && *us > 0.0)
        });
        let (low, high) = ends.fold((f64::MAX, 0.0f64), |(l, h), us| (l.min(us), h.max(us)));
        let logarithmic = high > SPREAD * low;
        let x = match logarithmic {
            true => Scale::logarithmic(low / 2.0, high, BAR_LEFT, BAR_RIGHT),
            false => Scale::linear(0.0, high, BAR_LEFT, BAR_RIGHT),
        };
        let rows: Vec<Row> = marks
            .iter()
            .enumerate()
            .map(|(at, mark)| Row {
                label: mark.label.clone(),
                tone: mark.tone,
                y: at as f64 * ROW,
                width: (x.at(mark.us) - BAR_LEFT).max(1.0),
                whisker: mark.ci95_us.map(|ends| ends.map(|us| x.at(us))),
                value: format::micros(mark.us),
            })
            .collect();
        let bound = marks.iter().find(|mark| mark.name == BOUND).map(|mark| x.at(mark.us));
        let labelled = rows.iter().map(|row| format!("{} {}", row.label, row.value));
        let description = labelled.collect::<Vec<_>>().join("; ");
        let ticks = x.ticks(4).into_iter();
        let ticks = ticks.map(|tick| Label { at: tick.at, text: format::round_micros(tick.value) });
        let (ticks, axis_y) = (thinned(ticks), 4.0 + rows.len() as f64 * ROW);
        Self { description, axis_y, bound, rows, ticks, logarithmic }
    }
}

/// Name of the mark that the others are compared with; it lies on the roof if the bound is the copy bandwidth.
pub const BOUND: &str = "roof";

/// `1.25 TFLOP/s`.
fn rate(gflops: f64) -> String {
    match gflops {
        g if g < 1e3 => format!("{} GFLOP/s", format::digits(g)),
        g => format!("{} TFLOP/s", format::digits(g / 1e3)),
    }
}

/// A tick's value without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Moves ascending positions apart until neighbours are `gap` from each other, within the bounds as far as there is room.
fn set_apart(places: &mut [f64], gap: f64, low: f64, high: f64) {
    let mut least = low;
    for place in places.iter_mut() {
        *place = place.max(least);
        least = *place + gap;
    }
    let mut most = high;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(name: &'static str, us: f64) -> Mark {
        Mark { name, label: name.to_owned(), us, ci95_us: None, tone: "idle" }
    }

    #[test]
    fn labels_keep_a_minimum_distance() {
        let mut places = [100.0, 101.0, 102.0, 250.0];
        set_apart(&mut places, 15.0, 20.0, 252.0);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 15.0), "{places:?}");
        let mut places = [249.0, 250.0, 251.0];
        set_apart(&mut places, 15.0, 20.0, 252.0);
        assert_eq!(places, [222.0, 237.0, 252.0]);
    }

    #[test]
    fn a_bandwidth_bound_lies_on_the_roof() {
        // 1000 bytes at 100 GB/s take 0.01 µs.
        let picture = Roofline::of(500.0, 1000, 100.0, &[mark(BOUND, 0.01)]).unwrap();
        let [x1, y1, x2, y2] = picture.roof;
        let share = (picture.at - x1) / (x2 - x1);
        assert!((y1 + share * (y2 - y1) - picture.points[0].y).abs() < 1e-6);
        assert!(Roofline::of(500.0, 1000, 0.0, &[mark(BOUND, 0.01)]).is_none());
        assert!(Roofline::of(0.0, 1000, 1.0, &[mark(BOUND, 0.01)]).is_none());
    }

    #[test]
    fn bars_start_at_zero_while_all_are_visible() {
        let picture = Times::of(&[mark("measured", 50.0), mark(BOUND, 25.0)]);
        assert!((picture.rows[0].width - 2.0 * picture.rows[1].width).abs() < 1e-9);
        assert_eq!(picture.bound, Some(BAR_LEFT + picture.rows[1].width));
        assert!(!picture.logarithmic && !picture.ticks.is_empty());
        let picture = Times::of(&[mark("measured", 70.0), mark("vendor", 7143.0)]);
        assert!(picture.logarithmic && picture.rows[0].width > 20.0 && picture.ticks.len() > 1);
    }

    #[test]
    fn ticks_have_no_trailing_zeros() {
        assert_eq!([0.5, 10.0, 0.02].map(short), ["0.5", "10", "0.02"]);
        assert_eq!(rate(1246.0), "1.25 TFLOP/s");
    }
}
