//! The installed copies of a vendor's library: found by their files' names, the newest opened that the driver can run.
//! Several copies in one process could take each other's helpers, so nothing is opened to learn its version.

use super::places::dotted_number;
use super::{Library, LibraryError};
use std::path::{Path, PathBuf};

/// Why a copy stands where it stands in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The configuration names this very file: it is opened whatever its version.
    NamedFile,
    /// It lies in a place that the configuration names.
    NamedPlace,
    /// It was found in the usual places.
    Usual,
}

/// One installed copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Installed {
    /// The file as it was found, perhaps a link.
    pub file: PathBuf,
    /// The version, as far as names tell it without opening the file; empty if they do not tell any.
    pub version: Vec<u32>,
    pub origin: Origin,
}

/// A copy that was not opened, or not used once it was, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    pub file: PathBuf,
    /// As far as names tell it.
    pub version: Option<String>,
    /// The rest of a sentence that begins with the file.
    pub reason: String,
    /// Newer than the one opened and fit for the driver, but the configuration names that one.
    pub barred: bool,
}

/// A choice among the copies.
#[derive(Debug)]
pub(in crate::engine) struct Choice<T> {
    /// What was opened; or the first reason why one did not open, if any was there.
    pub opened: Option<Result<T, LibraryError>>,
    pub passed_over: Vec<PassedOver>,
}

/// The copies among these files, each file once although several links may lead to it: named ones first, in their order,
/// then the newest of the others. Within one named place, too, the newest is first. `files` are those of each place, with
/// the place's origin.
pub(in crate::engine) fn installed(
    library: Library,
    places: Vec<(Origin, Vec<PathBuf>)>,
) -> (Vec<Installed>, Vec<PassedOver>) {
    let (mut seen, mut broken) = (Vec::<PathBuf>::new(), Vec::<PassedOver>::new());
    let (mut named, mut usual) = (Vec::new(), Vec::new());
    for (origin, files) in places {
        let mut here = Vec::new();
        for file in files {
            let real = match std::fs::canonicalize(&file) {
                Ok(real) => real,
                Err(error) => {
                    if broken.iter().all(|passed| passed.file != file) {
                        let reason = format!("leads to no file that can be read: {error}");
                        broken.push(PassedOver { file, version: None, reason, barred: false });
                    }
                    continue;
                }
            };
            if !real.is_file() || seen.contains(&real) {
                continue;
            }
            let version = version_of(library, &file, &real);
            seen.push(real);
            here.push(Installed { file, version, origin });
        }
        match origin {
            Origin::Usual => usual.append(&mut here),
            Origin::NamedFile | Origin::NamedPlace => {
                newest_first(&mut here);
                named.append(&mut here);
            }
        }
    }
    newest_first(&mut usual);
    named.append(&mut usual);
    (named, broken)
}

/// Stable: of equal versions the one in the earlier place is first. A copy that does not tell its version is behind all of
/// its major version that do.
fn newest_first(copies: &mut [Installed]) {
    copies.sort_by(|a, b| b.version.cmp(&a.version));
}

/// Opens the first copy that the driver can run and that opens, and tells why the others were passed over.
/// `cuda_major` is the driver's; without a driver every copy may be opened.
pub(in crate::engine) fn choose<T>(
    library: Library,
    copies: &[Installed],
    cuda_major: Option<u32>,
    mut open: impl FnMut(&Installed) -> Result<T, LibraryError>,
) -> Choice<T> {
    let mut chosen: Option<(&Installed, T)> = None;
    let (mut failed, mut passed_over) = (None, Vec::new());
    for copy in copies {
        let mut barred = false;
        let reason = if let Some(reason) = too_new(library, copy, cuda_major) {
            reason
        } else if let Some((chosen, _)) = &chosen {
            barred = chosen.origin != Origin::Usual && copy.version > chosen.version;
            left_aside(copy, chosen)
        } else {
            match open(copy) {
                Ok(opened) => {
                    chosen = Some((copy, opened));
                    continue;
                }
                Err(error) => {
                    // It begins with the file, which is told beside it.
                    let (file, reason) = (copy.file.display().to_string(), error.to_string());
                    failed.get_or_insert(error);
                    let rest =
                        reason.strip_prefix(&file).map(|rest| rest.trim_start_matches(':').trim());
                    rest.unwrap_or(&reason).to_owned()
                }
            }
        };
        let version = dotted(&copy.version);
        passed_over.push(PassedOver { file: copy.file.clone(), version, reason, barred });
    }
    let opened = chosen.map(|(_, opened)| Ok(opened)).or_else(|| failed.map(Err));
    Choice { opened, passed_over }
}

