//! Decides the winner by paired timing: finalists are timed alternately, a difference within the noise is a tie, and an exact candidate
//! wins a tie, then the simpler one.

use crate::domain::{Candidate, Timing};

/// A finalist with its samples from the paired rounds; all finalists have the same number of rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    pub candidate: Candidate,
    pub timing: Timing,
    /// Host and device work before the first call, milliseconds.
    pub preprocess_ms: f64,
    /// Lower is simpler, and preferred if the speed is equal.
    pub complexity: u32,
}

impl Contender {
    /// Total cost in microseconds: preprocessing plus all calls, or one call if the number of calls is not given.
    pub fn cost_us(&self, expected_calls: Option<u64>) -> f64 {
        match expected_calls {
            Some(calls) => self.preprocess_ms * 1e3 + calls as f64 * self.timing.median_us,
            None => self.timing.median_us,
        }
    }
}

/// The winner, and whether its lead exceeds the noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Index of the winner.
    pub winner: usize,
    /// Index of the fastest of the others.
    pub runner_up: Option<usize>,
    /// Whether another contender is statistically indistinguishable from the winner.
    pub tie: bool,
}

/// How the samples of contenders were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// Alternately: sample i of each contender belongs to the same round.
    Paired,
    /// One contender after the other: only their intervals can be compared.
    Separate,
}

/// A simpler candidate may cost at most this factor more than the leader to win a tie.
const SLACK: f64 = 1.05;

/// Decides among contenders; `None` if there are none.
///
/// The fastest median leads (with `expected_calls`, the lowest preprocessing + calls x median). A contender is tied with the
/// leader if noise could explain the difference: the interval of the per-round differences includes 0, or, for samples taken
/// separately, the intervals overlap. Among the tied the simplest wins, an exact one before all that are approximate, except one
/// that costs more than a contender which is not tied (so that a noisy third does not beat a clear second; what is approximate is
/// in no exact one's way) or more than [`SLACK`] times the leader (with few rounds on a noisy machine everything is tied, and
/// simplicity is not worth a multiple of the time). With `expected_calls` a tied contender must also need no more preprocessing
/// than the leader, since that difference is certain.
pub fn decide(
    contenders: &[Contender],
    expected_calls: Option<u64>,
    samples: Samples,
) -> Option<Decision> {
    let cost = |c: &Contender| c.cost_us(expected_calls);
    let order = {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        order.sort_by(|&a, &b| {
            cost(&contenders[a]).total_cmp(&cost(&contenders[b])).then(a.cmp(&b))
        });
        order
    };
    let leader = *order.first()?;
    let tied: Vec<usize> = order
        .iter()
        .copied()
        .filter(|&other| {
            other != leader
                && indistinct(&contenders[leader], &contenders[other], samples)
                && (expected_calls.is_none()
                    || contenders[other].preprocess_ms <= contenders[leader].preprocess_ms)
        })
        .collect();
    let approximate = |i: usize| contenders[i].candidate.is_approximate();
    let most = |of: usize| {
        let apart = order
            .iter()
            .find(|&&i| i != leader && !tied.contains(&i) && (approximate(of) || !approximate(i)));
        let apart = apart.map_or(f64::INFINITY, |&i| cost(&contenders[i]));
        apart.min(SLACK * cost(&contenders[leader]))
    };
    let key = |i: usize| {
        let place = order.iter().position(|&j| j == i);
        (approximate(i), contenders[i].complexity, place)
    };
    let winner = tied
        .iter()
        .copied()
        .filter(|&i| cost(&contenders[i]) <= most(i))
        .chain([leader])
        .min_by_key(|&i| key(i))
        .unwrap_or(leader);
    let runner_up = order.iter().copied().find(|&i| i != winner);
    Some(Decision { winner, runner_up, tie: !tied.is_empty() })
}

