//! Opening the engine: the libraries, the device, the vendor's handle, and the device's facts.

use super::CudaEngine;
use super::cache::Cache;
use super::compile::Compiler;
use super::context::Context;
use super::cublas::Cublas;
use super::cusparse::{Cusparse, Handle};
use super::device::{self, Software};
use super::driver::Driver;
use super::hop;
use super::launch::refused;
use super::nvml::{Monitor, Nvml};
use super::nvrtc::Nvrtc;
use super::own::OwnKernels;
use super::timer::Timer;
use super::vendors::{Opened, Vendors};
use crate::domain::LibraryFile;
use crate::engine::EngineError;
use crate::engine::libraries::{LibraryError, Search};
use std::path::PathBuf;
use std::sync::Arc;

/// How to open the engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device's number, as the driver counts.
    pub ordinal: u32,
    /// Folder of the cubin cache; created if absent.
    pub cache: PathBuf,
    /// Library files and folders that are searched before all others.
    pub libraries: Vec<PathBuf>,
    /// Threads that compile ahead.
    pub compile_threads: usize,
    /// Most device memory for the reference result, bytes; if not set, half of what the operands leave. A larger reference is
    /// copied to the device in slices at each verification.
    pub reference_bytes: Option<u64>,
}

impl CudaEngine {
    /// Opens the device: driver, compiler, cuSPARSE (if present), the engine's own kernels, and the calibrations of copy and
    /// hop.
    pub fn open(options: Options) -> Result<Self, EngineError> {
        let missing = |error: LibraryError| refused(error.to_string());
        let mut search = Search::new(&options.libraries);
        let driver = Driver::open(&search).map_err(missing)?;
        let count = driver.device_count()?;
        if options.ordinal >= count {
            return Err(refused(format!(
                "device {} does not exist; the driver reports {count}",
                options.ordinal
            )));
        }
        let version = driver.version()?;
        search.cuda_major = Some(version.0);
        let nvrtc = Nvrtc::open(&search).map_err(missing)?;
        let context = Context::open(driver, options.ordinal)?;
        let (monitor, release) = monitor(&search, &context)?;
        let Vendor { handle: cusparse, name, file } = vendor(&search, &context)?;
        let software = Software {
            driver: match release {
                Some(release) => format!("{}.{}/{release}", version.0, version.1),
                None => format!("{}.{}", version.0, version.1),
            },
            compiler: format!("nvrtc {}.{}", nvrtc.version().0, nvrtc.version().1),
            vendor: name,
            vendor_file: file,
            dense_vendor: dense_vendor(&search),
        };
        let mut device = device::describe(&context, options.ordinal, software)?;
        let architecture = format!("sm_{}", device.compute_capability.replace('.', ""));
        let cache = Cache::new(&options.cache);
        let compiler = Compiler::start(nvrtc, cache, architecture, options.compile_threads)
            .map_err(|error| refused(format!("starting the compile threads: {error}")))?;
        let own = OwnKernels::load(&context, &compiler)?;
        device.hop_ns = hop::measure(&context, &own, device.multiprocessors)?;
        let timer = Timer::new(&context, &own, device.l2_bytes, device.multiprocessors, monitor)?;
        Ok(Self {
            device,
            loaded: None,
            kernels: Default::default(),
            scratches: Default::default(),
            timer,
            own,
            vendors: Vendors::new(cusparse, search),
            compiler,
            reference_bytes: options.reference_bytes,
            context,
        })
    }
}

/// The throttle monitor and the driver's release, if NVML is present.
fn monitor(
    search: &Search,
    context: &Context,
) -> Result<(Option<Monitor>, Option<String>), EngineError> {
    let nvml = match Nvml::open(search) {
        Ok(nvml) => nvml,
        Err(error) => {
            tracing::warn!(%error, "throttled samples cannot be detected without NVML");
            return Ok((None, None));
        }
    };
    let release = nvml.driver_release();
    let bus_id = context.driver.bus_id(context.device)?;
    Ok((Monitor::new(nvml, &bus_id), release))
}

/// cuBLAS with its version, if present. Its handle is created when a dense product is requested.
fn dense_vendor(search: &Search) -> Option<String> {
    let version = Cublas::open(search).and_then(|library| library.version());
    let version = version
        .inspect_err(|error| tracing::warn!(%error, "cuBLAS cannot be used: no dense products"));
    version.ok().map(|version| format!("cuBLAS {version}"))
}

/// cuSPARSE's handle, its name with version, and the file: or the reason that there is no handle.
struct Vendor {
    handle: Opened<Handle>,
    name: Option<String>,
    file: Option<LibraryFile>,
}

/// Opens the newest cuSPARSE whose handle this device's driver creates.
fn vendor(search: &Search, context: &Arc<Context>) -> Result<Vendor, EngineError> {
    let (opened, passed_over) = Cusparse::newest(search, |library| {
        let version = library.version()?;
        let file = LibraryFile {
            version: library.api.library.full_version(&version),
            path: library.api.library.path().display().to_string(),
        };
        match Handle::new(library, context) {
            // Another copy may do what this one refuses; it does not help a device that is lost or full.
            Err(EngineError::Refused(reason)) => {
                Err(LibraryError::Call { path: file.path, call: "cusparseCreate", reason })
            }
            result => Ok(result.map(|handle| (Arc::new(handle), version, file))),
        }
    });
    for passed in &passed_over {
        tracing::debug!(file = %passed.file.display(), "this cuSPARSE {}", passed.reason);
    }
    match opened {
        Ok(opened) => {
            let (handle, version, file) = opened?;
            let name = Some(format!("cuSPARSE {version}"));
            Ok(Vendor { handle: Ok(handle), name, file: Some(file) })
        }
        Err(error) => {
            tracing::warn!(%error, "cuSPARSE cannot be used: no vendor baseline");
            Ok(Vendor { handle: Err(error.to_string()), name: None, file: None })
        }
    }
}
