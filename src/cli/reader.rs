//! `sparsetune reader`: the child process that reads one upload. Hidden in the help, since only servers use it.

use super::fenced::FencedArgs;
use crate::fence::{Allowance, Folders, Inbox, Needs};
use crate::reader;
use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct ReaderArgs {
    /// Most bytes of memory of its own.
    #[arg(long, default_value_t = u64::MAX)]
    memory: u64,
    /// Most bytes of addresses, with the files that it maps.
    #[arg(long, default_value_t = u64::MAX)]
    addresses: u64,
    /// Most bytes of a file that it writes.
    #[arg(long, default_value_t = u64::MAX)]
    file: u64,
    /// Most seconds of processor time.
    #[arg(long, default_value_t = 3600)]
    cpu_s: u64,
    #[command(flatten)]
    fenced: FencedArgs,
}

impl ReaderArgs {
    /// Reads the upload that is ordered on stdin. Logs must go to stderr, because stdout is reserved for the protocol.
    pub fn run(self) -> ExitCode {
        let output = match self.prepare() {
            Ok(output) => output,
            Err(error) => {
                tracing::error!("the reader could not set up its process: {error:#}");
                return ExitCode::from(reader::EXIT_IO);
            }
        };
        if let Some(tried) = self.fenced.tried(&output) {
            return tried;
        }
        let inbox = Inbox::new(std::io::stdin());
        let passed = inbox.passed();
        ExitCode::from(reader::run(BufReader::new(inbox), passed, output))
    }

    fn prepare(&self) -> anyhow::Result<File> {
        let output = self.fenced.begin(&mut Folders::default())?;
        let Self { memory, addresses, file, cpu_s, .. } = *self;
        self.fenced.raise(&Needs::Descriptors(Allowance { memory, addresses, file, cpu_s }))?;
        Ok(output)
    }
}
