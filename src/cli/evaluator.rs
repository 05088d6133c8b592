//! `sparsetune evaluator`: the child process of a worker. Hidden in the help, since only workers use it.

use crate::environment::account::Account;
use crate::evaluator::fence::{self, Fence, Folders};
use crate::evaluator::{
    DeviceSelector, EXIT_IO, EvaluatorOptions, Inbox, Lowering, Ops, Unlowered, claim_stdout,
    die_with_parent, dump_no_core, keep_memory, offer_to_the_oom_killer, readable, run,
};
use anyhow::Context;
use serde_json::json;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct EvaluatorArgs {
    /// `cpu`, `cuda:0`, or `replay:FILE`.
    #[arg(long)]
    device: DeviceSelector,
    /// Folder for compiled kernels.
    #[arg(long)]
    cubin_cache: Option<PathBuf>,
    /// Folder below which the arrays of plans are written.
    #[arg(long)]
    exports: Option<PathBuf>,
    /// How much of the fence around the process must stand: `auto`, `required`, `without_files`, `off`. The last one counts.
    #[arg(long, default_value = "auto", overrides_with = "fence")]
    fence: Fence,
    /// User to go on as, if started as root and if there is one of this name.
    #[arg(long, default_value = "")]
    user: String,
    /// Try to leave the fence, by reading this file and by writing beside it among others, and print what happened.
    #[arg(long, value_name = "FILE")]
    try_to_leave: Option<PathBuf>,
    /// File or folder searched for CUDA libraries before the system's folders; may be given more than once. `cusparse=PATH` and
    /// the like are searched for one library alone.
    #[arg(long = "library-path")]
    library_paths: Vec<PathBuf>,
    /// Accept the `hostile` family, which deliberately hangs and faults.
    #[arg(long)]
    allow_hostile: bool,
}

impl EvaluatorArgs {
    /// Serves the requests on stdin until it ends. Logs must go to stderr, because stdout is reserved for the protocol.
    pub fn run(self) -> ExitCode {
        keep_memory();
        let (output, folders) = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => {
                tracing::error!("the evaluator could not set up its process: {error:#}");
                return ExitCode::from(EXIT_IO);
            }
        };
        if let Some(secret) = &self.try_to_leave {
            return try_to_leave(secret, output);
        }
        let options = EvaluatorOptions {
            device: self.device,
            folders,
            library_paths: self.library_paths,
            allow_hostile: self.allow_hostile,
        };
        let inbox = Inbox::new(std::io::stdin());
        let passed = inbox.passed();
        let lowering = lowering(&options.device);
        ExitCode::from(run(&options, lowering, BufReader::new(inbox), passed, output))
    }

    /// Reserves stdout, and gives up what the process does not need.
    fn prepare(&self) -> anyhow::Result<(File, Folders)> {
        dump_no_core()?;
        let output = claim_stdout()?;
        if let Err(error) = offer_to_the_oom_killer() {
            tracing::debug!(%error, "this process may outlive the service's when memory runs out");
        }
        let folders = Folders::new(self.cubin_cache.clone(), self.exports.clone());
        let mut folders = folders.context("a folder of the evaluator cannot be created")?;
        // What is readable is found by looking for it, which the user may not be allowed to, but its evaluator neither.
        let account = Account::of(&self.user).context("the users of this host are not known")?;
        if self.fence != Fence::Off
            && let Some(account) = account
        {
            folders.become_user(&account)?;
            tracing::debug!(user = account.name, "the evaluator is not root any more");
        }
        let readable = readable(&self.device, &self.library_paths);
        for wall in fence::raise(self.fence, &readable, &folders)? {
            match wall.state {
                Ok(_) => tracing::debug!(%wall, "fence"),
                Err(_) => tracing::warn!("the fence around the evaluator lacks a wall: {wall}"),
            }
        }
        // After the change of user, which would end it.
        die_with_parent()?;
        Ok((output, folders))
    }
}

/// Prints what was tried, and what stopped it, as a line of JSON each.
fn try_to_leave(secret: &Path, mut output: File) -> ExitCode {
    let beside = secret.parent().unwrap_or(Path::new("."));
    for attempt in fence::attempts(secret, beside) {
        let line = json!({"attempt": attempt.what, "stopped": attempt.stopped});
        if writeln!(output, "{line}").is_err() {
            return ExitCode::from(EXIT_IO);
        }
    }
    ExitCode::SUCCESS
}

/// A recording only needs candidates; a real device needs recipes.
fn lowering(device: &DeviceSelector) -> &'static dyn Lowering {
    match device {
        DeviceSelector::Replay(_) => &Unlowered,
        DeviceSelector::Cpu | DeviceSelector::Cuda(_) => &Ops,
    }
}
