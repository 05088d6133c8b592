//! The family `slices`: equations rewritten to few windows, a few equations per warp, with the value itself as the flag.
//!
//! Beyond the paper: rewriting (inverted blocks and dense tails are cases of it) with a step of refinement where systems amplify, splitting
//! of long rows, and shared memory of one multiprocessor or one cluster as the place where unknowns are awaited.

pub mod accumulate;
pub mod alike;
pub mod equations;
pub mod estimate;
pub mod lower;
pub mod pack;
pub mod prove;
pub mod refine;
pub mod rewrite;
mod rewriting;
pub mod scheme;
pub mod space;
pub mod split;
pub mod survey;
pub mod text;
pub mod unrewritten;

pub use estimate::Estimate;
pub use lower::SlicesLowerer;
pub use space::{admitted, share, whole};
