//! Intel's MKL, opened when a process first needs it: its inspector-executor products and triangular solves, which are the
//! baseline of plans for CPUs where it is installed.
//!
//! `libmkl_rt` loads the rest of MKL when it is first called, and ends the process if a part is missing. So what it will
//! load is looked for before, and its library of threads is opened first: Intel's, else GNU's, else TBB, else none.

mod matrix;

pub use matrix::{MklProduct, MklSolve};

use super::element::Element;
use crate::engine::libraries::installed::PassedOver;
use crate::engine::libraries::{Found, Library, LibraryError, Search};
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// MKL's 32-bit interface (LP64), which every installation has.
const LP64: c_int = 0;

/// Milliseconds for which Intel's threads look for more work after a call before they sleep. Calls that follow one another find
/// them awake; its own 200 ms would take the cores from whatever is measured next.
const SPIN_MS: c_int = 1;

/// Time after which the threads of any layer are asleep.
const ASLEEP: Duration = Duration::from_millis(4);

/// How MKL runs its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    Intel,
    Gnu,
    Tbb,
    /// On the calling thread alone.
    Sequential,
}

impl Layer {
    /// In the order in which they are tried.
    const ALL: [Self; 4] = [Self::Intel, Self::Gnu, Self::Tbb, Self::Sequential];

    /// How `doctor` and the log name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Intel => "Intel's OpenMP threads",
            Self::Gnu => "GNU's OpenMP threads",
            Self::Tbb => "TBB's threads",
            Self::Sequential => "one thread",
        }
    }

    /// Its number in `MKL_Set_Threading_Layer`.
    const fn number(self) -> c_int {
        match self {
            Self::Intel => 0,
            Self::Sequential => 1,
            Self::Gnu => 3,
            Self::Tbb => 4,
        }
    }

    fn of_number(number: c_int) -> Option<Self> {
        Self::ALL.into_iter().find(|layer| layer.number() == number)
    }

    /// The part of MKL that calls the threads, and their library.
    const fn parts(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Intel => ("libmkl_intel_thread.so", Some("libiomp5.so")),
            Self::Gnu => ("libmkl_gnu_thread.so", Some("libgomp.so.1")),
            Self::Tbb => ("libmkl_tbb_thread.so", Some("libtbb.so.12")),
            Self::Sequential => ("libmkl_sequential.so", None),
        }
    }
}

/// What MKL tells of itself (`MKLVersion`).
#[repr(C)]
struct Version {
    major: c_int,
    minor: c_int,
    update: c_int,
    texts: [*const c_char; 4],
}

/// A matrix of MKL (`sparse_matrix_t`).
type Handle = *mut c_void;

/// How MKL is to read a matrix (`struct matrix_descr`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Descr {
    kind: c_int,
    fill: c_int,
    diagonal: c_int,
}

type Create<T> = unsafe extern "C" fn(
    *mut Handle,
    c_int,
    c_int,
    c_int,
    *const c_int,
    *const c_int,
    *const c_int,
    *const T,
) -> c_int;
type Mm<T> = unsafe extern "C" fn(
    c_int,
    T,
    Handle,
    Descr,
    c_int,
    *const T,
    c_int,
    c_int,
    T,
    *mut T,
    c_int,
) -> c_int;
type Mv<T> = unsafe extern "C" fn(c_int, T, Handle, Descr, *const T, T, *mut T) -> c_int;
type Trsv<T> = unsafe extern "C" fn(c_int, T, Handle, Descr, *const T, *mut T) -> c_int;
type Trsm<T> = unsafe extern "C" fn(
    c_int,
    T,
    Handle,
    Descr,
    c_int,
    *const T,
    c_int,
    c_int,
    *mut T,
    c_int,
) -> c_int;

/// The functions for one element type, with the signatures of `mkl_spblas.h`; their answer is a `sparse_status_t`.
pub struct Routines<T> {
    create: Create<T>,
    mm: Mm<T>,
    mv: Mv<T>,
    trsv: Trsv<T>,
    trsm: Trsm<T>,
}

impl<T> Routines<T> {
    /// `letter` is MKL's for the type.
    fn load(library: &Found, letter: char) -> Result<Self, LibraryError> {
        let name = |what: &str| format!("mkl_sparse_{letter}_{what}");
        // SAFETY: the signatures are those of MKL's header for the type of this letter.
        unsafe {
            Ok(Self {
                create: library.symbol::<Create<T>>(&name("create_csr"))?,
                mm: library.symbol::<Mm<T>>(&name("mm"))?,
                mv: library.symbol::<Mv<T>>(&name("mv"))?,
                trsv: library.symbol::<Trsv<T>>(&name("trsv"))?,
                trsm: library.symbol::<Trsm<T>>(&name("trsm"))?,
            })
        }
    }
}

/// An element type that MKL computes with.
pub trait Mkled: Element {
    fn routines(mkl: &Mkl) -> &Routines<Self>;
}

impl Mkled for f32 {
    fn routines(mkl: &Mkl) -> &Routines<Self> {
        &mkl.single
    }
}

impl Mkled for f64 {
    fn routines(mkl: &Mkl) -> &Routines<Self> {
        &mkl.double
    }
}

