//! What TCA-SpMM does on a matrix, counted from how many rows have each length: warps, blocks and steps, without building the
//! table of warps.

use super::table::Shape;

/// Largest number of warps per block.
const MOST_WARPS: usize = 8;

/// Sums over all rows of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    /// Warps that have a task.
    pub tasks: f64,
    /// Turns of all tasks: spans of columns that a warp computes, each with one store of its sums.
    pub turns: [f64; 4],
    /// Steps of all turns, by class of the row: a step is one set of products, of up to 8 nonzeros a block.
    pub steps: [f64; 4],
    /// Nonzeros by class of their row.
    pub nonzeros: [f64; 4],
    /// Nonzeros that each lane's blocks walk, over all turns.
    pub walked: f64,
}

impl Count {
    /// `lengths` are those of [`crate::ops::spmm::inspect::Inspection::row_lengths`].
    pub fn of(shape: &Shape, lengths: &[(u32, u64)]) -> Self {
        let mut count = Self::default();
        for &(nonzeros, rows) in lengths {
            let (class, rows) = (shape.class(nonzeros), rows as f64);
            let turns = rows * f64::from(shape.turns(nonzeros));
            let of_step = 8_u32 << class;
            let class = class as usize;
            count.tasks += rows * f64::from(shape.parts(nonzeros));
            count.turns[class] += turns;
            count.steps[class] += turns * f64::from(nonzeros.div_ceil(of_step));
            count.nonzeros[class] += rows * f64::from(nonzeros);
            count.walked += turns * f64::from(nonzeros) / f64::from(of_step / 8);
        }
        count
    }
}

/// Blocks that the table fills. What a row's warps leave of their last block is filled as well as it can be, where the table
/// takes the first place in order of the rows; both come to the same wherever groups of warps divide a block, which they do
/// unless N is narrow or odd, or blocks have fewer warps than a row takes.
pub fn blocks(shape: &Shape, lengths: &[(u32, u64)]) -> u64 {
    let warps = shape.warps as usize;
    // Groups of neighbouring warps by their size, as `table::build` cuts them.
    let mut groups = [0_u64; MOST_WARPS + 1];
    for &(nonzeros, rows) in lengths {
        let parts = shape.parts(nonzeros) as usize;
        groups[warps] += rows * (parts / warps) as u64;
        groups[parts % warps] += rows;
    }
    // Blocks by the warps that are free; the largest groups come first, each to the block with the least room for it.
    let mut free = [0_u64; MOST_WARPS + 1];
    let mut blocks = 0;
    for size in (1..=warps).rev() {
        let mut left = groups[size];
        for room in size..warps {
            let each = (room / size) as u64;
            let filled = free[room].min(left / each);
            free[room] -= filled;
            free[room % size] += filled;
            left -= filled * each;
            if left < each && free[room] > 0 {
                free[room] -= 1;
                free[room - left as usize * size] += 1;
                left = 0;
            }
        }
        let each = (warps / size) as u64;
        let (full, rest) = (left / each, left % each);
        free[warps % size] += full;
        blocks += full;
        if rest > 0 {
            free[warps - rest as usize * size] += 1;
            blocks += 1;
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::super::table::{IDLE, WORDS, build};
    use super::*;
    use crate::ops::spmm::inspect::Inspection;
    use crate::sparse::Csr;
    use crate::sparse::generate::Spec;

    fn shapes(thresholds: [u32; 4]) -> Vec<Shape> {
        let shape = |warps, span, grouped, n| Shape { warps, span, thresholds, grouped, n };
        let widths = [1, 3, 32, 33, 64, 100, 128, 200, 256];
        let own = widths.map(|n| [shape(8, 64, true, n), shape(8, 64, false, n)]);
        let others = widths.map(|n| [shape(4, 32, false, n), shape(4, 128, false, n)]);
        own.into_iter().chain(others).flatten().collect()
    }

    fn compare(name: &str, matrix: &Csr, seen: &Inspection, shape: &Shape) {
        let table = build(matrix, shape).unwrap();
        let real = (table.len() / WORDS) as u64 / u64::from(shape.warps);
        let counted = blocks(shape, &seen.row_lengths);
        let count = Count::of(shape, &seen.row_lengths);
        let busy = table.chunks(WORDS).filter(|entry| entry[0] != IDLE).count();
        assert_eq!(count.tasks, busy as f64, "{name}: {shape:?}");
        let parts: Vec<u32> = seen.row_lengths.iter().map(|row| shape.parts(row.0)).collect();
        let divide =
            |parts: &u32| shape.warps.is_multiple_of(*parts) || parts.is_multiple_of(shape.warps);
        if parts.iter().all(divide) {
            assert_eq!(counted, real, "{name}: {shape:?}");
        } else {
            // What first fit in order of the rows wastes on groups that leave holes.
            let close = counted <= real && real <= counted + counted / 10 + 2;
            assert!(close, "{name}: {shape:?}: {counted}, not {real}");
        }
    }

    /// Eq. 2 of the paper gives each row its products, and section 4.2.2 as many warps; the table is what is launched.
    #[test]
    fn blocks_are_those_of_the_table() {
        let generated = [
            "rmat:scale=10,edge_factor=12,seed=3",
            "uniform:rows=3000,cols=3000,nnz=90000,seed=2",
            "road:nx=40,ny=50,seed=3",
        ];
        for spec in generated {
            let matrix = Spec::parse(spec).unwrap().generate().unwrap();
            let seen = Inspection::of(&matrix);
            for name in ["paper", "double", "eightfold"] {
                for shape in shapes(super::super::thresholds(name).unwrap()) {
                    compare(spec, &matrix, &seen, &shape);
                }
            }
        }
    }

    #[test]
    fn odd_matrices_are_counted_too() {
        let lengths = [0, 1, 8, 9, 16, 17, 32, 33, 64, 65, 1000, 0, 40, 40, 40];
        let indptr = lengths.iter().scan(0, |sum, length| {
            *sum += length;
            Some(*sum)
        });
        let indptr: Vec<usize> = std::iter::once(0).chain(indptr).collect();
        let indices: Vec<u32> = lengths.iter().flat_map(|&length| 0..length as u32).collect();
        let values = vec![1.0; indices.len()];
        let matrix = Csr::new(lengths.len(), 1000, indptr, indices, values).unwrap();
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        for shape in shapes([8, 16, 32, 64]) {
            compare("odd", &matrix, &Inspection::of(&matrix), &shape);
            compare("empty", &empty, &Inspection::of(&empty), &shape);
        }
    }

    #[test]
    fn turns_cover_the_columns() {
        for shape in shapes([8, 16, 32, 64]) {
            for nonzeros in [0, 1, 9, 20, 64, 65, 1000] {
                let (eights, turns) = (1 << shape.class(nonzeros), shape.turns(nonzeros));
                let own = shape.span / eights;
                assert!(turns * own >= shape.n);
                let least = if shape.grouped { eights } else { 1 };
                assert!(turns >= least && (turns - least) * own < shape.n);
                assert!(turns >= shape.parts(nonzeros).min(shape.n.div_ceil(own)));
            }
        }
    }
}
