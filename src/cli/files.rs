//! Files that a user asked for: there as a whole or not at all, with the permissions that the user's umask grants.

use anyhow::Context;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Before the umask: read and written by all, as programs make files.
const MODE: u32 = 0o666;

/// Writes the file under another name in its folder, and gives it its own when it is complete.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut File) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let cannot = || format!("cannot write {}", path.display());
    let mut staged = tempfile::Builder::new()
        .permissions(Permissions::from_mode(MODE))
        .tempfile_in(folder.unwrap_or(Path::new(".")))
        .with_context(cannot)?;
    write(staged.as_file_mut()).with_context(cannot)?;
    staged.persist(path).map_err(|error| error.error).with_context(cannot)?;
    Ok(())
}
