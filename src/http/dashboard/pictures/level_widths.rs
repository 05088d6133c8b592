//! Chart of the number of rows in each level of a triangular solve.

use super::dots::{self, Dot, Dots};
use crate::charts::{Scale, thinned};
use crate::domain::profile::{LevelBin, LevelProfile};
use crate::http::dashboard::format;

/// Base line of the dots.
const BOTTOM: f64 = 116.0;

/// The number of rows in each level, in order of the levels; `None` if there are no levels.
pub fn of(triangle: &str, rows: u64, profile: &LevelProfile) -> Option<Dots> {
    let last = profile.bins.last()?;
    let across = Scale::linear(0.0, (last.last + 1) as f64, dots::LEFT, dots::RIGHT);
    let up = dots::counts(profile.widest, BOTTOM);
    let dot = |bin: &LevelBin| {
        let (left, right) = (across.at(bin.first as f64), across.at((bin.last + 1) as f64));
        let (y, soft_y) = (up.at(bin.mean), up.at(bin.max as f64));
        Dot { x: left, width: right - left, y, soft_y, title: title(bin) }
    };
    // With few levels, ticks could otherwise be fractions.
    let ticks = across.ticks(8).into_iter().filter(|tick| tick.value.fract() == 0.0);
    let x_labels = thinned(ticks.map(dots::label));
    Some(Dots {
        summary: format!("Levels of the {triangle} triangle. {}", summary(rows, profile)),
        bottom: BOTTOM,
        x_name: "level, in solve order",
        y_name: "rows per level (log)",
        x_labels,
        y_labels: dots::count_labels(&up),
        dots: profile.bins.iter().map(dot).collect(),
    })
}

/// `1,132 levels, widest 512 rows, 28.9 rows per level`.
pub fn summary(rows: u64, profile: &LevelProfile) -> String {
    let levels = if profile.levels == 1 { "level" } else { "levels" };
    let mean = format::digits(rows as f64 / profile.levels.max(1) as f64);
    let (count, widest) = (format::count(profile.levels), format::count(profile.widest));
    format!("{count} {levels}, widest {widest} rows, {mean} rows per level")
}

fn title(bin: &LevelBin) -> String {
    if bin.first == bin.last {
        return format!("level {}: {} rows", format::count(bin.first), format::count(bin.max));
    }
    format!(
        "levels {} to {}: {} rows on average, at most {}",
        format::count(bin.first),
        format::count(bin.last),
        format::digits(bin.mean),
        format::count(bin.max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(bins: Vec<LevelBin>) -> LevelProfile {
        let widest = bins.iter().map(|bin| bin.max).max().unwrap_or(0);
        LevelProfile { levels: bins.last().map_or(0, |bin| bin.last + 1), widest, bins }
    }

    #[test]
    fn dots_are_adjacent_and_fill_the_frame() {
        let bins = vec![
            LevelBin { first: 0, last: 1, mean: 300.0, max: 512 },
            LevelBin { first: 2, last: 2, mean: 4.0, max: 4 },
        ];
        let profile = profile(bins);
        let picture = of("lower", 604, &profile).unwrap();
        let [one, two] = &picture.dots[..] else { panic!("{picture:?}") };
        assert_eq!((one.x, two.x + two.width), (dots::LEFT, dots::RIGHT));
        assert!((one.x + one.width - two.x).abs() < 1e-9);
        assert!(one.soft_y < one.y, "the maximum of a run is above its mean");
        assert_eq!(two.soft_y, two.y);
        assert_eq!(one.title, "levels 0 to 1: 300 rows on average, at most 512");
        assert_eq!(summary(604, &profile), "3 levels, widest 512 rows, 201 rows per level");
    }

    #[test]
    fn an_empty_matrix_has_no_levels() {
        assert_eq!(of("lower", 0, &profile(vec![])), None);
        let one = profile(vec![LevelBin { first: 0, last: 0, mean: 9.0, max: 9 }]);
        let labels = of("upper", 9, &one).unwrap().x_labels;
        assert!(labels.iter().all(|label| label.at <= dots::RIGHT));
        assert_eq!(summary(9, &one), "1 level, widest 9 rows, 9.00 rows per level");
    }
}
