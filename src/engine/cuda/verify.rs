//! Verifying a call on poisoned memory: a product against its float64 reference on the device, whole or in slices.

use super::context::{Buffer, Context};
use super::launch::Launch;
use super::operands::{GUARD_WORDS, Judge, Loaded, POISON};
use super::own::OwnKernels;
use super::timer::Call;
use crate::engine::{Check, EngineError};
use crate::sparse::oracle::Product;
use std::sync::Arc;

/// `kVerifyThreads` of kernels/engine/verify.cuh.
pub(super) const THREADS: u32 = 256;

/// Most blocks of a comparison; each leaves one partial result.
const MOST_BLOCKS: usize = 1024;

/// `Partial` of verify.cuh as three words: error (f64), worst, unwritten.
type Partial = [u64; 3];

/// Bytes of reference on the device at a time, if all of it does not fit.
const SLICE_BYTES: u64 = 256 << 20;

/// Bytes of reference per element: value f64, scale f32.
const REFERENCE_BYTES: u64 = 12;

/// The reference result on the device, all of it or `capacity` elements at a time.
pub(super) struct Reference {
    value: Buffer,
    scale: Buffer,
    /// Elements that `value` and `scale` hold.
    capacity: usize,
    /// Whether they already hold the whole reference.
    resident: bool,
    host: Arc<Product>,
}

impl Reference {
    /// Whole if it takes at most half of the remaining memory, so that recipes have room for arrays; else room for a slice.
    pub(super) fn upload(
        context: &Arc<Context>,
        host: Arc<Product>,
        most_bytes: Option<u64>,
    ) -> Result<Self, EngineError> {
        let free = context.free_bytes()?;
        let most_bytes = most_bytes.unwrap_or(free / 2);
        if host.value.len() as u64 * REFERENCE_BYTES <= most_bytes {
            let value = Buffer::of(context, &host.value)?;
            let scale = Buffer::of(context, &host.scale)?;
            return Ok(Self { value, scale, capacity: host.value.len(), resident: true, host });
        }
        let bytes = SLICE_BYTES.min(free / 4).min(most_bytes);
        let capacity = (bytes / REFERENCE_BYTES).max(1) as usize;
        let value = Buffer::new(context, capacity * 8)?;
        let scale = Buffer::new(context, capacity * 4)?;
        Ok(Self { value, scale, capacity, resident: false, host })
    }
}

/// What is judged of a recipe.
pub(super) struct Calls<'a> {
    pub(super) call: &'a Call,
    /// The call of a product that adds to C, with a beta of 0: such a call must not read C, even if C is NaN, so all of C is poisoned.
    pub(super) bare: Option<&'a Call>,
    /// See [`crate::domain::recipe::Recipe`].
    pub(super) approximate: bool,
}

/// Makes a call on poisoned memory and judges all of C; for a solve, calls for each right-hand side.
pub(super) fn verify(
    context: &Arc<Context>,
    own: &OwnKernels,
    loaded: &Loaded,
    &Calls { call, bare, approximate }: &Calls<'_>,
) -> Result<Check, EngineError> {
    let reference = match &loaded.judge {
        Judge::Product(reference) => reference,
        Judge::Solution(solution) => {
            return solution.verify(context, own, loaded, (call, approximate));
        }
    };
    let mut findings = Findings::new(context)?;
    call_poisoned(context, loaded, call, loaded.c0.as_ref())?;
    compare(context, own, loaded, (reference, None), &mut findings)?;
    if let (Some(bare), Some(c0)) = (bare, &loaded.c0) {
        call_poisoned(context, loaded, bare, None)?;
        compare(context, own, loaded, (reference, Some(c0)), &mut findings)?;
    }
    Ok(findings.check)
}

/// Judges all of C by the reference, without the part that comes from an initial C.
fn compare(
    context: &Arc<Context>,
    own: &OwnKernels,
    loaded: &Loaded,
    (reference, without): (&Reference, Option<&Buffer>),
    findings: &mut Findings,
) -> Result<(), EngineError> {
    let [_, beta] = loaded.factors();
    let elements = loaded.elements();
    let step = reference.capacity.max(1);
    for first in (0..elements).step_by(step) {
        let count = step.min(elements - first);
        if !reference.resident {
            reference.value.write(&reference.host.value[first..first + count])?;
            reference.scale.write(&reference.host.scale[first..first + count])?;
        }
        let blocks = blocks(count.div_ceil(THREADS as usize));
        let arguments = vec![
            loaded.c.pointer,
            reference.value.pointer,
            reference.scale.pointer,
            first as u64,
            count as u64,
            without.map_or(0, |initial| initial.pointer),
            beta.to_bits(),
            u64::from(POISON),
            findings.pointer(),
        ];
        Launch::own(context, own.verify(loaded.result), blocks, THREADS, arguments).enqueue()?;
        findings.take(blocks)?;
    }
    findings.look_behind(loaded)
}

