//! Finding and mapping the vendors' libraries: configured places first, then the loader's own search, then the usual folders.

pub mod installed;
mod places;
pub(in crate::engine) mod symbols;

use installed::{Choice, Installed, Origin};
use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};
use places::{below, copies_below, dotted_number, present, standard_folders, usual_copies};
use std::ffi::{CStr, OsStr};
use std::path::{Path, PathBuf};

/// Libraries stay mapped: the vendors' leave threads and exit handlers behind that need their code.
const FLAGS: i32 = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE;

/// The libraries that the engines can use: the GPU's, which may all be absent on a host without one, and the host's MKL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Driver,
    Nvrtc,
    Cusparse,
    Cublas,
    Nvml,
    Mkl,
}

impl Library {
    pub const ALL: [Self; 6] =
        [Self::Driver, Self::Nvrtc, Self::Cusparse, Self::Cublas, Self::Nvml, Self::Mkl];

    /// The usual name of the library.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::Cusparse => "cuSPARSE",
            Self::Cublas => "cuBLAS",
            Self::Nvml => "NVML",
            Self::Mkl => "MKL",
        }
    }

    /// What names it before a configured path, and in the configuration's `evaluator`.
    fn key(self) -> Option<&'static str> {
        match self {
            Self::Driver => Some("cuda"),
            Self::Nvrtc => Some("nvrtc"),
            Self::Cusparse => Some("cusparse"),
            Self::Cublas => Some("cublas"),
            Self::Nvml => None,
            Self::Mkl => Some("mkl"),
        }
    }

    /// The library whose configured places are this one's as well: NVML comes with the driver.
    fn named(self) -> Self {
        if self == Self::Nvml { Self::Driver } else { self }
    }

    fn stem(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so",
            Self::Nvrtc => "libnvrtc.so",
            Self::Cusparse => "libcusparse.so",
            Self::Cublas => "libcublas.so",
            Self::Nvml => "libnvidia-ml.so",
            Self::Mkl => "libmkl_rt.so",
        }
    }

    /// Version suffixes in the order tried. CUDA 13 still ships `libcusparse.so.12`.
    fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Driver | Self::Nvml => &["1"],
            Self::Nvrtc => &["13", "12", "11.2"],
            Self::Cusparse => &["12", "11"],
            Self::Cublas => &["13", "12", "11"],
            Self::Mkl => &["3", "2", "1"],
        }
    }

    /// A library that this one needs, or opens by bare name at run time. It is in the same folder, which need not be on the
    /// loader's path, so it is mapped first by its full path and is then found by its name.
    fn companion(self) -> Option<&'static str> {
        match self {
            Self::Nvrtc => Some("libnvrtc-builtins.so."),
            Self::Cusparse => Some("libnvJitLink.so."),
            Self::Cublas => Some("libcublasLt.so."),
            // MKL opens its parts by their full paths, and its threads' library is chosen by who opens it.
            Self::Driver | Self::Nvml | Self::Mkl => None,
        }
    }

    /// The version numbers in a file's name: those of `libcusparse.so.12.6.3`, none of `libcusparse.so`; `None` if the file is
    /// another library's or the name ends otherwise.
    pub(in crate::engine) fn version_in_name(self, file: &Path) -> Option<Vec<u32>> {
        match file.file_name()?.to_str()?.strip_prefix(self.stem())? {
            "" => Some(Vec::new()),
            rest => dotted_number(rest.strip_prefix('.')?),
        }
    }

    fn file_names(self) -> Vec<String> {
        let stem = self.stem();
        let versioned = self.versions().iter().map(|version| format!("{stem}.{version}"));
        versioned.chain([stem.to_owned()]).collect()
    }
}

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    #[error("{name} is not installed: no {names} in {places}")]
    Absent { name: &'static str, names: String, places: String },
    #[error("{path} cannot be loaded: {reason}")]
    Unloadable { path: String, reason: String },
    #[error("{path} has no {symbol}: {reason}")]
    Symbol { path: String, symbol: String, reason: String },
    #[error(
        "{path} is version {version}, of CUDA {needs}; the driver runs libraries up to CUDA {most}"
    )]
    TooNew { path: String, version: String, needs: u32, most: u32 },
    #[error("{path}: {call} failed: {reason}")]
    Call { path: String, call: &'static str, reason: String },
}

