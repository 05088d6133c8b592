//! Family `row_panel` with columns and values that groups of threads copy ahead (`kernels/spmm/panel_ways.cuh`): a step waits for B alone.
//! Panels of rows that share columns are few, so that one group each leaves most of the device idle on matrices of up to some ten thousand
//! rows: several share a panel there.

use super::family::{SpmmFamily, SpmmKernel, count, effective_layout, gpu_family, order_serves};
use super::row_panel::{MEANINGS, RowPanel};
use super::walk::{STATIC_SHARED, widest_vector};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::{Candidate, Layout, Spmm};
use crate::ops::family::{Family, Keys, parameters};
use crate::search::domain::{Domain, chosen};
use std::sync::LazyLock;

const FAMILY: &str = "row_panel";

/// The parameter that tells candidates whose panels groups of threads copy ahead: how many share a panel.
pub const WAYS: &str = "ways";

/// Threads of a block, and rows of a panel, where its columns are copied ahead.
pub const COPYING_BLOCK: u32 = 256;
pub const COPIED_HEIGHTS: [u32; 3] = [2, 4, 8];

/// Stages of a group: one that is read, and two that are copied (`kernels/spmm/panel_ways.cuh`).
const STAGES: u32 = 3;
/// Bytes of a block's stages beyond which shorter ones are better: the rest of L1 is B's.
const MOST_STAGED: u32 = 32 << 10;
/// Threads of a group at most: those of a warp, which can wait for each other at no cost.
const MOST_THREADS: u32 = 32;

pub struct PanelWays;

/// How panels' columns and values come to shared memory before a thread needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Groups of threads that share the columns of a panel.
    pub ways: u32,
    /// Columns that a group copies at a time.
    pub stage: u32,
}

impl Copies {
    /// Those of a panel's kernel, with the longest stages for which its blocks leave most of L1 to B. `None` if a group is not several
    /// threads of one warp, if a block would not hold whole tiles, if its stages or sums take more than static shared memory would hold, or
    /// if stages that do not are no whole steps.
    pub fn of(panel: &RowPanel, ways: u32) -> Option<Self> {
        let threads = panel.threads();
        let is_group = threads.is_power_of_two() && (2..=MOST_THREADS).contains(&threads);
        if !is_group || !panel.block.is_multiple_of(threads * ways) {
            return None;
        }
        let fits = |most: u32, stage: u32| {
            let copies = Self { ways, stage };
            copies.bytes(panel) <= most && stage.is_multiple_of(panel.unroll)
        };
        let stage = [16, 8].into_iter().find(|stage| fits(MOST_STAGED, *stage));
        let stage = stage.or_else(|| fits(STATIC_SHARED, 4).then_some(4))?;
        Some(Self { ways, stage })
    }

    /// Bytes of shared memory of a block: its stages, and in their place what its groups leave for each other.
    pub fn bytes(self, panel: &RowPanel) -> u32 {
        let element = panel.problem.dtype.bytes() as u32;
        let groups = panel.block / panel.threads();
        let stages = groups * STAGES * self.stage * (4 + panel.m1 * element);
        let sums =
            if self.ways > 1 { panel.block * panel.m1 * panel.vec * element.max(4) } else { 0 };
        stages.max(sums)
    }
}

/// What the parameter means.
pub const GROUPS: &str = "groups of threads that share a panel, whose columns and values they copy to shared memory ahead; where there \
                          are several, they add their sums";

/// The domains of panels whose columns are copied ahead.
pub fn domains() -> Vec<Domain> {
    vec![
        Domain::ints(WAYS, &[1, 2, 4, 8]),
        Domain::ints("m1", &COPIED_HEIGHTS),
        Domain::ints("n1", &[16, 32, 64, 128, 256]),
        Domain::ints("vec", &[1, 2, 4, 8]),
        Domain::ints("unroll", &[2, 4, 8]),
        Domain::ints("block", &[COPYING_BLOCK]),
        Domain::texts("order", &["natural", "length", "similarity", "locality"]),
    ]
}

impl SpmmFamily for PanelWays {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/panel_ways.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(domains);
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        if effective_layout(problem) != Layout::Row {
            return Vec::new();
        }
        chosen(FAMILY, self.domains(), |candidate| {
            fits(candidate, problem) && self.kernel(candidate, problem).is_some()
        })
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        let by_rows = !candidate.params.contains_key("b");
        let kernel = RowPanel::of(candidate, problem, self.domains()).filter(|_| by_rows)?;
        kernel.copies.map(|_| Box::new(kernel) as _)
    }
}

