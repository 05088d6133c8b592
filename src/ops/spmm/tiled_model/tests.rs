//! Every term of the model on patterns small enough to count by hand.

use super::super::inspect::Inspection;
use super::super::tiled::tests::device;
use super::super::{radix, similarity};
use super::*;
use crate::sparse::Csr;

/// 64 rows; row i holds the columns `gap * i` and `gap * (i + 1)`.
fn bidiagonal(gap: u32) -> Csr {
    let indices = (0..64u32).flat_map(|row| [gap * row, gap * (row + 1)]).collect();
    let ptr = (0..=64).map(|row| 2 * row).collect();
    Csr::new(64, 64 * gap as usize + 1, ptr, indices, vec![1.0; 128]).unwrap()
}

fn geometry() -> Geometry {
    Geometry { rows: 32, buffer: 512, r: 4, n: 8, dtype: Dtype::F32, segment: None }
}

fn of(matrix: &Csr, geometry: &Geometry) -> Terms {
    terms(&Sampled::of(matrix, 65), geometry, &device(100))
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12 * b.abs()
}

#[test]
fn equations_2_to_5_term_by_term() {
    let terms = of(&bidiagonal(1), &geometry());
    // Two panels of 32 rows have 33 columns each: 66 gathers serve 128 entries.
    assert_eq!((terms.mu, terms.mu_segment, terms.r, terms.z), (2.0, 2.0, 4.0, 1.0));
    assert!(close(terms.rho, 128.0 / 66.0));
    // A stage has two words of tables, shared by 32 threads.
    assert_eq!(terms.delta, 8.0 / 32.0);
    // 32 columns side by side are coalesced (128 bytes), the 33rd takes a line: 192 bytes for 132.
    assert!(close(terms.c, 192.0 / 132.0));
    assert!(close(terms.l, 66.0 / 65.0));
    assert!(close(terms.gamma, terms.c / terms.l));
    // Two panels by two column tiles, on 100 multiprocessors.
    assert_eq!(terms.u, 0.04);
    // Eq. 2: 4 operations for 2 (4 + 4) + 2 * 4 + 4 + 8 bytes.
    assert!(close(terms.equation_2(), 4.0 / 36.0));
    // Eq. 3: A 6 / 4, B 4 Gamma / rho, the map 4 / (2 rho), tables 0.25 / (4 * 2).
    let rho = 128.0 / 66.0;
    let rest = 1.5 + 2.0 / rho + 0.25 / 8.0;
    assert!(close(terms.equation_3(1.0), 2.0 / (rest + 4.0 / rho)));
    assert!(close(terms.equation_3(terms.c), 2.0 / (rest + 4.0 * terms.c / rho)));
    assert!(close(terms.equation_3(terms.gamma), 2.0 / (rest + 4.0 * terms.gamma / rho)));
    assert!(!terms.segmented);
    let [naive, algorithmic, effective, optimistic] = terms.intensities();
    assert_eq!((naive, algorithmic), (terms.equation_2(), terms.equation_3(1.0)));
    assert_eq!((effective, optimistic), (terms.equation_3(terms.c), terms.equation_3(terms.gamma)));
}

#[test]
fn equation_6_counts_segments() {
    let terms = of(&bidiagonal(1), &Geometry { segment: Some(1), ..geometry() });
    // 128 segments of one entry; a panel of 32 of them has 17 columns.
    assert_eq!((terms.mu, terms.mu_segment, terms.z, terms.panels), (2.0, 1.0, 1.0, 4.0));
    assert!(close(terms.rho, 128.0 / 68.0));
    assert_eq!(terms.delta, 8.0 / 32.0 + 4.0);
    let bytes = 1.5 + 4.0 * terms.c / terms.rho + 4.0 / terms.rho + (4.0 + 4.25) / 4.0 + 4.0 / 2.0;
    assert!(terms.segmented && close(terms.equation_6(terms.c), 2.0 / bytes));
}

