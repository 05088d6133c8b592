//! Family `row_panel` with several groups of threads a panel (`kernels/spmm/panel_ways.cuh`): panels of rows that share columns are few,
//! so that one group each leaves most of the device idle on matrices of up to some ten thousand rows.

use super::family::{SpmmFamily, SpmmKernel, effective_layout, gpu_family};
use super::row_panel::{MEANINGS, RowPanel, WAYS, fits};
use super::walk::STATIC_SHARED;
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::{Candidate, Layout, Spmm};
use crate::ops::family::{Family, Keys, parameters};
use crate::search::domain::{Domain, chosen};
use std::sync::LazyLock;

const FAMILY: &str = "row_panel";

pub struct PanelWays;

impl SpmmFamily for PanelWays {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/panel_ways.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints(WAYS, &[2, 4, 8]),
                Domain::ints("m1", &[2, 4, 8]),
                Domain::ints("n1", &[16, 32, 48, 64, 96, 128, 192, 256]),
                Domain::ints("vec", &[1, 2, 4, 8]),
                Domain::ints("unroll", &[2, 4]),
                Domain::ints("block", &[192, 256]),
                Domain::texts("order", &["natural", "length", "similarity", "locality"]),
            ]
        });
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
        fits_a_block(&kernel).then(|| Box::new(kernel) as _)
    }
}

/// Whether a block has whole tiles, and static shared memory for their sums.
pub fn fits_a_block(panel: &RowPanel) -> bool {
    let whole = panel.block.is_multiple_of(panel.tile().threads_per_tile);
    whole && panel.shared_bytes() <= STATIC_SHARED
}

impl Family for PanelWays {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(FAMILY, Distinction::HasWithout(WAYS, "b"))];
        const OWN: &[(&str, &str)] =
            &[(WAYS, "groups of threads that share a panel's columns and add their sums")];
        FamilyDescriptor {
            title: "LO-SpMM's tiles, several groups of threads a panel",
            summary: "As row_panel, but several groups of threads share the columns of a panel, for matrices of few panels.",
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
    use crate::ops::spmm::panels::pack;
    use crate::sparse::Csr;
    use crate::sparse::generate::Spec;

    fn problem(n: u32) -> Spmm {
        Spmm::new(n, Dtype::F32, Layout::Row)
    }

    fn panel(ways: u32, m1: u32, order: RowOrder) -> RowPanel {
        RowPanel {
            m1,
            n1: 128,
            vec: 4,
            unroll: 4,
            block: 256,
            ways,
            order,
            problem: problem(128),
            passes: None,
        }
    }

    fn inspected(spec: &str) -> (Csr, Inspection) {
        let matrix = Spec::parse(spec).unwrap().generate().unwrap();
        let seen = Inspection::of(&matrix);
        (matrix, seen)
    }

    #[test]
    fn blocks_hold_whole_tiles_and_their_sums_fit() {
        for n in [16, 33, 48, 64, 96, 128, 192, 512] {
            for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
                let problem = Spmm::new(n, dtype, Layout::Row);
                let all = PanelWays.candidates(&problem);
                assert!(!all.is_empty(), "{problem:?}");
                for candidate in all {
                    let tile = PanelWays.kernel(&candidate, &problem).unwrap().tile();
                    assert!(tile.threads.is_multiple_of(tile.threads_per_tile), "{candidate}");
                    assert!((1..=STATIC_SHARED).contains(&tile.shared_bytes), "{candidate}");
                }
            }
        }
        assert!(PanelWays.candidates(&problem(8)).is_empty(), "tiles have 16 columns at least");
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
                let packed = pack(&matrix, &natural, m1 as usize, Dtype::F32).unwrap();
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
