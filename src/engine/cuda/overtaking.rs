//! Whether calls of a vendor's product that follow each other on a stream wait for each other.
//!
//! Some kernels of cuSPARSE 12.9.4 (`csr_alg3` on rows of some hundred entries) are launched while the call before them still
//! runs, and read their operand without waiting: with back-to-back calls, the second of which multiplies what the first has
//! written, results are wrong by percents, and a call seems to take a third of its time. Alone, each call is right. So the
//! order is tried once, with the output poisoned, and a routine that does not keep it is followed by a separating entry of the
//! stream in every call: that is what a right program needs, so it belongs to the routine's time.

use super::baseline::{Factors, Work};
use super::context::{Buffer, Context, HostFlag};
use super::launch::Launch;
use super::operands::{Loaded, POISON};
use super::own::OwnKernels;
use super::spmm::{Spmm, may_overtake};
use crate::domain::Dtype;
use crate::engine::EngineError;
use cudarc::driver::sys::CUstream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often two calls in a row are tried.
const TRIES: usize = 3;

/// Most bytes of the second call's output that are looked at, in this many pieces.
const LOOKED_AT: usize = 8 << 20;
const PIECES: usize = 64;

/// Until the gate opens by itself.
const GATE_NS: u64 = 50_000_000;

/// An entry of the stream, which kernels before and after it cannot pass: the fill of a word. An event that keeps no time is
/// passed, and one that does vanishes where a stream is captured.
pub(super) struct Separator {
    context: Arc<Context>,
    word: Buffer,
    /// The stream of the calls, a `CUstream`.
    stream: AtomicU64,
}

impl Separator {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, EngineError> {
        let word = Buffer::new(context, 4)?;
        let stream = AtomicU64::new(context.stream as u64);
        Ok(Self { context: context.clone(), word, stream })
    }

    /// On which stream calls follow.
    pub(super) fn aim(&self, stream: CUstream) {
        self.stream.store(stream as u64, Ordering::Relaxed);
    }

    pub(super) fn enqueue(&self) -> Result<(), EngineError> {
        let stream = self.stream.load(Ordering::Relaxed) as CUstream;
        self.context.fill_on(stream, self.word.pointer, 0, 1)
    }
}

/// Tries whether calls keep their order, and separates them if not. Where it cannot be tried, since the second call cannot take
/// the first one's output, whose elements have another type, calls of algorithms that are known for it are separated; where
/// there is no memory to try it, all are.
pub(super) fn keep_in_order(
    context: &Arc<Context>,
    own: &OwnKernels,
    loaded: &Loaded,
    spmm: &mut Spmm,
    algorithm: &str,
) -> Result<(), EngineError> {
    if loaded.nnz == 0 {
        return Ok(());
    }
    if loaded.dtype != loaded.result {
        return if may_overtake(algorithm) { spmm.separate(context) } else { Ok(()) };
    }
    let tried = overtakes(context, own, &Work::of(loaded), spmm);
    spmm.aim(context.stream, loaded.b.pointer, loaded.c.pointer)?;
    let why = match tried {
        Ok(false) => return Ok(()),
        Ok(true) => "calls of this routine do not wait for each other",
        Err(EngineError::OutOfMemory(_)) => {
            "there is no memory to try whether calls of this routine wait for each other"
        }
        Err(error) => return Err(error),
    };
    tracing::warn!(algorithm, "{why}; they are separated");
    spmm.separate(context)
}

/// Whether the second of two calls in a row, which multiplies what the first writes, read what was there before.
fn overtakes(
    context: &Arc<Context>,
    own: &OwnKernels,
    work: &Work<'_>,
    spmm: &Spmm,
) -> Result<bool, EngineError> {
    let dtype = work.csr.dtype;
    let bytes = |rows: usize| rows * work.n * dtype.bytes() as usize;
    let (written, read) = (bytes(work.csr.rows), bytes(work.csr.cols));
    let between = Buffer::new(context, written.max(read).next_multiple_of(4))?;
    let output = Buffer::new(context, written.next_multiple_of(4))?;
    // What the first call does not write of the second one's operand, and the half word behind an odd number of elements.
    for buffer in [&between, &output] {
        context.fill(buffer.pointer, 0, buffer.bytes / 4)?;
    }
    let flag = HostFlag::new(context)?;
    let gate = Launch::own(context, &own.gate, 1, 1, vec![flag.address(), GATE_NS]);
    let factors = Factors::of([1.0, 0.0], dtype);
    let calls = [(work.b, between.pointer), (between.pointer, output.pointer)];
    let queue = |(b, c): (u64, u64)| {
        spmm.aim(context.stream, b, c)?;
        spmm.enqueue(&factors)
    };
    for _ in 0..TRIES {
        context.fill(between.pointer, POISON, written / 4)?;
        context.synchronize()?;
        flag.set(0);
        gate.enqueue()?;
        let queued = calls.into_iter().try_for_each(queue);
        flag.set(1);
        queued?;
        context.synchronize()?;
        if holds_nan(&output, dtype)? {
            // Unless the product of a product is NaN by itself, as sums beyond the range may be.
            calls
                .into_iter()
                .try_for_each(|call| queue(call).and_then(|()| context.synchronize()))?;
            return Ok(!holds_nan(&output, dtype)?);
        }
    }
    Ok(false)
}

/// Whether there is a NaN among the elements, or among those of some pieces of a large buffer.
fn holds_nan(buffer: &Buffer, dtype: Dtype) -> Result<bool, EngineError> {
    let length = if buffer.bytes <= LOOKED_AT { buffer.bytes } else { LOOKED_AT / PIECES };
    let pieces = if buffer.bytes <= LOOKED_AT { 1 } else { PIECES };
    let mut words = vec![0u32; length / 4];
    for piece in 0..pieces {
        // Whole doubles.
        let offset = (buffer.bytes - length) / pieces * piece / 8 * 8;
        buffer.read(offset, &mut words)?;
        if words.chunks_exact(2).any(|pair| is_nan([pair[0], pair[1]], dtype)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether an element in two words is a NaN.
fn is_nan([low, high]: [u32; 2], dtype: Dtype) -> bool {
    let single = |word: u32| f32::from_bits(word).is_nan();
    let halves = |infinity: u32| {
        [low, low >> 16, high, high >> 16].into_iter().any(|bits| bits & 0x7fff > infinity)
    };
    match dtype {
        Dtype::F16 => halves(0x7c00),
        Dtype::Bf16 => halves(0x7f80),
        Dtype::F32 => single(low) || single(high),
        Dtype::F64 => f64::from_bits(u64::from(low) | u64::from(high) << 32).is_nan(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_poison_is_seen_in_every_type() {
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
            assert!(is_nan([POISON, POISON], dtype), "{dtype}");
            assert!(
                !is_nan([0, 0], dtype) && !is_nan([0x3c00_3c00, 0x3f80_3f80], dtype),
                "{dtype}"
            );
        }
        assert!(is_nan([0, 0x7f81_0000], Dtype::Bf16) && !is_nan([0, 0x7f80_ff80], Dtype::Bf16));
        assert!(is_nan([f32::NAN.to_bits(), 0], Dtype::F32));
        assert!(!is_nan([f32::INFINITY.to_bits(), 0], Dtype::F32));
    }
}
