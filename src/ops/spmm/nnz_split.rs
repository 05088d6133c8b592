//! Family `nnz_split`: rows above a threshold are cut into segments (`kernels/spmm/nnz_split.cuh`), so that neither one huge
//! row nor few long ones leave the device idle.

use super::family::{SpmmFamily, SpmmKernel, Tile, count, effective_layout, gpu_family};
use super::inspect::Inspection;
use super::model::Work;
use super::row_teams::TEAM;
use super::row_turns;
use super::segments::{self, BUNDLE, Cutting, Named, Segments, Sequence};
use super::shared::{Lowered, Shared};
use super::text;
use super::walk::{self, Bound, Walk};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::{Candidate, Device, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys};
use crate::ops::program::{EntryPoint, number};
use crate::search::domain::Domain;
use std::sync::LazyLock;

pub(super) const FAMILY: &str = "nnz_split";

pub struct NnzSplits;

struct NnzSplit {
    walk: Walk,
    chunk: u32,
    /// Rows that a group computes one after another.
    turns: u32,
}

impl NnzSplit {
    /// Rows of a block that computes rows.
    fn rows(&self) -> u32 {
        self.walk.groups().max(1) * self.turns
    }

    fn kernel(&self, bound: Bound, named: &Named) -> EntryPoint {
        let mut operands = self.walk.operands(bound);
        operands.extend([
            number("chunk", self.chunk),
            named.operand(text::element(self.walk.problem.dtype)),
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
        let mut all = walk::candidates(FAMILY, self.domains(), problem);
        // Where each thread reads entries for itself, teams were faster by rows (`row_teams`). They take no rows by locality and
        // no narrow staged panels; for one column and by columns both are listed.
        let only_here = |candidate: &Candidate| {
            candidate.text("fetch") == Some("shuffle")
                || candidate.text("order") == Some("locality")
                || candidate.text("b") == Some("staged")
        };
        let by_columns = |candidate: &Candidate| {
            effective_layout(problem) == Layout::Col && candidate.text("b") != Some("both")
        };
        all.retain(|candidate| by_columns(candidate) || only_here(candidate));
        row_turns::add_turned(&mut all, problem);
        all.retain(|candidate| self.kernel(candidate, problem).is_some());
        all
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        if candidate.family != FAMILY || candidate.params.contains_key(TEAM) {
            return None;
        }
        let walk = Walk::of(candidate, problem, self.domains())?;
        let chunk = count(candidate, "chunk")?;
        let turns = row_turns::turns_of(candidate)?;
        row_turns::serve(&walk, turns).then(|| Box::new(NnzSplit { walk, chunk, turns }) as _)
    }
}

impl Family for NnzSplits {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(FAMILY, Distinction::Lacks(&[TEAM]))];
        let own = [("chunk", "most entries in a segment of a long row")];
        let mut parameters = walk::described(self.domains(), &own);
        parameters.push(row_turns::described());
        FamilyDescriptor {
            title: "Split by entries",
            summary: "Long rows are cut into segments of about equal length; all others are computed as in row_split.",
            source: None,
            parameters,
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
            headers: &["spmm/nnz_split.cuh", "spmm/stage.cuh", "spmm/unstage.cuh"],
        }
    }

    fn complexity(&self, candidate: &Candidate) -> u32 {
        3 + u32::from(walk::is_near(candidate))
    }
}

impl SpmmKernel for NnzSplit {
    fn tile(&self) -> Tile {
        let shared_bytes = self.walk.shared_bytes(self.rows());
        Tile { balanced: true, shared_bytes, ..self.walk.tile() }
    }

    fn blocks(&self, seen: &Inspection, _problem: &Spmm) -> u64 {
        let segments = seen.cut(u64::from(self.chunk), u64::from(self.chunk)).segments as u64;
        let rows = seen.rows.div_ceil(u64::from(self.turns));
        let blocks = (segments + rows).div_ceil(u64::from(self.walk.groups().max(1)));
        blocks * u64::from(self.walk.column_tiles())
    }

    fn applies(&self, seen: &Inspection, _device: &Device) -> bool {
        seen.longest_row > u64::from(self.chunk)
    }

    fn work(&self, seen: &Inspection) -> Work {
        let work = row_turns::in_turn(self.walk.work(seen), self.turns);
        let ways = f64::from(self.walk.ways);
        let cut = seen.cut(u64::from(self.chunk), u64::from(self.chunk));
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
            after_us: work.after_us + ARRIVAL_US + added / ways * PARTIAL_US,
            ..work
        }
    }

    fn source(&self) -> String {
        let kernel = self.kernel(Bound::default(), &Named::default());
        let own = [("kTurns", self.turns.into())];
        self.walk.source_with("spmm/nnz_split.cuh", kernel, &own)
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let (walk, chunk) = (&self.walk, self.chunk);
        let cutting = Cutting { threshold: chunk, chunk, sequence: Sequence::ByColumn };
        let blocks = |segments: &Segments, rows: u32| {
            segments.count().div_ceil(walk.groups()) + rows.div_ceil(self.rows())
        };
        let kernel = |bound, _: &Segments, named: &Named| self.kernel(bound, named);
        segments::lower(walk, shared, &cutting, blocks, kernel, self.source())
    }
}

/// A fence and a counter's round trip at a segment's end, microseconds.
pub(super) const ARRIVAL_US: f64 = 1.5;
/// Adding one partial sum in the last group of a row, microseconds.
pub(super) const PARTIAL_US: f64 = 0.15;
