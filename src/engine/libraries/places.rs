//! Folders where the vendors' libraries usually are: CUDA's toolkits, the `nvidia` packages of Python's site-packages, oneAPI, and the
//! `lib` of Python's environments, where MKL's package and Conda's put theirs.

use crate::environment;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A configured folder may be the library folder itself, a toolkit's root, or a site-packages folder.
pub(super) fn below(place: &Path, names: &[String]) -> Vec<PathBuf> {
    layouts(place).iter().flat_map(|folder| present(folder, names)).collect()
}

fn layouts(place: &Path) -> Vec<PathBuf> {
    let folders = [place.to_owned(), place.join("lib64"), place.join("lib")];
    let wheels = wheel_folders(place).into_iter().chain(wheel_folders(&place.join("nvidia")));
    folders.into_iter().chain(wheels).collect()
}

/// Every folder that a search for libraries reads, and those that hold what the libraries found there load in turn.
pub(super) fn roots(configured: &[&Path]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = configured.iter().flat_map(|place| around(place)).collect();
    folders.extend(environment::loader_folders().chain(environment::toolkit_roots()));
    folders.extend(environment::python_roots().chain(standard_folders()));
    let cached = cached_by_the_loader();
    folders.extend(cached.iter().filter_map(|file| file.parent()).map(Path::to_owned));
    folders.retain(|folder| folder != Path::new("/"));
    folders.sort();
    folders.dedup();
    folders
}

/// A configured folder, or the folder of a configured file, by its name and by that of what it links to; in a site-packages folder all
/// of that, since its packages load each other's libraries and have their versions beside them.
fn around(place: &Path) -> Vec<PathBuf> {
    let folder = |place: &Path| match place.is_file() {
        true => place.parent().map(Path::to_owned),
        false => Some(place.to_owned()),
    };
    let packages = |folder: &PathBuf| {
        let named = |it: &&Path| it.ends_with("site-packages") || it.ends_with("dist-packages");
        folder.ancestors().find(named).map(Path::to_owned)
    };
    let linked = std::fs::canonicalize(place).ok();
    let folders = [Some(place), linked.as_deref()].into_iter().flatten().filter_map(folder);
    folders.map(|folder| packages(&folder).unwrap_or(folder)).collect()
}

/// A configured folder's copies of a library, whatever their versions, in the same layouts.
pub(super) fn copies_below(place: &Path, fits: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let folders = layouts(place);
    folders.iter().flat_map(|folder| copies_in(folder, fits)).collect()
}

/// The copies in the folders that the loader searches and in the usual ones, in that order.
pub(super) fn usual_copies(fits: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let folders = environment::loader_folders().chain(standard_folders());
    let mut files: Vec<PathBuf> = folders.flat_map(|folder| copies_in(&folder, fits)).collect();
    files.extend(cached_by_the_loader().into_iter().filter(|file| fits(file)));
    files
}

/// Files and links whose name fits, by name, so that the order does not depend on the file system.
fn copies_in(folder: &Path, fits: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| fits(file));
    files.sort();
    files
}

/// The files in the loader's cache, which lists the system's library folders.
fn cached_by_the_loader() -> Vec<PathBuf> {
    libraries_in(&std::fs::read("/etc/ld.so.cache").unwrap_or_default())
}

/// Of the cache's format only this is used: paths in it end with a zero byte. Its numbers may read as short paths, such as `/4`,
/// whose folder would be the whole system's.
fn libraries_in(cache: &[u8]) -> Vec<PathBuf> {
    let texts = cache.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    let paths = texts.filter(|text| text.starts_with('/') && text.contains(".so"));
    let paths = paths.map(PathBuf::from);
    paths.filter(|path| path.parent().is_some_and(|folder| folder != Path::new("/"))).collect()
}

/// The numbers of `12.9.4.2`; `None` if something else is there.
pub(super) fn dotted_number(text: &str) -> Option<Vec<u32>> {
    text.split('.').map(|part| part.parse().ok()).collect()
}

