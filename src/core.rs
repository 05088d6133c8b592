//! The rooms that compute, as a library of their own (`sparsetune-core`): it is compiled for speed, while the rest of the
//! server is compiled quickly. `lib.rs` hands every room on, so paths are the same on both sides.

pub mod domain;
pub mod engine;
pub mod evaluator;
pub mod learn;
pub mod ops;
pub mod search;
pub mod sparse;
pub mod wire;
