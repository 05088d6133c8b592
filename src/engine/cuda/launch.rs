//! Kernels on the device and single launches of them, with arguments that may differ from call to call.

use super::context::{Context, Module};
use super::driver::Driver;
use super::limits;
use crate::domain::Resources;
use crate::domain::recipe::Step;
use crate::engine::EngineError;
use cudarc::driver::sys::{
    CUdevice_attribute as Limit, CUfunction, CUfunction_attribute as Fact, CUlaunchAttribute,
    CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, CUstream,
};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// A kernel of a loaded module.
pub(super) struct LoadedKernel {
    pub(super) function: CUfunction,
    pub(super) registers: u32,
    local_bytes: u32,
    pub(super) static_shared: u32,
    pub(super) max_threads: u32,
    /// Blocks per cluster along x that are compiled in; 1 without clusters.
    pub(super) cluster: u32,
    /// Where the driver can tell.
    pub(super) parameter_sizes: Option<Vec<usize>>,
    _module: Arc<Module>,
}

// SAFETY: a function handle is usable from any thread that has its context bound; see `Context`.
unsafe impl Send for LoadedKernel {}
// SAFETY: nothing in it changes.
unsafe impl Sync for LoadedKernel {}

impl LoadedKernel {
    /// A kernel of a loaded cubin. Opts in to the maximum dynamic shared memory per block on this device, and to clusters
    /// larger than the portable size.
    pub(super) fn of(
        context: &Arc<Context>,
        module: &Arc<Module>,
        entry: &str,
    ) -> Result<Self, EngineError> {
        let name =
            CString::new(entry).map_err(|_| refused("the entry's name holds a NUL".into()))?;
        let function = module.function(&name)?;
        let driver = &context.driver;
        let fact = |fact| driver.function_attribute(function, fact);
        let static_shared = fact(Fact::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let limit = |limit| driver.attribute(context.device, limit);
        let opt_in = limit(Limit::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let set = |attribute: Fact, value: u32| {
            let set = driver.api.set_function_attribute;
            // SAFETY: the function's module is loaded.
            let code = unsafe { set(function, attribute as u32, value as i32) };
            driver.check("cuFuncSetAttribute", code)
        };
        let most = opt_in.saturating_sub(static_shared);
        set(Fact::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most)?;
        let mut cluster = 1;
        if limit(Limit::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? != 0 {
            set(Fact::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
            // 0 if the kernel's text names no cluster.
            cluster = fact(Fact::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)?.max(1);
        }
        Ok(Self {
            function,
            registers: fact(Fact::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: fact(Fact::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            static_shared,
            max_threads: fact(Fact::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            cluster,
            parameter_sizes: driver.parameter_sizes(function),
            _module: module.clone(),
        })
    }

    /// Queues a launch. Each argument is in the low bytes of a word. Takes no memory of the host.
    pub(super) fn queue(
        &self,
        driver: &Driver,
        geometry: Geometry,
        stream: CUstream,
        arguments: &[u64],
    ) -> Result<(), EngineError> {
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST_ARGUMENTS];
        if arguments.len() > MOST_ARGUMENTS {
            return Err(refused(format!("{} arguments of one kernel", arguments.len())));
        }
        for (pointer, word) in pointers.iter_mut().zip(arguments) {
            *pointer = std::ptr::from_ref(word).cast_mut().cast();
        }
        let Geometry { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, overlaps } = geometry;
        if overlaps {
            let mut attribute = overlapping();
            let configuration = CUlaunchConfig {
                gridDimX: gx,
                gridDimY: gy,
                gridDimZ: gz,
                blockDimX: bx,
                blockDimY: by,
                blockDimZ: bz,
                sharedMemBytes: shared_bytes,
                hStream: stream,
                attrs: &mut attribute,
                numAttrs: 1,
            };
            let launch = driver.api.launch_configured;
            let (function, arguments) = (self.function, pointers.as_mut_ptr());
            // SAFETY: as below; configuration and attribute outlive the call.
            let code = unsafe { launch(&configuration, function, arguments, std::ptr::null_mut()) };
            return driver.check("cuLaunchKernelEx", code);
        }
        // SAFETY: `pointers` points at as many words as the kernel has parameters, read during the call; what the kernel does
        // with device memory is the device's to check.
        let code = unsafe {
            (driver.api.launch)(
                self.function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared_bytes,
                stream,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        driver.check("cuLaunchKernel", code)
    }

    /// Figures of this kernel launched as the step asks; refused if not one block would be resident, or if the blocks of a
    /// grid wait for one another and cannot all be resident.
    pub(super) fn resources(
        &self,
        context: &Context,
        step: &Step,
    ) -> Result<Resources, EngineError> {
        let threads = limits::check(self, context, step)?;
        let blocks = limits::residency(self, context, step, threads)?;
        let most = context
            .driver
            .attribute(context.device, Limit::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
        Ok(Resources {
            registers: self.registers,
            local_bytes: self.local_bytes,
            shared_bytes: self.static_shared + step.shared_bytes,
            blocks_per_multiprocessor: blocks,
            occupancy: f64::from(blocks) * f64::from(threads) / f64::from(most.max(1)),
        })
    }
}

/// The attribute of a launch that may begin while the kernel before it in the stream still runs.
fn overlapping() -> CUlaunchAttribute {
    let mut value = CUlaunchAttributeValue { pad: [0; 64] };
    value.programmaticStreamSerializationAllowed = 1;
    let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    CUlaunchAttribute { id, pad: [0; 4], value }
}

/// How a kernel is launched, besides its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub(super) shared_bytes: u32,
    /// Whether it may begin before the kernel before it in the stream has ended: only for kernels that wait for that
    /// themselves, on devices that have such launches.
    pub(super) overlaps: bool,
}

/// Most arguments of a kernel.
pub(super) const MOST_ARGUMENTS: usize = 128;

/// An argument that differs from call to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Varying {
    /// Two addresses that alternate.
    Turn { even: u64, odd: u64 },
    /// The number of the call, counted from 1.
    Epoch,
}

impl Varying {
    /// The argument in call `call`, counted from 0.
    pub(super) fn word(self, call: u64) -> u64 {
        match self {
            Self::Turn { even, .. } if call.is_multiple_of(2) => even,
            Self::Turn { odd, .. } => odd,
            // After 2^32 - 1 calls the numbers start again from 1: for kernels, 0 means "never".
            Self::Epoch => call % u64::from(u32::MAX) + 1,
        }
    }
}

/// One launch, ready to be queued any number of times.
pub(super) struct Launch {
    pub(super) context: Arc<Context>,
    pub(super) kernel: Arc<LoadedKernel>,
    pub(super) geometry: Geometry,
    /// Each argument in the low bytes of a word (every CUDA host is little-endian).
    pub(super) arguments: Vec<u64>,
    /// Which of them change from call to call.
    pub(super) varying: Vec<(usize, Varying)>,
}

impl Launch {
    /// A launch of one of the engine's own kernels, whose geometry is right by construction.
    pub(super) fn own(
        context: &Arc<Context>,
        kernel: &Arc<LoadedKernel>,
        grid: u32,
        block: u32,
        arguments: Vec<u64>,
    ) -> Self {
        let (context, kernel) = (context.clone(), kernel.clone());
        let (grid, block) = ([grid, 1, 1], [block, 1, 1]);
        let geometry = Geometry { grid, block, shared_bytes: 0, overlaps: false };
        Self { context, kernel, geometry, arguments, varying: Vec::new() }
    }

    /// Everything that determines what the launch does: graphs recorded from the same numbers are the same.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        let Geometry { grid, block, shared_bytes, overlaps } = self.geometry;
        let geometry = grid.into_iter().chain(block);
        let geometry = geometry.chain([shared_bytes, u32::from(overlaps)]).map(u64::from);
        let turns =
            self.varying.iter().flat_map(|&(at, each)| [at as u64, each.word(0), each.word(1)]);
        let arguments = self.arguments.iter().copied().chain(turns);
        std::iter::once(self.kernel.function as u64).chain(geometry).chain(arguments)
    }

    /// Queues the launch with arguments that do not change between calls.
    pub(super) fn enqueue(&self) -> Result<(), EngineError> {
        self.enqueue_as(0)
    }

    /// Queues the launch as part of call `call`, counted from 0.
    pub(super) fn enqueue_as(&self, call: u64) -> Result<(), EngineError> {
        let mut arguments = self.arguments.clone();
        for &(at, varying) in &self.varying {
            arguments[at] = varying.word(call);
        }
        let Context { driver, stream, .. } = &*self.context;
        self.kernel.queue(driver, self.geometry, *stream, &arguments)
    }
}

pub(super) fn refused(message: String) -> EngineError {
    EngineError::Refused(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_alternate_from_the_even_one() {
        let turn = Varying::Turn { even: 8, odd: 9 };
        let words: Vec<u64> = (0..4).map(|call| turn.word(call)).collect();
        assert_eq!(words, [8, 9, 8, 9]);
    }

    #[test]
    fn epochs_count_from_1_and_are_never_0() {
        let most = u64::from(u32::MAX);
        let words = [0, 1, most - 1, most, most + 1].map(|call| Varying::Epoch.word(call));
        assert_eq!(words, [1, 2, most, 1, 2]);
    }
}
