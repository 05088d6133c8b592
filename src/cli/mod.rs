//! One file per subcommand.

pub mod config;
pub mod evaluator;
pub mod logging;
pub mod serve;
