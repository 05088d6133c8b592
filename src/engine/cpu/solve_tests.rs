//! Tests: every CPU scheme is compared with the oracle on every instruction set of this host; invalid systems are
//! refused.

use super::*;
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::recipe::Stores;
use crate::domain::{Candidate, Clock, Dtype, Problem, Sptrsv};
use crate::engine::{Dense, Expected, Solve};
use crate::sparse::generate::Spec;
use crate::sparse::{Csr, Triangular, operand, oracle};
use std::sync::Arc;

const EFFORT: Effort = Effort {
    warmups: 1,
    min_samples: 3,
    max_samples: 3,
    budget_ms: 0.0,
    give_up_us: None,
    clock: Clock::Isolated,
    left_ms: None,
    needed: false,
};

/// More threads than most test hosts have cores, so that waiting threads must yield.
const THREADS: usize = 3;

fn engine(isa: Isa) -> CpuEngine {
    CpuEngine::with(isa, Threads::of(THREADS).unwrap(), 1.0)
}

fn recipe(program: Program) -> Recipe {
    Recipe::bare(&Candidate::new("test"), program)
}

fn host(program: HostProgram) -> Recipe {
    recipe(Program::Host(program))
}

fn every_recipe() -> Vec<Recipe> {
    let mut all = vec![
        recipe(Program::Vendor { algorithm: "plain_solve".to_owned() }),
        // Plans of earlier versions name it.
        recipe(Program::Vendor { algorithm: "sprs".to_owned() }),
        host(HostProgram::SolveSerial),
    ];
    for threads in [2, 3] {
        all.extend([1, 4, 1000].map(|n| host(HostProgram::SolveLevels { threads, narrow: n })));
        all.extend([1, 5, 64].map(|rows| host(HostProgram::SolveMerged { threads, rows })));
    }
    all
}

/// A diagonally dominant matrix with the columns that `of_row` returns for each row.
fn matrix(rows: usize, of_row: impl Fn(usize) -> Vec<usize>) -> Csr {
    let (mut indptr, mut indices) = (vec![0], Vec::new());
    let mut diagonal = Vec::new();
    for row in 0..rows {
        let mut columns = of_row(row);
        columns.push(row);
        columns.sort_unstable();
        columns.dedup();
        diagonal.extend(columns.iter().map(|&column| (column == row, columns.len())));
        indices.extend(columns.into_iter().map(|column| column as u32));
        indptr.push(indices.len());
    }
    let random = operand::random(indices.len(), 9);
    let values = random.into_iter().zip(diagonal).map(|(value, (diagonal, length))| {
        if diagonal { 1.0 + f64::from(value.abs()) } else { f64::from(value) / length as f64 }
    });
    Csr::new(rows, rows, indptr, indices, values.collect()).unwrap()
}

/// Entries in both triangles, for all kinds of problems.
fn scattered(rows: usize, per_row: usize) -> Csr {
    matrix(rows, |row| (1..=per_row).map(|e| (row * 7 + e * e * 31 + e * 3) % rows).collect())
}

fn every_problem(rhs: u32) -> Vec<Sptrsv> {
    let mut all = Vec::new();
    for dtype in [Dtype::F32, Dtype::F64] {
        for triangle in [Triangle::Lower, Triangle::Upper] {
            for transpose in [false, true] {
                for diagonal in [Diagonal::NonUnit, Diagonal::Unit] {
                    all.push(Sptrsv { rhs, dtype, triangle, diagonal, transpose, ..Sptrsv::PLAIN });
                }
            }
        }
    }
    all
}

fn dense(len: usize, seed: u64, dtype: Dtype) -> Dense {
    let random = operand::random(len, seed);
    match dtype {
        Dtype::F64 => random.into_iter().map(f64::from).collect::<Vec<f64>>().into(),
        _ => random.into(),
    }
}

fn operands(matrix: &Arc<Csr>, problem: Sptrsv) -> Operands {
    let system = Arc::new(Triangular::of(matrix, &problem).unwrap());
    let len = matrix.rows() * problem.rhs as usize;
    let [b, second] = [1, 2].map(|seed| dense(len, seed, problem.dtype));
    let expected = Expected::Solution(Arc::new(Solve { system, second }));
    let (problem, l2_policy) = (Problem::Sptrsv(problem), L2Policy::Warm);
    Operands { matrix: matrix.clone(), problem, l2_policy, b, c0: None, expected }
}

/// The largest error of a correct solution, in units of the check.
fn bound(dtype: Dtype) -> f64 {
    if dtype == Dtype::F32 { 8.0 * f64::from(f32::EPSILON) } else { 8.0 * f64::EPSILON }
}

