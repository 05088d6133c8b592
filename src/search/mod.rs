//! Search: domains, constraints and pruning steps, candidate selectors, budgets, and the winner by paired timing.
//!
//! Independent of matrices and GPUs: candidates are plain data; predictions and the constraints' verdicts come from `ops`.

pub mod accuracy;
pub mod budget;
pub mod correction;
pub mod domain;
pub mod draw;
pub mod finals;
pub mod guided;
pub mod halving;
pub mod prune;
pub mod ranked;
pub mod sampled;
pub mod selector;
pub mod trusted;

pub use accuracy::model_error;
pub use budget::Budget;
pub use draw::{Draw, drawn, lot};
pub use finals::{Contender, Decision, Samples, decide};
pub use halving::{Halved, halving};
pub use prune::{Constraint, Excess, Pruned, Removed, Verdict, judged, prune, prune_full};
pub use ranked::{First, Ranked, rank_step, ranked};
pub use sampled::{Sampled, sampled};
pub use selector::{CandidateSelector, exhaustive};
pub use trusted::{corrected_top, top};
