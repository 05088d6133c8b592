//! Folders and files that only their owner may use: matrices, plans and hashes of tokens are nobody else's business.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Makes the folder, and those above it that are missing; one that is there stays as it is.
///
/// # Errors
/// It cannot be made.
pub fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes an empty file, unless it is there. What SQLite puts beside a database is as private as the database.
///
/// # Errors
/// It cannot be made.
pub fn file(path: &Path) -> io::Result<()> {
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Something that others than its owner may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    pub path: PathBuf,
    /// Its permissions, such as 0o755.
    pub mode: u32,
    pub is_folder: bool,
}

impl Exposed {
    /// The permissions that it should have.
    pub const fn remedy(&self) -> u32 {
        if self.is_folder { 0o700 } else { 0o600 }
    }
}

/// Whether others than its owner may use this; `None` also if it is not there.
pub fn exposed(path: &Path) -> Option<Exposed> {
    let facts = std::fs::metadata(path).ok()?;
    let mode = facts.permissions().mode() & 0o777;
    let found = Exposed { path: path.to_owned(), mode, is_folder: facts.is_dir() };
    (mode & 0o077 != 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_private_and_what_is_not_is_found() {
        let top = tempfile::tempdir().unwrap();
        let (data, db) = (top.path().join("a/b"), top.path().join("a/b/db"));
        folder(&data).unwrap();
        folder(&data).unwrap();
        file(&db).unwrap();
        std::fs::write(&db, "kept").unwrap();
        file(&db).unwrap();
        assert_eq!(std::fs::read_to_string(&db).unwrap(), "kept");
        assert_eq!(
            (exposed(&data), exposed(&db), exposed(&top.path().join("x"))),
            (None, None, None)
        );
        std::fs::set_permissions(&db, std::fs::Permissions::from_mode(0o640)).unwrap();
        let found = exposed(&db).unwrap();
        assert_eq!((found.mode, found.remedy()), (0o640, 0o600));
    }
}