fn agrees_on(matrix: Csr, sides: &[u32]) {
    let matrix = Arc::new(matrix);
    for isa in Isa::available() {
        let mut engine = engine(isa);
        for problem in sides.iter().flat_map(|&rhs| every_problem(rhs)) {
            engine.load(operands(&matrix, problem)).unwrap();
            for recipe in every_recipe() {
                let check = engine.verify(&recipe, None).unwrap();
                let case = (isa, problem, &recipe.program);
                assert_eq!(check.unwritten, 0, "{case:?}");
                assert!(check.rel_error < bound(problem.dtype), "{case:?}: {check:?}");
            }
        }
    }
}

#[test]
fn agrees_on_no_rows_one_row_and_a_diagonal() {
    for rows in [0, 1, 5, 70] {
        agrees_on(matrix(rows, |_| Vec::new()), &[1, 3, 33]);
    }
}

#[test]
fn agrees_on_a_chain() {
    agrees_on(matrix(67, |row| vec![row.saturating_sub(1), (row + 1).min(66)]), &[1, 33]);
}

#[test]
fn agrees_on_one_huge_row_and_column() {
    let row_and_column = |row| if row == 150 { (0..300).collect() } else { vec![150] };
    agrees_on(matrix(300, row_and_column), &[1, 3]);
}

#[test]
fn agrees_on_scattered_entries_for_every_number_of_sides() {
    agrees_on(scattered(200, 6), &[1, 33]);
    let matrix = Arc::new(scattered(40, 9));
    for isa in Isa::available() {
        let mut engine = engine(isa);
        for (rhs, which) in (1..=64).zip([0, 13].into_iter().cycle()) {
            let problem = every_problem(rhs)[which];
            engine.load(operands(&matrix, problem)).unwrap();
            let check = engine.verify(&host(HostProgram::SolveSerial), None).unwrap();
            assert!(check.rel_error < bound(problem.dtype), "{problem:?}: {check:?}");
        }
    }
}

#[test]
fn agrees_on_a_factor_with_wide_levels() {
    let matrix = Spec::parse("poisson2d:nx=17,ny=12,seed=1").unwrap().generate().unwrap();
    agrees_on(matrix, &[1]);
}

/// The solution equals the oracle's; a small residual alone is not enough.
#[test]
fn x_is_the_oracles() {
    let matrix = scattered(90, 5);
    for problem in every_problem(3) {
        let system = Arc::new(Triangular::of(&matrix, &problem).unwrap());
        let [b, second] = [1, 2].map(|seed| operand::random(270, seed));
        let in_f64: Vec<f64> = b.iter().map(|&b| f64::from(b)).collect();
        let x = oracle::sptrsv(&system, &in_f64, 3);
        // In f64 the oracle's own x must satisfy the check.
        let check = solve_check::backward_error(&system, &in_f64, &x, 3);
        assert!(check.rel_error < 8.0 * f64::EPSILON, "{check:?}");
        let mut wrong = x.clone();
        wrong[100] *= 1.0 + 1e-6;
        let check = solve_check::backward_error(&system, &in_f64, &wrong, 3);
        assert!(check.rel_error > 1e-9 && check.worst % 3 == 1, "{problem:?}: {check:?}");
        wrong[100] = f64::NAN;
        let check = solve_check::backward_error(&system, &in_f64, &wrong, 3);
        assert_eq!(check.rel_error, f64::INFINITY);
        assert_eq!(second.len(), b.len());
    }
}

