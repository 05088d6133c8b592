//! Axes, ticks and labels of the SVG charts: the dashboard and `bench --svg` draw with these, and both write their markup
//! with the templates of `web/templates/pictures`.

/// An axis that maps values to pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    logarithmic: bool,
}

/// A value's position on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    pub value: f64,
    pub at: f64,
}

/// A text at a position on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    pub at: f64,
    pub text: String,
}

/// Minimum distance in pixels between neighbouring labels.
const APART: f64 = 72.0;

/// Drops labels that would overlap, from left to right.
pub fn thinned(labels: impl IntoIterator<Item = Label>) -> Vec<Label> {
    let mut kept: Vec<Label> = Vec::new();
    for label in labels {
        if kept.last().is_none_or(|last| label.at - last.at >= APART) {
            kept.push(label);
        }
    }
    kept
}

impl Scale {
    /// `low` maps to pixel `from`, `high` to `to`. An empty range is widened to avoid a division by zero.
    pub fn linear(low: f64, high: f64, from: f64, to: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, from, to, logarithmic: false }
    }

    /// The same for positive values on a logarithmic axis.
    pub fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Self {
        let low = low.max(f64::MIN_POSITIVE);
        let high = if high > low { high } else { low * 10.0 };
        Self { low, high, from, to, logarithmic: true }
    }

    /// A logarithmic axis between the whole powers of `base` that enclose all values, at least one power apart.
    pub fn enclosing(values: impl Iterator<Item = f64>, base: f64, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(value.log(base).floor()), high.max(value.log(base).ceil()));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let high = if low == high { high + 1.0 } else { high };
        Self::logarithmic(base.powf(low), base.powf(high), from, to)
    }

    /// The values at the two ends of the axis.
    pub fn ends(&self) -> [f64; 2] {
        [self.low, self.high]
    }

    /// The position of a value, clamped to the ends of the axis.
    pub fn at(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// The powers of `base` within the range of a logarithmic axis.
    pub fn powers(&self, base: f64) -> impl Iterator<Item = Tick> {
        let power = |value: f64| value.log(base).round() as i32;
        (power(self.low)..=power(self.high)).map(move |power| {
            let value = base.powi(power);
            Tick { value, at: self.at(value) }
        })
    }

    /// About `most` round values within the range.
    pub fn ticks(&self, most: usize) -> Vec<Tick> {
        let values = if self.logarithmic { self.decades(most) } else { self.steps(most) };
        values.into_iter().map(|value| Tick { value, at: self.at(value) }).collect()
    }

    /// Multiples of 1, 2 or 5 times a power of ten.
    fn steps(&self, most: usize) -> Vec<f64> {
        let rough = (self.high - self.low) / most.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }

    /// Powers of ten, thinned; within a decade or two also 2 and 5.
    fn decades(&self, most: usize) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let decades = (last - first).max(1) as usize;
        let within: &[f64] = if decades * 3 <= most + 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let thin = (decades / most.max(1)).max(1);
        let values = (first..=last)
            .step_by(thin)
            .flat_map(|power| within.iter().map(move |factor| factor * 10f64.powi(power)));
        let margin = 1.0 + 1e-9;
        values.filter(|v| *v >= self.low / margin && *v <= self.high * margin).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Label, Scale, thinned};

    fn values(scale: Scale, most: usize) -> Vec<f64> {
        scale.ticks(most).into_iter().map(|tick| tick.value).collect()
    }

    #[test]
    fn the_ends_of_the_range_map_to_the_ends_of_the_axis() {
        let linear = Scale::linear(0.0, 10.0, 100.0, 0.0);
        assert_eq!([0.0, 5.0, 10.0, 99.0].map(|v| linear.at(v)), [100.0, 50.0, 0.0, 0.0]);
        let log = Scale::logarithmic(1.0, 100.0, 0.0, 200.0);
        assert_eq!([0.0, 1.0, 10.0, 100.0].map(|v| log.at(v).round()), [0.0, 0.0, 100.0, 200.0]);
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(values(Scale::linear(0.0, 97.0, 0.0, 1.0), 5), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(
            values(Scale::logarithmic(1.0, 1000.0, 0.0, 1.0), 4),
            [1.0, 10.0, 100.0, 1000.0]
        );
        assert_eq!(values(Scale::logarithmic(1.0, 10.0, 0.0, 1.0), 4), [1.0, 2.0, 5.0, 10.0]);
    }

    #[test]
    fn an_empty_range_still_has_a_position() {
        assert!(Scale::linear(3.0, 3.0, 0.0, 1.0).at(3.0).is_finite());
        assert!(Scale::logarithmic(0.0, 0.0, 0.0, 1.0).at(0.0).is_finite());
        assert!(!values(Scale::linear(3.0, 3.0, 0.0, 1.0), 3).is_empty());
    }

    #[test]
    fn enclosing_axes_end_at_whole_powers() {
        let axis = Scale::enclosing([0.7, 9.0].into_iter(), 2.0, 100.0, 0.0);
        assert_eq!(axis.ends(), [0.5, 16.0]);
        let powers: Vec<f64> = axis.powers(2.0).map(|tick| tick.value).collect();
        assert_eq!(powers, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]);
        assert!((axis.at(0.5) - 100.0).abs() < 1e-9 && (axis.at(2.0) - 60.0).abs() < 1e-9);
        assert_eq!(Scale::enclosing([1.0].into_iter(), 10.0, 0.0, 1.0).ends(), [1.0, 10.0]);
    }

    #[test]
    fn labels_do_not_overlap() {
        let label = |at| Label { at, text: String::new() };
        let kept = thinned([0.0, 20.0, 71.0, 80.0, 150.0, 160.0].map(label));
        assert_eq!(kept.iter().map(|label| label.at).collect::<Vec<_>>(), [0.0, 80.0, 160.0]);
    }
}
