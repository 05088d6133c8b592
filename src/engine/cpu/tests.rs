//! Tests: every CPU kernel is compared with the oracle on every instruction set of this host; invalid requests are
//! refused.

use super::*;
use crate::domain::recipe::{Array, ArrayData, Stores};
use crate::domain::{Candidate, Clock, Dtype, Layout, Problem, Spmm};
use crate::engine::{ALPHA, BETA, Dense, Expected};
use crate::sparse::{Csr, operand, oracle};
use std::sync::Arc;

const EFFORT: Effort = Effort {
    warmups: 1,
    min_samples: 3,
    max_samples: 5,
    budget_ms: 0.0,
    give_up_us: None,
    clock: Clock::Isolated,
    left_ms: None,
    needed: false,
};

/// A matrix whose row r has `lengths[r]` entries, spread evenly over the columns.
fn matrix(lengths: &[usize], cols: usize) -> Csr {
    let (mut indptr, mut indices) = (vec![0], Vec::new());
    for &length in lengths {
        indices.extend((0..length).map(|e| (e * cols / length) as u32));
        indptr.push(indices.len());
    }
    let values = operand::random(indices.len(), 9).into_iter().map(f64::from).collect();
    Csr::new(lengths.len(), cols, indptr, indices, values).unwrap()
}

fn operands(matrix: &Arc<Csr>, n: u32, layout: Layout) -> Operands {
    of_problem(matrix, Spmm::new(n, Dtype::F32, layout))
}

fn of_problem(matrix: &Arc<Csr>, problem: Spmm) -> Operands {
    let (b_len, c_len) = (matrix.cols() * problem.n as usize, matrix.rows() * problem.n as usize);
    let (b, c0) = (operand::random(b_len, 1), operand::random(c_len, 2));
    let wide = |from: &[f32]| -> Vec<f64> { from.iter().map(|&x| f64::from(x) / 3.0).collect() };
    let double = problem.dtype == Dtype::F64;
    let mut reference = match double {
        true => oracle::spmm(matrix, &wide(&b), &problem),
        false => oracle::spmm(matrix, &b, &problem),
    };
    if problem.accumulate {
        match double {
            true => reference.accumulate(&wide(&c0), ALPHA, BETA),
            false => reference.accumulate(&c0, ALPHA, BETA),
        }
    }
    let dense = |from: Vec<f32>| -> Dense { if double { wide(&from).into() } else { from.into() } };
    let c0 = problem.accumulate.then(|| dense(c0));
    let expected = Expected::Product(Arc::new(reference));
    let (b, problem, l2_policy) = (dense(b), Problem::Spmm(problem), L2Policy::Warm);
    Operands { matrix: matrix.clone(), problem, l2_policy, b, c0, expected }
}

fn recipe(program: Program, order: Option<Vec<u32>>) -> Recipe {
    let data = |order: Vec<u32>| ArrayData::U32(order.into());
    let array = |order| Array { name: "rows_by_length".to_owned(), data: data(order) };
    let arrays = order.into_iter().map(array).collect();
    Recipe { arrays, ..Recipe::bare(&Candidate::new("test"), program) }
}

fn by_length(matrix: &Csr) -> Vec<u32> {
    let mut order: Vec<u32> = (0..matrix.rows() as u32).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(matrix.row_nnz(row as usize)));
    order
}

fn row_panel(m1: u32, n1: u32, order: Vec<u32>) -> Recipe {
    let stores = if m1 == 2 { Stores::Streamed } else { Stores::Cached };
    recipe(Program::Host(HostProgram::RowPanel { m1, n1, stores }), Some(order))
}

fn row_split(n1: u32, rows_per_task: u32) -> Recipe {
    split(n1, rows_per_task, 0, Stores::Cached, None)
}

fn split(
    n1: u32,
    rows_per_task: u32,
    ahead: u32,
    stores: Stores,
    order: Option<Vec<u32>>,
) -> Recipe {
    recipe(Program::Host(HostProgram::RowSplit { n1, rows_per_task, ahead, stores }), order)
}