/// A mapped library, and the file that it came from.
pub struct Found {
    handle: Handle,
    path: PathBuf,
    /// What the files' names tell of the version, if more than one number of it.
    told: Option<String>,
    /// How the file came to be opened; usual if the loader found it.
    origin: Origin,
}

impl Found {
    /// The full version: what the file's name tells, if the library itself reports the beginning of that; otherwise what it
    /// reports.
    pub(in crate::engine) fn full_version(&self, reported: &str) -> String {
        let told = self.told.clone().filter(|told| told.starts_with(&format!("{reported}.")));
        told.unwrap_or_else(|| reported.to_owned())
    }

    /// A library by its name that another one needs and that may be in the process already: two copies of one that runs threads
    /// would not agree. Else the one in the folder, the loader's, or one in the usual folders.
    pub(in crate::engine) fn helper(name: &str, folder: &Path) -> Option<Self> {
        let bare = Path::new(name);
        // SAFETY: the initialisers of libraries of threads require nothing of the caller.
        let open = |file: &Path, flags| unsafe { Handle::open(Some(file), FLAGS | flags) }.ok();
        let found = |handle, path: &Path| Self {
            handle,
            path: path.to_owned(),
            told: None,
            origin: Origin::Usual,
        };
        if let Some(handle) = open(bare, libc::RTLD_NOLOAD) {
            return Some(found(handle, bare));
        }
        let beside = [folder.join(name), bare.to_owned()].into_iter();
        let usual = standard_folders().into_iter().map(|folder| folder.join(name));
        let mut files = beside.chain(usual.filter(|file| file.is_file()));
        files.find_map(|file| open(&file, 0).map(|handle| found(handle, &file)))
    }

    pub(in crate::engine) fn origin(&self) -> Origin {
        self.origin
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One function of the library.
    ///
    /// # Safety
    /// `F` must be the function-pointer type of the symbol, and the copy must not outlive this library.
    pub(in crate::engine) unsafe fn symbol<F: Copy>(
        &self,
        symbol: &str,
    ) -> Result<F, LibraryError> {
        // SAFETY: the caller vouches for the type.
        let found = unsafe { self.handle.get::<F>(symbol.as_bytes()) };
        found.map(|function| *function).map_err(|error| LibraryError::Symbol {
            path: self.path.display().to_string(),
            symbol: symbol.to_owned(),
            reason: error.to_string(),
        })
    }

    pub(in crate::engine) fn call_error(&self, call: &'static str, reason: String) -> LibraryError {
        LibraryError::Call { path: self.path.display().to_string(), call, reason }
    }
}

/// A configured file or folder.
#[derive(Clone, Debug)]
struct Place {
    /// The only library that is searched there, if one is named.
    library: Option<Library>,
    path: PathBuf,
}

impl Place {
    fn of(text: &Path) -> Self {
        let named = text.to_str().and_then(|text| {
            let (key, path) = text.split_once('=')?;
            let library = Library::ALL.into_iter().find(|library| library.key() == Some(key))?;
            Some(Self { library: Some(library), path: path.into() })
        });
        named.unwrap_or_else(|| Self { library: None, path: text.to_owned() })
    }
}

/// Every folder that a search for libraries in these configured places ([`Search::new`]) reads, and those of what the libraries load.
pub fn roots(configured: &[PathBuf]) -> Vec<PathBuf> {
    let places: Vec<Place> = configured.iter().map(|text| Place::of(text)).collect();
    places::roots(&places.iter().map(|place| place.path.as_path()).collect::<Vec<_>>())
}

/// Where to search, in order.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Files (used if their name fits) or folders, from the configuration; they take precedence over everything else.
    configured: Vec<Place>,
    /// Highest major versions of NVRTC and cuBLAS worth trying: a driver does not accept the cubins of a later major version,
    /// whether compiled here or contained in the library.
    pub cuda_major: Option<u32>,
}

