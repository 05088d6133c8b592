//! Two plans of one device, one after the other: what the first computes is what the second reads.

use super::super::context::{Buffer, Context};
use super::super::launch::refused;
use super::super::operands::POISON;
use super::CudaPlan;
use crate::engine::EngineError;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

/// The vector between two plans, in the device's memory. Like their scratch memory it belongs to one call after the other.
pub struct CudaLink {
    /// Dropped by hand, while the context is current.
    between: ManuallyDrop<Buffer>,
    /// Held while both are queued: else a call of another thread would write the vector before the second plan has read it.
    calls: Mutex<()>,
    context: Arc<Context>,
}

impl CudaLink {
    /// # Errors
    /// `Refused` if the second plan reads another number of bytes than the first computes, or there is no memory.
    pub fn new(first: &CudaPlan, second: &CudaPlan) -> Result<Self, EngineError> {
        let context = first.inner.context.clone();
        let (from, to) = (first.inner.operands.c.bytes, second.inner.operands.b.bytes);
        if from != to {
            return Err(refused(format!(
                "The first plan computes {from} bytes, and the second reads {to}."
            )));
        }
        let _entered = context.enter_relaxed()?;
        let between = Buffer::new(&context, from.next_multiple_of(4))?;
        // A part that is not computed cannot look like a result of an earlier call.
        context.fill(between.pointer, POISON, from.div_ceil(4))?;
        context.synchronize()?;
        Ok(Self { between: ManuallyDrop::new(between), calls: Mutex::default(), context })
    }

    /// Queues a call of both on the caller's stream; allocates nothing and does not wait. If the stream is being captured, both
    /// become part of the graph. Calls of several threads are queued one after the other, each of both.
    ///
    /// # Errors
    /// As [`CudaPlan::run`]. If the second plan refuses the call, the first may have been queued: `c` is not written then.
    ///
    /// # Safety
    /// As for [`CudaPlan::run`]; the plans are those that the link was made for.
    pub unsafe fn run(
        &self,
        [first, second]: [&CudaPlan; 2],
        b: u64,
        c: u64,
        stream: u64,
    ) -> Result<(), EngineError> {
        let between = self.between.pointer;
        // Whatever a panic left behind is written before it is read.
        let _one_call = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's; the vector between is as long as both were found to be, and lives as long as this.
        unsafe {
            first.run(b, between, stream, 1.0, 0.0)?;
            second.run(between, c, stream, 1.0, 0.0)
        }
    }
}

impl CudaLink {
    /// One call of both on operands in host memory. Waits for the result.
    ///
    /// # Errors
    /// As [`CudaPlan::call_on_host`].
    pub fn call_on_host(
        &self,
        plans: [&CudaPlan; 2],
        b: &[u8],
        c: &mut [u8],
    ) -> Result<(), EngineError> {
        let [from, to] = [plans[0].inner.operands.b.bytes, plans[1].inner.operands.c.bytes];
        if (b.len(), c.len()) != (from, to) {
            let (b, c) = (b.len(), c.len());
            return Err(refused(format!("b and c have {b} and {c} bytes, not {from} and {to}.")));
        }
        let context = &self.context;
        let _entered = context.enter_relaxed()?;
        let device_b = Buffer::of(context, b)?;
        let words = c.len().div_ceil(4);
        let device_c = Buffer::new(context, words * 4)?;
        context.fill(device_c.pointer, POISON, words)?;
        let stream = context.stream as u64;
        // SAFETY: both buffers are as large as was just checked, and outlive the read, which waits.
        unsafe { self.run(plans, device_b.pointer, device_c.pointer, stream) }?;
        device_c.read(0, c)?;
        // Both are asked, since each forgets by being asked.
        let first = plans[0].gave_up()?;
        match plans[1].gave_up()? || first {
            false => Ok(()),
            true => Err(EngineError::Watchdog(
                "A kernel of the pair waited longer than its limit and ended itself; the device is \
                 unharmed."
                    .to_owned(),
            )),
        }
    }
}

impl Drop for CudaLink {
    fn drop(&mut self) {
        // A lost context refuses all of this; its memory is released with the process.
        let entered = self.context.enter_relaxed();
        let complete = entered.as_ref().ok().map(|_| self.context.synchronize_all());
        if let Some(Err(error)) = complete {
            tracing::debug!(%error, "the context was lost before the vector between two plans was dropped");
        }
        // SAFETY: dropped once, here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.between) };
        drop(entered);
    }
}
