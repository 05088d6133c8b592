//! Random matrices written in every format and dialect read back as the same matrix.

use super::fixtures::{npz, rutherford_boeing, smtx, triplets};
use super::read;
use crate::sparse::Csr;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Up to 40 x 40 with up to 200 entries; values over the whole range of exponents.
fn matrices() -> impl Strategy<Value = Csr> {
    (1usize..40, 1usize..40).prop_flat_map(|(rows, cols)| {
        let value = prop_oneof![Just(0.0), Just(1.0), -1e3..1e3, proptest::num::f64::NORMAL];
        prop::collection::btree_map((0..rows, 0..cols as u32), value, 0..200)
            .prop_map(move |entries| build(rows, cols, &entries))
    })
}

fn build(rows: usize, cols: usize, entries: &BTreeMap<(usize, u32), f64>) -> Csr {
    let mut indptr = vec![0; rows + 1];
    for (row, _) in entries.keys() {
        indptr[row + 1] += 1;
    }
    for row in 0..rows {
        indptr[row + 1] += indptr[row];
    }
    let indices = entries.keys().map(|&(_, col)| col).collect();
    Csr::new(rows, cols, indptr, indices, entries.values().copied().collect()).unwrap()
}

fn ones(csr: &Csr) -> Csr {
    let values = vec![1.0; csr.nnz()];
    Csr::new(csr.rows(), csr.cols(), csr.indptr().to_vec(), csr.indices().to_vec(), values).unwrap()
}

/// Coordinate text: the order of lines, the line ends, and what lies between them depend on `dialect`.
fn coordinate(csr: &Csr, dialect: usize) -> String {
    let end = ["\n", "\r\n", " \n", "\n\n% between\n"][dialect % 4];
    let mut entries = triplets(csr);
    match dialect / 4 % 3 {
        0 => {}
        1 => entries.reverse(),
        _ => entries.sort_by_key(|&(row, col, _)| (col * 7919 + row * 104_729) % 1009),
    }
    let mut text = format!("%%MatrixMarket matrix coordinate real general{end}% a comment{end}");
    write!(text, "{} {} {}{end}", csr.rows(), csr.cols(), csr.nnz()).unwrap();
    for (row, col, value) in entries {
        match dialect / 12 % 2 {
            0 => write!(text, "{} {} {value:?}{end}", row + 1, col + 1).unwrap(),
            _ => write!(text, "\t{:6}\t{:>9} {value:25.17e}{end}", row + 1, col + 1).unwrap(),
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn matrix_market(csr in matrices(), dialect in 0usize..24) {
        prop_assert_eq!(&read(coordinate(&csr, dialect).as_bytes()).unwrap().csr, &csr);
    }

    #[test]
    fn symmetric_matrix_market(csr in matrices(), skew: bool) {
        // The lower triangle of the leading square, and what it stands for.
        let side = csr.rows().min(csr.cols());
        let sign = if skew { -1.0 } else { 1.0 };
        let mut whole = BTreeMap::new();
        let mut text = String::new();
        let mut stored = 0;
        for (row, col, value) in triplets(&csr).into_iter().filter(|entry| entry.0 < side) {
            if col < row || (col == row && !skew) {
                whole.insert((row, col as u32), value);
                if col < row {
                    whole.insert((col, row as u32), sign * value);
                }
                writeln!(text, "{} {} {value:?}", row + 1, col + 1).unwrap();
                stored += 1;
            }
        }
        let symmetry = if skew { "skew-symmetric" } else { "symmetric" };
        let head = format!("%%MatrixMarket matrix coordinate real {symmetry}\n{side} {side} {stored}\n");
        let parsed = read((head + &text).as_bytes()).unwrap();
        prop_assert_eq!(&parsed.csr, &build(side, side, &whole));
    }

    #[test]
    fn scipy(csr in matrices(), layout in prop_oneof![Just("csr"), Just("csc"), Just("coo")]) {
        prop_assert_eq!(&read(&npz(&csr, layout)).unwrap().csr, &csr);
    }

    #[test]
    fn dlmc(csr in matrices()) {
        prop_assert_eq!(&read(&smtx(&csr)).unwrap().csr, &ones(&csr));
    }

    #[test]
    fn harwell_boeing(csr in matrices(), right_side: bool) {
        prop_assert_eq!(&read(&rutherford_boeing(&csr, right_side)).unwrap().csr, &csr);
    }
}
