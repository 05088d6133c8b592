//! Finds out what this host has for the CUDA engine, for `doctor` and the list of devices. Opens no context, never panics.

use super::cublas::Cublas;
use super::cusparse::Cusparse;
use super::driver::Driver;
use super::nvml::Nvml;
use super::nvrtc::Nvrtc;
use crate::domain::DeviceId;
use crate::engine::EngineError;
use crate::engine::cpu::Mkl;
use crate::engine::libraries::installed::{Origin, PassedOver};
use crate::engine::libraries::{Found, Library, LibraryError, Search};
use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
};
use std::path::{Path, PathBuf};

/// Libraries and devices as found.
#[derive(Clone, Debug)]
pub struct Probe {
    /// One entry for each of `Library::ALL`.
    pub libraries: Vec<LibraryReport>,
    pub devices: Vec<DeviceReport>,
    /// The driver's major version of CUDA.
    pub cuda_major: Option<u32>,
    /// Why there are no devices, if the driver is present but reports an error.
    pub device_problem: Option<String>,
}

#[derive(Clone, Debug)]
pub struct LibraryReport {
    pub library: Library,
    pub found: Result<LibraryFacts, LibraryError>,
    /// The other copies that are installed, and why each was not opened or not used. Told of the vendor's routines, of which
    /// the newest are wanted.
    pub passed_over: Vec<PassedOver>,
}

#[derive(Clone, Debug)]
pub struct LibraryFacts {
    pub path: PathBuf,
    /// All of it if the file's name or package tells it: `12.9.4.2`.
    pub version: String,
    /// Whether the configuration names the file or its folder, so that a newer one elsewhere was not looked for.
    pub named: bool,
}

/// A device on which an engine could be opened.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceReport {
    pub id: DeviceId,
    pub ordinal: u32,
    pub name: String,
    pub compute_capability: String,
    pub memory_bytes: u64,
}

/// Searches for all libraries and devices. `configured` are the configured library files and folders.
pub fn probe(configured: &[PathBuf]) -> Probe {
    let mut search = Search::new(configured);
    let driver = Driver::open(&search);
    let driver_version = driver.as_ref().ok().and_then(|driver| driver.version().ok());
    search.cuda_major = driver_version.map(|(major, _)| major);
    let libraries = Library::ALL
        .into_iter()
        .map(|library| {
            let (found, passed_over) = match library {
                Library::Driver => (driver_facts(&driver, driver_version), Vec::new()),
                Library::Nvrtc => (nvrtc_facts(&search), Vec::new()),
                Library::Cusparse => cusparse_facts(&search),
                Library::Cublas => cublas_facts(&search),
                Library::Nvml => (nvml_facts(&search), Vec::new()),
                Library::Mkl => mkl_facts(configured),
            };
            LibraryReport { library, found, passed_over }
        })
        .collect();
    let (devices, device_problem) = match &driver {
        Err(_) => (Vec::new(), None),
        Ok(driver) => match list(driver) {
            Ok(devices) => (devices, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        },
    };
    Probe { libraries, devices, cuda_major: search.cuda_major, device_problem }
}

/// The devices of this host; empty if there is no working driver, with the reason in the log.
pub fn devices(configured: &[PathBuf]) -> Vec<DeviceReport> {
    let driver = match Driver::open(&Search::new(configured)) {
        Ok(driver) => driver,
        Err(error) => {
            tracing::debug!(%error, "no CUDA devices");
            return Vec::new();
        }
    };
    list(&driver).unwrap_or_else(|error| {
        tracing::warn!(%error, "the CUDA driver does not list its devices");
        Vec::new()
    })
}

fn list(driver: &Driver) -> Result<Vec<DeviceReport>, EngineError> {
    (0..driver.device_count()?)
        .map(|ordinal| {
            let device = driver.device(ordinal)?;
            let major = driver.attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = driver.attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            Ok(DeviceReport {
                id: DeviceId(format!("cuda:{ordinal}")),
                ordinal,
                name: driver.name(device)?,
                compute_capability: format!("{major}.{minor}"),
                memory_bytes: driver.memory_bytes(device)?,
            })
        })
        .collect()
}

fn driver_facts(
    driver: &Result<Driver, LibraryError>,
    version: Option<(u32, u32)>,
) -> Result<LibraryFacts, LibraryError> {
    let driver = driver.as_ref().map_err(Clone::clone)?;
    let version = version.map_or_else(|| "unknown".to_owned(), dotted);
    Ok(facts(driver.api.library.path(), version))
}

fn nvrtc_facts(search: &Search) -> Result<LibraryFacts, LibraryError> {
    let nvrtc = Nvrtc::open(search)?;
    Ok(facts(nvrtc.path(), dotted(nvrtc.version())))
}

fn cusparse_facts(search: &Search) -> (Result<LibraryFacts, LibraryError>, Vec<PassedOver>) {
    Cusparse::newest(search, |cusparse| {
        Ok(vendor_facts(&cusparse.api.library, &cusparse.version()?))
    })
}

fn cublas_facts(search: &Search) -> (Result<LibraryFacts, LibraryError>, Vec<PassedOver>) {
    let (opened, passed_over) = Cublas::newest(search);
    let facts = opened.and_then(|cublas| Ok(vendor_facts(&cublas.api.library, &cublas.version()?)));
    (facts, passed_over)
}

fn mkl_facts(configured: &[PathBuf]) -> (Result<LibraryFacts, LibraryError>, Vec<PassedOver>) {
    let opened = Mkl::open(configured);
    let facts = opened.found.as_ref().map_err(Clone::clone).map(|mkl| LibraryFacts {
        named: mkl.library.origin() != Origin::Usual,
        ..facts(mkl.library.path(), format!("{}, {}", mkl.version, mkl.layer.name()))
    });
    (facts, opened.passed_over.clone())
}

fn vendor_facts(library: &Found, reported: &str) -> LibraryFacts {
    let named = library.origin() != Origin::Usual;
    LibraryFacts { named, ..facts(library.path(), library.full_version(reported)) }
}

fn nvml_facts(search: &Search) -> Result<LibraryFacts, LibraryError> {
    let nvml = Nvml::open(search)?;
    let version = nvml.driver_release().unwrap_or_else(|| "unknown".to_owned());
    Ok(facts(nvml.path(), version))
}

fn facts(path: &Path, version: String) -> LibraryFacts {
    LibraryFacts { path: path.to_owned(), version, named: false }
}

fn dotted((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_is_reported_whatever_is_installed() {
        let probe = probe(&[]);
        let reported: Vec<Library> = probe.libraries.iter().map(|report| report.library).collect();
        assert_eq!(reported, Library::ALL);
        let driver_found = probe.libraries[0].found.is_ok();
        assert!(driver_found || (probe.devices.is_empty() && devices(&[]).is_empty()));
    }
}
