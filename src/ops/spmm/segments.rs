//! Long rows cut into segments, for the families that give them groups or teams of their own (`kernels/spmm/nnz_split.cuh`).

use super::row_split::row_order;
use super::shared::{self, Lowered, Shared, array};
use super::walk::{Bound, Walk};
use crate::domain::Device;
use crate::domain::recipe::{Arg, Array, ArrayData, CudaProgram, Program, Scratch, Step};
use crate::ops::Refusal;
use crate::ops::program::{EntryPoint, Operand, aggregate, number, parameter};
use crate::sparse::Csr;
use rayon::prelude::*;
use std::convert::Infallible;
use std::sync::Arc;

/// Segments whose sums one group adds, as in the kernel's header.
pub const BUNDLE: usize = 64;

/// A place that says that the segment is a whole row, as in the kernel's header.
const WHOLE_ROW: u32 = u32::MAX;

/// What of the segments a kernel's operands name.
#[derive(Default)]
pub struct Named {
    pub segments: u32,
    pub bundles: u32,
    /// The first of the six arrays that describe segments.
    pub arrays: usize,
    /// The scratch of the segments' sums; their counters follow it.
    pub scratch: usize,
}

impl Named {
    /// The kernel's operand `Segments`, with elements of this type.
    pub fn operand(&self, element: &str) -> Operand {
        let parts = ["bounds", "owner", "place", "row", "first", "bundle"];
        let parts = parts.into_iter().zip(self.arrays..);
        let parts = parts.map(|(part, at)| parameter("const u32*", part, Arg::Array(at)));
        let mut segments: Vec<_> = parts.collect();
        segments.extend([
            number("segments", self.segments),
            number("bundles", self.bundles),
            parameter(format!("Sum<{element}>*"), "partial", Arg::Scratch(self.scratch)),
            parameter("u32*", "arrived", Arg::Scratch(self.scratch + 1)),
        ]);
        aggregate(format!("Segments<{element}>"), segments)
    }
}

/// In which order segments are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// By their first column: those that run at a time gather the same part of B.
    ByColumn,
    /// Those of cut rows by their first column, and then whole rows by falling length, so that the device empties evenly.
    LongestFirst,
}

impl Sequence {
    fn name(self) -> &'static str {
        match self {
            Self::ByColumn => "by_column",
            Self::LongestFirst => "longest_first",
        }
    }
}

/// Rows of more than a threshold of entries, in parts of about equal length of at most `chunk` entries.
#[derive(Debug)]
pub struct Segments {
    /// Where each segment begins and ends among the entries.
    bounds: Arc<[u32]>,
    /// The cut row that each segment is part of, or the matrix row itself if it is whole.
    owner: Arc<[u32]>,
    /// Where each segment's sums go, side by side for a row; `WHOLE_ROW` if the row is not cut.
    place: Arc<[u32]>,
    /// The matrix row of each cut row.
    row: Arc<[u32]>,
    /// The first place of each cut row, followed by the number of all places.
    first: Arc<[u32]>,
    /// The first bundle of each cut row.
    bundle: Arc<[u32]>,
    /// The number of all bundles.
    pub bundles: u32,
    /// Rows above the threshold.
    pub rows: u32,
}