pub(super) fn present(folder: &Path, names: &[String]) -> Vec<PathBuf> {
    names.iter().map(|name| folder.join(name)).filter(|file| file.is_file()).collect()
}

/// `PACKAGE/lib` of each package in a site-packages `nvidia` folder: `cu13`, `cuda_nvrtc`, `cusparse`.
fn wheel_folders(nvidia: &Path) -> Vec<PathBuf> {
    folders_in(nvidia, "").into_iter().map(|package| package.join("lib")).collect()
}

/// Where oneAPI puts MKL, and the compiler's library of threads that it takes.
const ONE_API: [&str; 3] = [
    "/opt/intel/oneapi/mkl/latest/lib",
    "/opt/intel/oneapi/mkl/latest/lib/intel64",
    "/opt/intel/oneapi/compiler/latest/lib",
];

/// Toolkit and site-packages folders, newest first. Environment variables may name roots of both kinds.
pub(super) fn standard_folders() -> Vec<PathBuf> {
    let mut toolkits: Vec<PathBuf> = environment::toolkit_roots().collect();
    toolkits.push("/usr/local/cuda".into());
    toolkits.extend(folders_in(Path::new("/usr/local"), "cuda-"));
    toolkits.push("/opt/cuda".into());
    let mut folders: Vec<PathBuf> = toolkits
        .iter()
        .flat_map(|toolkit| [toolkit.join("lib64"), toolkit.join("targets/x86_64-linux/lib")])
        .collect();
    folders.extend(["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu"].map(PathBuf::from));
    folders.extend(ONE_API.map(PathBuf::from));

    let mut pythons: Vec<PathBuf> = environment::python_roots().collect();
    pythons.extend(["/usr", "/usr/local"].map(PathBuf::from));
    for lib in pythons.iter().map(|python| python.join("lib")) {
        // Conda's packages put libraries there, and MKL's package of Python.
        folders.push(lib.clone());
        for version in folders_in(&lib, "python3") {
            for packages in ["site-packages/nvidia", "dist-packages/nvidia"] {
                folders.extend(wheel_folders(&version.join(packages)));
            }
        }
    }
    folders
}

/// Subfolders whose name starts with `prefix`, later versions first; empty if the folder cannot be read.
fn folders_in(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with(prefix) && path.is_dir()
    });
    found.sort();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::{below, libraries_in, roots};
    use std::path::Path;

    #[test]
    fn numbers_in_the_loaders_cache_are_no_paths() {
        let cache = b"glibc-ld.so.cache1.1\0/4\0/;\0\0libm.so.6\0/lib/x/libm.so.6\0/libc.so\0";
        assert_eq!(libraries_in(cache), [Path::new("/lib/x/libm.so.6")]);
        assert!(!roots(&[]).contains(&Path::new("/").to_owned()));
    }

    #[test]
    fn what_a_configured_library_loads_is_among_the_roots() {
        let root = tempfile::tempdir().unwrap();
        let packages = root.path().join("python3.11/site-packages");
        let lib = packages.join("nvidia/cusparse/lib");
        let elsewhere = root.path().join("elsewhere");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("real.so"), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.join("real.so"), lib.join("libcusparse.so")).unwrap();
        let roots = roots(&[&lib.join("libcusparse.so")]);
        assert!(roots.contains(&packages), "{roots:?}");
        assert!(roots.contains(&std::fs::canonicalize(&elsewhere).unwrap()), "{roots:?}");
    }

    #[test]
    fn a_configured_folder_is_searched_in_all_its_layouts() {
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).unwrap();
        let file = lib.join("libnvrtc.so.13");
        std::fs::write(&file, "not a library").unwrap();
        let names = ["libnvrtc.so.13".to_owned(), "libnvrtc.so".to_owned()];
        assert_eq!(below(root.path(), &names), std::slice::from_ref(&file));
        assert_eq!(below(&root.path().join("nvidia"), &names), [file]);
    }
}