fn routine(algorithm: &str) -> Recipe {
    recipe(Program::Vendor { algorithm: algorithm.to_owned() }, None)
}

fn plain() -> Recipe {
    routine("plain_csr")
}

fn engine(isa: Isa) -> CpuEngine {
    CpuEngine::with(isa, CpuEngine::threads().unwrap(), 1.0)
}

fn every_recipe(matrix: &Csr) -> Vec<Recipe> {
    // Plans of earlier versions name the last.
    let mut all = vec![plain(), routine("sprs")];
    for n1 in SUPPORTED_N1 {
        all.extend(SUPPORTED_M1.map(|m1| row_panel(m1, n1, by_length(matrix))));
    }
    for n1 in SUPPORTED_ROW_N1 {
        all.extend([1, 7, 1000].map(|rows| row_split(n1, rows)));
        let streamed = Stores::Streamed;
        all.push(split(n1, 7, 16, streamed, None));
        all.push(split(n1, 5, 3, streamed, Some(by_length(matrix))));
        all.push(split(n1, 5, 1000, Stores::Cached, Some(by_length(matrix))));
    }
    all
}

fn agrees_on(lengths: &[usize], cols: usize) {
    let matrix = Arc::new(matrix(lengths, cols));
    let problems = [Dtype::F32, Dtype::F64].into_iter().flat_map(|dtype| {
        [(Layout::Row, false), (Layout::Row, true), (Layout::Col, false), (Layout::Col, true)]
            .map(|(layout, accumulate)| Spmm { accumulate, ..Spmm::new(1, dtype, layout) })
    });
    let problems: Vec<Spmm> = problems.collect();
    for isa in Isa::available() {
        let mut engine = engine(isa);
        for n in [1, 2, 3, 7, 8, 32, 33, 130, 256] {
            for problem in problems.iter().map(|&problem| Spmm { n, ..problem }) {
                engine.load(of_problem(&matrix, problem)).unwrap();
                let bound = if problem.dtype == Dtype::F64 { 1e-14 } else { 1e-6 };
                for recipe in every_recipe(&matrix) {
                    let check = engine.verify(&recipe, None).unwrap();
                    let case = (isa, problem, &recipe.program);
                    assert_eq!(check.unwritten, 0, "{case:?}");
                    assert!(check.rel_error < bound, "{case:?}: {check:?}");
                }
            }
        }
    }
}

#[test]
fn agrees_with_the_oracle_on_empty_shapes() {
    agrees_on(&[], 0);
    agrees_on(&[], 5);
    agrees_on(&[0, 0, 0], 0);
}

#[test]
fn agrees_with_the_oracle_on_short_and_empty_rows() {
    agrees_on(&[0, 1, 0, 3, 5, 2, 0, 4, 4, 4, 9, 1, 1, 6, 2, 3, 0, 7, 20], 23);
}

#[test]
fn agrees_with_the_oracle_on_one_long_row() {
    agrees_on(&[1, 0, 400, 2], 400);
}

#[test]
fn agrees_with_the_oracle_over_many_tasks() {
    let lengths: Vec<usize> = (0..5000).map(|row| 20 + row % 5).collect();
    let matrix = Arc::new(matrix(&lengths, 3000));
    let mut engine = engine(Isa::available()[0]);
    for layout in [Layout::Row, Layout::Col] {
        engine.load(operands(&matrix, 17, layout)).unwrap();
        for recipe in [row_panel(4, 16, by_length(&matrix)), row_split(8, 64)] {
            let check = engine.verify(&recipe, None).unwrap();
            assert!(check.rel_error < 1e-6 && check.unwritten == 0, "{:?}", recipe.program);
        }
    }
}