/// Whether a candidate's tile and vectors serve a problem, and its order does.
pub fn fits(candidate: &Candidate, problem: &Spmm) -> bool {
    let number = |name| count(candidate, name).unwrap_or(0);
    let (n1, widest) = (number("n1"), widest_vector(problem, false));
    // A thread may have two vectors, where a group would be more than a warp otherwise.
    let twice = n1 > MOST_THREADS * widest && problem.n.is_multiple_of(2 * widest);
    let vec = if twice { 2 * widest } else { widest };
    // A narrower tile reads A once more; a wider one wastes lanes.
    let wide = n1 >= problem.n.min(64).min(MOST_THREADS * widest) && n1 < 2 * problem.n;
    wide && number("vec") == vec && order_serves(candidate, problem)
}

impl Family for PanelWays {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(FAMILY, Distinction::HasWithout(WAYS, "b"))];
        const OWN: &[(&str, &str)] = &[(WAYS, GROUPS)];
        FamilyDescriptor {
            title: "LO-SpMM's tiles, copied ahead",
            summary: "As row_panel, with a panel's columns and values copied to shared memory ahead, and several groups of threads a panel \
                      where panels are few.",
            source: Some("LO-SpMM (TACO 2024), section 3, with the columns of a tile divided"),
            parameters: parameters(self.domains(), &[OWN, &MEANINGS[..]].concat()),
            ..gpu_family("spmm.panel_ways", STORED, true)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        true
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &[],
            tiled_by: &["m1", "n1", "vec", WAYS],
            headers: &["spmm/panel_ways.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Device, Dtype};
    use crate::ops::spmm::family::RowOrder;
    use crate::ops::spmm::inspect::Inspection;
    use crate::ops::spmm::panels::{Shape, pack};
    use crate::ops::spmm::row_panel::RowPanels;
    use crate::sparse::Csr;
    use crate::sparse::generate::Spec;

    fn problem(n: u32) -> Spmm {
        Spmm::new(n, Dtype::F32, Layout::Row)
    }

    fn panel(ways: u32, m1: u32, order: RowOrder) -> RowPanel {
        let plain = RowPanel {
            m1,
            n1: 128,
            vec: 4,
            unroll: 4,
            block: 256,
            copies: None,
            order,
            problem: problem(128),
            passes: None,
        };
        RowPanel { copies: Copies::of(&plain, ways), ..plain }
    }

    fn inspected(spec: &str) -> (Csr, Inspection) {
        let matrix = Spec::parse(spec).unwrap().generate().unwrap();
        let seen = Inspection::of(&matrix);
        (matrix, seen)
    }

    #[test]
    fn blocks_hold_whole_tiles_and_their_sums_fit() {
        for n in [16, 33, 48, 64, 96, 128, 192, 256, 512] {
            for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
                let problem = Spmm::new(n, dtype, Layout::Row);
                let all = PanelWays.candidates(&problem);
                assert!(!all.is_empty(), "{problem:?}");
                for candidate in all {
                    let tile = PanelWays.kernel(&candidate, &problem).unwrap().tile();
                    assert!(tile.threads.is_multiple_of(tile.threads_per_tile), "{candidate}");
                    assert!((1..=STATIC_SHARED).contains(&tile.shared_bytes), "{candidate}");
                    assert!(tile.columns / tile.vector <= MOST_THREADS, "{candidate}");
                    assert!(n.is_multiple_of(tile.vector), "{candidate}");
                    let panel = RowPanel::of(&candidate, &problem, PanelWays.domains()).unwrap();
                    let stage = panel.copies.unwrap().stage;
                    assert!(stage.is_multiple_of(panel.unroll), "{candidate}: {stage}");
                    // Copies begin at every fourth column.
                    let values = panel.m1 * dtype.bytes() as u32;
                    assert!((4 * values).is_multiple_of(16) && stage >= 4, "{candidate}: {stage}");
                }
            }
        }
        assert!(PanelWays.candidates(&problem(8)).is_empty(), "tiles have 16 columns at least");
    }

    #[test]
    fn stages_are_as_long_as_leaves_room_for_b() {
        let of = |m1, vec, unroll, ways| {
            let plain = RowPanel { vec, unroll, copies: None, ..panel(1, m1, RowOrder::Natural) };
            Copies::of(&plain, ways).map(|copies| copies.stage)
        };
        // 8, 16 and 32 groups of threads a block.
        assert_eq!(of(4, 4, 4, 1), Some(16));
        assert_eq!(of(8, 8, 8, 1), Some(16));
        assert_eq!(of(8, 8, 8, 2), None, "sums of 64 KiB");
        let narrow = RowPanel { n1: 32, copies: None, ..panel(1, 8, RowOrder::Natural) };
        assert_eq!(Copies::of(&narrow, 8).map(|copies| copies.stage), Some(8));
        // Stages of four columns have no two steps of four.
        let double = Spmm::new(32, Dtype::F64, Layout::Row);
        let long = RowPanel { n1: 16, vec: 2, problem: double, ..narrow };
        let stage = |unroll| Copies::of(&RowPanel { unroll, ..long }, 1).map(|it| it.stage);
        assert_eq!([2, 4, 8].map(stage), [Some(4), Some(4), None]);
        // A group is a part of a warp, and a block holds whole tiles.
        assert_eq!(of(4, 2, 4, 1), None);
        assert_eq!(of(4, 4, 4, 16), None);
    }

    #[test]
    fn panels_of_many_columns_are_copied_ahead_and_others_are_not() {
        let device =
            Device { multiprocessors: 132, max_threads_per_multiprocessor: 2048, ..Device::NONE };
        let applies = |spec: &str, candidate: &Candidate| {
            let (_, seen) = inspected(spec);
            let kernel = [&PanelWays as &dyn SpmmFamily, &RowPanels]
                .into_iter()
                .find_map(|family| family.kernel(candidate, &problem(128)));
            kernel.unwrap().applies(&seen, &device)
        };
        let params = [("block", 256), ("m1", 2), ("n1", 128), ("unroll", 4), ("vec", 4)];
        let with = |candidate: Candidate, (name, value): (&str, i64)| candidate.with(name, value);
        let plain =
            params.into_iter().fold(Candidate::new(FAMILY).with_text("order", "natural"), with);
        let copied = plain.clone().with(WAYS, 1);
        let of = |spec| [&copied, &plain].map(|candidate| applies(spec, candidate));
        assert_eq!(of("elasticity:nx=9,ny=9,nz=9"), [true, false]);
        assert_eq!(of("poisson2d:nx=40,ny=40"), [false, true]);
        // Some 16 columns: which is better depends.
        assert_eq!(of("banded:n=3000,half=7"), [true, true]);
        // Heights that are never copied.
        assert!(applies("elasticity:nx=9,ny=9,nz=9", &plain.with("m1", 16)));
    }

    #[test]
    fn several_groups_share_a_panel_only_where_panels_are_few_and_wide() {
        let device =
            Device { multiprocessors: 132, max_threads_per_multiprocessor: 2048, ..Device::NONE };
        let (_, small) = inspected("elasticity:nx=9,ny=9,nz=9");
        let (_, large) = inspected("elasticity:nx=24,ny=24,nz=24");
        let applies =
            |seen: &Inspection, ways| panel(ways, 4, RowOrder::Natural).applies(seen, &device);
        assert_eq!([1, 2, 4, 8].map(|ways| applies(&small, ways)), [true; 4]);
        assert_eq!([1, 2, 4, 8].map(|ways| applies(&large, ways)), [true, true, false, false]);
        // Panels of a few columns have no step for each group.
        let (_, short) = inspected("poisson2d:nx=40,ny=40");
        assert!(!applies(&short, 8));
    }

    /// Rows of a factor have all lengths, so that by length no neighbours meet.
    #[test]
    fn what_neighbouring_rows_share_is_estimated() {
        for spec in
            ["cholesky_poisson2d:nx=40,ny=40", "elasticity:nx=9,ny=9,nz=9", "banded:n=3000,half=9"]
        {
            let (matrix, seen) = inspected(spec);
            let natural: Vec<u32> = (0..matrix.rows() as u32).collect();
            for m1 in [2, 4, 8, 16, 32] {
                let packed =
                    pack(&matrix, &natural, Shape { m1: m1 as usize, whole: 1 }, Dtype::F32)
                        .unwrap();
                let union = packed.cols.len() as f64;
                let work = panel(2, m1, RowOrder::Natural).work(&seen);
                let ratio = work.entries / union;
                // What higher panels share beyond those of eight rows is not counted.
                let most = if m1 > 8 { 2.0 } else { 1.25 };
                assert!((0.8..most).contains(&ratio), "{spec}, {m1} rows: {ratio}");
            }
        }
    }

    #[test]
    fn heights_in_natural_order_are_as_balanced_as_single_rows() {
        let (_, seen) = inspected("cholesky_poisson2d:nx=40,ny=40");
        let of = |m1, order| panel(2, m1, order).imbalance(&seen);
        let by_length = of(2, RowOrder::Length);
        assert!(by_length > 0.25, "or this shows nothing: {by_length}");
        for m1 in [2, 4, 8] {
            assert!((of(m1, RowOrder::Natural) - by_length).abs() < 0.05, "{m1}");
        }
    }
}
