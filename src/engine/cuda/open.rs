//! Opening the engine: which libraries, which device, the vendor's handle, and what the device is.

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
use super::libraries::{LibraryError, Search};
use super::nvml::{Monitor, Nvml};
use super::nvrtc::Nvrtc;
use super::own::OwnKernels;
use super::timer::Timer;
use super::vendors::{Opened, Vendors};
use crate::engine::EngineError;
use std::path::PathBuf;
use std::sync::Arc;

/// How to open the engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which device, as the driver counts them.
    pub ordinal: u32,
    /// Folder of the cubin cache; made if absent.
    pub cache: PathBuf,
    /// Library files and folders that go before all others.
    pub libraries: Vec<PathBuf>,
    /// Threads that compile ahead.
    pub compile_threads: usize,
    /// Most device memory for the reference result, bytes; without it, half of what the operands leave. A larger
    /// reference is brought to the device in slices at each verification.
    pub reference_bytes: Option<u64>,
}

impl CudaEngine {
    /// Opens the device: driver, compiler, cuSPARSE (if there), the engine's own kernels, the
    /// calibrations of copy and hop.
    pub fn open(options: Options) -> Result<Self, EngineError> {
        let missing = |error: LibraryError| refused(error.to_string());
        let mut search = Search::new(&options.libraries);
        let driver = Driver::open(&search).map_err(missing)?;
        let count = driver.device_count()?;
        if options.ordinal >= count {
            return Err(refused(format!("there is no device {} of {count}", options.ordinal)));
        }
        let version = driver.version()?;
        search.cuda_major = Some(version.0);
        let nvrtc = Nvrtc::open(&search).map_err(missing)?;
        let context = Context::open(driver, options.ordinal)?;
        let (monitor, release) = monitor(&search, &context)?;
        let (cusparse, vendor) = vendor(&search, &context)?;
        let software = Software {
            driver: match release {
                Some(release) => format!("{}.{}/{release}", version.0, version.1),
                None => format!("{}.{}", version.0, version.1),
            },
            compiler: format!("nvrtc {}.{}", nvrtc.version().0, nvrtc.version().1),
            vendor,
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

/// The throttle monitor and the driver's release, where NVML is there.
fn monitor(
    search: &Search,
    context: &Context,
) -> Result<(Option<Monitor>, Option<String>), EngineError> {
    let nvml = match Nvml::open(search) {
        Ok(nvml) => nvml,
        Err(error) => {
            tracing::warn!(%error, "throttled samples cannot be told");
            return Ok((None, None));
        }
    };
    let release = nvml.driver_release();
    let bus_id = context.driver.bus_id(context.device)?;
    Ok((Monitor::new(nvml, &bus_id), release))
}

/// cuBLAS with its version, where it is there. Its handle is made when a dense product is asked for.
fn dense_vendor(search: &Search) -> Option<String> {
    let version = Cublas::open(search).and_then(|library| library.version());
    let version = version.inspect_err(|error| tracing::warn!(%error, "no dense products"));
    version.ok().map(|version| format!("cuBLAS {version}"))
}

/// The cuSPARSE handle or the reason for none, and its name with version.
fn vendor(
    search: &Search,
    context: &Arc<Context>,
) -> Result<(Opened<Handle>, Option<String>), EngineError> {
    let opened = Cusparse::open(search).and_then(|library| {
        let version = library.version()?;
        Ok((library, version))
    });
    match opened {
        Ok((library, version)) => {
            let handle = Arc::new(Handle::new(library, context)?);
            Ok((Ok(handle), Some(format!("cuSPARSE {version}"))))
        }
        Err(error) => {
            tracing::warn!(%error, "no vendor baseline");
            Ok((Err(error.to_string()), None))
        }
    }
}
