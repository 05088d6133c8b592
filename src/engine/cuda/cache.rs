//! The cubin cache: a folder of binaries by program digest, published by rename, each verified by a stored digest.

use super::nvrtc::Binary;
use crate::domain::Digest;
use serde::{Deserialize, Serialize};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// A folder of cubins; many processes may share it.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

/// The metadata stored beside a cubin, as `DIGEST.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figures {
    /// Digest of the cubin's bytes: a torn or damaged pair is not used.
    cubin_digest: Digest,
    registers: u32,
    spill_bytes: u32,
    compile_ms: f64,
    log: String,
}

impl Cache {
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The binary of a program, if it is present and complete; otherwise the caller compiles again.
    pub fn get(&self, program: &Digest) -> Option<Binary> {
        let figures = std::fs::read(self.file(program, "json")).ok()?;
        let figures: Figures = match serde_json::from_slice(&figures) {
            Ok(figures) => figures,
            Err(error) => return self.damaged(program, &error.to_string()),
        };
        let cubin = match std::fs::read(self.file(program, "cubin")) {
            Ok(cubin) => cubin,
            Err(error) => return self.damaged(program, &error.to_string()),
        };
        if Digest::of(&cubin) != figures.cubin_digest {
            return self.damaged(program, "the cubin's digest differs");
        }
        let Figures { registers, spill_bytes, compile_ms: ms, log, .. } = figures;
        Some(Binary { cubin, registers, spill_bytes, log, ms })
    }

    /// Stores a binary. The figures are published after the cubin, so a reader that finds them also finds the cubin.
    pub fn put(&self, program: &Digest, binary: &Binary) -> std::io::Result<()> {
        let figures = Figures {
            cubin_digest: Digest::of(&binary.cubin),
            registers: binary.registers,
            spill_bytes: binary.spill_bytes,
            compile_ms: binary.ms,
            log: binary.log.clone(),
        };
        let figures = serde_json::to_vec(&figures)?;
        self.publish(&self.file(program, "cubin"), &binary.cubin)?;
        self.publish(&self.file(program, "json"), &figures)
    }

    fn publish(&self, file: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let folder = file.parent().unwrap_or(&self.folder);
        std::fs::create_dir_all(folder)?;
        let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
        temporary.write_all(bytes)?;
        temporary.persist(file).map(drop).map_err(|error| error.error)
    }

    fn damaged(&self, program: &Digest, reason: &str) -> Option<Binary> {
        tracing::warn!(%program, reason, "cached cubin is damaged; compiling again");
        None
    }

    /// Subfolders are named by two hex digits, so that no folder grows too large for the file system.
    fn file(&self, program: &Digest, extension: &str) -> PathBuf {
        let name = program.to_string();
        self.folder.join(&name[..2]).join(format!("{name}.{extension}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_binaries_and_refuses_damaged_ones() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(&root.path().join("cubins"));
        let program = Digest::of(b"program");
        assert_eq!(cache.get(&program), None);
        let binary = Binary {
            cubin: vec![1, 2, 3],
            registers: 40,
            spill_bytes: 8,
            log: "l".into(),
            ms: 1.5,
        };
        cache.put(&program, &binary).unwrap();
        assert_eq!(cache.get(&program), Some(binary.clone()));

        std::fs::write(cache.file(&program, "cubin"), [1, 2]).unwrap();
        assert_eq!(cache.get(&program), None);
        cache.put(&program, &binary).unwrap();
        std::fs::write(cache.file(&program, "json"), "{").unwrap();
        assert_eq!(cache.get(&program), None);
        cache.put(&program, &binary).unwrap();
        assert_eq!(cache.get(&program), Some(binary));
    }
}
