//! The search options of the submit form, with what the server does where they are left empty.

use crate::domain::{Clock, Op, SearchStrategy};
use crate::service::{SearchDefaults, ServiceSettings};

/// The options and their defaults.
pub struct Search {
    pub strategies: Vec<Strategy>,
    /// What is used for each operation if none is chosen: `ranked for SpMM, halving for SpTRSV`.
    pub usual: String,
    /// The strategy of each operation, by name, for the form's script.
    pub usual_of: Vec<(&'static str, &'static str)>,
    pub top_k: u32,
    pub seconds: f64,
    /// Of the usual strategies on a GPU, by the entries of the matrix.
    pub gpu_seconds: f64,
    pub gpu_most_seconds: f64,
    /// Trials of the strategy that the form shows first.
    pub trials: u32,
    pub clock: Clock,
}

pub struct Strategy {
    pub name: &'static str,
    pub meaning: &'static str,
    /// The budget of trials where the request has none.
    pub trials: u32,
}

impl Search {
    pub fn of(settings: &ServiceSettings) -> Self {
        let defaults = &settings.search;
        let strategy = |strategy: SearchStrategy| Strategy {
            name: strategy.name(),
            meaning: meaning(strategy),
            trials: defaults.trials_of(strategy),
        };
        let usual = |op: Op| (op.name(), op.descriptor().strategy.name());
        let words = |op: Op| format!("{} for {}", usual(op).1, op.descriptor().title);
        Self {
            strategies: SearchStrategy::ALL.map(strategy).into(),
            usual: Op::ALL.map(words).join(", "),
            usual_of: Op::ALL.map(usual).into(),
            top_k: defaults.top_k,
            seconds: defaults.seconds,
            gpu_seconds: defaults.gpu_seconds,
            // Without what a product of decimal fractions leaves behind.
            gpu_most_seconds: (defaults.gpu_seconds * SearchDefaults::GPU_MOST * 1e3).round() / 1e3,
            trials: defaults.trials_of(Op::default().descriptor().strategy),
            clock: defaults.clock.under(settings.l2_policy),
        }
    }
}

const fn meaning(strategy: SearchStrategy) -> &'static str {
    match strategy {
        SearchStrategy::Ranked => "the K best predicted",
        SearchStrategy::Exhaustive => "every candidate that passes the rules",
        SearchStrategy::Predicted => "the model's choice, without measuring",
        SearchStrategy::Halving => "many with few samples, then fewer with more",
        SearchStrategy::Sampled => "half at random, as training data",
        SearchStrategy::Full => "also what the rules would remove, to see what they cost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_settings() {
        let settings = crate::service::ServiceSettings::default();
        let search = Search::of(&settings);
        assert_eq!(search.usual, "ranked for SpMM, halving for SpTRSV");
        assert_eq!(
            (search.seconds, search.top_k),
            (settings.search.seconds, settings.search.top_k)
        );
        let trials = |name| search.strategies.iter().find(|it| it.name == name).unwrap().trials;
        assert_eq!(trials("halving"), settings.search.halving_trials);
        assert_eq!(
            (trials("full"), trials("ranked")),
            (settings.search.full_trials, search.trials)
        );
    }
}
