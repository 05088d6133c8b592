//! The one binary: every role is a subcommand.

fn main() -> std::process::ExitCode {
    sparsetune::cli::main()
}
