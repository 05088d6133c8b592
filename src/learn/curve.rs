//! When to stop: how held-out groups liked a model while it was trained.

/// Rounds on either side over which what they say is averaged. A few dozen groups make it jump from round to round: a lucky
/// tree among the first ten has ended forests there, whose like did best with two hundred.
const SMOOTHED_OVER: usize = 10;

/// Sizes of a model and how good it was, round by round.
#[derive(Default)]
pub(super) struct Curve {
    rounds: Vec<(usize, f64)>,
}

impl Curve {
    pub fn push(&mut self, size: usize, merit: f64) {
        self.rounds.push((size, merit));
    }

    /// The size at the summit; 0 where there were no rounds.
    pub fn top(&self) -> usize {
        self.rounds.get(self.summit()).map_or(0, |(size, _)| *size)
    }

    /// Rounds since the summit whose neighbourhoods are known, and no better.
    pub fn since_top(&self) -> usize {
        let known = self.rounds.len().saturating_sub(1 + SMOOTHED_OVER);
        known.saturating_sub(self.summit())
    }

    /// The first round whose neighbourhood is best, of those that have a whole one; else the last. A model of no size, which
    /// is what training began with, is taken as it is.
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
    fn a_lucky_round_among_the_first_ends_nothing() {
        let mut curve = Curve::default();
        for round in 0..200 {
            let rising = 0.9 - 0.3 * (-(round as f64) / 40.0).exp();
            curve.push(2 * round + 1, if round == 7 { 0.95 } else { rising - 1e-3 * round as f64 });
        }
        // The summit of the curve without the seventh: 40 ln(0.3 / 0.04).
        assert!(curve.top().abs_diff(2 * 81 + 1) <= 4, "{}", curve.top());
        assert!(curve.since_top().abs_diff(189 - 81) <= 2);
    }

    #[test]
    fn what_is_too_short_to_be_smoothed_ends_at_its_end() {
        let mut short = Curve::default();
        (1..6).for_each(|round| short.push(round, 0.5));
        assert_eq!((short.top(), short.since_top()), (5, 0));
        assert_eq!((Curve::default().top(), Curve::default().since_top()), (0, 0));
    }

    #[test]
    fn what_training_began_with_may_be_best() {
        let mut curve = Curve::default();
        (0..50).for_each(|round| curve.push(round, 0.8 - 1e-3 * round as f64));
        assert_eq!((curve.top(), curve.since_top()), (0, 39));
    }
}
