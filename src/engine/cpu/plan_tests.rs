//! Tests: plans on the caller's buffers agree with the oracle, in any alignment and from several threads; what does not
//! fit is refused.

use super::*;
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::recipe::{Array, ArrayData, Stores};
use crate::domain::{Dtype, Layout, Spmm, Sptrsv};
use crate::sparse::generate::Spec;
use crate::sparse::{Csr, Triangular, operand, oracle};
use std::sync::Arc;

/// Empty rows, short rows, and one with an entry in each column.
fn matrix() -> Arc<Csr> {
    let cols = 300;
    let (mut indptr, mut indices) = (vec![0], Vec::new());
    for row in 0..211 {
        let length = if row == 70 { cols } else { row % 7 };
        indices.extend((0..length).map(|e| (e * cols / length) as u32));
        indptr.push(indices.len());
    }
    let values = operand::random(indices.len(), 9).into_iter().map(f64::from).collect();
    Arc::new(Csr::new(211, cols, indptr, indices, values).unwrap())
}

fn with_values(matrix: &Csr, values: &[f64]) -> Csr {
    let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
    Csr::new(matrix.rows(), matrix.cols(), indptr, indices, values.to_vec()).unwrap()
}

fn programs(matrix: &Csr, problem: &Spmm) -> Vec<(Program, Vec<Array>)> {
    let order: Vec<u32> = (0..matrix.rows() as u32).rev().collect();
    let order = Array { name: "rows_by_length".to_owned(), data: ArrayData::U32(order.into()) };
    let stores = Stores::Streamed;
    let panel = Program::Host(HostProgram::RowPanel { m1: 4, n1: 16, stores });
    let split = Program::Host(split(8, 20));
    let ordered = HostProgram::RowSplit { n1: 128, rows_per_task: 20, ahead: 5, stores };
    let ordered = (Program::Host(ordered), vec![order.clone()]);
    let untuned = Program::Host(default_product(problem, matrix, 2));
    let vendor = Program::Vendor { algorithm: "plain_csr".to_owned() };
    vec![(panel, vec![order]), (split, vec![]), ordered, (untuned, vec![]), (vendor, vec![])]
}

fn split(n1: u32, rows_per_task: u32) -> HostProgram {
    HostProgram::RowSplit { n1, rows_per_task, ahead: 0, stores: Stores::Cached }
}

/// As it is where C fits the cache of every host.
fn untuned(n1: u32, rows_per_task: u32) -> HostProgram {
    HostProgram::RowSplit { n1, rows_per_task, ahead: 16, stores: Stores::Cached }
}

/// Operands of either type, as the tests make them.
trait Real: oracle::Element + Into<f64> + PartialEq + std::fmt::Display {
    const DTYPE: Dtype;
    const BOUND: f64;
    const NAN: Self;

    fn random(len: usize, seed: u64) -> Vec<Self>;
    fn of_ref(data: &[Self]) -> DenseRef<'_>;
    fn of_mut(data: &mut [Self]) -> DenseMut<'_>;
}

impl Real for f32 {
    const DTYPE: Dtype = Dtype::F32;
    const BOUND: f64 = 1e-6;
    const NAN: Self = Self::NAN;

    fn random(len: usize, seed: u64) -> Vec<Self> {
        operand::random(len, seed)
    }
    fn of_ref(data: &[Self]) -> DenseRef<'_> {
        DenseRef::F32(data)
    }
    fn of_mut(data: &mut [Self]) -> DenseMut<'_> {
        DenseMut::F32(data)
    }
}

impl Real for f64 {
    const DTYPE: Dtype = Dtype::F64;
    const BOUND: f64 = 1e-14;
    const NAN: Self = Self::NAN;

    fn random(len: usize, seed: u64) -> Vec<Self> {
        operand::random_double(len, seed)
    }
    fn of_ref(data: &[Self]) -> DenseRef<'_> {
        DenseRef::F64(data)
    }
    fn of_mut(data: &mut [Self]) -> DenseMut<'_> {
        DenseMut::F64(data)
    }
}

fn assert_product<T: Real>(c: &[T], expected: &oracle::Product, case: &dyn std::fmt::Debug) {
    for (i, &c) in c.iter().enumerate() {
        let error = (c.into() - expected.value[i]).abs();
        assert!(error <= T::BOUND * f64::from(expected.scale[i]), "{case:?}: c[{i}] = {c}");
    }
}

