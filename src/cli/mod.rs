//! The command line: one file per subcommand, all roles in one binary, so that they can never differ in version.

pub mod client;
pub mod config;
pub mod evaluator;
mod follow;
pub mod logging;
mod problem;
mod show;
