//! The command line: one file per subcommand, with all roles in one binary, so that their versions cannot differ.

mod admission;
mod assemble;
mod audit;
pub mod bench;
pub mod bundle;
pub mod client;
pub mod config;
mod corpus;
mod digest;
mod doctor;
mod evaluator;
mod explain;
mod exposed;
mod fenced;
mod files;
mod follow;
mod generate;
mod help;
mod keeping;
mod local;
pub mod logging;
mod lookup;
mod migrate;
mod models;
mod naming;
mod pins;
mod problem;
mod quarantine;
mod quickstart;
mod reader;
mod reading;
mod ready;
mod retention;
pub mod serve;
mod session_key;
mod show;
mod stored;
mod study;
mod submit;
mod telemetry;
mod token;
mod train;
mod transfer;
mod tune;
mod worker;

use crate::usage::Place;
use anyhow::Context;
use clap::{FromArgMatches, Parser, Subcommand};
use client::Client;
use config::{Log, LogFormat, Telemetry};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code after Ctrl-C, as shells report for a program killed by SIGINT.
const INTERRUPTED: u8 = 130;

/// What a command says on standard error beside its results: nothing of how a device's process came and went, since a device that does not
/// open is the reason that the command ends with.
const QUIET: &str = "warn,sparsetune::pool=error,sparsetune::tuner::workers=off";

/// Exit code for invalid arguments, as used by clap.
const MISUSE: u8 = 2;

/// Exit codes: 0 success, 1 failure (the reason is on standard error), 2 invalid arguments, 130 interrupted.
#[derive(Parser)]
#[command(name = "sparsetune", version, about, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Print more details to standard error
    #[arg(long, short, global = true)]
    verbose: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Demonstrate the complete workflow: start a server, tune a real matrix, look up its plan by digest
    Quickstart(quickstart::QuickstartArgs),
    /// Find the fastest kernel for one matrix file
    Tune(tune::TuneArgs),
    Serve(serve::ServeArgs),
    /// Run workers on a server's data folder, without HTTP
    Worker(worker::WorkerArgs),
    /// Tune a suite of matrices and problems, and compare every plan with its baseline
    Bench(bench::BenchArgs),
    /// Tell what techniques and pruning rules are worth, from searches recorded with `--strategy full`
    Study(study::StudyArgs),
    /// Tune generated matrices, to produce training data for this device
    Corpus(corpus::CorpusArgs),
    /// Train models on recorded measurements, on a server or in a data folder
    Train(train::TrainArgs),
    /// List a server's learned models, and activate or roll back
    Models(models::ModelsArgs),
    /// List candidates that are not tried any more because they hung or crashed, and let them be tried again
    Quarantine(quarantine::QuarantineArgs),
    /// Make, list and revoke API tokens, on a server or in a data folder
    Token(token::TokenArgs),
    /// Show who changed what, on a server or in a data folder
    Audit(audit::AuditArgs),
    /// Copy a store to a folder, while a server uses it
    Backup(keeping::BackupArgs),
    /// Make a store of a backup
    Restore(keeping::RestoreArgs),
    /// Check a store, and mend it
    Fsck(keeping::FsckArgs),
    /// Copy a store from one database to another, and compare both
    Migrate(migrate::MigrateArgs),
    /// Remove what is too old or too much by the rules of the configuration, or show it
    Retention(retention::RetentionArgs),
    /// Keep matrices and plans of a server from retention, or list what is kept
    Pin(pins::PinArgs),
    /// Let retention remove matrices and plans of a server again
    Unpin(pins::UnpinArgs),
    /// Write plans, trials and models of a store to a file, for another store or another tuner
    Export(transfer::ExportArgs),
    /// Take in what another store exported
    Import(transfer::ImportArgs),
    /// Submit a matrix to a server for tuning
    Submit(submit::SubmitArgs),
    /// Look up a plan by a matrix's digest
    Lookup(lookup::LookupArgs),
    /// Write, verify, run and import bundles: plans as files that run without a server
    Bundle(bundle::BundleArgs),
    /// Print the digests of matrix files
    Digest(digest::DigestArgs),
    /// Write a generated matrix
    Generate(generate::GenerateArgs),
    /// Report devices and libraries, and what is missing
    Doctor(doctor::DoctorArgs),
    /// Check whether a server is ready
    Ready(ready::ReadyArgs),
    /// Print the completions of commands and flags for a shell
    Completions(help::CompletionsArgs),
    /// Write manual pages
    Man(help::ManArgs),
    #[command(hide = true)]
    Evaluator(evaluator::EvaluatorArgs),
    #[command(hide = true)]
    Reader(reader::ReaderArgs),
}

fn usual_server() -> String {
    crate::environment::server().unwrap_or_else(|| "http://127.0.0.1:8080".to_owned())
}

/// Under which the help lists the flags that name a server.
const SERVER: &str = "Server";

