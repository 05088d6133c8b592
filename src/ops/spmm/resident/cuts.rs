//! Distribution of rows over the subwarps of persistent blocks: contiguous ranges, never a row in two of them.

/// Cost of starting and storing a row, in groups of entries: rows without entries are work too.
const ROW: u64 = 1;

/// `blocks x subwarps + 1` offsets into the rows: subwarp s of block i has the rows `cuts[i * subwarps + s]` to the next.
/// Blocks get about equal costs, since their subwarps share a multiprocessor; inside a block the costliest range is as small
/// as contiguous ranges allow, since a block ends with it. `ptr` are the offsets of the rows' groups.
pub fn cut(ptr: &[u32], blocks: usize, subwarps: usize) -> Vec<u32> {
    let rows = ptr.len() - 1;
    let costs = Costs { ptr };
    let total = costs.up_to(rows);
    let mut cuts = Vec::with_capacity(blocks * subwarps + 1);
    let mut first = 0;
    for block in 1..=blocks {
        let goal = (u128::from(total) * block as u128 / blocks as u128) as u64;
        let last = costs.nearest(goal, first);
        let most = costs.least_bottleneck(first, last, subwarps);
        for _ in 0..subwarps {
            cuts.push(first as u32);
            first = costs.reach(first, last, most);
        }
    }
    cuts.push(rows as u32);
    cuts
}

struct Costs<'a> {
    ptr: &'a [u32],
}

impl Costs<'_> {
    /// Cost of the rows before `row`.
    fn up_to(&self, row: usize) -> u64 {
        u64::from(self.ptr[row]) + ROW * row as u64
    }

    /// The row offset, from `first`, at which the costs so far come nearest to `goal`.
    fn nearest(&self, goal: u64, first: usize) -> usize {
        let rows = self.ptr.len() - 1;
        let (mut low, mut high) = (first, rows);
        while low < high {
            let middle = low.midpoint(high);
            if self.up_to(middle) < goal { low = middle + 1 } else { high = middle }
        }
        let before =
            low > first && goal - self.up_to(low - 1) < self.up_to(low).saturating_sub(goal);
        if before { low - 1 } else { low }
    }

    /// How far rows from `first` reach with a cost of at most `most`, not beyond `last`.
    fn reach(&self, first: usize, last: usize, most: u64) -> usize {
        let limit = self.up_to(first) + most;
        let (mut low, mut high) = (first, last);
        while low < high {
            let middle = low.midpoint(high) + 1;
            if self.up_to(middle) <= limit { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// The least cost such that `parts` contiguous ranges of at most that cost hold the rows `first..last`.
    fn least_bottleneck(&self, first: usize, last: usize, parts: usize) -> u64 {
        let total = self.up_to(last) - self.up_to(first);
        let (mut low, mut high) = (total.div_ceil(parts as u64), total);
        while low < high {
            let middle = low.midpoint(high);
            let end = (0..parts).fold(first, |at, _| self.reach(at, last, middle));
            if end == last { high = middle } else { low = middle + 1 }
        }
        high
    }
}

#[cfg(test)]
mod tests {
    use super::cut;

    fn ptr(groups: &[u32]) -> Vec<u32> {
        let mut ptr = vec![0];
        groups.iter().for_each(|count| ptr.push(ptr[ptr.len() - 1] + count));
        ptr
    }

    #[test]
    fn equal_rows_are_distributed_equally() {
        assert_eq!(cut(&ptr(&[5; 8]), 2, 4), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(cut(&ptr(&[5; 8]), 2, 2), [0, 2, 4, 6, 8]);
        // Fewer rows than subwarps: one each, and both blocks have work.
        assert_eq!(cut(&ptr(&[5; 4]), 2, 4), [0, 1, 2, 2, 2, 3, 4, 4, 4]);
    }

    #[test]
    fn a_long_row_stands_alone() {
        assert_eq!(cut(&ptr(&[1, 1, 50, 1, 1, 0]), 1, 4), [0, 2, 3, 6, 6]);
        let cuts = cut(&ptr(&[0, 0, 0]), 2, 2);
        assert_eq!((cuts[0], cuts[4], cuts.len()), (0, 3, 5));
        assert_eq!(cut(&[0], 2, 2), [0; 5]);
    }

    #[test]
    fn every_row_has_one_subwarp() {
        let groups: Vec<u32> =
            (0..1000).map(|i| (i * 7919 % 37) as u32 * u32::from(i % 3 > 0)).collect();
        for (blocks, subwarps) in [(1, 1), (3, 7), (132, 128)] {
            let cuts = cut(&ptr(&groups), blocks, subwarps);
            assert_eq!(cuts.len(), blocks * subwarps + 1);
            assert!(cuts.is_sorted() && cuts[0] == 0 && cuts[blocks * subwarps] == 1000);
        }
    }
}
