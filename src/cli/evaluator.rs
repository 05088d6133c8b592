//! `sparsetune evaluator`: the child process of a worker. Hidden in the help, since only workers use it.

use crate::evaluator::{
    DeviceSelector, EXIT_IO, EvaluatorOptions, Lowering, Ops, Unlowered, claim_stdout,
    die_with_parent, dump_no_core, keep_memory, run,
};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct EvaluatorArgs {
    /// `cpu`, `cuda:0`, or `replay:FILE`.
    #[arg(long)]
    device: DeviceSelector,
    /// Folder for compiled kernels.
    #[arg(long)]
    cubin_cache: Option<PathBuf>,
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
        let prepared =
            dump_no_core().and_then(|()| die_with_parent()).and_then(|()| claim_stdout());
        let output = match prepared {
            Ok(output) => output,
            Err(error) => {
                tracing::error!(%error, "the evaluator could not set up its process");
                return ExitCode::from(EXIT_IO);
            }
        };
        let options = EvaluatorOptions {
            device: self.device,
            cubin_cache: self.cubin_cache,
            library_paths: self.library_paths,
            allow_hostile: self.allow_hostile,
        };
        ExitCode::from(run(&options, lowering(&options.device), std::io::stdin().lock(), output))
    }
}

/// A recording only needs candidates; a real device needs recipes.
fn lowering(device: &DeviceSelector) -> &'static dyn Lowering {
    match device {
        DeviceSelector::Replay(_) => &Unlowered,
        DeviceSelector::Cpu | DeviceSelector::Cuda(_) => &Ops,
    }
}