impl Search {
    /// A path may begin with the library that alone is searched there: `cuda=` (the driver, and NVML that comes with it),
    /// `nvrtc=`, `cusparse=`, `cublas=` or `mkl=`. Without one, all are.
    pub fn new(configured: &[PathBuf]) -> Self {
        let configured = configured.iter().map(|path| Place::of(path)).collect();
        Self { configured, cuda_major: None }
    }

    /// The configured places for a library.
    fn places(&self, library: Library) -> impl Iterator<Item = &Path> {
        let serves =
            move |place: &&Place| place.library.is_none_or(|named| named == library.named());
        self.configured.iter().filter(serves).map(|place| place.path.as_path())
    }

    /// Maps the first file that loads. A file that exists but does not load is remembered and named in the error.
    pub fn open(&self, library: Library) -> Result<Found, LibraryError> {
        let names = self.names(library);
        let mut broken = None;
        let mut attempt = |file: &Path| match load(library, file) {
            Ok(found) => Some(found),
            Err(error) => {
                broken.get_or_insert(error);
                None
            }
        };
        for place in self.places(library) {
            let files =
                if place.is_file() { file_if(library, place) } else { below(place, &names) };
            if let Some(found) = files.iter().find_map(|file| attempt(file)) {
                return Ok(found);
            }
        }
        // The loader's own search cannot distinguish absent from broken, so its failures are not remembered.
        for name in &names {
            if let Ok(found) = load(library, Path::new(name)) {
                return Ok(found);
            }
        }
        let standard: Vec<PathBuf> = standard_folders();
        for folder in &standard {
            if let Some(found) = present(folder, &names).iter().find_map(|file| attempt(file)) {
                return Ok(found);
            }
        }
        Err(broken.unwrap_or_else(|| self.absent(library, &names)))
    }

    /// Opens the newest copy that the driver can run, those in configured places before all others, and tells why each other
    /// was passed over. `accept` makes of a mapped copy what is wanted; if that fails, the next is tried.
    pub(in crate::engine) fn newest<T>(
        &self,
        library: Library,
        mut accept: impl FnMut(Found) -> Result<T, LibraryError>,
    ) -> (Result<T, LibraryError>, Vec<installed::PassedOver>) {
        let fits = |file: &Path| library.version_in_name(file).is_some();
        let configured = self.places(library).map(|place| match place.is_file() {
            true => (Origin::NamedFile, file_if(library, place)),
            false => (Origin::NamedPlace, copies_below(place, &fits)),
        });
        let places = configured.chain([(Origin::Usual, usual_copies(&fits))]).collect();
        let (copies, broken) = installed::installed(library, places);
        let open = |copy: &Installed| {
            let mut found = load(library, &copy.file)?;
            found.origin = copy.origin;
            found.told = installed::dotted(&copy.version).filter(|_| copy.version.len() > 1);
            accept(found)
        };
        let Choice { opened, mut passed_over } =
            installed::choose(library, &copies, self.cuda_major, open);
        passed_over.extend(broken);
        if let Some(Ok(opened)) = opened {
            return (Ok(opened), passed_over);
        }
        // A loader without a cache has places of its own.
        let names = self.names(library);
        for name in &names {
            if let Ok(found) = load(library, Path::new(name))
                && let Ok(made) = accept(found)
            {
                return (Ok(made), passed_over);
            }
        }
        let absent = || Err(self.absent(library, &names));
        (opened.unwrap_or_else(absent), passed_over)
    }

