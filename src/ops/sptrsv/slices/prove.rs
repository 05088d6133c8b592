//! The O(nnz) proof that a packed system terminates and stays within its arrays.

use super::pack::{NO_TERM, Packed, Packing};
use crate::ops::Refusal;
use rayon::prelude::*;
use std::ops::Range;

/// Refuses a packed system in which a slice would wait for one that is not in an earlier window, or would read outside of the
/// arrays. `rows` is the length of b.
///
/// Warps take slices in rising order, and all warps are resident, or take slices by ticket. So the lowest unfinished slice is
/// being worked on, and everything that it waits for is available. Windows with a separate launch do not wait at all: they
/// require an earlier window, not just an earlier slice.
pub fn prove(packed: &Packed, packing: Packing, rows: usize) -> Result<(), Refusal> {
    let width = packing.width as usize;
    let slices = packed.meta.chunks_exact(4);
    let windows = packed.window_start.windows(2);
    let window_of = windows.flat_map(|window| (window[0]..window[1]).map(|_| window[0]));
    let mut laid = Vec::with_capacity(slices.len());
    let (mut slot, mut step) = (0usize, 0usize);
    for (meta, window) in slices.clone().zip(window_of) {
        let [first, at, steps, shape] = [meta[0], meta[1], meta[2], meta[3]];
        let (b, x) = ((steps & 0xFFFF) as usize, (steps >> 16) as usize);
        let (log_lanes, count) = (shape & 0xFF, (shape >> 8) as usize);
        let fits = log_lanes <= 5 && (1..=width >> log_lanes).contains(&count);
        if !fits || (first as usize, at as usize) != (slot, step) {
            return Err(Refusal(format!(
                "slice {meta:?} is not {count} equations from slot {slot}, step {step} on"
            )));
        }
        let earlier = packed.meta.get(window as usize * 4).copied().unwrap_or(0);
        laid.push(Laid { slot, earlier, known: step..step + b, unknown: step + b..step + b + x });
        (slot, step) = (slot + count, step + b + x);
    }
    let whole = packed.window_start.last().map_or(0, |&end| end as usize) == slices.len();
    if !whole || (slot, slot, step * width) != (packed.slots, packed.rows.len(), packed.cols.len())
    {
        return Err(Refusal(format!(
            "{slot} slots and {step} steps are not the {} slots and {} entries there are",
            packed.slots,
            packed.cols.len()
        )));
    }
    let terms = |steps: &Range<usize>| {
        let entries = &packed.cols[steps.start * width..steps.end * width];
        entries.iter().copied().filter(|&col| col != NO_TERM)
    };
    laid.par_iter().with_min_len(AT_ONCE).try_for_each(|slice| {
        let Laid { slot, earlier, known, unknown } = slice;
        if let Some(row) = terms(known).find(|&row| row as usize >= rows) {
            return Err(Refusal(format!("slot {slot} would read row {row} of {rows}")));
        }
        match terms(unknown).find(|other| other >= earlier) {
            None => Ok(()),
            Some(other) => Err(Refusal(format!(
                "a slot from {slot} on would need slot {other}, which is not before its window's first, {earlier}"
            ))),
        }
    })
}

/// Slices whose terms a task looks at.
const AT_ONCE: usize = 256;

/// A slice: its first slot, the first of its window, and where its terms are, in steps.
struct Laid {
    slot: usize,
    earlier: u32,
    known: Range<usize>,
    unknown: Range<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::recipe::ArrayData;

    const HOW: Packing = Packing { width: 2, lanes: 1, steps: 4, warps: 1 };

    /// Slots 0 and 1 of b alone, slot 2 of both.
    fn packed() -> Packed {
        let meta = [[0, 0, 1, 2 << 8], [2, 1, 1 | 2 << 16, 1 << 8]].concat();
        let cols = [[0, 1], [2, NO_TERM], [0, NO_TERM], [1, NO_TERM]].concat();
        Packed {
            meta: meta.into(),
            vals: ArrayData::F64(vec![1.0; cols.len()].into()),
            cols: cols.into(),
            rows: vec![0, 1, 2].into(),
            window_start: vec![0, 1, 2],
            slots: 3,
            ms: 0.0,
        }
    }

    fn complaint(change: impl FnOnce(&mut Packed)) -> String {
        let mut packed = packed();
        change(&mut packed);
        prove(&packed, HOW, 3).map_or_else(|refusal| refusal.0, |()| "none".to_owned())
    }

    fn set(words: &mut std::sync::Arc<[u32]>, at: usize, to: u32) {
        std::sync::Arc::get_mut(words).expect("nobody shares it")[at] = to;
    }

    #[test]
    fn what_is_in_order_passes_and_a_broken_order_is_refused() {
        assert_eq!(complaint(|_| ()), "none");
        // Its own slot, a later one, one of the same window.
        assert!(complaint(|packed| set(&mut packed.cols, 4, 2)).contains("would need slot 2"));
        assert!(complaint(|packed| set(&mut packed.cols, 4, 9)).contains("would need slot 9"));
        let same = complaint(|packed| packed.window_start = vec![0, 2]);
        assert!(same.contains("would need slot 0"), "{same}");
        let empty = Packed {
            meta: vec![].into(),
            cols: vec![].into(),
            rows: vec![].into(),
            window_start: vec![0],
            slots: 0,
            ..packed()
        };
        assert_eq!(prove(&empty, HOW, 0), Ok(()));
    }

    #[test]
    fn what_reaches_outside_is_refused() {
        assert!(complaint(|packed| set(&mut packed.cols, 2, 3)).contains("row 3 of 3"));
        // Slots, steps and equations that are not where the others end; more lanes than a warp has.
        for (word, to) in [(0, 1), (1, 1), (3, 3 << 8), (3, 0), (3, 2 << 8 | 1), (3, 1 << 8 | 40)] {
            let complaint = complaint(|packed| set(&mut packed.meta, word, to));
            assert!(complaint.contains("is not"), "word {word} {to}: {complaint}");
        }
        // More steps than there are entries.
        assert!(complaint(|packed| set(&mut packed.meta, 6, 1 | 9 << 16)).contains("are not"));
        assert!(complaint(|packed| packed.slots = 4).contains("are not"));
        assert!(complaint(|packed| packed.window_start = vec![0, 1]).contains("are not"));
    }
}