#[test]
fn tiny_pivots_are_handled_by_division() {
    // 1 / 1e-320 is infinite; the solution is not.
    let matrix = Csr::new(2, 2, vec![0, 1, 3], vec![0, 0, 1], vec![1e-320, 1e-10, 1.0]).unwrap();
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    let problem =
        Sptrsv { rhs: 1, dtype: Dtype::F64, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
    let mut operands = operands(&Arc::new(matrix), problem);
    operands.b = vec![1e-319, 1.0].into();
    if let Expected::Solution(solve) = &operands.expected {
        let second = vec![0.0, 2.0].into();
        operands.expected =
            Expected::Solution(Arc::new(Solve { system: solve.system.clone(), second }));
    }
    let mut engine = engine(Isa::Scalar);
    engine.load(operands).unwrap();
    let check = engine.verify(&host(HostProgram::SolveSerial), None).unwrap();
    assert!(check.rel_error < 1e-15 && check.unwritten == 0, "{check:?}");
}

/// With a second right-hand side that no finite x satisfies; both solutions are checked, and NaN is detected.
#[test]
fn a_nan_in_the_second_solution_is_detected() {
    for which in 0..2 {
        let mut operands = operands(&Arc::new(scattered(50, 4)), every_problem(1)[0]);
        let mut bad = operand::random(50, 3);
        bad[20] = f32::NAN;
        if let (0, Expected::Solution(solve)) = (which, &operands.expected) {
            let (system, second) = (solve.system.clone(), bad.into());
            operands.expected = Expected::Solution(Arc::new(Solve { system, second }));
        } else {
            operands.b = bad.into();
        }
        let mut engine = engine(Isa::Scalar);
        engine.load(operands).unwrap();
        for recipe in every_recipe() {
            let check = engine.verify(&recipe, None).unwrap();
            assert_eq!(check.rel_error, f64::INFINITY, "{:?}", recipe.program);
        }
    }
}

#[test]
fn times_pairs_and_exports() {
    let matrix = Arc::new(scattered(500, 5));
    let mut engine = engine(Isa::available()[0]);
    for l2_policy in [L2Policy::Warm, L2Policy::Cold] {
        let operands = Operands { l2_policy, ..operands(&matrix, every_problem(2)[8]) };
        engine.load(operands).unwrap();
        let recipes = every_recipe();
        assert!(engine.compile(&recipes[1]).is_ok());
        assert_eq!(engine.time(&recipes[2], &EFFORT).unwrap().samples_us.len(), 3);
        let paired = engine.pair(&recipes, 3, Clock::Isolated, None).unwrap();
        assert!(paired.iter().all(|timing| timing.samples_us.len() == 3));
        assert!(paired.iter().all(|timing| timing.median_us > 0.0));
    }
    let merged = engine.export(&host(HostProgram::SolveMerged { threads: 3, rows: 8 })).unwrap();
    let step = &merged.steps[0];
    assert!(step.entry.starts_with("cpu::solve_merged<threads=3, rows=8, f64, "), "{}", step.entry);
    assert_eq!((step.grid, &step.arguments[3][..]), ([3, 1, 1], "diagonal"));
    for family in ["serial", "levels", "merged"] {
        assert_eq!(engine.device().kernels.get(family).copied(), merged.kernel_digest);
    }
}

#[test]
fn refuses_unsupported_systems() {
    let matrix = Arc::new(scattered(20, 3));
    let mut engine = engine(Isa::Scalar);
    let good = every_problem(2)[0];
    let refusal = |result: Result<_, EngineError>| match result {
        Err(EngineError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    engine.load(operands(&matrix, good)).unwrap();
    for bad in [
        host(HostProgram::SolveLevels { threads: 1, narrow: 8 }),
        host(HostProgram::SolveLevels { threads: THREADS as u32 + 1, narrow: 8 }),
        host(HostProgram::SolveMerged { threads: 0, rows: 8 }),
        host(HostProgram::SolveMerged { threads: 2, rows: 0 }),
        host(HostProgram::RowSplit { n1: 8, rows_per_task: 1, ahead: 0, stores: Stores::Cached }),
        recipe(Program::Vendor { algorithm: "spsv".to_owned() }),
    ] {
        assert!(!refusal(engine.compile(&bad).map(drop)).is_empty(), "{:?}", bad.program);
    }
    for rhs in [0, 65] {
        let wide = operands(&matrix, Sptrsv { rhs, ..good });
        assert!(refusal(engine.load(wide)).contains("right-hand sides"));
    }
    let short = Operands { b: vec![0f32; 3].into(), ..operands(&matrix, good) };
    assert!(refusal(engine.load(short)).contains("do not match"));
    let double = Operands { b: vec![0f64; 40].into(), ..operands(&matrix, good) };
    assert!(refusal(engine.load(double)).contains("not in f32"));
    let half = operands(&matrix, Sptrsv { dtype: Dtype::F16, ..good });
    assert!(refusal(engine.load(half)).contains("not f16"));
    let (values, diagonal) = (vec![1.0], vec![1.0; 2]);
    let backward =
        Triangular { indptr: vec![0, 1, 1], indices: vec![1], values, diagonal, reversed: false };
    let second = vec![0f32; 4].into();
    let expected = Expected::Solution(Arc::new(Solve { system: Arc::new(backward), second }));
    let unordered = Operands { expected, b: vec![0f32; 4].into(), ..operands(&matrix, good) };
    assert!(refusal(engine.load(unordered)).contains("solve order"));
}