#[test]
fn a_wrong_product_and_an_unwritten_element_are_detected() {
    let matrix = Arc::new(matrix(&[2, 3, 1], 4));
    let mut operands = operands(&matrix, 3, Layout::Row);
    let Expected::Product(reference) = &operands.expected else { panic!() };
    let mut reference = (**reference).clone();
    reference.value[4] += 1.0;
    operands.expected = Expected::Product(Arc::new(reference));
    let mut engine = engine(Isa::Scalar);
    engine.load(operands).unwrap();
    let check = engine.verify(&row_split(8, 1), None).unwrap();
    assert!(check.rel_error > 0.1 && check.worst == 4, "{check:?}");
}

#[test]
fn timings_respect_their_effort() {
    let matrix = Arc::new(matrix(&[5; 200], 50));
    let mut engine = engine(Isa::available()[0]);
    let recipes = [row_split(16, 50), row_panel(2, 8, by_length(&matrix)), plain()];
    for l2_policy in [L2Policy::Warm, L2Policy::Cold] {
        engine.load(Operands { l2_policy, ..operands(&matrix, 4, Layout::Row) }).unwrap();
        assert!(engine.compile(&recipes[0]).unwrap().cached);
        let timing = engine.time(&recipes[0], &EFFORT).unwrap();
        assert_eq!(
            timing.samples_us.len(),
            3,
            "the budget is exhausted after the minimum number of samples"
        );
        let longer = Effort { budget_ms: 1e6, ..EFFORT };
        assert_eq!(engine.time(&recipes[0], &longer).unwrap().samples_us.len(), 5);
        // Of a job whose time is over there is the one sample that tells anything at all, and of one with time there are all.
        let late = Effort { left_ms: Some(0.0), ..EFFORT };
        let timing = engine.time(&recipes[0], &late).unwrap();
        assert_eq!((timing.samples_us.len(), timing.cut), (1, true));
        let early = Effort { left_ms: Some(60_000.0), ..EFFORT };
        let timing = engine.time(&recipes[0], &early).unwrap();
        assert_eq!((timing.samples_us.len(), timing.cut), (3, false));
        // In between there are as many as fit.
        let (left_ms, many) = (Some(30.0), 10_000_000);
        let busy = Effort { left_ms, min_samples: many, max_samples: many, ..EFFORT };
        let began = std::time::Instant::now();
        let timing = engine.time(&recipes[0], &busy).unwrap();
        let (samples, gone) = (timing.samples_us.len(), began.elapsed());
        assert!(timing.cut && (1..many as usize).contains(&samples), "{samples}");
        assert!(gone < std::time::Duration::from_secs(5), "{samples} samples in {gone:?}");
        // One call alone, of a job whose clock is another, says so.
        let late = Effort { clock: Clock::Pipelined, ..late };
        assert!(!engine.time(&recipes[0], &late).unwrap().samples_us.is_empty());
        // By each clock, as far as calls can follow each other.
        let clock = Clock::Pipelined;
        let row = engine.time(&recipes[0], &Effort { clock, ..EFFORT }).unwrap();
        assert_eq!((row.clock, row.samples_us.len()), (clock.under(l2_policy), 3));
        let row = engine.pair(&recipes[..2], 2, clock, None).unwrap();
        let told = row.iter().map(|timing| (timing.clock, timing.samples_us.len()));
        assert!(told.eq([(clock.under(l2_policy), 2); 2]), "{row:?}");
        let paired = engine.pair(&recipes, 4, Clock::Isolated, None).unwrap();
        assert!(paired.len() == 3 && paired.iter().all(|timing| timing.samples_us.len() == 4));
        assert!(paired.iter().all(|timing| timing.median_us > 0.0));
    }
    assert!(engine.pair(&[], 4, Clock::Isolated, None).unwrap().is_empty());
}

