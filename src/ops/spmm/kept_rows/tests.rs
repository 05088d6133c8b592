//! Tests of the family `kept_rows`: which of its candidates apply, how columns are shared among blocks, and what is refused.

use super::super::{family, space};
use super::*;
use crate::domain::{DeviceKind, Dtype};
use crate::sparse::Csr;
use crate::sparse::generate::Spec;
use std::sync::Arc;

fn generated(spec: &str) -> Csr {
    Spec::parse(spec).unwrap().generate().unwrap()
}

fn device() -> Device {
    Device { compute_capability: "9.0".to_owned(), ..crate::ops::tests::device(DeviceKind::Cuda) }
}

fn listed(problem: &Spmm) -> Vec<(Candidate, Box<dyn SpmmKernel>)> {
    let all = space::enumerate(problem, DeviceKind::Cuda).into_iter();
    let own = all.filter(|candidate| candidate.family == NAME);
    own.map(|candidate| {
        let kernel = family::kernel(&candidate, problem).unwrap();
        (candidate, kernel)
    })
    .collect()
}

/// The values of `keep` that apply to a matrix.
fn keeps(matrix: &Csr, problem: &Spmm) -> Vec<i64> {
    let seen = Inspection::of(matrix);
    let applies =
        listed(problem).into_iter().filter(|(_, kernel)| kernel.applies(&seen, &device()));
    let mut keeps: Vec<i64> = applies.filter_map(|(candidate, _)| candidate.int("keep")).collect();
    keeps.dedup();
    keeps.sort_unstable();
    keeps.dedup();
    keeps
}

#[test]
fn threads_keep_the_fewest_entries_that_hold_nearly_all() {
    let problem = Spmm::new(32, Dtype::F32, Layout::Col);
    assert_eq!(keeps(&generated("banded:n=3000,half=1"), &problem), [4]);
    assert_eq!(keeps(&generated("poisson2d:nx=60,ny=50"), &problem), [8]);
    assert_eq!(keeps(&generated("banded:n=3000,half=8"), &problem), [20]);
    // 41 entries a row, and a row of a thousand: no thread keeps so many.
    assert!(keeps(&generated("banded:n=3000,half=20"), &problem).is_empty());
    assert!(
        keeps(&generated("long_row:rows=2000,cols=2000,per_row=3,seed=1"), &problem).is_empty()
    );
}

#[test]
fn few_rows_share_columns_among_blocks_and_no_stage_is_lost() {
    for n in [3, 4, 31, 32, 128, 500] {
        let problem = Spmm::new(n, Dtype::F32, Layout::Col);
        for (candidate, _) in listed(&problem) {
            let int = |name| count(&candidate, name).unwrap();
            let kernel = KeptRow {
                rows: int("rows"),
                turns: int("turns"),
                keep: int("keep"),
                r: int("r"),
                stages: int("stages"),
                problem,
            };
            for rows in [1, 1_000, 40_000, 10_000_000] {
                let (stages, parts) = (kernel.stages_of_block(rows), kernel.parts(rows));
                assert!(stages >= 1 && stages * parts >= kernel.all_stages());
                // No block has nothing to do.
                assert!(stages * (parts - 1) < kernel.all_stages(), "{candidate}, {rows} rows");
            }
            assert_eq!(kernel.parts(10_000_000), 1);
        }
    }
    assert!(listed(&Spmm::new(2, Dtype::F32, Layout::Col)).is_empty());
    assert!(listed(&Spmm::new(64, Dtype::F32, Layout::Row)).is_empty());
}

#[test]
fn predictions_are_times_and_what_was_not_looked_at_fits_nowhere() {
    let problem = Spmm::new(32, Dtype::F64, Layout::Col);
    let [grid, wide] = ["poisson2d:nx=60,ny=50", "uniform:rows=3000,cols=3000,nnz=900000,seed=1"]
        .map(|spec| Inspection::of(&generated(spec)));
    let mut unseen = 0;
    for (candidate, kernel) in listed(&problem) {
        let us = kernel.predict_us(&grid, &problem, &device());
        assert!(us.is_finite() && us > 0.0, "{candidate}: {us}");
        // 300 entries a row: a block of 512 rows has more than a window is made of.
        if candidate.int("rows") >= Some(512) {
            assert_eq!(kernel.shared_bytes(&wide), u64::MAX);
            unseen += 1;
        }
    }
    assert!(unseen > 0);
}

#[test]
fn windows_that_do_not_fit_are_refused_in_words() {
    let matrix = Arc::new(generated("uniform:rows=2048,cols=20000,nnz=8000,seed=1"));
    let problem = Spmm::new(64, Dtype::F32, Layout::Col);
    let small = Device { shared_bytes_per_block: 48 << 10, ..device() };
    let mut shared = Shared::new(matrix, problem, small);
    let whys: Vec<String> = listed(&problem)
        .into_iter()
        .filter_map(|(_, kernel)| kernel.lower(&mut shared).err().map(|Refusal(why)| why))
        .collect();
    assert!(
        whys.iter().any(|why| why.contains("bytes of shared memory; a block has 49152")),
        "{whys:?}"
    );
}