#[test]
fn scattered_gathers_cost_lines() {
    let matrix = bidiagonal(16);
    assert_eq!(of(&matrix, &geometry()).c, 16.0);
    assert_eq!(of(&matrix, &Geometry { dtype: Dtype::F64, ..geometry() }).c, 8.0);
    // 33 columns of two bytes, two a line: 16 lines and one.
    assert!(close(
        of(&matrix, &Geometry { dtype: Dtype::F16, ..geometry() }).c,
        17.0 * 64.0 / 66.0
    ));
}

#[test]
fn padding_counts_the_longest_row_of_a_warp_and_stages() {
    // 32 rows of one entry, but one of 33: a warp of 33 steps.
    let mut ptr: Vec<usize> = (0..=31).collect();
    ptr.push(31 + 33);
    let indices = vec![0; 31].into_iter().chain(0..33).collect();
    let matrix = Csr::new(32, 33, ptr, indices, vec![1.0; 64]).unwrap();
    assert_eq!(of(&matrix, &geometry()).z, 33.0 * 32.0 / 64.0);
    assert_eq!(of(&matrix, &geometry()).longest_walk, 33.0);
    let cut = of(&matrix, &Geometry { segment: Some(11), ..geometry() });
    // 34 parts: 31 rows of one entry, the cut row's three of 11 start the next warp.
    assert_eq!((cut.longest_walk, cut.z), (11.0, (32.0 + 11.0 * 32.0) / 64.0));
}

#[test]
fn an_order_pays_when_its_reuse_outweighs_its_stores() {
    // Rows come in pairs of equal columns, 512 rows apart: another order makes them neighbours.
    let columns = |row: u32| (0..32).map(move |i| (row % 512) * 64 + i * 2);
    let matrix = Csr::new(
        1024,
        512 * 64,
        (0..=1024).map(|row| 32 * row).collect(),
        (0..1024).flat_map(columns).collect(),
        vec![1.0; 32 * 1024],
    )
    .unwrap();
    let pairs: Vec<u32> = (0..1024).map(|slot| slot / 2 + slot % 2 * 512).collect();
    let worst: Vec<u32> = (0..1024).collect();
    let sampled = Sampled::of(&matrix, 512 * 32);
    let of = |sampled: &Sampled| terms(sampled, &Geometry { n: 64, ..geometry() }, &device(100));
    let sorted = |rows: &[u32]| of(&sampled.ordered(&matrix, RowOrder::Length, rows));
    let (natural, paired) = (of(&sampled), sorted(&pairs));
    assert_eq!((natural.rho, paired.rho), (1.0, 2.0));
    // All misses on both sides: what L2 would have found is what the order finds in shared memory.
    assert!(paired.equation_3(paired.c) > natural.equation_3(natural.c));
    assert!(paired.gain_over(&natural) > 1.0);
    assert!(sorted(&worst).gain_over(&natural) <= 1.0);
}

#[test]
fn an_empty_matrix_has_finite_terms() {
    let empty = Csr::new(40, 7, vec![0; 41], vec![], vec![]).unwrap();
    let sampled = Sampled::of(&empty, 0);
    let terms = terms(&sampled, &geometry(), &device(100));
    assert_eq!((terms.mu, terms.rho, terms.z, terms.c, terms.l), (0.0, 1.0, 1.0, 1.0, 1.0));
    assert!(predict_us(&terms, &sampled, &geometry(), 2, &device(100)).is_finite());
}

#[test]
fn the_sample_bounds_the_work_whatever_the_matrix() {
    let spec = "poisson2d:nx=400,ny=400";
    let matrix = crate::sparse::generate::Spec::parse(spec).unwrap().generate().unwrap();
    let sampled = Sampled::of(&matrix, matrix.cols() as u64);
    let looked = sampled.looked();
    assert!(looked > 100_000 && looked <= 1 << 17, "{looked}");
    let started = std::time::Instant::now();
    let terms = terms(&sampled, &geometry(), &device(100));
    println!("{:?} for {terms:?}", started.elapsed());
    assert!((4.9..5.0).contains(&terms.mu) && terms.gamma > 0.0);
}

