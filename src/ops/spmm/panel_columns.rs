//! Family `row_panel` on column-major operands (`kernels/spmm/panel_columns.cuh`): B is turned into rows before the panels, and C into
//! columns after them. Where panels share much of B they save more than both passes take.

use super::family::{RowOrder, SpmmFamily, SpmmKernel, effective_layout, gpu_family};
use super::panel_ways::{self, GROUPS, WAYS, fits};
use super::row_panel::{MEANINGS, RowPanel};
use super::walk::{Dense, Fetch, Walk};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::{Candidate, Layout, Spmm};
use crate::ops::family::{Family, Keys, parameters};
use crate::search::domain::{Domain, chosen};
use std::sync::LazyLock;

const FAMILY: &str = "row_panel";

pub struct PanelColumns;

impl SpmmFamily for PanelColumns {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/panel_columns.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            let own = Domain::texts("b", &["both"]);
            std::iter::once(own).chain(panel_ways::domains()).collect()
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        if effective_layout(problem) != Layout::Col {
            return Vec::new();
        }
        let by_rows = by_rows(problem);
        chosen(FAMILY, self.domains(), |candidate| {
            fits(candidate, &by_rows) && self.kernel(candidate, problem).is_some()
        })
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        // Sums that are scaled and added to C are not rounded between.
        if effective_layout(problem) != Layout::Col || problem.n == 1 || problem.accumulate {
            return None;
        }
        let panel = RowPanel::of(candidate, &by_rows(problem), self.domains())?;
        if panel.n1 != problem.n {
            return None;
        }
        // A walk has the passes: B into one panel as wide as C, and C from rows into columns.
        let passes = Walk {
            lanes: panel.n1 / panel.vec,
            ways: 1,
            vec: panel.vec,
            cols: 1,
            unroll: panel.unroll,
            block: panel.block,
            fetch: Fetch::Direct,
            order: RowOrder::Natural,
            dense: Dense::Both,
            equal: false,
            near: false,
            problem: *problem,
        };
        Some(Box::new(RowPanel { passes: Some(passes), ..panel }))
    }
}

fn by_rows(problem: &Spmm) -> Spmm {
    Spmm { layout: Layout::Row, ..*problem }
}

impl Family for PanelColumns {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(FAMILY, Distinction::Has("b"))];
        const OWN: &[(&str, &str)] = &[
            ("b", "that B is turned into rows, and C computed by rows and turned into columns"),
            (WAYS, GROUPS),
        ];
        FamilyDescriptor {
            title: "LO-SpMM's tiles on column-major operands",
            summary: "B is turned into rows, row_panel computes C by rows, and C is turned into columns.",
            source: Some("LO-SpMM (TACO 2024), section 3, for column-major operands"),
            parameters: parameters(self.domains(), &[OWN, &MEANINGS[..]].concat()),
            ..gpu_family("spmm.panel_columns", STORED, true)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        true
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &[],
            tiled_by: &["m1", "n1", "vec", WAYS],
            headers: &["spmm/panel_columns.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::recipe::{Arg, Program};
    use crate::domain::{Device, DeviceKind, Dtype};
    use crate::ops::Lowerer as _;
    use crate::ops::spmm::SpmmLowerer;
    use crate::sparse::generate::Spec;
    use std::sync::Arc;

    #[test]
    fn b_by_rows_is_one_panel() {
        for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
            let of = |n, accumulate| {
                let problem = Spmm { accumulate, ..Spmm::new(n, dtype, Layout::Col) };
                PanelColumns.candidates(&problem)
            };
            for n in [16, 32, 64, 128, 256] {
                let all = of(n, false);
                // A thread has two vectors of 16 bytes at most.
                let a_warp = n <= 32 * 2 * 16 / dtype.bytes() as u32;
                assert_eq!(!all.is_empty(), a_warp, "{dtype:?} {n}");
                assert!(all.iter().all(|candidate| candidate.int("n1") == Some(n.into())), "{n}");
            }
            for n in [1, 3, 33, 48, 96, 160, 192, 512] {
                assert!(of(n, false).is_empty(), "{dtype:?} {n}");
            }
            assert!(of(64, true).is_empty(), "sums are rounded between");
        }
    }

    fn is_place(arg: &Arg) -> bool {
        matches!(arg, Arg::B | Arg::C | Arg::Scratch(_))
    }

    #[test]
    fn a_call_has_three_steps_and_memory_for_both_operands() {
        let matrix =
            Arc::new(Spec::parse("elasticity:nx=4,ny=4,nz=4").unwrap().generate().unwrap());
        let problem = Spmm::new(32, Dtype::F32, Layout::Col);
        let device = Device { kind: DeviceKind::Cuda, memory_bytes: 1 << 30, ..Device::NONE };
        let (rows, cols) = (matrix.rows() as u64, matrix.cols() as u64);
        let mut lowerer = SpmmLowerer::new(matrix, problem, device);
        let all = PanelColumns.candidates(&problem);
        for ways in [1, 4] {
            let candidate = all.iter().find(|it| it.int(WAYS) == Some(ways)).unwrap();
            let recipe = lowerer.lower(candidate).unwrap();
            let Program::Cuda(program) = recipe.program else { panic!("{candidate}") };
            let entries: Vec<&str> = program.steps.iter().map(|step| &*step.entry).collect();
            assert_eq!(entries, ["stage", "spmm", "unstage"]);
            assert!(program.source.contains("panel_ways<PanelWays"), "{}", program.source);
            let tile = PanelColumns.kernel(candidate, &problem).unwrap().tile();
            assert_eq!(program.steps[1].shared_bytes, tile.shared_bytes, "the stages' room");
            let places: Vec<Arg> = program.steps[1].args.iter().copied().filter(is_place).collect();
            assert_eq!(places, [Arg::Scratch(0), Arg::Scratch(1)]);
            let bytes: Vec<u64> = recipe.scratch.iter().map(|scratch| scratch.bytes).collect();
            assert_eq!(bytes, [cols * 32 * 4, rows * 32 * 4]);
        }
    }
}
