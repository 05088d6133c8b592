//! Whether a device is the one that a plan was made for.

use super::super::context::Context;
use crate::domain::DeviceKind;
use crate::domain::bundle::Target;
use crate::engine::EngineError;
use cudarc::driver::sys::CUdevice_attribute as Fact;

/// What is compared, as the driver reports it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) compute_capability: String,
    pub(super) multiprocessors: u32,
    /// The CUDA version that the driver supports: `13.0`.
    pub(super) driver: String,
}

impl Found {
    pub(super) fn of(context: &Context) -> Result<Self, EngineError> {
        let driver = &context.driver;
        let fact = |fact| driver.attribute(context.device, fact);
        let major = fact(Fact::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = fact(Fact::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let version = driver.version()?;
        Ok(Self {
            name: driver.name(context.device)?,
            compute_capability: format!("{major}.{minor}"),
            multiprocessors: fact(Fact::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            driver: format!("{}.{}", version.0, version.1),
        })
    }
}

/// Refuses a plan for a CPU before any library is opened.
pub(super) fn check_kind(target: &Target) -> Result<(), EngineError> {
    match target.kind {
        DeviceKind::Cuda => Ok(()),
        DeviceKind::Cpu => Err(EngineError::OtherDevice(format!(
            "This plan is for a CPU ({}), not for a CUDA device.",
            target.name
        ))),
    }
}

/// What differs but does not matter for the result, as sentences.
pub(super) fn check(target: &Target, found: &Found) -> Result<Vec<String>, EngineError> {
    if target.compute_capability != found.compute_capability {
        return Err(EngineError::OtherDevice(format!(
            "This plan is for compute capability {}; the device ({}) has {}.",
            target.compute_capability, found.name, found.compute_capability
        )));
    }
    if found.multiprocessors < target.multiprocessors {
        return Err(EngineError::OtherDevice(format!(
            "This plan is for {} multiprocessors; the device ({}) has {}.",
            target.multiprocessors, found.name, found.multiprocessors
        )));
    }
    let mut warnings = Vec::new();
    if target.name != found.name {
        warnings.push(format!(
            "This plan was made on {}; this device is {}, so times may differ.",
            target.name, found.name
        ));
    }
    // The release behind the slash is NVML's to tell, which a plan does not open.
    let measured = target.driver.split('/').next().unwrap_or_default();
    if measured != found.driver {
        warnings.push(format!(
            "This plan was made with a driver of CUDA {measured}; this one is of CUDA {}.",
            found.driver
        ));
    }
    Ok(warnings)
}

/// Refuses a kernel whose blocks need more shared memory than the device has for one.
pub(super) fn check_shared(symbol: &str, needed: u64, most: u64) -> Result<(), EngineError> {
    if needed <= most {
        return Ok(());
    }
    Err(EngineError::OtherDevice(format!(
        "This plan's kernel `{symbol}` needs {needed} bytes of shared memory for a block; the device \
         has {most}."
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target {
            kind: DeviceKind::Cuda,
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            compute_capability: "9.0".to_owned(),
            multiprocessors: 132,
            least_cuda: Some("13.0".to_owned()),
            driver: "13.0/580.159.04".to_owned(),
            compiler: "nvrtc 13.0".to_owned(),
        }
    }

    fn found() -> Found {
        Found {
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            compute_capability: "9.0".to_owned(),
            multiprocessors: 132,
            driver: "13.0".to_owned(),
        }
    }

    #[test]
    fn another_kind_of_device_is_refused() {
        let why = |target: Target, found: Found| match check(&target, &found) {
            Err(EngineError::OtherDevice(why)) => why,
            other => format!("{other:?}"),
        };
        let other = Found { compute_capability: "8.0".to_owned(), ..found() };
        assert!(why(target(), other).starts_with("This plan is for compute capability 9.0;"));
        let smaller = Found { multiprocessors: 114, ..found() };
        assert!(why(target(), smaller).ends_with("has 114."));
        assert!(check_kind(&target()).is_ok());
        let other = check_kind(&Target { kind: DeviceKind::Cpu, ..target() });
        assert!(matches!(other, Err(EngineError::OtherDevice(_))));
        assert!(check_shared("k", 200_000, 200_000).is_ok());
        let small = check_shared("k", 200_001, 200_000);
        assert!(
            matches!(small, Err(EngineError::OtherDevice(why)) if why.contains("shared memory"))
        );
    }

    #[test]
    fn another_name_or_driver_is_worth_a_warning() {
        assert_eq!(check(&target(), &found()), Ok(vec![]));
        let larger = Found {
            name: "NVIDIA H200".to_owned(),
            multiprocessors: 140,
            driver: "12.8".to_owned(),
            ..found()
        };
        let warnings = check(&target(), &larger).unwrap();
        assert_eq!(warnings.len(), 2);
        assert!(warnings[1].contains("CUDA 13.0; this one is of CUDA 12.8"), "{warnings:?}");
    }
}