/// `groups` groups of `height` rows with the same 16 columns, the rows of all groups shuffled.
fn shuffled(groups: u32, height: u32) -> Csr {
    let rows = groups * height;
    let group = |row: u32| (u64::from(row) * 7919 % u64::from(rows)) as u32 / height;
    let indices = (0..rows).flat_map(|row| (0..16).map(move |i| group(row) * 48 + i * 3)).collect();
    let ptr = (0..=rows as usize).map(|row| row * 16).collect();
    Csr::new(rows as usize, groups as usize * 48, ptr, indices, vec![1.0; rows as usize * 16])
        .unwrap()
}

#[test]
fn sampled_orders_by_columns_are_estimated_as_the_whole_order_would_be() {
    // Twice and twenty times what is looked at.
    for groups in [500, 5000] {
        let matrix = shuffled(groups, 32);
        let seen = Inspection::of(&matrix);
        let natural = seen.tiled(RowOrder::Natural);
        let geometry = Geometry { rows: 128, n: 32, ..geometry() };
        let of = |sampled: &Sampled| terms(sampled, &geometry, &device(100));
        let cols = |row: u32| matrix.row(row as usize).0;
        let all = || (0..matrix.rows() as u32).collect::<Vec<_>>();
        for (order, rows) in [
            (RowOrder::Radix, radix::order(&cols, all())),
            (RowOrder::Similarity, similarity::order(&cols, all())),
        ] {
            let exact = of(&natural.ordered(&matrix, order, &rows));
            let estimated = of(seen.tiled(order));
            assert!(exact.rho > 31.0, "{exact:?}");
            assert!((estimated.rho / exact.rho - 1.0).abs() < 0.1, "{estimated:?} {exact:?}");
            assert!((estimated.stored / exact.stored - 1.0).abs() < 0.1, "{estimated:?} {exact:?}");
            let gain = [exact, estimated].map(|ordered| ordered.gain_over(&of(natural)));
            assert!(
                gain[0] > similarity::PAYS && (gain[1] / gain[0] - 1.0).abs() < 0.1,
                "{gain:?}"
            );
        }
        assert!(of(natural).rho < 1.5);
    }
}

#[test]
fn segments_that_an_order_parts_cost_partial_sums() {
    let matrix = shuffled(40, 32);
    let seen = Inspection::of(&matrix);
    let cut = Geometry { segment: Some(4), ..geometry() };
    let of = |order| terms(seen.tiled(order), &cut, &device(100));
    // Four segments a row, each a sector written and a sum read; 16 entries a row.
    assert_eq!((of(RowOrder::Natural).again, of(RowOrder::Length).again), (0.0, 0.0));
    assert_eq!(of(RowOrder::Radix).again, 4.0 * (32.0 + 4.0) / 16.0);
    assert_eq!(seen.tiled(RowOrder::Radix).partials(None), 0);
    // Whatever the sum costs, the reuse that cutting destroyed is back.
    assert!(of(RowOrder::Radix).rho > 3.9 * of(RowOrder::Natural).rho);
}

#[test]
fn single_rows_are_as_unequal_in_a_sample_as_in_the_matrix() {
    // One long row among 40,000 equal ones: no sample needs to have it.
    let mut ptr: Vec<usize> = (0..=40_000).map(|row| row * 20).collect();
    ptr.push(ptr[40_000] + 5000);
    let rows = (0..40_000u32).flat_map(|row| (0..20).map(move |i| row % 4000 + i * 200));
    let indices: Vec<u32> = rows.chain(0..5000).collect();
    let values = vec![1.0; indices.len()];
    let seen = Inspection::of(&Csr::new(40_001, 8000, ptr, indices, values).unwrap());
    let orders = [RowOrder::Natural, RowOrder::Length, RowOrder::Similarity, RowOrder::Radix];
    let [natural, rest @ ..] = orders.map(|order| seen.imbalance(1, order));
    assert!(natural > 1.0);
    assert!(rest.iter().all(|cov| (cov / natural - 1.0).abs() < 1e-9), "{natural} {rest:?}");
}