/// The server to connect to.
#[derive(Clone, Debug, clap::Args)]
struct ServerArgs {
    /// Address of the server; SPARSETUNE_SERVER names another default
    #[arg(help_heading = SERVER, long, global = true, value_name = "URL", default_value_t = usual_server())]
    server: String,
    /// File that contains an API token (not passed as an argument, since arguments are visible to all users of this
    /// machine)
    #[arg(help_heading = SERVER, long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl ServerArgs {
    fn client(&self) -> anyhow::Result<Client> {
        let token = match &self.token_file {
            None => None,
            Some(file) => {
                exposed::warn_of_token(file);
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                Some(text.trim().to_owned())
            }
        };
        Client::new(&self.server, token)
    }

    /// Where this server's plans are.
    fn place(&self) -> Place<'_> {
        let token_file = self.token_file.as_ref().and_then(|file| file.to_str());
        Place::Server { address: self.server.trim_end_matches('/'), token_file }
    }
}

/// Runs the program with the arguments of this process and returns its exit code.
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs the program with these arguments, of which the first is its name, and returns its exit code.
pub fn main_with(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let parsed = help::command().try_get_matches_from(args).and_then(|matches| {
        Args::from_arg_matches(&matches).map_err(|error| error.format(&mut help::command()))
    });
    match parsed {
        Ok(args) => finish(run(args)),
        Err(message) => {
            // Help and version end here as well, with success. What cannot be printed has no reader.
            let _ = message.print();
            u8::try_from(message.exit_code()).map_or(ExitCode::from(MISUSE), ExitCode::from)
        }
    }
}

fn finish(ended: anyhow::Result<ExitCode>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        // `sparsetune generate ... | head`: a closed pipe is not an error.
        if !is_broken_pipe(&error) {
            eprintln!("sparsetune: {}", in_one_line(&error));
        }
        match error.downcast_ref::<problem::Misuse>() {
            Some(_) => ExitCode::from(MISUSE),
            None => ExitCode::FAILURE,
        }
    })
}

/// The error with its causes, without causes whose text is already part of an earlier one, since drivers repeat theirs.
fn in_one_line(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |said, cause| {
        let cause = cause.to_string();
        match said.is_empty() {
            true => cause,
            false if said.contains(&cause) => said,
            false => format!("{said}: {cause}"),
        }
    })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = std::io::ErrorKind::BrokenPipe;
    error.root_cause().downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == broken)
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    // These two log as configured.
    if !matches!(args.command, Command::Serve(_) | Command::Worker(_)) {
        let filter = if args.verbose { "info" } else { QUIET }.to_owned();
        let log = Log { format: LogFormat::Text, filter };
        logging::install(&log, &Telemetry::default())?;
    }
    match args.command {
        Command::Quickstart(args) => on_all_cores(quickstart::run(args)),
        Command::Tune(args) => on_all_cores(tune::run(args)),
        Command::Bench(args) => on_all_cores(bench::run(args)),
        Command::Study(args) => on_all_cores(study::run(args)),
        Command::Corpus(args) => on_all_cores(corpus::run(args)),
        Command::Serve(args) => on_all_cores(assemble::serve(args)),
        Command::Worker(args) => on_all_cores(worker::run(args)),
        Command::Train(args) => on_all_cores(train::run(args)),
        Command::Models(args) => on_one_core(models::run(args)),
        Command::Quarantine(args) => on_one_core(quarantine::run(args)),
        Command::Audit(args) => on_one_core(audit::run(args)),
        Command::Token(args) => on_one_core(token::run(args)),
        Command::Backup(args) => on_one_core(keeping::backup(args)),
        Command::Restore(args) => on_one_core(keeping::restore(args)),
        Command::Fsck(args) => on_one_core(keeping::fsck(args)),
        Command::Migrate(args) => on_one_core(migrate::run(args)),
        Command::Retention(args) => on_one_core(retention::run(args)),
        Command::Pin(args) => on_one_core(pins::pin(args)),
        Command::Unpin(args) => on_one_core(pins::unpin(args)),
        Command::Export(args) => on_all_cores(transfer::export(args)),
        Command::Import(args) => on_all_cores(transfer::import(args)),
        Command::Submit(args) => on_one_core(submit::run(args)),
        Command::Lookup(args) => on_one_core(lookup::run(args)),
        Command::Ready(args) => on_one_core(ready::run(args)),
        Command::Bundle(args) => on_all_cores(bundle::run(args)),
        Command::Digest(args) => digest::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => help::completions(&args),
        Command::Man(args) => help::man(&args),
        Command::Evaluator(args) => Ok(args.run()),
        Command::Reader(args) => Ok(args.run()),
    }
}

fn on_all_cores<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(future)
}

/// For clients, which mostly wait and need only one thread.
fn on_one_core<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// Prints a line to standard output. `println!` would panic on a closed pipe (`sparsetune tune a.mtx | head`).
fn say(line: impl std::fmt::Display) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("standard output is closed")
}
