//! New values of the same pattern: put in place on the device, or with arrays that the host made again.

use super::super::context::Context;
use super::super::launch::refused;
use super::sequence::Queue;
use super::{CudaPlan, Inner, Operands, Ready, State};
use crate::domain::bundle::Manifest;
use crate::engine::{EngineError, PlanFiles};
use cudarc::driver::sys::CUstream;
use std::sync::Arc;

impl CudaPlan {
    /// Puts new values in place, in the order of the entries of the matrix that was uploaded, rounded to the plan's element
    /// type. Queued on the caller's stream: calls queued before it use the old values, calls after it the new ones. The
    /// caller's memory may be reused on return.
    ///
    /// A triangular solve of cuSPARSE takes new values in on the stream too, if its version can; otherwise it is analysed
    /// again, and a dense product made dense again, which waits for all work on the context. Graphs that captured an analysis
    /// that was made again must be captured again.
    ///
    /// # Errors
    /// `Refused` if the plan's arrays are functions of all values ([`Self::replace`]), the number of values is not that of the
    /// entries, a value is out of range, or zero on the diagonal where others are divided by it, or such a quotient is out of range,
    /// or the stream is being captured.
    pub fn update_values_from_host(&self, values: &[f64], stream: u64) -> Result<(), EngineError> {
        let Inner { context, .. } = &*self.inner;
        let _entered = context.enter_relaxed()?;
        let mut state = self.lock();
        if context.capturing(stream)? {
            return Err(captured());
        }
        state.arrays.update_from_host(context, values, stream as CUstream)?;
        self.took_values(&mut state, stream)
    }

    /// Whether [`Self::update_values_from_host`] would refuse these values: to be asked before values are given to several plans.
    ///
    /// # Errors
    /// `Refused` if so.
    pub fn accepts(&self, values: &[f64]) -> Result<(), EngineError> {
        let Inner { context, .. } = &*self.inner;
        let _entered = context.enter_relaxed()?;
        self.lock().arrays.accepted(values).map(drop)
    }

    /// As [`Self::update_values_from_host`], from device memory in the plan's element type. Where the manifest names no kernel
    /// for it, the values pass through the host, which waits for all work on the context. May be captured if there is a
    /// kernel, or none is needed.
    ///
    /// # Errors
    /// As above; values that are not finite, and zeros that divide, are not found.
    ///
    /// # Safety
    /// `values` is the device address of as many elements as the matrix has entries, and `stream` a stream of the device's
    /// primary context; the memory must stay valid until the work is complete.
    pub unsafe fn update_values_on_device(
        &self,
        values: u64,
        stream: u64,
    ) -> Result<(), EngineError> {
        let Inner { context, .. } = &*self.inner;
        let _entered = context.enter_relaxed()?;
        let mut state = self.lock();
        not_captured(context, &state, stream)?;
        state.arrays.update_on_device(context, values, stream as CUstream)?;
        self.took_values(&mut state, stream)
    }

    /// Whether [`Self::update_values_on_device`] would be refused because the stream is being captured: to be asked before values are
    /// given to several plans.
    ///
    /// # Errors
    /// `Refused` if so.
    pub fn may_take_on_device(&self, stream: u64) -> Result<(), EngineError> {
        let Inner { context, .. } = &*self.inner;
        let _entered = context.enter_relaxed()?;
        not_captured(context, &self.lock(), stream)
    }

    /// New values in device memory as numbers, for arrays that the host makes of them ([`Self::replace`]). Waits for all work on
    /// the context.
    ///
    /// # Errors
    /// `Refused` if the stream is being captured.
    ///
    /// # Safety
    /// As for [`Self::update_values_on_device`].
    pub unsafe fn values_on_host(&self, values: u64, stream: u64) -> Result<Vec<f64>, EngineError> {
        let Inner { context, .. } = &*self.inner;
        let _entered = context.enter_relaxed()?;
        let state = self.lock();
        if context.capturing(stream)? {
            return Err(captured());
        }
        state.arrays.numbers(context, values, stream as CUstream)
    }

    /// Replaces arrays, steps and scratch memory by those of another manifest of the same pattern, problem and kernels, which
    /// the host made for new values. Waits for all work on the context; graphs that captured calls must be captured again.
    ///
    /// # Errors
    /// `Refused` as by [`Self::load`], and if the manifest is for another matrix, problem or kernel. The plan is unchanged then.
    pub fn replace(&self, manifest: &Manifest, files: &dyn PlanFiles) -> Result<(), EngineError> {
        self.put(self.replacement(manifest, files)?)
    }

    /// What [`Self::replace`] puts in place, made and uploaded: everything that can be refused has been.
    ///
    /// # Errors
    /// As there.
    pub fn replacement(
        &self,
        manifest: &Manifest,
        files: &dyn PlanFiles,
    ) -> Result<Replacement, EngineError> {
        let Inner { context, code, operands, .. } = &*self.inner;
        if Operands::of(&manifest.call)? != *operands {
            return Err(refused("The new arrays belong to another call.".to_owned()));
        }
        let _entered = context.enter_relaxed()?;
        code.check_same(manifest, files)?;
        let new = State::new(context, code, manifest, files, operands)?;
        Ok(Replacement { state: Some(new), context: context.clone() })
    }

    /// Puts a replacement that this plan has made in place.
    ///
    /// # Errors
    /// The device failed; the plan is unchanged then.
    pub fn put(&self, mut new: Replacement) -> Result<(), EngineError> {
        let Inner { context, .. } = &*self.inner;
        let _entered = context.enter_relaxed()?;
        let mut state = self.lock();
        // Calls in flight read what is about to be freed.
        context.synchronize_all()?;
        if let Some(new) = new.state.take() {
            *state = new;
        }
        Ok(())
    }

    fn took_values(&self, state: &mut State, stream: u64) -> Result<(), EngineError> {
        let State { forward, arrays } = state;
        match forward {
            Ready::Kernels(_) => Ok(()),
            Ready::Vendor(vendor) => {
                let Inner { context, code, .. } = &*self.inner;
                vendor.update(context, &code.forward, arrays, stream as CUstream)
            }
        }
    }
}

/// Arrays, steps and scratch memory that no call uses yet.
pub struct Replacement {
    state: Option<State>,
    context: Arc<Context>,
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            let entered = self.context.enter_relaxed();
            drop(state);
            drop(entered);
        }
    }
}

fn not_captured(context: &Context, state: &State, stream: u64) -> Result<(), EngineError> {
    let waits = state.arrays.gathers_on_host()
        || matches!(&state.forward, Ready::Vendor(vendor) if vendor.prepares_values());
    match waits && context.capturing(stream)? {
        true => Err(captured()),
        false => Ok(()),
    }
}

fn captured() -> EngineError {
    refused("New values cannot be put in place while their stream is being captured.".to_owned())
}
