//! sparsetune: finds the fastest kernel for a given sparse matrix on a given device, and remembers it.
//!
//! Programs use it through [`Matrix`] and [`Tuner`]: read a matrix, tune it in this process, get a [`Plan`]. `examples/` shows
//! how; the command line and the server's API are the other two ways in.
//!
//! The rooms, from the ground up. `tests/tidy.rs` keeps each to the imports ARCHITECTURE.md allows it. Those that compute
//! are compiled as a library of their own, `core.rs`.

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

pub use sparsetune_core::{
    bundle, domain, engine, environment, evaluator, fence, learn, ops, reader, search, sparse, wire,
};

pub mod charts;
pub mod cli;
pub mod explain;
pub mod http;
pub mod pool;
pub mod service;
pub mod store;
pub mod tuner;
pub mod usage;

pub use domain::{Plan, Problem, Search};
pub use tuner::{Matrix, Tuner, TunerError, TunerOptions};
