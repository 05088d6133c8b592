//! One file per subcommand.

pub mod config;
pub mod logging;
pub mod serve;
