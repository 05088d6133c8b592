//! The table of warps of TCA-SpMM (section 4.2.2): which warp computes which share of which row, packed first-fit into blocks.

use crate::ops::spmm::shared::MOST_KEPT;
use crate::sparse::Csr;

/// Words of a warp's entry: row, first nonzero, end of the nonzeros, and class and share as [`share_word`] packs them.
pub const WORDS: usize = 4;
/// The row of a warp that has nothing to do.
pub const IDLE: u32 = u32::MAX;
/// Largest number of blocks in a launch.
const MOST_BLOCKS: u64 = i32::MAX as u64;

/// What determines the table, besides the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Warps per block.
    pub warps: u32,
    /// Columns of C that one warp computes in a step of a row of the lowest class; half as many for each class above.
    pub span: u32,
    /// Most nonzeros of a row of each class; longer rows are of the last class and shared by several blocks.
    pub thresholds: [u32; 4],
    /// The warps of a row gather together, so they come in whole groups of one for each 8 nonzeros of a product.
    pub grouped: bool,
    /// Columns of B.
    pub n: u32,
}

impl Shape {
    /// log2 of the blocks of 8 nonzeros that one product takes of a row.
    pub fn class(&self, nonzeros: u32) -> u32 {
        let longer = self.thresholds[..3].iter().filter(|&&most| nonzeros > most).count();
        longer as u32
    }

    /// Warps that share a row's columns: one for each block of 8 nonzeros of its class; a long row takes
    /// min(ceil(nonzeros / 64), N / 64) blocks. Where warps need not meet, there are no more than have columns to compute.
    pub fn parts(&self, nonzeros: u32) -> u32 {
        let eights = 1 << self.class(nonzeros);
        let long = nonzeros > self.thresholds[3];
        let blocks = if long { nonzeros.div_ceil(64) } else { 1 };
        if self.grouped {
            return eights * blocks.min(self.n.div_ceil(self.span));
        }
        let own = self.span / eights;
        let warps = if long { self.warps * blocks } else { eights.min(self.warps) };
        warps.min(self.n.div_ceil(own))
    }

    /// Spans of columns that all warps of a row compute together: each takes every `parts`-th.
    pub fn turns(&self, nonzeros: u32) -> u32 {
        let eights = 1 << self.class(nonzeros);
        match self.grouped {
            true => eights * self.n.div_ceil(self.span),
            false => self.n.div_ceil(self.span / eights),
        }
    }
}

/// The last word of an entry: class in 2 bits, the warp's share in 15, the row's shares less one in 15. A share is at least
/// 4 columns, so there are at most 2^14.
fn share_word(class: u32, part: u32, parts: u32) -> u32 {
    class | part << 2 | (parts - 1) << 17
}

/// Every row once, in natural order; a row of more warps than a block has lies in several. `None` where the table would take
/// more than [`MOST_KEPT`] bytes, or more blocks than can be launched.
pub fn build(matrix: &Csr, shape: &Shape) -> Option<Vec<u32>> {
    let mut packing = Packing::new(shape.warps);
    for (row, range) in matrix.indptr().windows(2).enumerate() {
        let (begin, end) = (u32::try_from(range[0]).ok()?, u32::try_from(range[1]).ok()?);
        let (class, parts) = (shape.class(end - begin), shape.parts(end - begin));
        for first in (0..parts).step_by(shape.warps as usize) {
            let last = parts.min(first + shape.warps);
            let slot = packing.place(last - first)?;
            for (part, at) in (first..last).zip(slot..) {
                let entry = [row as u32, begin, end, share_word(class, part, parts)];
                packing.entries[at * WORDS..][..WORDS].copy_from_slice(&entry);
            }
        }
    }
    Some(packing.entries)
}

/// Blocks of warps, filled first-fit.
struct Packing {
    warps: u32,
    entries: Vec<u32>,
    /// Warps of each block that have no task yet.
    free: Vec<u8>,
    /// For groups of 1, 2, ... warps the first block that may have room. What is free only falls, so these only rise.
    candidate: Vec<usize>,
}

impl Packing {
    fn new(warps: u32) -> Self {
        let candidate = vec![0; warps as usize];
        Self { warps, entries: Vec::new(), free: Vec::new(), candidate }
    }

