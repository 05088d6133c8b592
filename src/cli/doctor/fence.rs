//! What the fence around evaluators stops on this host, as tried by a child within it.

use super::super::{assemble, config::Config};
use crate::domain::DeviceId;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::process::Command;

/// One attempt to leave the fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    pub(super) attempt: String,
    /// What stopped it; nothing if it succeeded.
    pub(super) stopped: Option<String>,
}

/// Has a child with the configured fence try to leave it. The file that it tries to read is in the data folder.
pub(super) fn attempts(config: &Config) -> anyhow::Result<Vec<Attempt>> {
    let secret = config.data.dir.join("secret");
    std::fs::write(&secret, "")
        .with_context(|| format!("{} cannot be written", secret.display()))?;
    let spec = assemble::evaluator_spec(config, &DeviceId("cpu".to_owned()))?;
    let output =
        Command::new(&spec.program).args(&spec.args).arg("--try-to-leave").arg(&secret).output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| Ok(serde_json::from_slice(line)?)).collect()
}

/// The attempts as a sentence.
pub(super) fn sentence(fence: &str, found: &anyhow::Result<Vec<Attempt>>) -> String {
    let attempts = match found {
        Ok(attempts) => attempts,
        Err(error) => {
            return format!("The fence around evaluators ({fence}) does not stand: {error:#}");
        }
    };
    let open: Vec<&str> = attempts
        .iter()
        .filter(|attempt| attempt.stopped.is_none())
        .map(|attempt| attempt.attempt.as_str())
        .collect();
    match open.as_slice() {
        [] => format!(
            "The fence around evaluators ({fence}) stopped all {} attempts to leave it.",
            attempts.len()
        ),
        open => format!(
            "The fence around evaluators ({fence}) did not stop attempts to {}.",
            open.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_stopped_is_named() {
        let attempt = |what: &str, stopped: Option<&str>| Attempt {
            attempt: what.to_owned(),
            stopped: stopped.map(str::to_owned),
        };
        let all = vec![attempt("read a file", Some("no")), attempt("start a program", Some("no"))];
        assert!(sentence("auto", &Ok(all)).contains("stopped all 2 attempts"));
        let some = vec![attempt("read a file", None), attempt("start a program", Some("no"))];
        assert!(sentence("auto", &Ok(some)).ends_with("did not stop attempts to read a file."));
        let none = sentence("required", &Err(anyhow::anyhow!("no Landlock")));
        assert!(none.ends_with("(required) does not stand: no Landlock"), "{none}");
    }
}
