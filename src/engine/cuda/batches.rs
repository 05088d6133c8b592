//! How many calls a sample spans, and how many samples a batch: the driver's queue is bounded, and so is a batch's time.

/// Most samples of one batch: so many pairs of events there are.
pub(super) const MOST_SAMPLES: usize = 48;

/// Most queue entries of one batch. The driver's queue holds about a thousand, and a full one would block the host before the
/// gate opens. If calls are graphs, each of their launches may take one.
pub(super) const MOST_ENTRIES: usize = 10 * MOST_SAMPLES;

/// Entries of a sample beside its calls: sweep, start, end.
pub(super) const OWN_ENTRIES: usize = 3;

/// Entries of a vendor's call, at most about: zeroing, its kernels.
pub(super) const VENDOR_ENTRIES: usize = 7;

/// Approximate measured time of one batch: short enough to follow the clocks, long enough to be worth reading them.
const BATCH_US: f64 = 10_000.0;

/// The order of `fitting` rounds of so many calls after `done` others. Each round begins with another call, so that none always
/// runs after the same other one, on what it left in L2.
pub(super) fn turns(calls: usize, done: usize, fitting: usize) -> Vec<usize> {
    (0..calls * fitting).map(|turn| (turn + (done + turn / calls)) % calls).collect()
}

/// How many of the wanted calls, of so many entries each, one sample can span with the queue's bound; at least one.
pub(super) fn fitting_calls(wanted: u32, entries: usize) -> u32 {
    let most = ((MOST_ENTRIES - OWN_ENTRIES) / entries.max(1)) as u32;
    // One of them is not counted.
    wanted.min(most.saturating_sub(1)).max(1)
}

/// How often something of this time, these entries and so many samples fits into a batch; at least once.
pub(super) fn fitting_times(us: f64, entries: usize, samples: usize) -> usize {
    let most = (MOST_ENTRIES / entries.max(1)).min(MOST_SAMPLES / samples.max(1));
    ((BATCH_US / us.max(1.0)) as usize).clamp(1, most.max(1))
}

/// The lengths of the batches that samples of these entries are divided into.
pub(super) fn portions(entries: &[usize]) -> Vec<usize> {
    let (mut lengths, mut length, mut queued) = (Vec::new(), 0, 0);
    for entries in entries {
        if length > 0 && (length == MOST_SAMPLES || queued + entries > MOST_ENTRIES) {
            lengths.push(length);
            (length, queued) = (0, 0);
        }
        (length, queued) = (length + 1, queued + entries);
    }
    lengths.extend((length > 0).then_some(length));
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::clock::lead;

    #[test]
    fn batches_are_bounded_both_ways() {
        let fitting = |us, launches| fitting_times(us, OWN_ENTRIES + launches, 1);
        assert_eq!(fitting(0.0, 1), MOST_SAMPLES);
        assert_eq!(fitting(2_000.0, 1), 5);
        assert_eq!(fitting(1e9, 1), 1);
        assert_eq!(fitting(0.0, VENDOR_ENTRIES), MOST_SAMPLES);
        // Long programs share the queue.
        assert_eq!(fitting(0.0, 45), 10);
        assert_eq!(fitting(0.0, 100_000), 1);
        // A round of many samples is divided instead.
        assert_eq!(fitting_times(0.0, 17 * 10, 17), 2);
        assert_eq!(fitting_times(0.0, 100, 100), 1);
    }

    #[test]
    fn a_streak_is_no_longer_than_the_queue() {
        assert_eq!(fitting_calls(1, 1), 1);
        for entries in [1, 2, 3, 7, 14, 45, 159, 160, 239, 1000] {
            for wanted in [1, 2, 5, 32] {
                let calls = fitting_calls(wanted, entries);
                let queued = OWN_ENTRIES + (calls + lead(calls)) as usize * entries;
                assert!((1..=wanted).contains(&calls), "{wanted} of {entries}: {calls}");
                assert!(calls == 1 || queued <= MOST_ENTRIES, "{wanted} of {entries}: {queued}");
            }
        }
        assert_eq!(
            [1, 14, 45, 238, 239].map(|entries| fitting_calls(32, entries)),
            [32, 32, 9, 1, 1]
        );
    }

    #[test]
    fn samples_are_divided_into_batches_that_fit() {
        assert_eq!(portions(&[]), [0; 0]);
        assert_eq!(portions(&[4; 50]), [48, 2]);
        assert_eq!(portions(&[234, 234, 36, 10]), [2, 2]);
        assert_eq!(portions(&[10_000, 5, 10_000]), [1, 1, 1]);
        let entries: Vec<usize> = (0..100).map(|at| 1 + at * 37 % 300).collect();
        let lengths = portions(&entries);
        assert_eq!(lengths.iter().sum::<usize>(), entries.len());
        let mut rest = &entries[..];
        for length in lengths {
            let (part, later) = rest.split_at(length);
            assert!(part.len() <= MOST_SAMPLES && part.iter().sum::<usize>() <= MOST_ENTRIES);
            rest = later;
        }
    }

    #[test]
    fn every_round_begins_with_another_call() {
        assert_eq!(turns(3, 0, 2), [0, 1, 2, 1, 2, 0]);
        assert_eq!(turns(3, 2, 2), [2, 0, 1, 0, 1, 2]);
        assert_eq!(turns(1, 5, 3), [0, 0, 0]);
    }
}
