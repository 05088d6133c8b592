//! The state of one device: its primary context and stream, and the buffers, events and modules created in them.

use super::driver::Driver;
use super::launch::Geometry;
use crate::engine::EngineError;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUevent, CUfunction, CUmodule, CUstream,
    CUstreamCaptureMode,
};
use std::ffi::{CStr, c_uint, c_void};
use std::sync::Arc;

/// The first CUDA version whose drivers record overlapping launches into graphs.
const OVERLAPS_SINCE: (u32, u32) = (12, 4);

/// The primary context (which cuSPARSE's runtime shares) and the single stream for all work.
pub(super) struct Context {
    pub(super) driver: Driver,
    pub(super) device: CUdevice,
    handle: CUcontext,
    pub(super) stream: CUstream,
    /// Whether launches may overlap the kernel before them, also in graphs recorded from a stream.
    pub(super) overlaps: bool,
}

// SAFETY: the driver's handles may be used from any thread that has bound the context, and `bind` is called on entry
// to every public method of the engine; nothing here is tied to the thread that made it.
unsafe impl Send for Context {}
// SAFETY: the driver serialises calls on one context itself; this type holds no state that changes after `open`.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn open(driver: Driver, ordinal: u32) -> Result<Arc<Self>, EngineError> {
        const NON_BLOCKING: u32 = 1;
        let device = driver.device(ordinal)?;
        let mut handle: CUcontext = std::ptr::null_mut();
        // SAFETY: out-pointer to a local.
        let code = unsafe { (driver.api.context_retain)(&mut handle, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let major = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        let overlaps = driver.attribute(device, major)? >= 9 && driver.version()? >= OVERLAPS_SINCE;
        let mut context = Self { driver, device, handle, stream: std::ptr::null_mut(), overlaps };
        context.bind()?;
        let mut stream: CUstream = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the context is current.
        let code = unsafe { (context.driver.api.stream_create)(&mut stream, NON_BLOCKING) };
        context.driver.check("cuStreamCreate", code)?;
        context.stream = stream;
        Ok(Arc::new(context))
    }

    /// The geometry of a launch, which overlaps the kernel before it if the kernel allows it and the device can.
    pub(super) fn geometry(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        overlaps: bool,
    ) -> Geometry {
        Geometry { grid, block, shared_bytes, overlaps: overlaps && self.overlaps }
    }

    /// Makes the context current on this thread.
    pub(super) fn bind(&self) -> Result<(), EngineError> {
        // SAFETY: the handle is retained until drop.
        let code = unsafe { (self.driver.api.context_set)(self.handle) };
        self.driver.check("cuCtxSetCurrent", code)
    }

    /// Makes the context current on this thread until the result is dropped, which restores what was current before: for
    /// plans, which run in programs with contexts of their own.
    pub(super) fn enter(&self) -> Result<Restore, EngineError> {
        let previous = self.driver.current()?;
        if previous == self.handle {
            return Ok(Restore { previous, set: None });
        }
        self.bind()?;
        Ok(Restore { previous, set: Some(self.driver.api.context_set) })
    }

    /// As [`Self::enter`], for work that allocates, frees, loads or waits: see [`Relaxed`].
    pub(super) fn enter_relaxed(&self) -> Result<(Relaxed, Restore), EngineError> {
        Ok((Relaxed::new(&self.driver)?, self.enter()?))
    }

    /// Waits for all work queued on any stream of the context, by freeing memory: the driver waits before it does. While any
    /// stream is being captured, cuCtxSynchronize fails and breaks the capture, even on a [`Relaxed`] thread, as a plan's
    /// should be here.
    pub(super) fn synchronize_all(&self) -> Result<(), EngineError> {
        let mut pointer = 0;
        // SAFETY: out-pointer to a local; the context is current.
        let code = unsafe { (self.driver.api.memory_alloc)(&mut pointer, 256) };
        self.driver.check("waiting for the device", code)?;
        // SAFETY: just allocated.
        let code = unsafe { (self.driver.api.memory_free)(pointer) };
        self.driver.check("kernel execution", code)
    }

    /// Waits for all queued work; a fault in any of it is returned here.
    pub(super) fn synchronize(&self) -> Result<(), EngineError> {
        // SAFETY: the stream is ours.
        let code = unsafe { (self.driver.api.stream_synchronize)(self.stream) };
        self.driver.check("kernel execution", code)
    }

    /// Free device memory, bytes.
    pub(super) fn free_bytes(&self) -> Result<u64, EngineError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: out-pointers to locals.
        let code = unsafe { (self.driver.api.memory_info)(&mut free, &mut total) };
        self.driver.check("cuMemGetInfo", code)?;
        Ok(free as u64)
    }

    /// Queues writing `pattern` to `words` 32-bit words.
    pub(super) fn fill(&self, pointer: u64, pattern: u32, words: usize) -> Result<(), EngineError> {
        self.fill_on(self.stream, pointer, pattern, words)
    }

    /// As [`Self::fill`], on another stream of the context.
    pub(super) fn fill_on(
        &self,
        stream: CUstream,
        pointer: u64,
        pattern: u32,
        words: usize,
    ) -> Result<(), EngineError> {
        if words == 0 {
            return Ok(());
        }
        // SAFETY: callers pass a range of one of their buffers.
        let code = unsafe { (self.driver.api.fill)(pointer, pattern, words, stream) };
        self.driver.check("cuMemsetD32Async", code)
    }

    /// Queues a copy of the first `bytes` of one buffer to another.
    pub(super) fn copy(&self, to: &Buffer, from: &Buffer, bytes: usize) -> Result<(), EngineError> {
        let bytes = bytes.min(to.bytes).min(from.bytes);
        self.copy_on(self.stream, to.pointer, from.pointer, bytes)
    }

    /// Queues a copy of device memory on another stream of the context; callers vouch for both ranges.
    pub(super) fn copy_on(
        &self,
        stream: CUstream,
        to: u64,
        from: u64,
        bytes: usize,
    ) -> Result<(), EngineError> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the driver reports addresses that are none of its own.
        let code = unsafe { (self.driver.api.copy_on_device)(to, from, bytes, stream) };
        self.driver.check("cuMemcpyDtoDAsync", code)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: both are ours and nothing made in the context outlives it (all of it holds an `Arc` of this). After a lost
        // context these calls fail with its code, which can no longer be reported.
        unsafe {
            if !self.stream.is_null() {
                (self.driver.api.stream_destroy)(self.stream);
            }
            (self.driver.api.context_release)(self.device);
        }
    }
}

