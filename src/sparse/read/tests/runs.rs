//! The partitioned way to CSR against the plain one.

use crate::sparse::read::runs::{Buckets, Run, assemble};
use crate::sparse::read::{Limits, triplets};

/// Entries by a little congruential generator; many rows are dense, many entries stored twice.
fn entries(rows: u64, cols: u64, count: usize) -> Vec<(u32, u32, f64)> {
    let mut state = 7u64;
    let mut next = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..count)
        .map(|_| {
            let row = if next(3) == 0 { next(rows.min(2)) } else { next(rows) };
            (row as u32, next(cols) as u32, next(1000) as f64 - 500.0)
        })
        .collect()
}

#[test]
fn agrees_with_the_plain_way_whatever_the_cut() {
    for (rows, cols, count) in
        [(1, 1, 9), (5000, 300, 20_000), (1024, 70, 50_000), (3, 100_000, 9000)]
    {
        let entries = entries(rows, cols, count);
        let held = Limits::default().budget();
        let plain =
            triplets::assemble(rows as usize, cols as usize, entries.iter().copied(), &held)
                .unwrap();
        let buckets = Buckets::new(rows as usize);
        for piece in [count, 777] {
            let runs = entries.chunks(piece).map(|part| Run::new(buckets, part).unwrap()).collect();
            assert_eq!(assemble(cols as usize, buckets, runs).unwrap(), plain);
        }
    }
}

#[test]
fn no_entries_and_no_rows() {
    let csr = assemble(4, Buckets::new(0), Vec::new()).unwrap();
    assert_eq!((csr.rows(), csr.cols(), csr.nnz()), (0, 4, 0));
    let buckets = Buckets::new(2000);
    let csr = assemble(4, buckets, vec![Run::new(buckets, &[]).unwrap()]).unwrap();
    assert_eq!((csr.rows(), csr.nnz(), csr.indptr().len()), (2000, 0, 2001));
}