    /// The slot of the first of `group` neighbouring warps of a block, all without a task.
    fn place(&mut self, group: u32) -> Option<usize> {
        let block = &mut self.candidate[group as usize - 1];
        while self.free.get(*block).is_some_and(|&free| u32::from(free) < group) {
            *block += 1;
        }
        if *block == self.free.len() {
            let slots = (self.free.len() as u64 + 1) * u64::from(self.warps);
            if self.free.len() as u64 == MOST_BLOCKS || slots * 4 * WORDS as u64 > MOST_KEPT {
                return None;
            }
            self.free.push(self.warps as u8);
            let idle = [IDLE, 0, 0, 0];
            self.entries.extend((0..self.warps).flat_map(|_| idle));
        }
        let free = u32::from(self.free[*block]);
        self.free[*block] -= group as u8;
        Some(*block * self.warps as usize + (self.warps - free) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [usize; 12] = [0, 1, 8, 9, 16, 17, 32, 33, 64, 65, 1000, 0];

    fn matrix() -> Csr {
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for length in LENGTHS {
            indices.extend(0..length as u32);
            indptr.push(indices.len());
        }
        let values = vec![1.0; indices.len()];
        Csr::new(LENGTHS.len(), 1000, indptr, indices, values).unwrap()
    }

    fn shape(warps: u32, grouped: bool, n: u32) -> Shape {
        Shape { warps, span: 64, thresholds: [8, 16, 32, 64], grouped, n }
    }

    #[test]
    fn classes_and_warps_are_the_papers() {
        let shape = shape(8, true, 256);
        let seen =
            LENGTHS.map(|length| (1 << shape.class(length as u32), shape.parts(length as u32)));
        let long = [(8, 8), (8, 8), (8, 16), (8, 32), (1, 1)];
        let short = [(1, 1), (1, 1), (1, 1), (2, 2), (2, 2), (4, 4), (4, 4)];
        assert_eq!(seen[..7], short);
        assert_eq!(seen[7..], long);
    }

    #[test]
    fn no_warp_is_without_columns_unless_it_must_gather() {
        assert_eq!(shape(8, false, 8).parts(64), 1);
        assert_eq!(shape(8, false, 32).parts(64), 4);
        assert_eq!(shape(8, false, 32).parts(1000), 4);
        assert_eq!(shape(4, false, 256).parts(64), 4);
        assert_eq!(shape(8, true, 8).parts(64), 8);
        let widest = Shape { span: 32, ..shape(8, false, 65_536) };
        assert_eq!(widest.parts(u32::MAX >> 1), 1 << 14);
    }

    /// Every share of every row lies in the table once, the shares of a block side by side in order.
    fn check(warps: u32, grouped: bool, n: u32) {
        let (matrix, shape) = (matrix(), shape(warps, grouped, n));
        let table = build(&matrix, &shape).unwrap();
        assert_eq!(table.len() % (WORDS * warps as usize), 0);
        let mut seen = vec![Vec::new(); LENGTHS.len()];
        for (slot, entry) in table.chunks(WORDS).enumerate() {
            let [row, begin, end, word] = entry.try_into().unwrap();
            if row == IDLE {
                continue;
            }
            let range = matrix.indptr()[row as usize]..matrix.indptr()[row as usize + 1];
            assert_eq!((begin as usize, end as usize), (range.start, range.end));
            let (class, part, parts) = (word & 3, word >> 2 & 0x7fff, (word >> 17) + 1);
            assert_eq!(class, shape.class(end - begin));
            assert_eq!(parts, shape.parts(end - begin));
            // The warps of a group follow each other within one block.
            let member = part % warps.min(if grouped { 1 << class } else { warps });
            assert!(slot as u32 % warps >= member, "row {row}, part {part} in slot {slot}");
            seen[row as usize].push(part);
        }
        for (row, parts) in seen.iter_mut().enumerate() {
            parts.sort_unstable();
            let all: Vec<u32> = (0..shape.parts(LENGTHS[row] as u32)).collect();
            assert_eq!(*parts, all, "row {row}");
        }
    }

    #[test]
    fn every_row_is_placed_exactly_once() {
        for n in [2, 8, 31, 64, 100, 500] {
            check(8, true, n);
            check(8, false, n);
            check(4, false, n);
        }
    }

    #[test]
    fn first_fit_fills_the_holes() {
        let mut packing = Packing::new(8);
        let slots = [4, 8, 2, 8, 4, 1, 1].map(|group| packing.place(group).unwrap());
        assert_eq!(slots, [0, 8, 4, 16, 24, 6, 7]);
        assert_eq!(packing.entries.len(), 4 * 8 * WORDS);
    }
}
