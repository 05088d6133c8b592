//! Early stopping: the quality of a model on held-out groups over the rounds of training.

/// Rounds on either side over which the quality is averaged. With a few dozen groups it fluctuates from round to round:
/// without smoothing, one lucky tree among the first ten has ended training where similar forests were best with two hundred.
const SMOOTHED_OVER: usize = 10;

/// The size of a model and its held-out quality after each round.
#[derive(Default)]
pub(super) struct Curve {
    rounds: Vec<(usize, f64)>,
}

impl Curve {
    pub fn push(&mut self, size: usize, merit: f64) {
        self.rounds.push((size, merit));
    }

    /// The size at the best round; 0 if there were no rounds.
    pub fn top(&self) -> usize {
        self.rounds.get(self.summit()).map_or(0, |(size, _)| *size)
    }

    /// The number of rounds since the best one whose smoothed quality is known and not better.
    pub fn since_top(&self) -> usize {
        let known = self.rounds.len().saturating_sub(1 + SMOOTHED_OVER);
        known.saturating_sub(self.summit())
    }

    /// The first round with the best smoothed quality, among those with a complete neighbourhood; else the last round. The
    /// initial model, of size 0, is not smoothed.
    fn summit(&self) -> usize {
        let mut best = (self.rounds.len().saturating_sub(1), f64::NEG_INFINITY);
        if let Some(&(0, merit)) = self.rounds.first()
            && self.rounds.len() > 2 * SMOOTHED_OVER
        {
            best = (0, merit);
        }
        for (at, near) in self.rounds.windows(2 * SMOOTHED_OVER + 1).enumerate() {
            let merit = near.iter().map(|(_, merit)| merit).sum::<f64>() / near.len() as f64;
            if merit > best.1 {
                best = (at + SMOOTHED_OVER, merit);
            }
        }
        best.0
    }
}

#[cfg(test)]
mod tests {
    use super::Curve;

    #[test]
    fn a_lucky_early_round_does_not_end_training() {
        let mut curve = Curve::default();
        for round in 0..200 {
            let rising = 0.9 - 0.3 * (-(round as f64) / 40.0).exp();
            curve.push(2 * round + 1, if round == 7 { 0.95 } else { rising - 1e-3 * round as f64 });
        }
        // The maximum of the curve without the seventh round: 40 ln(0.3 / 0.04).
        assert!(curve.top().abs_diff(2 * 81 + 1) <= 4, "{}", curve.top());
        assert!(curve.since_top().abs_diff(189 - 81) <= 2);
    }

    #[test]
    fn a_curve_too_short_to_be_smoothed_is_best_at_its_end() {
        let mut short = Curve::default();
        (1..6).for_each(|round| short.push(round, 0.5));
        assert_eq!((short.top(), short.since_top()), (5, 0));
        assert_eq!((Curve::default().top(), Curve::default().since_top()), (0, 0));
    }

    #[test]
    fn the_initial_model_may_be_best() {
        let mut curve = Curve::default();
        (0..50).for_each(|round| curve.push(round, 0.8 - 1e-3 * round as f64));
        assert_eq!((curve.top(), curve.since_top()), (0, 39));
    }
}
