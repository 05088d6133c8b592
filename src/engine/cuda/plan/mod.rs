//! A bundle's plan on one device: loaded once, then run on a caller's buffers and stream.

mod arrays;
mod bind;
mod code;
mod link;
mod operands;
mod program;
mod sequence;
mod target;
mod update;
mod values;
mod vendor;

pub use self::link::CudaLink;
pub use self::update::Replacement;

use self::arrays::Arrays;
use self::bind::Call;
use self::code::{Code, Opened};
use self::operands::Operands;
use self::program::Program;
use self::sequence::Queue as _;
use self::target::Found;
use self::vendor::VendorCall;
use super::context::{Buffer, Context, Relaxed, Restore};
use super::driver::Driver;
use super::launch::refused;
use super::operands::POISON;
use crate::domain::bundle::{Forward, Manifest};
use crate::engine::libraries::Search;
use crate::engine::{EngineError, PlanFiles};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A plan that is ready to run on one device, in the device's primary context, which PyTorch, CuPy and the CUDA runtime
/// use too. Whatever context is current on a thread stays current there.
///
/// Calls share scratch memory. Those of one plan must therefore follow each other on the device: on one stream, or on
/// several that wait for one another. The same holds among captured calls of one plan.
pub struct CudaPlan {
    /// Dropped by hand, while the context is current.
    inner: ManuallyDrop<Inner>,
}

/// Fields are dropped in this order: what lives in the context, then the context.
struct Inner {
    state: Mutex<State>,
    code: Code,
    operands: Operands,
    warnings: Vec<String>,
    context: Arc<Context>,
}

/// What calls change, and what new arrays replace. Locked during a call, so that calls of several threads are queued one
/// after the other.
struct State {
    forward: Ready,
    arrays: Arrays,
}

enum Ready {
    Kernels(Program),
    Vendor(VendorCall),
}

impl CudaPlan {
    /// Loads a plan on the device with this number, as the driver counts. `libraries` are files and folders that are searched
    /// before all others. Opens the driver, and a vendor's library only if the plan calls it.
    ///
    /// # Errors
    /// `OtherDevice` with a sentence if the plan is for another device; `Refused` if something of it is missing or does not
    /// fit together, or the driver does not take it.
    pub fn load(
        libraries: &[PathBuf],
        ordinal: u32,
        manifest: &Manifest,
        files: &dyn PlanFiles,
    ) -> Result<Self, EngineError> {
        target::check_kind(&manifest.target)?;
        let operands = Operands::of(&manifest.call)?;
        let mut search = Search::new(libraries);
        let driver = Driver::open(&search).map_err(|error| refused(error.to_string()))?;
        let count = driver.device_count()?;
        if ordinal >= count {
            return Err(refused(format!(
                "Device {ordinal} does not exist; the driver reports {count}."
            )));
        }
        search.cuda_major = Some(driver.version()?.0);
        // First, so that it is dropped last: also an error frees memory in our context.
        let _restore = Restore::current(&driver)?;
        let _relaxed = Relaxed::new(&driver)?;
        let context = Context::open(driver, ordinal)?;
        let mut warnings = target::check(&manifest.target, &Found::of(&context)?)?;
        let code = Code::open(&context, &search, manifest, files, &mut warnings)?;
        let state = State::new(&context, &code, manifest, files, &operands)?;
        context.synchronize()?;
        let inner = Inner { state: Mutex::new(state), code, operands, warnings, context };
        Ok(Self { inner: ManuallyDrop::new(inner) })
    }

    /// What differs from where the plan was made but does not matter for the result, as sentences.
    pub fn warnings(&self) -> &[String] {
        &self.inner.warnings
    }

    /// Queues one call on the caller's stream (0 is the legacy default stream): `c = f(b)`, or
    /// `c = alpha A b + beta c` if the plan accumulates. Allocates nothing and does not wait. If the stream is being
    /// captured, the call becomes part of the graph.
    ///
    /// Where a kernel can give up (one that waits for others, so long as its limit allows), the first calls and then every 32nd
    /// also bring 4 bytes to the host, and each call looks at what earlier ones brought: within 32 calls after one
    /// that gave up a call is refused. [`Self::gave_up`] must be asked about the last calls, and about graphs.
    ///
    /// # Errors
    /// `Watchdog` if a kernel of an earlier call gave up: that call's result is not valid, nor are those of the calls after
    /// it. This call has waited for them and has filled the scratch memory again instead of being queued; the next begins
    /// anew. While the stream is being captured nothing is waited for or filled, and [`Self::gave_up`] must be asked first.
    ///
    /// `Refused` if addresses are not aligned as the manifest says or overlap, if factors are given to a plan that takes
    /// none, or if values were left out of the bundle and have not been given.
    ///
    /// # Safety
    /// `b` and `c` are device addresses, accessible from the plan's device, of operands as large as the manifest says, and
    /// `stream` is a stream of the device's primary context. They must stay valid until the call is complete.
    pub unsafe fn run(
        &self,
        b: u64,
        c: u64,
        stream: u64,
        alpha: f64,
        beta: f64,
    ) -> Result<(), EngineError> {
        let call = Call { b, c, stream, alpha, beta };
        if !self.inner.operands.check(&call)? {
            return Ok(());
        }
        let _restore = self.inner.context.enter()?;
        let mut state = self.lock();
        if let Some(name) = state.arrays.missing() {
            return Err(refused(format!(
                "The values in `{name}` were left out of the bundle: give them by updating the values."
            )));
        }
        match &mut state.forward {
            Ready::Kernels(program) => {
                let context = &self.inner.context;
                if program.reported() {
                    if !context.capturing(stream)? {
                        let _relaxed = Relaxed::new(&context.driver)?;
                        context.synchronize_all()?;
                        program.gave_up()?;
                        context.synchronize()?;
                    }
                    return Err(EngineError::Watchdog(
                        "A kernel of an earlier call waited longer than its limit and ended itself; its \
                         result is not valid, nor are those of the calls after it. The device is unharmed."
                            .to_owned(),
                    ));
                }
                program.sequence.run(&**context, &call)
            }
            Ready::Vendor(vendor) => vendor.run(&call),
        }
    }

