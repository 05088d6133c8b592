//! The one binary: every role is a subcommand.

use clap::{Parser, Subcommand};
use sparsetune::cli::evaluator::EvaluatorArgs;
use std::process::ExitCode;

#[derive(Parser)]
#[command(version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(hide = true)]
    Evaluator(EvaluatorArgs),
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match Args::parse().command {
        Command::Evaluator(args) => args.run(),
    }
}