/// Every program, at several offsets, with the values that it was prepared with and with new ones.
fn check_products<T: Real>(matrix: &Arc<Csr>, problem: &Spmm) {
    let changed: Vec<f64> = matrix.values().iter().map(|value| 3.0 - value).collect();
    for (program, arrays) in programs(matrix, problem) {
        let mut plan = HostPlan::product(matrix.clone(), problem, &program, &arrays).unwrap();
        let (b_len, c_len) = plan.lengths();
        let n = problem.n as usize;
        assert_eq!((b_len, c_len, plan.dtype()), (300 * n, 211 * n, T::DTYPE));
        let (b, c0) = (T::random(b_len + 3, 1), T::random(c_len, 2));
        for shift in 0..4 {
            if shift == 3 {
                plan.set_values(NewValues::Product(&changed)).unwrap();
            }
            let b = &b[shift..shift + b_len];
            let matrix = if shift == 3 { &with_values(matrix, &changed) } else { &**matrix };
            // Nothing beside C may be written, and C must not be read where beta is 0.
            let mut c = vec![T::NAN; c_len + 5];
            let inside = shift + 1..shift + 1 + c_len;
            let run = |alpha, beta, c: &mut [T]| {
                plan.run(T::of_ref(b), T::of_mut(c), alpha, beta).unwrap();
            };
            let mut expected = oracle::spmm(matrix, b, problem);
            if problem.accumulate {
                run(-2.5, 0.0, &mut c[inside.clone()]);
                let mut scaled = expected.clone();
                scaled.accumulate(&c0, -2.5, 0.0);
                assert_product(&c[inside.clone()], &scaled, &(&program, problem));
                c[inside.clone()].copy_from_slice(&c0);
                run(0.5, 3.0, &mut c[inside.clone()]);
                expected.accumulate(&c0, 0.5, 3.0);
            } else {
                run(1.0, 0.0, &mut c[inside.clone()]);
            }
            assert_product(&c[inside.clone()], &expected, &(&program, problem));
            let outside = c[..inside.start].iter().chain(&c[inside.end..]);
            assert!(outside.into_iter().all(|&c| c.into().is_nan()), "{program:?} {problem:?}");
        }
    }
}

#[test]
fn products_on_unaligned_buffers_and_with_new_values() {
    let matrix = matrix();
    for n in [1, 3, 33, 130] {
        for layout in [Layout::Row, Layout::Col] {
            for accumulate in [false, true] {
                let of = |dtype| Spmm { accumulate, ..Spmm::new(n, dtype, layout) };
                check_products::<f32>(&matrix, &of(Dtype::F32));
                check_products::<f64>(&matrix, &of(Dtype::F64));
            }
        }
    }
}

#[test]
fn calls_from_several_threads_do_not_disturb_one_another() {
    let matrix = matrix();
    let problem = Spmm::new(33, Dtype::F32, Layout::Col);
    let (program, arrays) = programs(&matrix, &problem).remove(0);
    let plan = HostPlan::product(matrix.clone(), &problem, &program, &arrays).unwrap();
    let (system, of_solve) = system(Triangle::Lower, Diagonal::NonUnit, false, 3, Dtype::F64);
    let solves = solve_programs().into_iter();
    let solves: Vec<HostPlan> = solves
        .filter_map(|program| HostPlan::solve(system.clone(), &of_solve, &program).ok())
        .collect();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (plan, matrix, solves, system) = (&plan, &matrix, &solves, &system);
            scope.spawn(move || {
                let b = operand::random(plan.lengths().0, seed);
                let product = oracle::spmm(matrix, &b, &problem);
                let mut c = vec![0.0; plan.lengths().1];
                let rhs: Vec<f64> = b.iter().map(|&b| f64::from(b)).collect();
                let rhs = &rhs[..solves[0].lengths().0];
                let expected = oracle::sptrsv(system, rhs, 3);
                for _ in 0..10 {
                    c.fill(f32::NAN);
                    plan.run(DenseRef::F32(&b), DenseMut::F32(&mut c), 1.0, 0.0).unwrap();
                    assert_product(&c, &product, &problem);
                    for solve in solves {
                        let mut x = vec![f64::NAN; rhs.len()];
                        solve.run(DenseRef::F64(rhs), DenseMut::F64(&mut x), 1.0, 0.0).unwrap();
                        assert_close(&x, &expected, 1e-12);
                    }
                }
            });
        }
    });
}

fn solve_programs() -> Vec<Program> {
    let mut all = vec![
        Program::Vendor { algorithm: "plain_solve".to_owned() },
        Program::Host(HostProgram::SolveSerial),
    ];
    let threads = plan_threads().unwrap() as u32;
    if threads > 1 {
        all.push(Program::Host(HostProgram::SolveLevels { threads, narrow: 8 }));
        all.push(Program::Host(HostProgram::SolveMerged { threads: 2, rows: 8 }));
    }
    all
}

