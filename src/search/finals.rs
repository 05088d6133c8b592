//! The winner by paired timing: finalists timed in turn, a difference inside the noise is a tie, the simpler wins a tie.

use crate::domain::{Candidate, Timing};

/// A finalist with its samples of the paired runs, all of equal rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    pub candidate: Candidate,
    pub timing: Timing,
    /// Host and device work before the first call, milliseconds.
    pub preprocess_ms: f64,
    /// Smaller is simpler: what a user would rather deploy when speed does not decide.
    pub complexity: u32,
}

/// Who won, and whether by more than the noise.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Index of the winner.
    pub winner: usize,
    /// Index of the fastest of the others.
    pub runner_up: Option<usize>,
    /// Another contender is not distinguishable from the winner.
    pub tie: bool,
}

/// Decides among contenders of one paired run. `None` for no contender.
///
/// The fastest median leads (with `expected_calls`, the least preprocessing + calls x median). Every contender whose
/// per-round differences from the leader have a 95 % interval of their median that reaches 0 is tied with it; of those
/// the simplest wins. With `expected_calls` a tie needs equal preprocessing too, since that difference is certain.
pub fn decide(contenders: &[Contender], expected_calls: Option<u64>) -> Option<Decision> {
    let cost = |c: &Contender| match expected_calls {
        Some(calls) => c.preprocess_ms * 1e3 + calls as f64 * c.timing.median_us,
        None => c.timing.median_us,
    };
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
                && indistinct(&contenders[leader], &contenders[other])
                && (expected_calls.is_none()
                    || contenders[other].preprocess_ms <= contenders[leader].preprocess_ms)
        })
        .collect();
    let winner = tied
        .iter()
        .copied()
        .chain([leader])
        .min_by_key(|&i| (contenders[i].complexity, order.iter().position(|&j| j == i)))
        .unwrap_or(leader);
    let runner_up = order.iter().copied().find(|&i| i != winner);
    Some(Decision { winner, runner_up, tie: !tied.is_empty() })
}

/// Whether the paired differences b - a leave room for no difference.
///
/// Paired by round, so that drift of clocks and temperature cancels. A difference of under 0.2 % of the time is a tie
/// whatever the interval says: events resolve about half a microsecond and no user can tell.
fn indistinct(a: &Contender, b: &Contender) -> bool {
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
            decide(&all, None),
            Some(Decision { winner: 0, runner_up: Some(1), tie: false })
        );
    }

    #[test]
    fn within_the_noise_the_simpler_wins() {
        let mut all = [contender("a", 10.0, 0.2, 5), contender("b", 10.0, 0.2, 0)];
        for (i, sample) in all[1].timing.samples_us.iter_mut().enumerate() {
            *sample += if i % 2 == 0 { 0.05 } else { -0.04 };
        }
        all[1].timing = Timing::of(all[1].timing.samples_us.clone(), 0).unwrap();
        assert_eq!(decide(&all, None), Some(Decision { winner: 1, runner_up: Some(0), tie: true }));
    }

    #[test]
    fn few_calls_favour_little_preprocessing() {
        let mut all = [contender("a", 10.0, 0.0, 5), contender("b", 12.0, 0.0, 0)];
        all[0].preprocess_ms = 1.0;
        assert_eq!(decide(&all, Some(100)).map(|d| d.winner), Some(1));
        assert_eq!(decide(&all, Some(1_000_000)).map(|d| d.winner), Some(0));
        assert_eq!(decide(&[], None), None);
    }
}
