//! What the child processes of the service have in common: how they give up their rights, and how that is tried.

use crate::environment::account::Account;
use crate::fence::{self, Fence, Folders, Needs};
use anyhow::Context;
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct FencedArgs {
    /// How much of the fence around the process must stand: `auto`, `required`, `without_files`, `off`. The last one counts.
    #[arg(long, default_value = "auto", overrides_with = "fence")]
    fence: Fence,
    /// User to go on as, if started as root and if there is one of this name.
    #[arg(long, default_value = "")]
    user: String,
    /// Try to leave the fence, by reading this file and by writing beside it among others, and print what happened.
    #[arg(long, value_name = "FILE")]
    try_to_leave: Option<PathBuf>,
}

impl FencedArgs {
    /// Reserves stdout, which is returned, and goes on as the user, who gets the folders. The process must have one thread.
    pub(super) fn begin(&self, folders: &mut Folders) -> anyhow::Result<File> {
        fence::dump_no_core()?;
        let output = fence::claim_stdout()?;
        if let Err(error) = fence::offer_to_the_oom_killer() {
            tracing::debug!(%error, "this process may outlive the service's when memory runs out");
        }
        let account = Account::of(&self.user).context("the users of this host are not known")?;
        if self.fence != Fence::Off
            && let Some(account) = account
        {
            folders.become_user(&account)?;
            tracing::debug!(user = account.name, "this process is not root any more");
        }
        // After the change of user, which would end it, and before the fence, which may not permit it.
        fence::die_with_parent()?;
        Ok(output)
    }

    /// Gives up all rights but what this needs.
    pub(super) fn raise(&self, needs: &Needs<'_>) -> anyhow::Result<()> {
        fence::report(fence::raise(self.fence, needs)?);
        Ok(())
    }

    /// If that is what this process was started for: tries to leave, and prints what was tried and what stopped it, as a line of
    /// JSON each.
    pub(super) fn tried(&self, output: &File) -> Option<ExitCode> {
        let secret = self.try_to_leave.as_deref()?;
        let beside = secret.parent().unwrap_or(Path::new("."));
        let mut output = output;
        let told = fence::attempts(secret, beside).into_iter().try_for_each(|attempt| {
            let line = json!({"attempt": attempt.what, "stopped": attempt.stopped});
            writeln!(output, "{line}")
        });
        Some(if told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