    /// Refuses a mapped library that reports a version for a later CUDA than the driver runs, unless the configuration names
    /// the file.
    pub(in crate::engine) fn check_cuda(
        &self,
        library: Library,
        found: &Found,
        reported: &str,
    ) -> Result<(), LibraryError> {
        let numbers = dotted_number(reported).unwrap_or_default();
        match (installed::needs_cuda(library, &numbers), self.cuda_major) {
            (Some(needs), Some(most)) if needs > most && found.origin != Origin::NamedFile => {
                Err(LibraryError::TooNew {
                    path: found.path.display().to_string(),
                    version: reported.to_owned(),
                    needs,
                    most,
                })
            }
            _ => Ok(()),
        }
    }

    fn names(&self, library: Library) -> Vec<String> {
        let mut names = library.file_names();
        if let (Library::Nvrtc | Library::Cublas, Some(most)) = (library, self.cuda_major) {
            let major = |name: &String| -> Option<u32> {
                let version = name.strip_prefix(library.stem())?.strip_prefix('.')?;
                version.split('.').next()?.parse().ok()
            };
            names.retain(|name| major(name).is_none_or(|major| major <= most));
        }
        names
    }

    fn absent(&self, library: Library, names: &[String]) -> LibraryError {
        let mut places: Vec<String> =
            self.places(library).map(|place| place.display().to_string()).collect();
        places.extend(["the loader's path", "toolkit folders", "site-packages"].map(str::to_owned));
        LibraryError::Absent {
            name: library.name(),
            names: names.join(", "),
            places: places.join(", "),
        }
    }
}

fn load(library: Library, file: &Path) -> Result<Found, LibraryError> {
    if let (Some(prefix), Some(folder)) = (library.companion(), file.parent())
        && file.is_absolute()
    {
        map_companion(folder, prefix);
    }
    // SAFETY: the initialisers of the vendors' libraries require nothing of the caller.
    let handle = unsafe { Handle::open(Some(file), FLAGS) }.map_err(|error| {
        // The loader's own words are the source.
        let reason = std::error::Error::source(&error).unwrap_or(&error).to_string();
        LibraryError::Unloadable { path: file.display().to_string(), reason }
    })?;
    let path = mapped_path(&handle, library).unwrap_or_else(|| file.to_owned());
    Ok(Found { handle, path, told: None, origin: Origin::Usual })
}

/// Maps the companion. If it does not load, the library reports this itself when it needs the companion.
fn map_companion(folder: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| {
        let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with(prefix) && !name.contains(".alt")
    });
    files.sort();
    for file in files {
        // SAFETY: as in `load`.
        if let Err(error) = unsafe { Handle::open(Some(&file), FLAGS) } {
            tracing::debug!(file = %file.display(), %error, "companion not loaded");
        }
    }
}

/// The file that a handle was mapped from, according to the dynamic linker.
fn mapped_path(handle: &Handle, library: Library) -> Option<PathBuf> {
    let witness = match library {
        Library::Driver => "cuInit",
        Library::Nvrtc => "nvrtcVersion",
        Library::Cusparse => "cusparseGetProperty",
        Library::Cublas => "cublasGetProperty",
        Library::Nvml => "nvmlInit_v2",
        Library::Mkl => "MKL_Get_Version",
    };
    // SAFETY: only the address is used; `info` is valid for writes, and `dli_fname` is a C string where not null.
    unsafe {
        let address = handle.get::<*mut libc::c_void>(witness.as_bytes()).ok()?.into_raw();
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name = CStr::from_ptr(info.dli_fname).to_str().ok()?;
        std::fs::canonicalize(name).ok()
    }
}

fn file_if(library: Library, file: &Path) -> Vec<PathBuf> {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let fits = name.starts_with(library.stem());
    fits.then(|| file.to_owned()).into_iter().collect()
}

#[cfg(test)]
mod tests;