/// Whether the differences b - a are compatible with zero.
///
/// Pairing by round cancels drift of clocks and temperature. A difference below 0.2 % of the time is always a tie, because
/// events resolve only about half a microsecond and the difference has no practical relevance.
fn indistinct(a: &Contender, b: &Contender, samples: Samples) -> bool {
    if samples == Samples::Separate {
        return b.timing.ci95_us[0] <= a.timing.ci95_us[1];
    }
    let differences: Vec<f64> =
        a.timing.samples_us.iter().zip(&b.timing.samples_us).map(|(a, b)| b - a).collect();
    match Timing::of(differences, 0) {
        None => true,
        Some(d) => d.ci95_us[0] <= 0.0 || d.median_us < 0.002 * a.timing.median_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender(name: &str, base: f64, wobble: f64, complexity: u32) -> Contender {
        let samples = (0..40).map(|i| base + wobble * f64::from(i % 5)).collect();
        let timing = Timing::of(samples, 0).unwrap();
        Contender { candidate: Candidate::new(name), timing, preprocess_ms: 0.0, complexity }
    }

    #[test]
    fn a_clear_winner_is_no_tie() {
        let all = [contender("a", 10.0, 0.1, 5), contender("b", 12.0, 0.1, 0)];
        assert_eq!(
            decide(&all, None, Samples::Paired),
            Some(Decision { winner: 0, runner_up: Some(1), tie: false })
        );
    }

    #[test]
    fn the_simpler_wins_within_the_noise() {
        let mut all = [contender("a", 10.0, 0.2, 5), contender("b", 10.0, 0.2, 0)];
        for (i, sample) in all[1].timing.samples_us.iter_mut().enumerate() {
            *sample += if i % 2 == 0 { 0.05 } else { -0.04 };
        }
        all[1].timing = Timing::of(all[1].timing.samples_us.clone(), 0).unwrap();
        assert_eq!(
            decide(&all, None, Samples::Paired),
            Some(Decision { winner: 1, runner_up: Some(0), tie: true })
        );
    }

    #[test]
    fn an_exact_candidate_wins_a_tie_with_an_approximate_one() {
        let mut all = [contender("sweeps", 10.0, 0.2, 1), contender("slices", 10.0, 0.2, 3)];
        for (i, sample) in all[1].timing.samples_us.iter_mut().enumerate() {
            *sample += if i % 2 == 0 { 0.05 } else { -0.04 };
        }
        all[1].timing = Timing::of(all[1].timing.samples_us.clone(), 0).unwrap();
        let decision = decide(&all, None, Samples::Paired);
        assert_eq!(decision, Some(Decision { winner: 1, runner_up: Some(0), tie: true }));
        // Another approximate one, which is clearly slower than the first, is in nobody's way.
        let three = [contender("sweeps", 9.99, 0.2, 1), contender("sweeps", 10.004, 0.2, 1)];
        let mut three = [three[0].clone(), three[1].clone(), all[1].clone()];
        three[1].timing.samples_us.iter_mut().for_each(|us| *us += 0.02);
        three[1].timing = Timing::of(three[1].timing.samples_us.clone(), 0).unwrap();
        for sample in &mut three[2].timing.samples_us {
            *sample += 0.02;
        }
        three[2].timing.samples_us[..20].iter_mut().for_each(|us| *us -= 0.06);
        three[2].timing = Timing::of(three[2].timing.samples_us.clone(), 0).unwrap();
        assert_eq!(decide(&three, None, Samples::Paired).map(|d| d.winner), Some(2));
        let clear = [contender("sweeps", 10.0, 0.1, 1), contender("slices", 11.0, 0.1, 3)];
        assert_eq!(
            decide(&clear, None, Samples::Paired).map(|d| (d.winner, d.tie)),
            Some((0, false))
        );
    }

    #[test]
    fn a_noisy_third_does_not_beat_a_clear_second() {
        let mut all = [
            contender("a", 10.0, 0.0, 5),
            contender("vendor", 10.1, 0.0, 0),
            contender("c", 10.3, 0.0, 1),
        ];
        // Tied with the leader because of its noise, but slower than the vendor, which is not tied.
        for (i, sample) in all[2].timing.samples_us.iter_mut().enumerate() {
            *sample += if i % 2 == 0 { 0.8 } else { -0.9 };
        }
        all[2].timing = Timing::of(all[2].timing.samples_us.clone(), 0).unwrap();
        let decision = decide(&all, None, Samples::Paired).unwrap();
        assert!(all[decision.winner].timing.median_us <= 10.1);
        assert_ne!(decision.winner, 2);
    }

    #[test]
    fn noise_does_not_let_a_much_slower_candidate_win() {
        let mut all = [contender("a", 134.0, 0.0, 5), contender("vendor", 509.0, 0.0, 0)];
        for c in &mut all {
            c.timing.samples_us.truncate(6);
        }
        // In one of six rounds another process disturbed the timing.
        all[0].timing.samples_us[3] = 700.0;
        let decision = decide(&all, None, Samples::Paired).unwrap();
        assert_eq!((decision.winner, decision.tie), (0, true));
    }

    #[test]
    fn separate_samples_compare_by_their_intervals() {
        let all = [contender("a", 10.0, 0.1, 5), contender("b", 10.15, 0.1, 0)];
        assert_eq!(
            decide(&all, None, Samples::Separate).map(|d| (d.winner, d.tie)),
            Some((1, true))
        );
        let apart = [contender("a", 10.0, 0.1, 5), contender("b", 12.0, 0.1, 0)];
        assert_eq!(
            decide(&apart, None, Samples::Separate).map(|d| (d.winner, d.tie)),
            Some((0, false))
        );
    }

    #[test]
    fn few_calls_favour_little_preprocessing() {
        let mut all = [contender("a", 10.0, 0.0, 5), contender("b", 12.0, 0.0, 0)];
        all[0].preprocess_ms = 1.0;
        assert_eq!(decide(&all, Some(100), Samples::Paired).map(|d| d.winner), Some(1));
        assert_eq!(decide(&all, Some(1_000_000), Samples::Paired).map(|d| d.winner), Some(0));
        assert_eq!(decide(&[], None, Samples::Paired), None);
    }
}
