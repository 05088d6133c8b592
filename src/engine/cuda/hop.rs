//! Measures the hop of a device: how long a value takes from one multiprocessor to another that waits for it.

use super::context::{Buffer, Context};
use super::launch::Launch;
use super::own::OwnKernels;
use crate::engine::EngineError;
use std::sync::Arc;

/// `kHopWords` lines of `kHopLineBytes` of kernels/engine/hop.cuh.
const WORDS_BYTES: usize = 64 * 128;

/// Round trips of one measurement.
const TRIPS: u32 = 2000;

/// Most polls of each of the two blocks; a round trip takes a few. This bounds a measurement whose blocks do not run
/// together.
const MOST_POLLS: u32 = 30_000;

/// Measurements of each pair of multiprocessors and width of the word: an idle device takes tens of milliseconds to raise its
/// clocks.
const REPEATS: usize = 8;

/// `HopReport` of hop.cuh: nanoseconds, and the multiprocessors on which both blocks ran.
type Report = [u64; 3];

/// Nanoseconds of one hop, the least of several pairs of multiprocessors: disturbances only slow a hop down, and a level of a
/// triangular solve whose rows are on several multiprocessors takes at least this long. 0 if no two multiprocessors could be
/// measured.
pub(super) fn measure(
    context: &Arc<Context>,
    own: &OwnKernels,
    multiprocessors: u32,
) -> Result<f64, EngineError> {
    let words = Buffer::new(context, WORDS_BYTES)?;
    let report = Buffer::new(context, size_of::<Report>())?;
    let arguments = vec![words.pointer, u64::from(TRIPS), u64::from(MOST_POLLS), report.pointer];
    let mut best: Option<f64> = None;
    // The first block exchanges words with the last, so these are a near, a middle and a far one.
    'tries: for grid in [2, multiprocessors / 2, multiprocessors] {
        for kernel in &own.hops {
            let launch = Launch::own(context, kernel, grid.max(2), 1, arguments.clone());
            for _ in 0..REPEATS {
                context.fill(words.pointer, u32::MAX, WORDS_BYTES / 4)?;
                context.fill(report.pointer, 0, size_of::<Report>() / 4)?;
                launch.enqueue()?;
                let mut found: Report = [0; 3];
                report.read(0, &mut found)?;
                if found[0] == 0 {
                    // Every block that waits in vain costs milliseconds, and the next would probably do so, too.
                    break 'tries;
                }
                if let Some(ns) = hop_ns(found) {
                    best = Some(best.map_or(ns, |best| best.min(ns)));
                }
            }
        }
    }
    Ok(best.unwrap_or(0.0))
}

/// Nanoseconds in one direction; `None` if the blocks gave up or shared a multiprocessor.
fn hop_ns([ns, first, last]: Report) -> Option<f64> {
    (ns > 0 && first != last).then(|| ns as f64 / (2.0 * f64::from(TRIPS)))
}

#[cfg(test)]
mod tests {
    use super::hop_ns;

    #[test]
    fn only_blocks_on_two_multiprocessors_count() {
        assert_eq!(hop_ns([1_000_000, 0, 2]), Some(250.0));
        assert_eq!(hop_ns([1_000_000, 2, 2]), None);
        assert_eq!(hop_ns([0, 0, 2]), None);
    }
}