fn left_aside(copy: &Installed, chosen: &Installed) -> String {
    match (chosen.origin, copy.version.cmp(&chosen.version)) {
        (Origin::Usual, std::cmp::Ordering::Equal) => {
            "is of the same version as the one opened".to_owned()
        }
        (Origin::Usual, _) if copy.version.len() < 2 => {
            "does not tell its version by its name or its package".to_owned()
        }
        (Origin::Usual, _) => "is older than the one opened".to_owned(),
        (_, std::cmp::Ordering::Greater) => {
            "is newer, but the configuration names the one opened".to_owned()
        }
        (_, _) => "is not needed: the configuration names the one opened".to_owned(),
    }
}

/// Why a driver of this major version cannot run the copy; `None` if it can, if names do not tell, or if the configuration
/// names the file.
fn too_new(library: Library, copy: &Installed, cuda_major: Option<u32>) -> Option<String> {
    let needs = needs_cuda(library, &copy.version)?;
    let most = cuda_major.filter(|most| needs > *most && copy.origin != Origin::NamedFile)?;
    Some(format!("is of CUDA {needs}, and the driver runs libraries up to CUDA {most}"))
}

/// The major version of CUDA that a library's version belongs to, as far as the version tells. cuSPARSE kept 12 as its own
/// major version when CUDA went to 13: 12.5 is the last of CUDA 12, 12.6 the first of CUDA 13.
pub(in crate::engine) fn needs_cuda(library: Library, version: &[u32]) -> Option<u32> {
    match (library, version) {
        (Library::Cusparse, [12, minor, ..]) => Some(if *minor < 6 { 12 } else { 13 }),
        (Library::Cusparse, [12]) | (Library::Mkl, _) => None,
        (_, [major, ..]) => Some(*major),
        (_, []) => None,
    }
}

/// The version by the file's real name (`libcusparse.so.12.6.3.3`), else by the Python package that brought the file, else
/// what the name has of it (`libcusparse.so.12`).
fn version_of(library: Library, file: &Path, real: &Path) -> Vec<u32> {
    let by_name = |path: &Path| library.version_in_name(path).unwrap_or_default();
    let names = [by_name(real), by_name(file)];
    let name = names.into_iter().max_by_key(Vec::len).unwrap_or_default();
    if name.len() > 1 {
        return name;
    }
    let packaged = [file, real].into_iter().find_map(package_version);
    packaged.filter(|packaged| packaged.starts_with(&name)).unwrap_or(name)
}

/// The version of the Python package whose list of files names this one: `nvidia_cusparse-12.9.4.2.dist-info/RECORD` beside
/// the folder `nvidia`.
fn package_version(file: &Path) -> Option<Vec<u32>> {
    let packages =
        file.ancestors().find(|folder| folder.file_name().is_some_and(|n| n == "nvidia"));
    let packages = packages?.parent()?;
    let line = format!("{},", file.strip_prefix(packages).ok()?.to_str()?);
    let entries = std::fs::read_dir(packages).ok()?;
    entries.flatten().map(|entry| entry.path()).find_map(|folder| {
        let name = folder.file_name()?.to_str()?.strip_suffix(".dist-info")?;
        let (package, version) = name.split_once('-')?;
        if !package.starts_with("nvidia_") {
            return None;
        }
        let record = std::fs::read_to_string(folder.join("RECORD")).ok()?;
        let lists = record.lines().any(|listed| listed.starts_with(&line));
        lists.then(|| dotted_number(version)).flatten()
    })
}

/// `12.9.4.2`; `None` if nothing is known.
pub(in crate::engine) fn dotted(version: &[u32]) -> Option<String> {
    let parts: Vec<String> = version.iter().map(u32::to_string).collect();
    (!parts.is_empty()).then(|| parts.join("."))
}

#[cfg(test)]
mod tests;
