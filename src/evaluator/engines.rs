//! Selects and opens the engine for the device that the process was started for.

use super::{EvaluatorOptions, hostile};
use crate::domain::candidate::VENDOR;
use crate::domain::{Device, Digest};
use crate::engine::cpu::CpuEngine;
use crate::engine::cuda::{self, CudaEngine, source};
use crate::engine::libraries;
use crate::engine::replay::{RecordingError, ReplayEngine};
use crate::engine::{Engine, EngineError};
use crate::ops::kernel_headers;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A device of this host or a recording: `cpu`, `cuda:0`, `replay:FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    Cpu,
    Cuda(u32),
    Replay(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a device; use `cpu`, `cuda:0` or `replay:FILE`")]
pub struct SelectorError(String);

impl FromStr for DeviceSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        let bad = || SelectorError(text.to_owned());
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            Some(("cuda", ordinal)) => ordinal.parse().map(Self::Cuda).map_err(|_| bad()),
            Some(("replay", file)) if !file.is_empty() => Ok(Self::Replay(file.into())),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Replay(file) => write!(f, "replay:{}", file.display()),
        }
    }
}

/// Why the device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum EngineOpenError {
    #[error(transparent)]
    Replay(#[from] RecordingError),
    #[error("{device}: {why}")]
    Engine { device: DeviceSelector, why: EngineError },
    #[error("{0} needs a folder for compiled kernels (--cubin-cache)")]
    NoCache(DeviceSelector),
}

/// Opens the device. If hostile candidates are allowed and the device is not a GPU, they run in this process.
pub(super) fn open(options: &EvaluatorOptions) -> Result<Box<dyn Engine>, EngineOpenError> {
    let device = &options.device;
    let refused = |why| EngineOpenError::Engine { device: device.clone(), why };
    let engine: Box<dyn Engine> = match device {
        DeviceSelector::Cpu => Box::new(CpuEngine::open(&options.library_paths).map_err(refused)?),
        DeviceSelector::Cuda(ordinal) => {
            let cache = options.folders.cubins().map(Path::to_owned);
            let cache = cache.ok_or_else(|| EngineOpenError::NoCache(device.clone()))?;
            let options = cuda::Options {
                ordinal: *ordinal,
                cache,
                libraries: options.library_paths.clone(),
                // One core is left for the measuring thread.
                compile_threads: rayon::current_num_threads().saturating_sub(1).max(1),
                reference_bytes: None,
            };
            // A GPU runs hostile candidates as kernels.
            return Ok(Box::new(CudaEngine::open(options).map_err(refused)?));
        }
        DeviceSelector::Replay(file) => Box::new(ReplayEngine::open(file)?),
    };
    Ok(if options.allow_hostile { Box::new(hostile::OnHost { engine }) } else { engine })
}

/// What the evaluator reads beside the system's files and its own folders, before and after it opens the device: libraries, a
/// recording, and its own program, of which a report of a panic tells the lines.
pub fn readable(device: &DeviceSelector, library_paths: &[PathBuf]) -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    match device {
        DeviceSelector::Cuda(_) | DeviceSelector::Cpu => {
            program.into_iter().chain(libraries::roots(library_paths)).collect()
        }
        DeviceSelector::Replay(file) => program.into_iter().chain([file.clone()]).collect(),
    }
}

/// Adds the digest of each family's kernel source to the device, since engines do not know the families.
pub(super) fn with_kernels(device: &Device, options: &EvaluatorOptions) -> Device {
    let mut device = device.clone();
    if matches!(options.device, DeviceSelector::Cuda(_)) {
        for (family, headers) in kernel_headers() {
            note_kernel(&mut device, family, &headers);
        }
        // A closed-source library is identified by its name and version.
        if let Some(vendor) = &device.vendor {
            let digest = Digest::of(vendor.as_bytes());
            device.kernels.insert(VENDOR.to_owned(), digest);
        }
    }
    if options.allow_hostile {
        note_kernel(&mut device, hostile::FAMILY, &[hostile::HEADER]);
    }
    device
}

fn note_kernel(device: &mut Device, family: &str, headers: &[&str]) {
    match source::family_digest(headers) {
        Ok(digest) => {
            device.kernels.insert(family.to_owned(), digest);
        }
        // Cannot happen in a tested build: the headers are embedded, and a test compiles all of them.
        Err(error) => tracing::error!(family, %error, "the family's kernel source is incomplete"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::Folders;

    #[test]
    fn every_family_has_its_digest() {
        let line = include_str!("../../tests/pool/recording.jsonl").lines().next().unwrap();
        let header: crate::engine::replay::Header = serde_json::from_str(line).unwrap();
        let options = EvaluatorOptions {
            device: DeviceSelector::Cuda(0),
            folders: Folders::default(),
            library_paths: Vec::new(),
            allow_hostile: true,
        };
        let kernels = with_kernels(&header.device, &options).kernels;
        let families =
            kernel_headers().into_iter().map(|(family, _)| family).chain([hostile::FAMILY]);
        assert!(families.into_iter().all(|family| kernels.contains_key(family)), "{kernels:?}");
    }

    #[test]
    fn selectors_round_trip() {
        for text in ["cpu", "cuda:0", "cuda:7", "replay:/tmp/a:b.jsonl"] {
            assert_eq!(text.parse::<DeviceSelector>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:x", "replay:", "cpu:0"] {
            assert!(text.parse::<DeviceSelector>().is_err(), "{text}");
        }
    }
}