/// What was current on a thread before a context was entered; current again on drop.
pub(super) struct Restore {
    previous: CUcontext,
    /// Absent if nothing changed. The driver stays mapped, so this outlives the context.
    set: Option<unsafe extern "C" fn(CUcontext) -> u32>,
}

impl Restore {
    /// Restores what is current now, whatever is made current until then.
    pub(super) fn current(driver: &Driver) -> Result<Self, EngineError> {
        Ok(Self { previous: driver.current()?, set: Some(driver.api.context_set) })
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(set) = self.set {
            // SAFETY: the handle was current on this thread, or null, which means none.
            unsafe { set(self.previous) };
        }
    }
}

/// While this lives, calls of this thread that a capture forbids (to allocate, to load a module) neither fail nor break a
/// capture of another thread: nothing of them belongs to what that thread records.
pub(super) struct Relaxed {
    previous: c_uint,
    exchange: unsafe extern "C" fn(*mut c_uint) -> u32,
}

impl Relaxed {
    pub(super) fn new(driver: &Driver) -> Result<Self, EngineError> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;
        let exchange = driver.api.exchange_capture_mode;
        // SAFETY: `mode` is a local, which receives the mode until now.
        driver.check("cuThreadExchangeStreamCaptureMode", unsafe { exchange(&mut mode) })?;
        Ok(Self { previous: mode, exchange })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: the mode was this thread's; the driver stays mapped.
        unsafe { (self.exchange)(&mut self.previous) };
    }
}

/// Device memory, freed on drop.
pub(super) struct Buffer {
    context: Arc<Context>,
    pub(super) pointer: u64,
    pub(super) bytes: usize,
}

impl Buffer {
    /// Uninitialised memory; at least one cache line, so that an empty array has an address too.
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, EngineError> {
        let mut pointer = 0;
        // SAFETY: out-pointer to a local; the context is current.
        let code = unsafe { (context.driver.api.memory_alloc)(&mut pointer, bytes.max(256)) };
        context.driver.check(&format!("allocating {bytes} bytes on the device"), code)?;
        Ok(Self { context: context.clone(), pointer, bytes })
    }

    /// Memory that holds a copy of `data`.
    pub(super) fn of<T: Plain>(context: &Arc<Context>, data: &[T]) -> Result<Self, EngineError> {
        let buffer = Self::new(context, std::mem::size_of_val(data))?;
        buffer.write(data)?;
        Ok(buffer)
    }

    /// Copies `data` to the start of the buffer, in the stream's order. Returns once the host memory may be reused:
    /// the driver stages pageable memory before it returns.
    pub(super) fn write<T: Plain>(&self, data: &[T]) -> Result<(), EngineError> {
        self.write_on(self.context.stream, data)
    }

    /// As [`Self::write`], in the order of another stream of the context.
    pub(super) fn write_on<T: Plain>(
        &self,
        stream: CUstream,
        data: &[T],
    ) -> Result<(), EngineError> {
        let bytes = std::mem::size_of_val(data).min(self.bytes);
        if bytes == 0 {
            return Ok(());
        }
        let copy = self.context.driver.api.copy_to_device;
        // SAFETY: `bytes` bounds both sides.
        let code = unsafe { copy(self.pointer, data.as_ptr().cast(), bytes, stream) };
        self.context.driver.check("cuMemcpyHtoDAsync", code)
    }

