//! Family `nnz_split`: rows above a threshold are cut into segments (`kernels/spmm/nnz_split.cuh`), so that neither one huge
//! row nor few long ones leave the device idle.

use super::family::{SpmmFamily, SpmmKernel, Tile, count, gpu_family};
use super::inspect::Inspection;
use super::model::Work;
use super::phrases;
use super::row_split::row_order;
use super::shared::{self, Lowered, Shared, array};
use super::text;
use super::walk::{self, Bound, Walk};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::recipe::{Arg, ArrayData, CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys, parameters};
use crate::ops::program::{EntryPoint, aggregate, number, parameter};
use crate::search::domain::Domain;
use crate::sparse::Csr;
use rayon::prelude::*;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

const FAMILY: &str = "nnz_split";

/// Segments whose sums one group adds, as in the kernel's header.
const BUNDLE: usize = 64;

pub struct NnzSplits;

struct NnzSplit {
    walk: Walk,
    chunk: u32,
}

/// Operands that depend on the matrix, besides those of the walk.
#[derive(Default)]
struct Cut {
    segments: u32,
    bundles: u32,
    /// The first of the six arrays that describe segments.
    arrays: usize,
    /// The scratch of the segments' sums; their counters follow it.
    scratch: usize,
}

impl NnzSplit {
    fn kernel(&self, bound: Bound, cut: &Cut) -> EntryPoint {
        let element = text::element(self.walk.problem.dtype);
        let parts = ["bounds", "owner", "place", "row", "first", "bundle"];
        let parts = parts.into_iter().zip(cut.arrays..);
        let parts = parts.map(|(part, at)| parameter("const u32*", part, Arg::Array(at)));
        let mut segments: Vec<_> = parts.collect();
        segments.extend([
            number("segments", cut.segments),
            number("bundles", cut.bundles),
            parameter(format!("Sum<{element}>*"), "partial", Arg::Scratch(cut.scratch)),
            parameter("u32*", "arrived", Arg::Scratch(cut.scratch + 1)),
        ]);
        let mut operands = self.walk.operands(bound);
        operands.extend([
            number("chunk", self.chunk),
            aggregate(format!("Segments<{element}>"), segments),
            text::scale(&self.walk.problem),
        ]);
        text::kernel("nnz_split", "NnzSplitConfig", operands)
    }
}

impl SpmmFamily for NnzSplits {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/nnz_split.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            let mut domains = vec![Domain::ints("chunk", &[64, 256, 512])];
            domains.extend(walk::DOMAINS.iter().map(|domain| match domain.name {
                "unroll" => Domain::ints("unroll", &[2, 4]),
                "block" => Domain::ints("block", &[256]),
                _ => domain.clone(),
            }));
            domains
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        walk::candidates(FAMILY, self.domains(), problem)
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        let walk =
            Walk::of(candidate, problem, self.domains()).filter(|_| candidate.family == FAMILY)?;
        let chunk = count(candidate, "chunk")?;
        Some(Box::new(NnzSplit { walk, chunk }))
    }
}