fn system(
    triangle: Triangle,
    diagonal: Diagonal,
    transpose: bool,
    rhs: u32,
    dtype: Dtype,
) -> (Arc<Triangular>, Sptrsv) {
    let matrix = Spec::parse("poisson2d:nx=14,ny=11,seed=1").unwrap().generate().unwrap();
    // Small entries, so that the unit triangles are well conditioned as well.
    let values: Vec<f64> = matrix.values().iter().map(|value| value / 10.0).collect();
    let matrix = with_values(&matrix, &values);
    let problem = Sptrsv { rhs, dtype, triangle, diagonal, transpose, ..Sptrsv::PLAIN };
    (Arc::new(Triangular::of(&matrix, &problem).unwrap()), problem)
}

fn assert_close(x: &[f64], expected: &[f64], bound: f64) {
    let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for (i, (x, expected)) in x.iter().zip(expected).enumerate() {
        assert!((x - expected).abs() <= bound * largest, "x[{i}] = {x}, not {expected}");
    }
}

/// Solves with b and x at odd offsets, and compares with the oracle.
fn check_solve(plan: &HostPlan, system: &Triangular, rhs: u32) {
    let len = plan.lengths().0;
    let b = operand::random(len + 1, 5);
    let wide: Vec<f64> = b.iter().map(|&b| f64::from(b)).collect();
    let expected = oracle::sptrsv(system, &wide[1..], rhs as usize);
    if plan.dtype() == Dtype::F32 {
        let mut x = vec![f32::NAN; len + 2];
        plan.run(DenseRef::F32(&b[1..]), DenseMut::F32(&mut x[1..=len]), 1.0, 0.0).unwrap();
        assert!(x[0].is_nan() && x[len + 1].is_nan());
        let x: Vec<f64> = x[1..=len].iter().map(|&x| f64::from(x)).collect();
        assert_close(&x, &expected, 1e-5);
    } else {
        let mut x = vec![f64::NAN; len + 2];
        plan.run(DenseRef::F64(&wide[1..]), DenseMut::F64(&mut x[1..=len]), 1.0, 0.0).unwrap();
        assert!(x[0].is_nan() && x[len + 1].is_nan());
        assert_close(&x[1..=len], &expected, 1e-13);
    }
}

#[test]
fn solves_of_every_kind_and_with_new_values() {
    let kinds = [Triangle::Lower, Triangle::Upper].into_iter().flat_map(|triangle| {
        [(Diagonal::Unit, false), (Diagonal::NonUnit, false), (Diagonal::NonUnit, true)]
            .map(move |(diagonal, transpose)| (triangle, diagonal, transpose))
    });
    for (triangle, diagonal, transpose) in kinds {
        for (rhs, dtype) in [(1, Dtype::F64), (3, Dtype::F32), (33, Dtype::F64)] {
            let (system, problem) = system(triangle, diagonal, transpose, rhs, dtype);
            let mut programs = solve_programs();
            programs.push(Program::Host(default_solve(&problem, &system, 2)));
            for program in programs {
                let mut plan = match HostPlan::solve(system.clone(), &problem, &program) {
                    Ok(plan) => plan,
                    Err(error) => panic!("{program:?}: {error}"),
                };
                check_solve(&plan, &system, rhs);
                let mut changed = (*system).clone();
                changed.values.iter_mut().for_each(|value| *value *= 0.5);
                if diagonal == Diagonal::NonUnit {
                    changed.diagonal.iter_mut().for_each(|pivot| *pivot *= -2.0);
                }
                let (lower, diagonal) = (&changed.values[..], &changed.diagonal[..]);
                plan.set_values(NewValues::Solve { lower, diagonal }).unwrap();
                check_solve(&plan, &changed, rhs);
            }
        }
    }
}

#[test]
fn untuned_programs_share_large_work_and_leave_small_work_alone() {
    let problem = Spmm::new(40, Dtype::F32, Layout::Row);
    let large = Spec::parse("poisson2d:nx=300,ny=300,seed=1").unwrap().generate().unwrap();
    match default_product(&problem, &large, 8) {
        HostProgram::RowSplit { n1: 64, rows_per_task, ahead: 16, .. } => {
            assert!((10..10_000).contains(&rows_per_task), "{rows_per_task}");
        }
        other => panic!("{other:?}"),
    }
    let whole = untuned(8, 211);
    assert_eq!(default_product(&Spmm { n: 2, ..problem }, &matrix(), 8), whole);
    let (system, of_solve) = system(Triangle::Lower, Diagonal::NonUnit, false, 1, Dtype::F64);
    assert_eq!(default_solve(&of_solve, &system, 8), HostProgram::SolveSerial);
    let diagonal = Csr::new(9000, 9000, (0..=9000).collect(), (0..9000).collect(), vec![2.0; 9000]);
    let wide = Triangular::of(&diagonal.unwrap(), &of_solve).unwrap();
    let levels = HostProgram::SolveLevels { threads: 8, narrow: 64 };
    assert_eq!(default_solve(&of_solve, &wide, 8), levels);
    assert_eq!(default_solve(&of_solve, &wide, 1), HostProgram::SolveSerial);
    let none = Csr::empty();
    assert_eq!(default_product(&problem, &none, 0), untuned(64, 1));
}