impl Segments {
    pub fn of(matrix: &Csr, threshold: usize, chunk: usize, sequence: Sequence) -> Self {
        let mut cut: Vec<(usize, usize, u32, u32)> = Vec::new();
        let (mut row, mut first, mut bundle) = (Vec::new(), vec![0u32], Vec::new());
        let (mut bundles, mut rows) = (0u32, 0);
        for (index, ends) in matrix.indptr().windows(2).enumerate() {
            let length = ends[1] - ends[0];
            if length <= threshold {
                continue;
            }
            rows += 1;
            let parts = length.div_ceil(chunk);
            if parts == 1 {
                cut.push((ends[0], ends[1], index as u32, WHOLE_ROW));
                continue;
            }
            let at = |part: usize| ends[0] + length * part / parts;
            let begin = first[row.len()];
            let parts_of = (0..parts)
                .map(|part| (at(part), at(part + 1), row.len() as u32, begin + part as u32));
            cut.extend(parts_of);
            row.push(index as u32);
            first.push(begin + parts as u32);
            bundle.push(bundles);
            bundles += parts.div_ceil(BUNDLE) as u32;
        }
        // Stable: rows of equal columns stay in order.
        cut.par_sort_by_key(|&(begin, end, _, place)| {
            let whole = place == WHOLE_ROW && sequence == Sequence::LongestFirst;
            let shorter = if whole { usize::MAX - (end - begin) } else { 0 };
            (shorter, matrix.indices()[begin])
        });
        // Arrays that a kernel is given are never empty.
        if row.is_empty() {
            row.push(0);
            bundle.push(0);
        }
        Self {
            bounds: cut.iter().flat_map(|it| [it.0 as u32, it.1 as u32]).collect(),
            owner: cut.iter().map(|it| it.2).collect(),
            place: cut.iter().map(|it| it.3).collect(),
            row: row.into(),
            first: first.into(),
            bundle: bundle.into(),
            bundles,
            rows,
        }
    }

    /// Segments, whole rows included.
    pub fn count(&self) -> u32 {
        self.owner.len() as u32
    }

    pub fn bytes(&self) -> u64 {
        4 * (4 * self.owner.len() + 3 * self.row.len() + 1) as u64
    }

    /// The six arrays, in the order in which [`Named::operand`] names them.
    pub fn arrays(&self, name: &str) -> [Array; 6] {
        let named = |part: &str, data: &Arc<[u32]>| {
            array(format!("{name}_{part}"), ArrayData::U32(data.clone()))
        };
        [
            named("bounds", &self.bounds),
            named("owner", &self.owner),
            named("place", &self.place),
            named("row", &self.row),
            named("first", &self.first),
            named("bundle", &self.bundle),
        ]
    }

    /// The sums of cut rows' segments, each column of a tile with room of its own, and their counters.
    pub fn scratch(&self, walk: &Walk, device: &Device) -> Result<[Scratch; 2], Refusal> {
        let places = u64::from(self.first.last().copied().unwrap_or(0));
        let columns = u64::from(walk.column_tiles() * walk.columns());
        let partial = places * columns * walk.sum_bytes();
        let counted = u64::from(self.bundles) + self.row.len() as u64;
        let counters = counted * u64::from(walk.column_tiles()) * 4;
        Ok([
            shared::scratch("sums of segments", partial, device)?,
            shared::scratch("counters of segments", counters, device)?,
        ])
    }
}

/// How a family cuts rows.
pub struct Cutting {
    /// Rows of more entries are cut, or at least apart from the others.
    pub threshold: u32,
    /// Most entries of a segment.
    pub chunk: u32,
    pub sequence: Sequence,
}

/// Lowers a walk whose long rows are segments: `blocks` says how many blocks compute the segments and the rows, and `kernel`
/// names their operands.
pub fn lower(
    walk: &Walk,
    shared: &mut Shared,
    cutting: &Cutting,
    blocks: impl Fn(&Segments, u32) -> u32,
    kernel: impl Fn(Bound, &Segments, &Named) -> EntryPoint,
    source: String,
) -> Result<Lowered, Refusal> {
    let &Cutting { threshold, chunk, sequence } = cutting;
    let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
    let name = format!("segments_{threshold}_{chunk}_{}", sequence.name());
    let made = shared.once(&name, Segments::bytes, |shared| {
        let segments = Segments::of(&shared.matrix, threshold as usize, chunk as usize, sequence);
        Ok::<_, Infallible>(segments)
    });
    let Ok((segments, cut_ms)) = made;
    if segments.count() == 0 {
        return Err(Refusal(format!("no row has more than {threshold} entries")));
    }
    let (mut arrays, order, order_ms) = row_order(shared, walk.order);
    let (mut steps, mut scratch) = walk.stage((rows, b_rows), &shared.device)?;
    let named = Named {
        segments: segments.count(),
        bundles: segments.bundles,
        arrays: arrays.len(),
        scratch: scratch.len(),
    };
    arrays.extend(segments.arrays(&name));
    scratch.extend(segments.scratch(walk, &shared.device)?);
    let mut ms = cut_ms + order_ms;
    let equal = walk.add_equal(shared, &mut arrays, &mut ms);
    let near = walk.add_near(shared, &mut arrays, &mut ms)?;
    let entry = kernel(Bound { rows, b_rows, order, equal, near }, &segments, &named);
    steps.push(Step {
        grid: [blocks(&segments, rows), walk.column_tiles(), 1],
        ..entry.step(1, walk.block)
    });
    steps.extend(walk.unstage(rows));
    let program = CudaProgram::of_steps(source, steps);
    Ok(Lowered { arrays, scratch, ms, ..Lowered::bare(Program::Cuda(program)) })
}