impl Family for NnzSplits {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(FAMILY, Distinction::Alone)];
        FamilyDescriptor {
            title: "Split by entries",
            summary: "Long rows are cut into segments of about equal length; all others are computed as in row_split.",
            source: None,
            parameters: parameters(
                self.domains(),
                &[&[("chunk", "most entries in a segment of a long row")], &phrases::WALK[..]]
                    .concat(),
            ),
            ..gpu_family("spmm.nnz_split", STORED, false)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &[],
            tiled_by: &["cols", "lanes", "vec"],
            headers: &["spmm/nnz_split.cuh", "spmm/stage.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

impl SpmmKernel for NnzSplit {
    fn tile(&self) -> Tile {
        Tile { balanced: true, ..self.walk.tile() }
    }

    fn blocks(&self, seen: &Inspection, _problem: &Spmm) -> u64 {
        let segments = seen.cut(u64::from(self.chunk)).segments as u64;
        let groups = u64::from(self.walk.groups().max(1));
        (segments + seen.rows).div_ceil(groups) * u64::from(self.walk.column_tiles())
    }

    fn applies(&self, seen: &Inspection, _device: &Device) -> bool {
        seen.longest_row > u64::from(self.chunk)
    }

    fn work(&self, seen: &Inspection) -> Work {
        let work = self.walk.work(seen);
        let ways = f64::from(self.walk.ways);
        let cut = seen.cut(u64::from(self.chunk));
        let parts = seen.longest_row as f64 / f64::from(self.chunk);
        // The last arrival adds a bundle and, if there are several, the bundles.
        let added = parts.min(BUNDLE as f64) + parts / BUNDLE as f64;
        // Partial sums are written, and read again by the last segment of their row.
        let partial =
            cut.segments * f64::from(self.walk.columns()) * 2.0 * self.walk.sum_bytes() as f64;
        Work {
            walks: (cut.segments + cut.short_rows).max(1.0),
            mean_walk: seen.nnz as f64 / (cut.segments + cut.short_rows).max(1.0) / ways,
            longest_walk: (seen.longest_row as f64 / parts.max(1.0)).max(f64::from(self.chunk))
                / ways,
            lockstep: work.lockstep.min(2.0),
            c_again: partial,
            after_us: ARRIVAL_US + added / ways * PARTIAL_US,
            ..work
        }
    }

    fn source(&self) -> String {
        let kernel = self.kernel(Bound::default(), &Cut::default());
        self.walk.source("spmm/nnz_split.cuh", kernel)
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let walk = &self.walk;
        let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
        let chunk = self.chunk;
        let name = format!("segments_{chunk}");
        let made = shared.once(&name, Segments::bytes, |shared| {
            Ok::<_, Infallible>(Segments::of(&shared.matrix, chunk as usize))
        });
        let Ok((segments, cut_ms)) = made;
        if segments.owner.is_empty() {
            return Err(Refusal(format!("no row has more than {chunk} entries")));
        }
        let (mut arrays, order, order_ms) = row_order(shared, walk.order);
        let first = arrays.len();
        let named = |part: &str, data: &Arc<[u32]>| {
            array(format!("{name}_{part}"), ArrayData::U32(data.clone()))
        };
        arrays.extend([
            named("bounds", &segments.bounds),
            named("owner", &segments.owner),
            named("place", &segments.place),
            named("row", &segments.row),
            named("first", &segments.first),
            named("bundle", &segments.bundle),
        ]);
        let (mut steps, mut scratch) = walk.stage(b_rows, &shared.device)?;
        let count = segments.owner.len() as u32;
        let partial = u64::from(count) * u64::from(walk.problem.n) * walk.sum_bytes();
        let bundles = segments.bundles;
        let counted = u64::from(bundles) + segments.row.len() as u64;
        let counters = counted * u64::from(walk.column_tiles()) * 4;
        let at = scratch.len();
        scratch.push(shared::scratch("sums of segments", partial, &shared.device)?);
        scratch.push(shared::scratch("counters of segments", counters, &shared.device)?);

        let blocks = count.div_ceil(walk.groups()) + rows.div_ceil(walk.groups());
        let cut = Cut { segments: count, bundles, arrays: first, scratch: at };
        steps.push(Step {
            grid: [blocks, walk.column_tiles(), 1],
            ..self.kernel(Bound { rows, b_rows, order }, &cut).step(1, walk.block)
        });
        let program = CudaProgram::of_steps(self.source(), steps);
        let ms = cut_ms + order_ms;
        Ok(Lowered { arrays, scratch, ms, ..Lowered::bare(Program::Cuda(program)) })
    }
}

/// A fence and a counter's round trip at a segment's end, microseconds.
const ARRIVAL_US: f64 = 1.5;
/// Adding one partial sum in the last group of a row, microseconds.
const PARTIAL_US: f64 = 0.15;

/// Rows of more than `chunk` entries, cut into parts of about equal length.
#[derive(Debug)]
struct Segments {
    /// Where each segment begins and ends among the entries.
    bounds: Arc<[u32]>,
    /// The long row that each segment is part of.
    owner: Arc<[u32]>,
    /// Where each segment's sums go: those of one row are side by side, while segments are ordered by their first column.
    place: Arc<[u32]>,
    /// The matrix row of each long row.
    row: Arc<[u32]>,
    /// The first place of each long row, followed by the number of all places.
    first: Arc<[u32]>,
    /// The first bundle of each long row.
    bundle: Arc<[u32]>,
    /// The number of all bundles.
    bundles: u32,
}

impl Segments {
    fn of(matrix: &Csr, chunk: usize) -> Self {
        let (mut cut, mut row, mut first) = (Vec::new(), Vec::new(), vec![0u32]);
        let (mut bundle, mut bundles) = (Vec::new(), 0u32);
        for (index, ends) in matrix.indptr().windows(2).enumerate() {
            let length = ends[1] - ends[0];
            if length <= chunk {
                continue;
            }
            let parts = length.div_ceil(chunk);
            let at = |part: usize| ends[0] + length * part / parts;
            cut.extend((0..parts).map(|part| (at(part), at(part + 1), row.len() as u32)));
            row.push(index as u32);
            first.push(cut.len() as u32);
            bundle.push(bundles);
            bundles += parts.div_ceil(BUNDLE) as u32;
        }
        let mut place: Vec<u32> = (0..cut.len() as u32).collect();
        // Stable: rows of equal columns stay in order.
        place.par_sort_by_key(|&place| matrix.indices()[cut[place as usize].0]);
        let sorted = || place.iter().map(|&place| cut[place as usize]);
        Self {
            bounds: sorted().flat_map(|(begin, end, _)| [begin as u32, end as u32]).collect(),
            owner: sorted().map(|(_, _, owner)| owner).collect(),
            place: place.into(),
            row: row.into(),
            first: first.into(),
            bundle: bundle.into(),
            bundles,
        }
    }

    fn bytes(&self) -> u64 {
        4 * (4 * self.owner.len() + 3 * self.row.len() + 1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Segments;
    use crate::sparse::Csr;

    #[test]
    fn long_rows_are_cut_without_a_gap_and_short_ones_left() {
        let lengths = [0usize, 9, 3, 8, 40_000, 4];
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for length in lengths {
            indices.extend(0..length as u32);
            indptr.push(indices.len());
        }
        let values = vec![1.0; indices.len()];
        let matrix = Csr::new(6, 40_000, indptr.clone(), indices, values).unwrap();
        let segments = Segments::of(&matrix, 4);
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
        assert!(Segments::of(&matrix, 40_000).owner.is_empty());
    }
}
