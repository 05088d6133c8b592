//! The secret from which browser sessions are derived: that of the configuration, which several servers have in common, or 32 random
//! bytes in the data folder, so that sessions survive a restart.

use super::config::Config;
use crate::environment::random;
use anyhow::{Context, bail};
use std::io::{ErrorKind, Write};
use std::path::Path;

pub const NAME: &str = "session.key";

/// The key that the configuration names, or else the folder's.
pub fn of_config(config: &Config) -> anyhow::Result<[u8; 32]> {
    match config.server.session_key.0.as_str() {
        "" => of(&config.data.dir),
        text => Ok(blake3::derive_key("sparsetune browser sessions", text.as_bytes())),
    }
}

/// The folder's key, created if there is none.
fn of(folder: &Path) -> anyhow::Result<[u8; 32]> {
    let path = folder.join(NAME);
    let key = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make(folder, &path).with_context(|| format!("cannot create {}", path.display()))?;
            std::fs::read(&path)
        }
        read => read,
    };
    let key = key.with_context(|| format!("cannot read {}", path.display()))?;
    let Ok(key) = key.try_into() else {
        bail!(
            "{} does not have 32 bytes; remove it, and browsers will have to sign in again",
            path.display()
        );
    };
    Ok(key)
}

/// Writes the key under a temporary name first, so that another server that starts at the same time never reads a
/// partial key.
fn make(folder: &Path, path: &Path) -> std::io::Result<()> {
    let key = random::secret()?;
    // Readable only by its owner.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&key)?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Err(lost) if lost.error.kind() != ErrorKind::AlreadyExists => Err(lost.error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{NAME, of};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_created_once_and_readable_only_by_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let key = of(folder.path()).unwrap();
        assert_eq!(of(folder.path()).unwrap(), key);
        let file = folder.path().join(NAME);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(of(tempfile::tempdir().unwrap().path()).unwrap(), key);
        std::fs::write(&file, "short").unwrap();
        assert!(of(folder.path()).unwrap_err().to_string().contains("remove it"));
    }
}