#[cfg(test)]
mod tests {
    use super::{Segments, Sequence, WHOLE_ROW};
    use crate::sparse::Csr;

    /// Rows of these lengths, with columns from 0 on.
    fn matrix(lengths: &[usize]) -> Csr {
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for &length in lengths {
            indices.extend(0..length as u32);
            indptr.push(indices.len());
        }
        let values = vec![1.0; indices.len()];
        Csr::new(lengths.len(), 40_000, indptr, indices, values).unwrap()
    }

    #[test]
    fn long_rows_are_cut_without_a_gap_and_short_ones_left() {
        let matrix = matrix(&[0, 9, 3, 8, 40_000, 4]);
        let indptr = matrix.indptr().to_vec();
        let segments = Segments::of(&matrix, 4, 4, Sequence::ByColumn);
        assert_eq!(*segments.row, [1, 3, 4]);
        assert_eq!(*segments.first, [0, 3, 5, 10_005]);
        assert_eq!((&*segments.bundle, segments.bundles), (&[0, 1, 2][..], 2 + 157));
        for (long, &row) in segments.row.iter().enumerate() {
            let own = segments.first[long]..segments.first[long + 1];
            let mut at = indptr[row as usize] as u32;
            for place in own {
                let segment = segments.place.iter().position(|&at| at == place).unwrap();
                assert_eq!(
                    (segments.owner[segment], segments.bounds[2 * segment]),
                    (long as u32, at)
                );
                at = segments.bounds[2 * segment + 1];
            }
            assert_eq!(at as usize, indptr[row as usize + 1]);
        }
        let first_columns =
            segments.bounds.chunks(2).map(|ends| matrix.indices()[ends[0] as usize]);
        assert!(first_columns.is_sorted());
        assert_eq!(Segments::of(&matrix, 40_000, 40_000, Sequence::ByColumn).count(), 0);
    }

    #[test]
    fn rows_at_a_threshold_are_not_above_it() {
        let segments = Segments::of(&matrix(&[32, 33, 64, 65]), 32, 64, Sequence::LongestFirst);
        assert_eq!((segments.rows, segments.count()), (3, 4));
        assert_eq!(*segments.place, [0, 1, WHOLE_ROW, WHOLE_ROW], "65 is cut, 64 and 33 are not");
        assert_eq!(*segments.owner, [0, 0, 2, 1]);
    }

    #[test]
    fn rows_that_fit_a_segment_stay_whole_and_come_last_by_falling_length() {
        let matrix = matrix(&[9, 2, 12, 21, 9]);
        let segments = Segments::of(&matrix, 4, 12, Sequence::LongestFirst);
        assert_eq!((segments.rows, segments.count(), segments.bundles), (4, 5, 1));
        assert_eq!(*segments.place, [0, 1, WHOLE_ROW, WHOLE_ROW, WHOLE_ROW]);
        assert_eq!(*segments.owner, [0, 0, 2, 0, 4], "the cut row's number, then rows");
        assert_eq!(*segments.row, [3]);
        assert_eq!(*segments.bounds, [23, 33, 33, 44, 11, 23, 0, 9, 44, 53]);
        let none = Segments::of(&matrix, 4, 64, Sequence::LongestFirst);
        assert_eq!((none.rows, none.row.len(), none.first.len()), (4, 1, 1));
    }
}