    /// Reads `data.len()` elements from byte `offset` on, once all queued work is done.
    pub(super) fn read<T: Plain>(&self, offset: usize, data: &mut [T]) -> Result<(), EngineError> {
        let bytes = std::mem::size_of_val(data).min(self.bytes.saturating_sub(offset));
        let copy = self.context.driver.api.copy_to_host;
        // SAFETY: `bytes` bounds both sides; every bit pattern is a value of a `Plain` type.
        let from = self.pointer + offset as u64;
        let code = unsafe { copy(data.as_mut_ptr().cast(), from, bytes, self.context.stream) };
        self.context.driver.check("cuMemcpyDtoHAsync", code)?;
        self.context.synchronize()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed once. Fails only where the context is lost, with all its memory.
        unsafe { (self.context.driver.api.memory_free)(self.pointer) };
    }
}

/// Element types without padding for which every bit pattern is a value.
pub(super) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for f32 {}
impl Plain for f64 {}

/// A word of page-locked host memory that kernels can read at its host address, and copies can be queued to.
pub(super) struct HostFlag {
    context: Arc<Context>,
    word: *mut u32,
}

impl HostFlag {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, EngineError> {
        const PORTABLE: u32 = 1;
        const MAPPED: u32 = 2;
        let mut word: *mut c_void = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the context is current.
        let code = unsafe { (context.driver.api.host_alloc)(&mut word, 64, PORTABLE | MAPPED) };
        context.driver.check("cuMemHostAlloc", code)?;
        Ok(Self { context: context.clone(), word: word.cast() })
    }

    pub(super) fn set(&self, value: u32) {
        // SAFETY: the word is ours. Volatile, since another processor looks on.
        unsafe { self.word.write_volatile(value) };
    }

    pub(super) fn get(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.word.read_volatile() }
    }

    /// Its address, equal on host and device under unified addressing (every 64-bit platform).
    pub(super) fn address(&self) -> u64 {
        self.word as u64
    }
}

impl Drop for HostFlag {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed once.
        unsafe { (self.context.driver.api.host_free)(self.word.cast()) };
    }
}

/// A point in the stream with a time.
pub(super) struct Event {
    context: Arc<Context>,
    handle: CUevent,
}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, EngineError> {
        let mut handle: CUevent = std::ptr::null_mut();
        // SAFETY: out-pointer to a local. Flag 0 keeps timing on.
        let code = unsafe { (context.driver.api.event_create)(&mut handle, 0) };
        context.driver.check("cuEventCreate", code)?;
        Ok(Self { context: context.clone(), handle })
    }

    pub(super) fn record(&self) -> Result<(), EngineError> {
        // SAFETY: event and stream are of the same context.
        let code =
            unsafe { (self.context.driver.api.event_record)(self.handle, self.context.stream) };
        self.context.driver.check("cuEventRecord", code)
    }

    /// Microseconds from `earlier` to this event; both must have completed.
    pub(super) fn since_us(&self, earlier: &Self) -> Result<f64, EngineError> {
        let mut ms = 0f32;
        let elapsed = self.context.driver.api.event_elapsed;
        // SAFETY: out-pointer to a local; both events are recorded.
        let code = unsafe { elapsed(&mut ms, earlier.handle, self.handle) };
        self.context.driver.check("cuEventElapsedTime", code)?;
        Ok(f64::from(ms) * 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once.
        unsafe { (self.context.driver.api.event_destroy)(self.handle) };
    }
}

/// A loaded cubin.
pub(super) struct Module {
    context: Arc<Context>,
    handle: CUmodule,
}

impl Module {
    pub(super) fn load(context: &Arc<Context>, cubin: &[u8]) -> Result<Self, EngineError> {
        let mut handle: CUmodule = std::ptr::null_mut();
        // SAFETY: an ELF image describes its own length; NVRTC or a cache that checked its digest made it.
        let code = unsafe { (context.driver.api.module_load)(&mut handle, cubin.as_ptr().cast()) };
        context.driver.check("loading the cubin", code)?;
        Ok(Self { context: context.clone(), handle })
    }

    pub(super) fn function(&self, name: &CStr) -> Result<CUfunction, EngineError> {
        let mut function: CUfunction = std::ptr::null_mut();
        let get = self.context.driver.api.module_function;
        // SAFETY: out-pointer to a local; the module is loaded.
        let code = unsafe { get(&mut function, self.handle, name.as_ptr()) };
        let call = format!("looking up kernel `{}`", name.to_string_lossy());
        self.context.driver.check(&call, code)?;
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once; no kernel of it is in flight, since every call synchronises.
        unsafe { (self.context.driver.api.module_unload)(self.handle) };
    }
}

// SAFETY: see `Context`; each of these is only a handle into one.
unsafe impl Send for HostFlag {}
unsafe impl Send for Event {}
unsafe impl Send for Module {}
// SAFETY: a module never changes once it is loaded; the kernels of one program share it.
unsafe impl Sync for Module {}
