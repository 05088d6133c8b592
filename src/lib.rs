//! sparsetune: finds the fastest kernel for a given sparse matrix on a given device, and remembers it.
//!
//! The rooms, from the ground up. `tests/tidy.rs` keeps each to the imports ARCHITECTURE.md allows it.

pub mod cli;
pub mod domain;
pub mod engine;
pub mod evaluator;
pub mod http;
pub mod learn;
pub mod ops;
pub mod pool;
pub mod search;
pub mod service;
pub mod sparse;
pub mod store;
