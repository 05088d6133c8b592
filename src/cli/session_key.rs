//! The secret that sessions of browsers are made with: 32 random bytes in the data folder, so that they outlive a restart.

use anyhow::{Context, bail};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

const NAME: &str = "session.key";

/// The folder's key, made where there is none.
pub fn of(folder: &Path) -> anyhow::Result<[u8; 32]> {
    let path = folder.join(NAME);
    let key = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make(folder, &path).with_context(|| format!("cannot make {}", path.display()))?;
            std::fs::read(&path)
        }
        read => read,
    };
    let key = key.with_context(|| format!("cannot read {}", path.display()))?;
    let Ok(key) = key.try_into() else {
        bail!("{} is not 32 bytes; remove it, and browsers sign in anew", path.display());
    };
    Ok(key)
}

/// Written whole under another name, so that a server that starts beside this one reads all of it or makes its own.
fn make(folder: &Path, path: &Path) -> std::io::Result<()> {
    let mut key = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    // Readable by its owner alone.
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
    fn a_key_is_made_once_and_for_its_owner_alone() {
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
