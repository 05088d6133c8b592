//! Search: domains, constraints with their funnel, strategies, budgets, and the winner by paired timing.
//!
//! Knows neither matrix nor GPU: candidates are plain data, predictions and verdicts come from `ops`.

pub mod accuracy;
pub mod budget;
pub mod correction;
pub mod domain;
pub mod finals;
pub mod guided;
pub mod halving;
pub mod prune;
pub mod ranked;
pub mod sampled;
pub mod strategy;

pub use accuracy::model_error;
pub use budget::Budget;
pub use finals::{Contender, Decision, Samples, decide};
pub use halving::{Halved, halving};
pub use prune::{Constraint, Pruned, Verdict, prune};
pub use ranked::{First, Ranked, rank_step, ranked, top};
pub use sampled::{Sampled, sampled};
pub use strategy::{Strategy, exhaustive};