#[test]
fn refuses_invalid_programs_and_operands() {
    let matrix = Arc::new(matrix(&[1, 2, 3], 4));
    let mut engine = engine(Isa::Scalar);
    let order = || by_length(&matrix);
    let refusal = |result: Result<_, EngineError>| match result {
        Err(EngineError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(engine.verify(&plain(), None).map(drop)), "no matrix is loaded");
    engine.load(operands(&matrix, 3, Layout::Row)).unwrap();
    for bad in [
        row_panel(3, 8, order()),
        row_panel(4, 12, order()),
        row_panel(4, 8, vec![0, 1]),
        row_panel(4, 8, vec![0, 1, 1]),
        row_panel(4, 8, vec![0, 1, 3]),
        recipe(Program::Host(HostProgram::RowPanel { m1: 4, n1: 8, stores: Stores::Cached }), None),
        row_split(8, 0),
        row_split(256, 1),
        split(8, 1, 0, Stores::Cached, Some(vec![0, 1, 1])),
        recipe(Program::Vendor { algorithm: "csr_alg2".to_owned() }, None),
    ] {
        assert!(!refusal(engine.compile(&bad).map(drop)).is_empty(), "{:?}", bad.program);
    }
    let half = Problem::Spmm(Spmm::new(3, Dtype::F16, Layout::Row));
    let loaded = engine.load(Operands { problem: half, ..operands(&matrix, 3, Layout::Row) });
    assert!(refusal(loaded).contains("f32 and f64, not f16"));
    let double = Problem::Spmm(Spmm::new(3, Dtype::F64, Layout::Row));
    let loaded = engine.load(Operands { problem: double, ..operands(&matrix, 3, Layout::Row) });
    assert!(refusal(loaded).contains("not in f64"));
    let adding = Spmm { accumulate: true, ..Spmm::new(3, Dtype::F32, Layout::Row) };
    let without = Operands { c0: None, ..of_problem(&matrix, adding) };
    assert!(refusal(engine.load(without)).contains("do not match"));
    let large = Arc::new(Csr::new(1, 1, vec![0, 1], vec![0], vec![1e300]).unwrap());
    assert!(refusal(engine.load(operands(&large, 1, Layout::Row))).contains("too large for f32"));
    let short = Operands { b: vec![0f32; 2].into(), ..operands(&matrix, 3, Layout::Row) };
    assert!(refusal(engine.load(short)).contains("do not match"));
}

#[test]
fn exports_the_data_of_a_plan() {
    let matrix = Arc::new(matrix(&[1, 2, 3], 4));
    let mut engine = engine(Isa::Scalar);
    engine.load(operands(&matrix, 3, Layout::Row)).unwrap();
    let panel = engine.export(&row_panel(2, 8, by_length(&matrix))).unwrap();
    assert_eq!(panel.steps[0].entry, "cpu::row_panel<m1=2, n1=8, streamed, f32, scalar>");
    assert_eq!(panel.steps[0].arguments.last().map(String::as_str), Some("rows_by_length"));
    let vendor = engine.export(&plain()).unwrap();
    assert_ne!(vendor.kernel_digest, panel.kernel_digest);
    let kernels = &engine.device().kernels;
    assert_eq!(kernels.get("row_panel").copied(), panel.kernel_digest);
    assert_eq!(kernels.get("vendor").copied(), vendor.kernel_digest);
    assert_eq!(panel.steps[0].grid, [1, 1, 1]);
    let adding = Spmm { accumulate: true, ..Spmm::new(3, Dtype::F64, Layout::Row) };
    engine.load(of_problem(&matrix, adding)).unwrap();
    let split = engine.export(&row_split(8, 1)).unwrap();
    assert_eq!(split.steps[0].entry, "cpu::row_split<n1=8, ahead=0, cached, f64, scalar>");
    assert_eq!(split.steps[0].arguments[4..], ["c", "alpha", "beta"]);
}

/// Elements that a call leaves out are found, also if it was to add to them.
#[test]
fn a_c_that_is_not_added_to_is_detected() {
    let matrix = Arc::new(matrix(&[2, 3, 1], 4));
    let adding = Spmm { accumulate: true, ..Spmm::new(3, Dtype::F64, Layout::Col) };
    let mut wrong = of_problem(&matrix, adding);
    // The reference is of another initial C.
    wrong.c0 = Some(vec![0f64; 9].into());
    let mut engine = engine(Isa::Scalar);
    engine.load(wrong).unwrap();
    assert!(engine.verify(&row_split(8, 1), None).unwrap().rel_error > 1e-3);
}
