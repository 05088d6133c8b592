//! Two plans of one device, one after the other: what the first computes is what the second reads.

use super::super::context::{Buffer, Context};
use super::super::launch::refused;
use super::super::operands::POISON;
use super::CudaPlan;
use crate::engine::EngineError;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// The vector between two plans, in the device's memory. Like their scratch memory it belongs to one call after the other.
pub struct CudaLink {
    /// Dropped by hand, while the context is current.
    between: ManuallyDrop<Buffer>,
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
        Ok(Self { between: ManuallyDrop::new(between), context })
    }

    /// Queues a call of both on the caller's stream; allocates nothing and does not wait. If the stream is being captured, both
    /// become part of the graph.
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
        // SAFETY: the caller's; the vector between is as long as both were found to be, and lives as long as this.
        unsafe {
            first.run(b, between, stream, 1.0, 0.0)?;
            second.run(between, c, stream, 1.0, 0.0)
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
