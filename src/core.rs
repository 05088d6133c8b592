//! The rooms that compute, as a library of their own (`sparsetune-core`): it is compiled for speed, while the rest of the
//! server is compiled quickly. `lib.rs` hands every room on, so paths are the same on both sides.

// What ships does not panic, prints nothing past `cli::say`, and walks no hash table in its random order.
#![cfg_attr(
    not(test),
    warn(
        clippy::expect_used,
        clippy::get_unwrap,
        clippy::iter_over_hash_type,
        clippy::panic,
        clippy::print_stdout,
        clippy::unwrap_used
    )
)]

pub mod bundle;
pub mod domain;
pub mod engine;
pub mod environment;
pub mod evaluator;
pub mod fence;
pub mod learn;
pub mod ops;
pub mod reader;
pub mod search;
pub mod sparse;
pub mod wire;