/// Poisons C and the guard and makes one call; with an `initial` C, only the guard is poisoned and C holds the initial
/// values. Elements that such a call leaves out are then wrong, not unwritten. A fault of the kernel is returned here, before
/// anything else can be blamed for it, and so is a call that its watchdog ended: what that left in C says nothing about the
/// kernel.
pub(super) fn call_poisoned(
    context: &Context,
    loaded: &Loaded,
    call: &Call,
    initial: Option<&Buffer>,
) -> Result<(), EngineError> {
    context.fill(loaded.c.pointer, POISON, loaded.words() + GUARD_WORDS)?;
    if let Some(initial) = initial {
        context.copy(&loaded.c, initial, initial.bytes)?;
    }
    call.enqueue()?;
    context.synchronize()?;
    call.watch()
}

/// Blocks of a kernel for this much work, at least one.
pub(super) fn blocks(wanted: usize) -> u32 {
    wanted.clamp(1, MOST_BLOCKS) as u32
}

/// The partial results of the judging kernel's blocks, combined into one verdict.
pub(super) struct Findings {
    partials: Buffer,
    pub(super) check: Check,
}

impl Findings {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, EngineError> {
        let partials = Buffer::new(context, MOST_BLOCKS * size_of::<Partial>())?;
        Ok(Self { partials, check: Check { rel_error: 0.0, unwritten: 0, worst: 0 } })
    }

    /// Where a judging kernel leaves a partial result per block.
    pub(super) fn pointer(&self) -> u64 {
        self.partials.pointer
    }

    /// Reads the partial results once the kernel has ended.
    pub(super) fn take(&mut self, blocks: u32) -> Result<(), EngineError> {
        let mut words = vec![0u64; blocks as usize * 3];
        self.partials.read(0, &mut words)?;
        for partial in words.chunks_exact(3) {
            add(&mut self.check, f64::from_bits(partial[0]), partial[1], partial[2]);
        }
        Ok(())
    }

    /// Any word behind C that is no longer poison outweighs every other error. An odd element of 16 bits shares C's last
    /// word, so the other half of that word is behind C, too; zeroing C by words may have zeroed it.
    pub(super) fn look_behind(&mut self, loaded: &Loaded) -> Result<(), EngineError> {
        let element = loaded.result.bytes() as usize;
        let end = loaded.elements() * element;
        let mut guard = vec![0u16; GUARD_WORDS * 2];
        loaded.c.read(end, &mut guard)?;
        if let Some(at) = spoiled(&guard, (loaded.words() * 4 - end) / 2) {
            self.check.rel_error = f64::INFINITY;
            self.check.worst = ((end + at * 2) / element) as u64;
        }
        Ok(())
    }
}

/// The first half-word of a guard that is not poison; the first `shared` may also be zero.
fn spoiled(guard: &[u16], shared: usize) -> Option<usize> {
    let whole = |(at, half): (usize, &u16)| *half == POISON as u16 || at < shared && *half == 0;
    guard.iter().enumerate().position(|each| !whole(each))
}

/// Of equal errors the lowest index is kept, whatever the order of the blocks.
fn add(check: &mut Check, error: f64, worst: u64, unwritten: u64) {
    let lower = error == check.rel_error && error > 0.0 && worst < check.worst;
    if error > check.rel_error || lower {
        (check.rel_error, check.worst) = (error, worst);
    }
    check.unwritten += unwritten;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_all_blocks_stays_and_the_unwritten_add_up() {
        let mut check = Check { rel_error: 0.0, unwritten: 0, worst: 0 };
        for (error, worst, unwritten) in
            [(0.0, u64::MAX, 1), (0.5, 9, 0), (0.5, 4, 2), (0.5, 7, 0), (0.1, 1, 0)]
        {
            add(&mut check, error, worst, unwritten);
        }
        assert_eq!(check, Check { rel_error: 0.5, unwritten: 3, worst: 4 });
    }

    #[test]
    fn what_shares_the_last_word_of_c_may_be_zeroed_but_not_written() {
        let poison = POISON as u16;
        assert_eq!(spoiled(&[poison; 3], 0), None);
        assert_eq!(spoiled(&[0, poison, poison], 1), None);
        assert_eq!(spoiled(&[0, poison, poison], 0), Some(0));
        assert_eq!(spoiled(&[1, poison, poison], 1), Some(0));
        assert_eq!(spoiled(&[0, poison, 0], 1), Some(2));
    }
}
