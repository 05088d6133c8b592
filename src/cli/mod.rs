//! One file per subcommand.

pub mod evaluator;
