//! Approximate inverses beside sweeps, exact solves and each other.

use super::*;
use crate::domain::Sptrsv;
use crate::domain::problem::Triangle;
use crate::ops::sptrsv::inverse::scheme::{POWERS, STEPS};
use crate::sparse::generate::Spec;
use crate::sparse::{Csr, operand, oracle};

fn generated(spec: &str) -> Csr {
    Spec::parse(spec).unwrap().generate().unwrap()
}

fn system(spec: &str, triangle: Triangle) -> Triangular {
    Triangular::of(&generated(spec), &Sptrsv { triangle, ..Sptrsv::PLAIN }).unwrap()
}

fn inverse(system: &Triangular, power: u32, steps: u32) -> Inverse {
    Inverse::of(system, Dtype::F64, Map { power, steps }).unwrap()
}

/// What a map makes of b, in solve order.
fn made(system: &Triangular, b: &[f64], power: u32, steps: u32) -> Vec<f64> {
    let (once, twice) = inverse(system, power, steps).approximations(b);
    if steps > 1 { twice.unwrap() } else { once }
}

/// T x.
fn times(system: &Triangular, x: &[f64]) -> Vec<f64> {
    let row = |s: usize| {
        let (columns, values) = system.row(s);
        let terms = columns.iter().zip(values).map(|(&col, value)| value * x[col as usize]);
        system.diagonal[s] * x[s] + terms.sum::<f64>()
    };
    (0..x.len()).map(row).collect()
}

fn near(found: &[f64], expected: &[f64], bound: f64) {
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs();
        assert!(off <= bound * expected.abs().max(1.0), "{at}: {found}, not {expected}");
    }
}

/// Seven levels are six hops.
#[test]
fn as_many_hops_as_levels_follow_the_first_are_exact() {
    let rows = 40;
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        if row % 7 != 0 {
            indices.push(row as u32 - 1);
            values.push(0.75);
        }
        indices.push(row as u32);
        values.push(1.25 + (row % 3) as f64);
        indptr.push(indices.len());
    }
    let matrix = Csr::new(rows, rows, indptr, indices, values).unwrap();
    for transpose in [false, true] {
        let problem = Sptrsv { transpose, ..Sptrsv::PLAIN };
        let system = Triangular::of(&matrix, &problem).unwrap();
        assert_eq!(system.levels().widths.len(), 7);
        let b = operand::random_double(rows, 3);
        let in_order: Vec<f64> = (0..rows).map(|row| b[system.original(row)]).collect();
        let exact = oracle::sptrsv(&system, &in_order, 1);
        let exact: Vec<f64> = (0..rows).map(|s| exact[system.original(s)]).collect();
        let error = |power, steps| {
            let made = made(&system, &b, power, steps);
            made.iter().zip(&exact).map(|(x, exact)| (x - exact).abs()).fold(0.0, f64::max)
        };
        for (power, steps) in [(6, 1), (8, 1), (6, 2), (3, 2)] {
            assert!(error(power, steps) < 1e-13, "{power} {steps}");
        }
        assert!(error(4, 1) > 1e-3 && error(2, 2) > 1e-3);
        assert!(inverse(&system, 6, 2).rest.unwrap().indices.is_empty());
    }
}

/// In a factor of a grid all ways between two unknowns have one length: M is what sweeps compute.
#[test]
fn of_a_grid_a_power_is_that_many_sweeps_and_one() {
    for triangle in [Triangle::Lower, Triangle::Upper] {
        let system = system("ilu0_poisson2d:nx=30,ny=20,seed=1", triangle);
        let b = operand::random_double(system.rows(), 5);
        let mut x = vec![0.0; b.len()];
        let mut swept = Vec::new();
        for _ in 0..8 {
            let left = times(&system, &x);
            x = (0..b.len()).map(|s| x[s] + (b[s] - left[s]) / system.diagonal[s]).collect();
            swept.push(x.clone());
        }
        for power in [1, 2, 3] {
            near(&made(&system, &b, power, 1), &swept[power as usize], 1e-12);
            near(&made(&system, &b, power, 2), &swept[2 * power as usize + 1], 1e-12);
        }
    }
}

/// Two steps are x = M b and then x += M (b - T x), though they are computed with what M leaves of the identity.
#[test]
fn two_steps_are_one_and_one_of_what_it_leaves() {
    for spec in ["ilu0_random:n=300,per_row=9,seed=1", "lower:tail=2,of=road:nx=20,ny=15,seed=1"] {
        let matrix = generated(spec);
        for transpose in [false, true] {
            let problem = Sptrsv { transpose, ..Sptrsv::PLAIN };
            let system = Triangular::of(&matrix, &problem).unwrap();
            let b = operand::random_double(system.rows(), 5);
            for power in POWERS {
                let once = made(&system, &b, power, 1);
                let left = times(&system, &once);
                let left: Vec<f64> = b.iter().zip(left).map(|(b, left)| b - left).collect();
                let more = made(&system, &left, power, 1);
                let twice: Vec<f64> = once.iter().zip(more).map(|(x, more)| x + more).collect();
                near(&made(&system, &b, power, 2), &twice, 1e-9);
            }
        }
    }
}