    /// Whether a kernel waited too long and ended itself since the last time this was asked; what it wrote is not the
    /// result. Waits for all work on the device's context. If so, all scratch memory is filled again, so that the next call
    /// begins anew. Not to be called while a stream is being captured.
    pub fn gave_up(&self) -> Result<bool, EngineError> {
        let _entered = self.inner.context.enter_relaxed()?;
        let mut state = self.lock();
        self.inner.context.synchronize_all()?;
        let gave_up = match &mut state.forward {
            Ready::Kernels(program) => program.gave_up()?,
            Ready::Vendor(_) => false,
        };
        self.inner.context.synchronize()?;
        Ok(gave_up)
    }

    /// Waits for all work on the device's context, on any stream.
    pub fn synchronize(&self) -> Result<(), EngineError> {
        let _entered = self.inner.context.enter_relaxed()?;
        self.inner.context.synchronize_all()
    }

    /// One call on operands in host memory, as the manifest describes them: for checks. `c` is read only if `beta` is
    /// not 0. Waits for the result.
    ///
    /// # Errors
    /// As [`Self::run`]; `Watchdog` if a kernel gave up.
    pub fn call_on_host(
        &self,
        b: &[u8],
        c: &mut [u8],
        alpha: f64,
        beta: f64,
    ) -> Result<(), EngineError> {
        let Inner { operands, context, .. } = &*self.inner;
        for (name, bytes, side) in [("b", b.len(), operands.b), ("c", c.len(), operands.c)] {
            if bytes != side.bytes {
                return Err(refused(format!("{name} has {bytes} bytes, not {}.", side.bytes)));
            }
        }
        let _entered = context.enter_relaxed()?;
        let device_b = Buffer::of(context, b)?;
        let words = c.len().div_ceil(4);
        let device_c = Buffer::new(context, words * 4)?;
        // So that an element that is not written cannot look like a result of an earlier call.
        context.fill(device_c.pointer, POISON, words)?;
        if beta != 0.0 {
            device_c.write(c)?;
        }
        let stream = context.stream as u64;
        // SAFETY: both buffers are as large as was just checked, and outlive the read, which waits.
        unsafe { self.run(device_b.pointer, device_c.pointer, stream, alpha, beta) }?;
        device_c.read(0, c)?;
        match self.gave_up()? {
            false => Ok(()),
            true => Err(EngineError::Watchdog(
                "A kernel of the plan waited longer than its limit and ended itself; the device is \
                 unharmed."
                    .to_owned(),
            )),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whatever a panic left behind is what a failed launch would have left.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(
        context: &Arc<Context>,
        code: &Code,
        manifest: &Manifest,
        files: &dyn PlanFiles,
        operands: &Operands,
    ) -> Result<Self, EngineError> {
        let wanted = match &manifest.forward {
            Forward::Cuda(forward) => program::arrays_of(forward),
            Forward::Vendor(_) => vendor::OPERAND.to_vec(),
            Forward::Host(_) => Vec::new(),
        };
        let arrays = Arrays::upload(context, manifest, files, &wanted, code.gather.clone())?;
        let forward = match (&manifest.forward, &code.forward) {
            (Forward::Cuda(forward), Opened::Kernels(module, _)) => {
                let bytes = operands.c.bytes;
                let program = Program::new(context, module, manifest, forward, &arrays, bytes)?;
                Ready::Kernels(program)
            }
            (Forward::Vendor(forward), library) => {
                let mut vendor = VendorCall::new(manifest, forward, &arrays)?;
                vendor.set_up(context, library, &arrays)?;
                Ready::Vendor(vendor)
            }
            _ => return Err(refused("The plan is of another kind than its code.".to_owned())),
        };
        Ok(Self { forward, arrays })
    }
}

impl Drop for CudaPlan {
    fn drop(&mut self) {
        // A lost context refuses all of this; its memory is released with the process.
        let entered = self.inner.context.enter_relaxed();
        let complete = entered.as_ref().ok().map(|_| self.inner.context.synchronize_all());
        if let Some(Err(error)) = complete {
            tracing::debug!(%error, "the context was lost before the plan was dropped");
        }
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
        drop(entered);
    }
}

#[cfg(test)]
mod tests {
    use super::CudaPlan;

    #[test]
    fn a_plan_may_be_shared_by_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<CudaPlan>();
    }
}
