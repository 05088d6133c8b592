//! `sparsetune evaluator`: the child process of a worker. Hidden in the help, since only workers use it.

use super::fenced::FencedArgs;
use crate::environment;
use crate::evaluator::{
    DeviceSelector, EXIT_IO, EvaluatorOptions, Lowering, Ops, Unlowered, readable, run,
};
use crate::fence::{self, Folders, Inbox, Needs};
use anyhow::Context;
use std::fs::File;
use std::io::BufReader;
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
    /// Folder below which the arrays of plans are written.
    #[arg(long)]
    exports: Option<PathBuf>,
    #[command(flatten)]
    fenced: FencedArgs,
    /// File or folder searched for vendors' libraries before the system's folders; may be given more than once. `cusparse=PATH` and
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
        fence::keep_memory();
        let (output, folders) = match self.prepare() {
            Ok(prepared) => prepared,
            Err(error) => {
                tracing::error!("the evaluator could not set up its process: {error:#}");
                return ExitCode::from(EXIT_IO);
            }
        };
        if let Some(tried) = self.fenced.tried(&output) {
            return tried;
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
        let folders = Folders::new(self.cubin_cache.clone(), self.exports.clone());
        let mut folders = folders.context("a folder of the evaluator cannot be created")?;
        let output = self.fenced.begin(&mut folders)?;
        if let Some(cache) = folders.driver_cache() {
            // SAFETY: the process still has one thread, as the change of user above demands.
            unsafe { environment::keep_driver_cache(&cache) };
        }
        // What is readable is found by looking for it, which the user may not be allowed to, but its evaluator neither.
        let readable = readable(&self.device, &self.library_paths);
        self.fenced.raise(&Needs::Device { readable: &readable, folders: &folders })?;
        Ok((output, folders))
    }
}

/// A recording only needs candidates; a real device needs recipes.
fn lowering(device: &DeviceSelector) -> &'static dyn Lowering {
    match device {
        DeviceSelector::Replay(_) => &Unlowered,
        DeviceSelector::Cpu | DeviceSelector::Cuda(_) => &Ops,
    }
}