/// Of U = D L^T the map is that of L, transposed, over D, so that both solves of a pair are symmetric together. Rows that are cut to
/// whole hops are among them.
#[test]
fn a_pair_of_factors_makes_a_symmetric_map() {
    let mut lower = generated("lower:tail=2,of=road:nx=16,ny=12,seed=1");
    let rows = lower.rows();
    // L with ones on its diagonal, and D.
    let diagonal: Vec<f64> = (0..rows).map(|row| 1.0 + (row % 5) as f64).collect();
    let values: Vec<f64> = (0..lower.nnz()).map(|at| ((at * 7) % 11) as f64 / 40.0).collect();
    lower =
        Csr::new(rows, rows, lower.indptr().to_vec(), lower.indices().to_vec(), values).unwrap();
    let mut entries: Vec<(usize, usize, f64)> = Vec::new();
    for row in 0..rows {
        entries.push((row, row, diagonal[row]));
        let (columns, values) = lower.row(row);
        for (&col, &value) in columns.iter().zip(values) {
            if (col as usize) < row {
                entries.push((row, col as usize, value));
                entries.push((col as usize, row, value * diagonal[col as usize]));
            }
        }
    }
    entries.sort_by_key(|&(row, col, _)| (row, col));
    let mut indptr = vec![0; rows + 1];
    entries.iter().for_each(|&(row, ..)| indptr[row + 1] += 1);
    (0..rows).for_each(|row| indptr[row + 1] += indptr[row]);
    let (indices, values) = entries.iter().map(|&(_, col, value)| (col as u32, value)).unzip();
    let combined = Csr::new(rows, rows, indptr, indices, values).unwrap();
    symmetric(&combined);
    symmetric(&incomplete(&generated("poisson2d:nx=17,ny=11")));
}

/// Both factors of ILU(0) in one matrix.
fn incomplete(matrix: &Csr) -> Csr {
    let rows = matrix.rows();
    let mut dense = vec![vec![0.0; rows]; rows];
    let at = |row: usize| matrix.row(row).0.iter().map(|&col| col as usize);
    for (row, values) in dense.iter_mut().enumerate() {
        at(row).zip(matrix.row(row).1).for_each(|(col, value)| values[col] = *value);
    }
    for row in 0..rows {
        for by in at(row).filter(|&by| by < row) {
            let factor = dense[row][by] / dense[by][by];
            dense[row][by] = factor;
            for col in at(by).filter(|&col| col > by && at(row).any(|it| it == col)) {
                dense[row][col] -= factor * dense[by][col];
            }
        }
    }
    let values = (0..rows).flat_map(|row| at(row).map(move |col| (row, col)));
    let values = values.map(|(row, col)| dense[row][col]).collect();
    let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
    Csr::new(rows, rows, indptr, indices, values).unwrap()
}

fn symmetric(matrix: &Csr) {
    let rows = matrix.rows();
    let part = |problem: &Sptrsv| Triangular::of(matrix, problem).unwrap();
    use crate::domain::problem::Diagonal::Unit;
    let lower = part(&Sptrsv { diagonal: Unit, ..Sptrsv::PLAIN });
    let upper = part(&Sptrsv { triangle: Triangle::Upper, ..Sptrsv::PLAIN });
    assert!(!lower.reversed && upper.reversed);
    for (power, steps) in POWERS.into_iter().flat_map(|it| STEPS.map(|steps| (it, steps))) {
        let (first, second) = (inverse(&lower, power, steps), inverse(&upper, power, steps));
        // Both solves, each in the matrix's order.
        let both = |b: &[f64]| {
            let of = |(once, twice): (Vec<f64>, Option<Vec<f64>>)| twice.unwrap_or(once);
            let between = of(first.approximations(b));
            let turned: Vec<f64> = between.into_iter().rev().collect();
            let x: Vec<f64> = of(second.approximations(&turned)).into_iter().rev().collect();
            x
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for seed in 1..4 {
            let a = operand::random_double(rows, seed);
            let b = operand::random_double(rows, seed + 10);
            let (one, other) = (dot(&a, &both(&b)), dot(&b, &both(&a)));
            let size = dot(&a, &a).sqrt() * dot(&both(&b), &both(&b)).sqrt();
            assert!((one - other).abs() <= 1e-12 * size, "{power} {steps}: {one} {other}");
        }
    }
}

#[test]
fn what_would_be_too_much_is_refused() {
    let system = system("ilu0_poisson2d:nx=30,ny=20,seed=1", Triangle::Lower);
    let map = Map { power: 4, steps: 1 };
    let within = |visits, entries| {
        let made = Inverse::within(&system, Dtype::F64, map, Limits { visits, entries });
        made.map(|(it, _)| it.map.indices.len())
    };
    let entries = within(VISITS, ALWAYS).unwrap();
    assert_eq!(within(5_000, ALWAYS), Err(Denied::Visits));
    assert_eq!(within(VISITS, entries), Ok(entries));
    assert_eq!(within(VISITS, entries - 1), Err(Denied::Entries));
    let mut visits = VISITS;
    let first = Inverse::counted(&system, Dtype::F64, map, &mut visits);
    let each = VISITS - visits;
    assert!(first.is_ok() && each > entries as u64);
    visits = each;
    assert!(Inverse::counted(&system, Dtype::F64, map, &mut visits).is_ok() && visits == 0);
    let again = Inverse::counted(&system, Dtype::F64, map, &mut visits);
    assert_eq!((again.unwrap_err(), visits), (Denied::Visits, 0));
    let of = |system, dtype, power| {
        Inverse::of(system, dtype, Map { power, steps: 1 }).map(|it| it.map.indices.len())
    };
    let chain = Csr::new(2, 2, vec![0, 1, 3], vec![0, 0, 1], vec![1e-30, 1e30, 1e-30]);
    let chain = Triangular::of(&chain.unwrap(), &Sptrsv::PLAIN).unwrap();
    assert_eq!(of(&chain, Dtype::F32, 1), Err(Denied::Range));
    assert_eq!(of(&chain, Dtype::F64, 1), Ok(3));
}
