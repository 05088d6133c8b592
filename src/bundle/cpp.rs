//! A plan for programs in C++: the bundle, a header that describes it, and the loader's headers, which are the same for all
//! plans. They need neither CUDA's headers nor a JSON reader: the description addresses arrays by their place in the file.

mod describe;

use super::open::Bundle;
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// What every plan is given as it is. The paths are those in the folder.
const FIXED: [(&str, &str); 12] = [
    ("sparsetune.hpp", include_str!("cpp/sparsetune.hpp")),
    ("sparsetune/arrays.hpp", include_str!("cpp/sparsetune/arrays.hpp")),
    ("sparsetune/backend.hpp", include_str!("cpp/sparsetune/backend.hpp")),
    ("sparsetune/check.hpp", include_str!("cpp/sparsetune/check.hpp")),
    ("sparsetune/description.hpp", include_str!("cpp/sparsetune/description.hpp")),
    ("sparsetune/driver.hpp", include_str!("cpp/sparsetune/driver.hpp")),
    ("sparsetune/file.hpp", include_str!("cpp/sparsetune/file.hpp")),
    ("sparsetune/host_plan.hpp", include_str!("cpp/sparsetune/host_plan.hpp")),
    ("sparsetune/kernel_plan.hpp", include_str!("cpp/sparsetune/kernel_plan.hpp")),
    ("sparsetune/vendor_plan.hpp", include_str!("cpp/sparsetune/vendor_plan.hpp")),
    ("main.cpp", include_str!("cpp/main.cpp")),
    ("CMakeLists.txt", include_str!("cpp/CMakeLists.txt")),
];

/// Why a plan was not exported.
#[derive(Debug, thiserror::Error)]
pub enum CppError {
    #[error("`{0}` cannot be the name of a file: letters, digits, `.`, `_` and `-` can")]
    Name(String),
    #[error("the bundle cannot be described: {0}")]
    Inconsistent(String),
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
}

/// Writes `NAME.stplan`, `plan.hpp`, the loader's headers, a program that checks the plan, and a CMake file into a folder, which
/// is made if necessary. Files that are there are replaced, not overwritten: a program that runs an earlier plan of this name is
/// not disturbed. Returns the files.
///
/// # Errors
/// The name cannot be a file's, or a file cannot be written.
pub fn export(bundle: &Bundle, name: &str, folder: &Path) -> Result<Vec<PathBuf>, CppError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        return Err(CppError::Name(name.to_owned()));
    }
    let file = format!("{name}.stplan");
    let description = describe::header(bundle, &file)?;
    let fixed = FIXED.iter().map(|&(path, text)| (path, text.as_bytes()));
    let own = [(file.as_str(), bundle.bytes()), ("plan.hpp", description.as_bytes())];
    own.into_iter()
        .chain(fixed)
        .map(|(path, bytes)| {
            let path = folder.join(path);
            let parent = path.parent().unwrap_or(folder);
            match std::fs::create_dir_all(parent).and_then(|()| replaced(&path, bytes)) {
                Ok(()) => Ok(path),
                Err(error) => Err(CppError::Io { path, error }),
            }
        })
        .collect()
}

/// Writes a file under another name beside its own, then renames it: a program that has mapped the earlier file keeps that
/// one, whereas it would be killed if the file became shorter under it.
fn replaced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // As any new file: what the process's mask leaves of it.
    let permissions = Permissions::from_mode(0o666);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .permissions(permissions)
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