#[test]
fn refuses_what_does_not_fit() {
    fn shared<T: Send + Sync>(_: &T) {}
    let refusal = |result: Result<(), EngineError>| match result {
        Err(EngineError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    let matrix = matrix();
    let problem = Spmm::new(2, Dtype::F32, Layout::Row);
    let split = Program::Host(default_product(&problem, &matrix, 2));
    let mut plan = HostPlan::product(matrix.clone(), &problem, &split, &[]).unwrap();
    shared(&plan);
    let (b, mut c) = (vec![1f32; 600], vec![0f32; 422]);
    let run =
        |b: &[f32], c: &mut [f32], alpha| plan.run(DenseRef::F32(b), DenseMut::F32(c), alpha, 0.0);
    assert!(refusal(run(&b[1..], &mut c, 1.0)).contains("B has 599 elements"));
    assert!(refusal(run(&b, &mut c[1..], 1.0)).contains("C has 421 elements"));
    assert!(refusal(run(&b, &mut c, 2.0)).contains("alpha"));
    let double = plan.run(DenseRef::F64(&[0.0; 600]), DenseMut::F32(&mut c), 1.0, 0.0);
    assert!(refusal(double).contains("in f32"));
    let before = c.clone();
    let nnz = matrix.nnz();
    assert!(refusal(plan.set_values(NewValues::Product(&vec![1.0; nnz - 1]))).contains("entries"));
    assert!(refusal(plan.set_values(NewValues::Product(&vec![1e300; nnz]))).contains("too large"));
    assert!(
        refusal(plan.set_values(NewValues::Product(&vec![f64::NAN; nnz]))).contains("not finite")
    );
    let of_solve = NewValues::Solve { lower: &[], diagonal: &[] };
    assert!(refusal(plan.set_values(of_solve)).contains("not a solve"));
    assert_eq!(c, before);
    let solve = Program::Host(HostProgram::SolveSerial);
    let wrong = HostPlan::product(matrix.clone(), &problem, &solve, &[]).map(drop);
    assert!(refusal(wrong).contains("triangular solve"));
    let half = Spmm::new(2, Dtype::F16, Layout::Row);
    assert!(refusal(HostPlan::product(matrix, &half, &split, &[]).map(drop)).contains("f16"));

    let (system, problem) = system(Triangle::Lower, Diagonal::Unit, false, 1, Dtype::F64);
    let wrong = HostPlan::solve(system.clone(), &problem, &split).map(drop);
    assert!(refusal(wrong).contains("product"));
    let most = plan_threads().unwrap() as u32;
    let crowd = Program::Host(HostProgram::SolveMerged { threads: most + 1, rows: 1 });
    let wrong = HostPlan::solve(system.clone(), &problem, &crowd).map(drop);
    assert!(refusal(wrong).contains("threads"));
    let mut plan = HostPlan::solve(system.clone(), &problem, &solve).unwrap();
    let (lower, rows) = (&system.values[..], system.rows());
    for (pivot, why) in [(2.0, "unit diagonal"), (0.0, "unit diagonal")] {
        let diagonal = &vec![pivot; rows][..];
        let set = plan.set_values(NewValues::Solve { lower, diagonal });
        assert!(refusal(set).contains(why));
    }
    let diagonal = &system.diagonal[1..];
    let set = plan.set_values(NewValues::Solve { lower, diagonal });
    assert!(refusal(set).contains("rows"));
    assert!(refusal(plan.set_values(NewValues::Product(&[]))).contains("not a product"));
    let problem = Sptrsv { diagonal: Diagonal::NonUnit, ..problem };
    let mut plan = HostPlan::solve(system.clone(), &problem, &solve).unwrap();
    let set = plan.set_values(NewValues::Solve { lower, diagonal: &vec![0.0; rows] });
    assert!(refusal(set).contains("zero"));
    check_solve(&plan, &system, 1);
}
