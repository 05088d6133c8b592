//! How uploads are read: within which limits, and by which processes.

use super::config::Config;
use crate::environment::disk;
use crate::pool::{Allowed, ReaderSpec};
use crate::service::reading_bytes;
use crate::sparse::read::{self, Pool};
use anyhow::Context;
use std::time::Duration;

/// What one upload, and all that are read at once, may take.
pub(super) fn limits(config: &Config) -> read::Limits {
    read::Limits {
        max_decompressed_bytes: config.server.max_upload_bytes as u64,
        max_matrix_bytes: config.server.max_matrix_bytes,
        memory: Pool::memory(match config.server.reading_bytes {
            0 => reading_bytes(),
            bytes => bytes,
        }),
        disk: temporary(config),
        max_ratio: config.server.max_ratio,
        spool: read::Spooling::Folder(config.data.uploads()),
        ..read::Limits::default()
    }
}

/// How the processes are started that read uploads, behind the same fence as evaluators.
pub(super) fn processes(config: &Config) -> anyhow::Result<ReaderSpec> {
    let server = &config.server;
    let limits = limits(config);
    let spec = ReaderSpec::of_this_binary().context("cannot tell which program this is")?;
    Ok(spec.fenced(config.evaluator.fence.name(), &config.evaluator.user).within(Allowed {
        memory: limits.max_matrix_bytes.min(limits.memory.limit()),
        disk: limits.max_decompressed_bytes.min(limits.disk.limit()),
        upload: server.max_upload_bytes as u64,
        time: Duration::from_secs_f64(server.read_s),
    }))
}

/// Disk for temporary files: what is configured, or half of what is free at present and of what they have taken of it.
fn temporary(config: &Config) -> Pool {
    let folder = config.data.uploads();
    let free = move || disk::free(&folder).unwrap_or(u64::MAX);
    match config.data.max_temporary_bytes {
        0 => {
            Pool::disk_at_present(u64::MAX, Box::new(move |taken| free().saturating_add(taken) / 2))
        }
        most => Pool::disk_at_present(most, Box::new(move |taken| free().saturating_add(taken))),
    }
}