/// MKL, opened; it stays open until the process ends.
pub struct Mkl {
    pub library: Found,
    /// `2026.2`.
    pub version: String,
    /// What its threads are: MKL keeps the layer that it was first used with in this process.
    pub layer: Layer,
    single: Routines<f32>,
    double: Routines<f64>,
    set_num_threads_local: unsafe extern "C" fn(c_int) -> c_int,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    optimize: unsafe extern "C" fn(Handle) -> c_int,
    set_mm_hint: unsafe extern "C" fn(Handle, c_int, Descr, c_int, c_int, c_int) -> c_int,
    set_mv_hint: unsafe extern "C" fn(Handle, c_int, Descr, c_int) -> c_int,
    set_sv_hint: unsafe extern "C" fn(Handle, c_int, Descr, c_int) -> c_int,
    set_sm_hint: unsafe extern "C" fn(Handle, c_int, Descr, c_int, c_int, c_int) -> c_int,
    /// Sets how long Intel's threads spin after a call, for the calling thread's team.
    set_spin: Option<unsafe extern "C" fn(c_int)>,
}

/// What came of the search.
pub struct Opened {
    pub found: Result<Mkl, LibraryError>,
    /// The other copies that are installed, and why each was not opened.
    pub passed_over: Vec<PassedOver>,
}

impl Mkl {
    /// MKL is opened once in a process, from the places that are configured where it is first asked for.
    pub fn open(configured: &[PathBuf]) -> &'static Opened {
        static OPENED: OnceLock<Opened> = OnceLock::new();
        OPENED.get_or_init(|| {
            let search = Search::new(configured);
            let (found, passed_over) = search.newest(Library::Mkl, Self::load);
            match &found {
                Ok(mkl) => tracing::debug!(
                    version = mkl.version,
                    threads = mkl.layer.name(),
                    file = %mkl.library.path().display(),
                    "MKL is open"
                ),
                Err(error) => tracing::debug!(%error, "MKL cannot be used"),
            }
            Opened { found, passed_over }
        })
    }

    fn load(library: Found) -> Result<Self, LibraryError> {
        let folder = library.path().parent().map(Path::to_owned).unwrap_or_default();
        let unloadable = |reason: &str| LibraryError::Unloadable {
            path: library.path().display().to_string(),
            reason: reason.to_owned(),
        };
        for part in ["libmkl_core.so", "libmkl_intel_lp64.so"] {
            if !has(&folder, part) {
                return Err(unloadable(&format!("{part} is not beside it")));
            }
        }
        let usable = |layer: &Layer| match layer.parts() {
            (part, _) if !has(&folder, part) => None,
            (_, None) => Some((*layer, None)),
            (_, Some(threads)) => Found::helper(threads, &folder).map(|it| (*layer, Some(it))),
        };
        let chosen = Layer::ALL.iter().find_map(usable);
        let (wanted, threads) =
            chosen.ok_or_else(|| unloadable("none of its parts for threads can be loaded"))?;
        // SAFETY: the signatures are those of MKL's headers.
        unsafe {
            let set_interface = library
                .symbol::<unsafe extern "C" fn(c_int) -> c_int>("MKL_Set_Interface_Layer")?;
            let set_layer = library
                .symbol::<unsafe extern "C" fn(c_int) -> c_int>("MKL_Set_Threading_Layer")?;
            let tell = library.symbol::<unsafe extern "C" fn(*mut Version)>("MKL_Get_Version")?;
            let single = Routines::load(&library, 's')?;
            let double = Routines::load(&library, 'd')?;
            let set_spin = threads
                .as_ref()
                .filter(|_| wanted == Layer::Intel)
                .and_then(|threads| threads.symbol("kmp_set_blocktime").ok());
            // Where another part of this process uses MKL already, they answer with what is in force.
            if set_interface(LP64) != LP64 {
                return Err(unloadable("this process uses its 64-bit interface already"));
            }
            let layer = Layer::of_number(set_layer(wanted.number())).unwrap_or(wanted);
            let mut version =
                Version { major: 0, minor: 0, update: 0, texts: [std::ptr::null(); 4] };
            tell(&mut version);
            // Releases are named by year and update; the number between them has been 0 for years.
            let Version { major, minor, update, .. } = version;
            let version = match minor {
                0 => format!("{major}.{update}"),
                _ => format!("{major}.{minor}.{update}"),
            };
            Ok(Self {
                version,
                layer,
                single,
                double,
                set_num_threads_local: library.symbol("MKL_Set_Num_Threads_Local")?,
                destroy: library.symbol("mkl_sparse_destroy")?,
                optimize: library.symbol("mkl_sparse_optimize")?,
                set_mm_hint: library.symbol("mkl_sparse_set_mm_hint")?,
                set_mv_hint: library.symbol("mkl_sparse_set_mv_hint")?,
                set_sv_hint: library.symbol("mkl_sparse_set_sv_hint")?,
                set_sm_hint: library.symbol("mkl_sparse_set_sm_hint")?,
                set_spin: set_spin.filter(|_| layer == Layer::Intel),
                library,
            })
        }
    }

    /// Runs MKL's functions on as many threads as our kernels have. Both settings are the calling thread's own, and the number
    /// is restored: others of this process may use MKL in their way.
    fn on<R>(&self, threads: usize, work: impl FnOnce() -> R) -> R {
        let threads = c_int::try_from(threads).unwrap_or(c_int::MAX);
        // SAFETY: both functions take any number.
        let before = unsafe {
            if let Some(set_spin) = self.set_spin {
                set_spin(SPIN_MS);
            }
            (self.set_num_threads_local)(threads)
        };
        let result = work();
        // SAFETY: as above.
        unsafe { (self.set_num_threads_local)(before) };
        result
    }

    /// Waits until its threads sleep, so that they take no time from what is measured next.
    pub fn rest() {
        std::thread::sleep(ASLEEP);
    }
}

/// Whether a part of MKL is in the folder, whatever its version.
fn has(folder: &Path, part: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(part));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

#[cfg(test)]
mod tests;
