//! The O(nnz) proof that a packed system terminates and stays within its arrays.

use super::pack::{ALIGNED, OF_B, Packed, RUN_ROWS};
use crate::ops::Refusal;
use rayon::prelude::*;

/// Refuses a packed system in which a run would wait for one that is not in an earlier window, or would read outside of the arrays.
/// `most` is how many terms a run may have, `rows` the length of b.
///
/// Warps take runs in rising order, and all warps are resident. So the lowest unfinished run is being worked on, and everything that it
/// waits for is available.
pub fn prove(packed: &Packed, most: usize, rows: usize) -> Result<(), Refusal> {
    let (mut slot, mut term) = (0usize, 0usize);
    for run in packed.runs.chunks_exact(4) {
        let [first, at, terms, count] = [run[0], run[1], run[2], run[3]].map(|word| word as usize);
        let fits = (1..=RUN_ROWS).contains(&count) && terms <= most;
        if !fits || (first, at) != (slot, term) {
            return Err(Refusal(format!(
                "run {run:?} is not up to {RUN_ROWS} rows from slot {slot}, term {term} on"
            )));
        }
        (slot, term) = (slot + count, term + terms.next_multiple_of(ALIGNED));
    }
    let lengths = (packed.ends.len(), packed.rows.len(), packed.cols.len(), packed.vals.len());
    if lengths != (slot, slot, term, term) {
        return Err(Refusal(format!(
            "{slot} slots and {term} terms do not fill arrays of {lengths:?}"
        )));
    }
    packed.runs.par_chunks_exact(4).with_min_len(AT_ONCE).try_for_each(|run| {
        let [first, at, terms, count] = [run[0], run[1], run[2], run[3]].map(|word| word as usize);
        let ends = &packed.ends[first..first + count];
        if !ends.is_sorted() || ends.last().map(|&end| usize::from(end)) != Some(terms) {
            return Err(Refusal(format!("rows from slot {first} on do not end after {terms} terms")));
        }
        let later = packed.window_start.partition_point(|&start| start as usize <= first);
        let earlier = later.checked_sub(1).map_or(0, |window| packed.window_start[window]);
        let within = packed.window_start.get(later).is_some_and(|&end| first + count <= end as usize);
        let wrong = |&&col: &&u32| match col & OF_B {
            0 => col >= earlier,
            _ => (col & !OF_B) as usize >= rows,
        };
        match packed.cols[at..at + terms].iter().find(wrong) {
            None if within => Ok(()),
            None => Err(Refusal(format!("the run from slot {first} on is not in one window"))),
            Some(&col) if col & OF_B == 0 => Err(Refusal(format!(
                "a slot from {first} on would need slot {col}, which is not before its window's first, {earlier}"
            ))),
            Some(&col) => Err(Refusal(format!(
                "a slot from {first} on would read row {} of {rows}",
                col & !OF_B
            ))),
        }
    })
}

/// Runs whose terms a task looks at.
const AT_ONCE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::recipe::ArrayData;
    use std::sync::Arc;

    /// Rows 0 and 1 of b alone, row 2 of both.
    fn packed() -> Packed {
        let cols = [[OF_B, OF_B | 1, 0, 0], [OF_B | 2, 0, 1, 0]].concat();
        Packed {
            runs: [[0, 0, 2, 2], [2, 4, 3, 1]].concat().into(),
            ends: vec![1, 2, 3].into(),
            vals: ArrayData::F64(vec![1.0; cols.len()].into()),
            cols: cols.into(),
            rows: vec![0, 1, 2].into(),
            window_start: vec![0, 2, 3],
            ms: 0.0,
        }
    }

    fn complaint(change: impl FnOnce(&mut Packed)) -> String {
        let mut packed = packed();
        change(&mut packed);
        prove(&packed, 128, 3).map_or_else(|refusal| refusal.0, |()| "none".to_owned())
    }

    fn set<T>(words: &mut Arc<[T]>, at: usize, to: T) {
        Arc::get_mut(words).expect("nobody shares it")[at] = to;
    }

    #[test]
    fn what_is_in_order_passes_and_a_broken_order_is_refused() {
        assert_eq!(complaint(|_| ()), "none");
        // Its own slot, a later one, one of the same window.
        assert!(complaint(|packed| set(&mut packed.cols, 5, 2)).contains("would need slot 2"));
        assert!(complaint(|packed| set(&mut packed.cols, 6, 9)).contains("would need slot 9"));
        assert!(complaint(|packed| set(&mut packed.cols, 1, 0)).contains("would need slot 0"));
        let both = complaint(|packed| packed.window_start = vec![0, 1, 3]);
        assert!(both.contains("is not in one window"), "{both}");
        // What fills up a run is not looked at.
        assert_eq!(complaint(|packed| set(&mut packed.cols, 7, 9)), "none");
    }

    #[test]
    fn what_reaches_outside_is_refused() {
        assert!(complaint(|packed| set(&mut packed.cols, 4, OF_B | 3)).contains("row 3 of 3"));
        for (word, to) in [(0, 1), (1, 4), (3, 0), (3, 33), (2, 129), (5, 5)] {
            let complaint = complaint(|packed| set(&mut packed.runs, word, to));
            assert!(complaint.contains("is not up to"), "word {word} {to}: {complaint}");
        }
        assert!(complaint(|packed| set(&mut packed.runs, 6, 5)).contains("do not fill"));
        assert!(complaint(|packed| set(&mut packed.ends, 0, 3)).contains("do not end"));
        assert!(complaint(|packed| set(&mut packed.ends, 2, 2)).contains("do not end"));
        assert!(complaint(|packed| packed.rows = vec![0, 1].into()).contains("do not fill"));
    }
}
