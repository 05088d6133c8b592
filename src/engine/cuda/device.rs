//! The facts of a device, read from the driver, and its copy bandwidth, measured.

use super::context::{Buffer, Context, Event};
use crate::domain::{Device, DeviceId, DeviceKind, LibraryFile};
use crate::engine::EngineError;
use cudarc::driver::sys::CUdevice_attribute::*;
use std::sync::Arc;

/// Bytes copied at a time by the calibration; far above any cache.
const COPY_BYTES: u64 = 512 << 20;

/// Copies of the calibration; the fastest counts.
const COPIES: usize = 8;

/// Registers that a thread can have: an architectural constant since compute capability 3.5, which no attribute reports.
const REGISTERS_PER_THREAD: u32 = 255;

/// The versions of the software that drives the device.
pub(super) struct Software {
    /// `13.0/580.159.04`.
    pub(super) driver: String,
    /// `nvrtc 13.0`.
    pub(super) compiler: String,
    /// `cuSPARSE 12.6.3`.
    pub(super) vendor: Option<String>,
    pub(super) vendor_file: Option<LibraryFile>,
    /// `cuBLAS 13.1.0`.
    pub(super) dense_vendor: Option<String>,
}

pub(super) fn describe(
    context: &Arc<Context>,
    ordinal: u32,
    software: Software,
) -> Result<Device, EngineError> {
    let driver = &context.driver;
    let fact = |attribute| driver.attribute(context.device, attribute);
    let major = fact(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = fact(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Device {
        id: DeviceId(format!("cuda:{ordinal}")),
        kind: DeviceKind::Cuda,
        name: driver.name(context.device)?,
        compute_capability: format!("{major}.{minor}"),
        multiprocessors: fact(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        warp_size: fact(CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        max_threads_per_block: fact(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_threads_per_multiprocessor: fact(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        max_blocks_per_multiprocessor: fact(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
        registers_per_thread: REGISTERS_PER_THREAD,
        registers_per_block: fact(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?,
        registers_per_multiprocessor: fact(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        shared_bytes_per_block: u64::from(fact(
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?),
        shared_bytes_per_multiprocessor: u64::from(fact(
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?),
        l2_bytes: u64::from(fact(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        memory_bytes: driver.memory_bytes(context.device)?,
        copy_gbps: copy_gbps(context)?,
        // Measured once the engine's own kernels are compiled.
        hop_ns: 0.0,
        driver: software.driver,
        compiler: software.compiler,
        vendor: software.vendor,
        vendor_file: software.vendor_file,
        // Without it the device is used like any other, but cannot be told from another process's.
        place: driver.bus_id(context.device).ok(),
        uuid: driver.uuid(context.device).ok(),
        dense_vendor: software.dense_vendor,
        // The evaluator knows the families; the engine does not.
        kernels: Default::default(),
    })
}

/// Bytes read + written by a large copy on the device, in GB/s: the best of several, since disturbances only slow a copy
/// down.
fn copy_gbps(context: &Arc<Context>) -> Result<f64, EngineError> {
    let bytes = COPY_BYTES.min(context.free_bytes()? / 8) as usize & !3;
    let from = Buffer::new(context, bytes)?;
    let to = Buffer::new(context, bytes)?;
    // Not zeros, which some devices move faster.
    context.fill(from.pointer, 0x9e37_79b9, bytes / 4)?;
    context.copy(&to, &from, bytes)?;
    let events =
        (0..=COPIES).map(|_| Event::new(context)).collect::<Result<Vec<_>, EngineError>>()?;
    events[0].record()?;
    for event in &events[1..] {
        context.copy(&to, &from, bytes)?;
        event.record()?;
    }
    context.synchronize()?;
    let mut best_us = f64::INFINITY;
    for pair in events.windows(2) {
        best_us = best_us.min(pair[1].since_us(&pair[0])?);
    }
    Ok(2.0 * bytes as f64 / best_us.max(1e-3) / 1e3)
}
