//! Comparing C with the float64 reference on the device, whole or in slices, after one call on poisoned memory.

use super::context::{Buffer, Context};
use super::launch::Launch;
use super::operands::{GUARD_WORDS, Loaded, POISON};
use super::own::OwnKernels;
use super::timer::Call;
use crate::engine::{Check, EngineError};
use std::sync::Arc;

/// `kVerifyThreads` of kernels/engine/verify.cuh.
const THREADS: u32 = 256;

/// Blocks of a comparison, at most; each leaves one partial.
const MOST_BLOCKS: usize = 1024;

/// `engine::Partial` as three words: error (f64), worst, unwritten.
type Partial = [u64; 3];

/// Poisons C, makes one call, and compares all of C with the reference.
pub(super) fn verify(
    context: &Arc<Context>,
    own: &OwnKernels,
    loaded: &Loaded,
    call: &Call,
) -> Result<Check, EngineError> {
    let elements = loaded.elements();
    context.fill(loaded.c.pointer, POISON, elements + GUARD_WORDS)?;
    call.enqueue()?;
    // A fault of the kernel comes out here, before anything else can be blamed for it.
    context.synchronize()?;
    let mut check = Check { rel_error: 0.0, unwritten: 0, worst: 0 };
    let partials = Buffer::new(context, MOST_BLOCKS * size_of::<Partial>())?;
    let step = loaded.reference.capacity.max(1);
    for first in (0..elements).step_by(step) {
        let count = step.min(elements - first);
        compare(context, own, loaded, &partials, first, count, &mut check)?;
    }
    if let Some(offset) = touched_guard(loaded)? {
        let worst = (elements + offset) as u64;
        check = Check { rel_error: f64::INFINITY, worst, ..check };
    }
    Ok(check)
}

/// Compares elements `first .. first + count`, bringing their reference to the device if it is not there.
fn compare(
    context: &Arc<Context>,
    own: &OwnKernels,
    loaded: &Loaded,
    partials: &Buffer,
    first: usize,
    count: usize,
    check: &mut Check,
) -> Result<(), EngineError> {
    let reference = &loaded.reference;
    if !reference.resident {
        reference.value.write(&reference.host.value[first..first + count])?;
        reference.scale.write(&reference.host.scale[first..first + count])?;
    }
    let blocks = count.div_ceil(THREADS as usize).clamp(1, MOST_BLOCKS);
    let arguments = vec![
        loaded.c.pointer,
        reference.value.pointer,
        reference.scale.pointer,
        first as u64,
        count as u64,
        u64::from(POISON),
        partials.pointer,
    ];
    Launch::own(context, &own.verify, blocks as u32, THREADS, arguments).enqueue()?;
    let mut words = vec![0u64; blocks * 3];
    partials.read(0, &mut words)?;
    for partial in words.chunks_exact(3) {
        let (error, worst, unwritten) = (f64::from_bits(partial[0]), partial[1], partial[2]);
        // Strictly: slices and blocks come in rising order of their first element, and the kernel prefers the lower
        // index within a block, so of equal errors a low index stays.
        if error > check.rel_error {
            (check.rel_error, check.worst) = (error, worst);
        }
        check.unwritten += unwritten;
    }
    Ok(())
}

/// Offset behind C of the first word that is no longer poison.
fn touched_guard(loaded: &Loaded) -> Result<Option<usize>, EngineError> {
    let mut guard = vec![0u32; GUARD_WORDS];
    loaded.c.read(loaded.elements() * 4, &mut guard)?;
    Ok(guard.iter().position(|&word| word != POISON))
}
