//! Runs the CUDA engine on a real device: verification that catches what it must, timing, cuSPARSE, refusals, a fault.
//!
//! Without a device it reports this and passes. `SPARSETUNE_CUDA_LIBRARIES` names library folders, separated by colons.

mod case;
#[path = "../fixture/product.rs"]
mod product;
mod programs;
mod solve;
mod types;

use case::case;
use sparsetune::domain::protocol::Effort;
use sparsetune::domain::recipe::{Arg, CudaProgram, Program, Recipe};
use sparsetune::domain::{Candidate, Clock, Dtype, L2Policy, Layout, Problem, Spmm};
use sparsetune::engine::cuda::{CudaEngine, Options, devices, probe};
use sparsetune::engine::{Check, Engine, EngineError, Operands};
use std::path::{Path, PathBuf};

const STORE: &str = "c[C_AT(row, j)] = sum;";
const EFFORT: Effort = Effort {
    warmups: 3,
    min_samples: 20,
    max_samples: 200,
    budget_ms: 50.0,
    give_up_us: None,
    clock: Clock::Isolated,
    left_ms: None,
    needed: false,
};

fn vendor(algorithm: &str) -> Recipe {
    let candidate = Candidate::new("vendor").with_text("algorithm", algorithm);
    Recipe::bare(&candidate, Program::Vendor { algorithm: algorithm.to_owned() })
}

fn altered(mut recipe: Recipe, change: impl FnOnce(&mut CudaProgram)) -> Recipe {
    if let Program::Cuda(program) = &mut recipe.program {
        change(program);
    }
    recipe
}

fn right(check: Check) -> bool {
    check.unwritten == 0 && check.rel_error < 1e-5
}

fn libraries() -> Vec<PathBuf> {
    let named = std::env::var("SPARSETUNE_CUDA_LIBRARIES").unwrap_or_default();
    named.split(':').filter(|name| !name.is_empty()).map(PathBuf::from).collect()
}

fn open(cache: &Path, reference_bytes: Option<u64>) -> CudaEngine {
    let options = Options {
        ordinal: 0,
        cache: cache.to_owned(),
        libraries: libraries(),
        compile_threads: 4,
        reference_bytes,
    };
    CudaEngine::open(options).expect("the engine opens")
}

/// All in one test: a fault loses the context of every engine in the process, so the fault comes last.
#[test]
fn the_engine_on_a_device() {
    println!("{:#?}", probe(&libraries()));
    if devices(&libraries()).is_empty() {
        println!("SKIPPED: no CUDA device");
        return;
    }
    let cache = tempfile::tempdir().expect("a temporary folder");
    let started = std::time::Instant::now();
    let mut engine = open(cache.path(), None);
    println!("opened in {:.0?}: {:#?}", started.elapsed(), engine.device());
    assert!(engine.device().copy_gbps > 50.0 && engine.device().copy_gbps < 50_000.0);

    verification(&mut engine);
    refusals(&mut engine);
    compiling(&mut engine, cache.path());
    shapes(&mut engine);
    slices(cache.path());
    timing(&mut engine);
    cut_short(&mut engine);
    vendors(&mut engine);
    types::run(&mut engine);
    programs::run(&mut engine);
    solve::solves(&mut engine);
    fault(&mut engine);
}

fn verification(engine: &mut CudaEngine) {
    for layout in [Layout::Row, Layout::Col] {
        let case = case(1000, 700, 9, 33, layout);
        let (rows, n) = (1000u64, 33u64);
        let at = |row: u64, j: u64| match layout {
            Layout::Row => row * n + j,
            Layout::Col => j * rows + row,
        };
        engine.load(case.operands.clone()).expect("loads");
        let mut verify = |store: &str| engine.verify(&case.kernel(store), None).expect("verifies");
        let check = verify(STORE);
        println!("{layout}: {check:?}");
        assert!(right(check), "{check:?}");

        let check = verify("c[C_AT(row, j)] = sum + (row == 8 && j == 5 ? 1.f : 0.f);");
        assert!(check.rel_error > 1e-3 && check.worst == at(8, 5), "{check:?}");
        let check = verify("if (row != 999) c[C_AT(row, j)] = sum;");
        assert_eq!((check.unwritten, check.rel_error), (n, f64::INFINITY));
        let check = verify("c[C_AT(row, j)] = row == 12 && j == 2 ? sum / 0.f * 0.f : sum;");
        assert_eq!((check.unwritten, check.rel_error, check.worst), (0, f64::INFINITY, at(12, 2)));
        let check =
            verify("c[C_AT(row, j)] = sum; if (row == 0 && j == 0) c[rows * n + 17] = 1.f;");
        assert_eq!((check.rel_error, check.worst), (f64::INFINITY, rows * n + 17));
        // Adding to the output is right only where it is zeroed first.
        let adding = case.kernel("c[C_AT(row, j)] += sum;");
        assert_eq!(engine.verify(&adding, None).expect("verifies").rel_error, f64::INFINITY);
        let zeroed = altered(adding, |program| program.zero_output = true);
        assert!(right(engine.verify(&zeroed, None).expect("verifies")));
        assert!(right(engine.verify(&case.kernel(STORE), None).expect("verifies")));
    }
}

fn refusals(engine: &mut CudaEngine) {
    let case = case(100, 100, 4, 8, Layout::Row);
    engine.load(case.operands.clone()).expect("loads");
    let mut refusal =
        |change: fn(&mut CudaProgram)| match engine.compile(&altered(case.kernel(STORE), change)) {
            Err(EngineError::Refused(reason)) => println!("refused: {reason}"),
            other => panic!("{other:?}"),
        };
    refusal(|program| program.steps[0].grid[1] = 65_536);
    refusal(|program| program.steps[0].block = [1025, 1, 1]);
    refusal(|program| program.steps[0].block[0] = 0);
    refusal(|program| program.steps[0].shared_bytes = 1 << 20);
    refusal(|program| program.steps[0].entry = "nothing".to_owned());
    refusal(|program| program.steps[0].args.push(Arg::Array(1)));
    let unknown = engine.compile(&vendor("csr_alg9"));
    assert!(matches!(unknown, Err(EngineError::Refused(_))), "{unknown:?}");
    let fewer = engine.compile(&altered(case.kernel(STORE), |program| {
        program.steps[0].args.pop();
    }));
    println!("one argument too few: {fewer:?}");
    let broken = engine.compile(&case.kernel("int x = ;"));
    assert!(matches!(broken, Err(EngineError::Compile(_))), "{broken:?}");
    let half = Spmm { dtype: Dtype::F16, ..case.spmm };
    let half = Operands { problem: Problem::Spmm(half), ..case.operands.clone() };
    assert!(matches!(engine.load(half), Err(EngineError::Refused(_))));
    let unloaded = engine.verify(&case.kernel(STORE), None);
    assert!(matches!(unloaded, Err(EngineError::Refused(_))), "{unloaded:?}");
}

fn compiling(engine: &mut CudaEngine, cache: &Path) {
    let case = case(100, 100, 4, 8, Layout::Row);
    engine.load(case.operands.clone()).expect("loads");
    let variants: Vec<Recipe> = (0..12)
        .map(|i| case.kernel(&format!("{STORE} if (row == {}u) c[0] = 0;", 1000 + i)))
        .collect();
    let started = std::time::Instant::now();
    engine.prepare(&variants);
    for variant in &variants {
        let compiled = engine.compile(variant).expect("compiles");
        let resources = compiled.resources.expect("figures");
        assert!(!compiled.cached && resources.registers > 0 && resources.occupancy > 0.0);
    }
    println!("12 variants on 4 threads in {:.0?}", started.elapsed());
    let shared = altered(case.kernel(STORE), |program| program.steps[0].shared_bytes = 64 << 10);
    println!("64 KiB shared: {:?}", engine.compile(&shared).expect("compiles"));
    let exported = engine.export(&variants[0]).expect("exports");
    println!("exported: {:?}", exported.steps);
    assert!(exported.cubin.is_some_and(|cubin| cubin.len() > 1000));
    assert!(exported.source.is_some_and(|source| source.contains("__global__")));
    assert!(exported.ptx.is_some_and(|ptx| ptx.contains(".visible .entry")));
    assert!(exported.compiler.is_some_and(|compiler| compiler.starts_with("NVRTC ")));
    assert!(exported.options.iter().any(|option| option.starts_with("--gpu-architecture=sm_")));
    let update = exported.update.expect("for every CUDA program");
    assert!(update.cubin.len() > 1000 && update.ptx.contains(&update.entry));
    let mut second = open(cache, None);
    second.load(case.operands.clone()).expect("loads");
    assert!(variants.iter().all(|variant| second.compile(variant).expect("compiles").cached));
    assert!(right(second.verify(&variants[11], None).expect("verifies")));
}

fn shapes(engine: &mut CudaEngine) {
    for (rows, cols, row_nnz, n) in
        [(1, 1, 1, 1), (5, 900, 0, 3), (300, 2, 2, 1), (64, 64, 64, 257)]
    {
        for layout in [Layout::Row, Layout::Col] {
            let case = case(rows, cols, row_nnz, n, layout);
            engine.load(case.operands.clone()).expect("loads");
            let check = engine.verify(&case.kernel(STORE), None).expect("verifies");
            let vendors = engine.verify(&vendor("csr_alg2"), None);
            println!("{rows} x {cols}, n {n}, {layout}: {check:?}; csr_alg2 {vendors:?}");
            assert!(right(check), "{check:?}");
        }
    }
}

fn slices(cache: &Path) {
    let mut engine = open(cache, Some(100_000));
    let case = case(3000, 500, 5, 32, Layout::Row);
    engine.load(case.operands.clone()).expect("loads");
    assert!(right(engine.verify(&case.kernel(STORE), None).expect("verifies")));
    let store = "c[C_AT(row, j)] = sum + (row == 2990 && j == 31 ? 1.f : 0.f);";
    let check = engine.verify(&case.kernel(store), None).expect("verifies");
    assert_eq!(check.worst, 2990 * 32 + 31, "{check:?}");
}

/// A timing whose time is over after about three samples.
fn cut_short(engine: &mut CudaEngine) {
    let case = case(60_000, 60_000, 12, 32, Layout::Row);
    engine.load(case.operands.clone()).expect("loads");
    let long =
        case.kernel("for (int i = 0; i < 3000; i++) sum += __sinf(sum); c[C_AT(row, j)] = sum;");
    engine.compile(&long).expect("compiles");
    let usual = Effort { warmups: 1, min_samples: 20, max_samples: 20, budget_ms: 0.0, ..EFFORT };
    let whole = engine.time(&long, &usual).expect("times");
    assert!((whole.samples_us.len() == 20 || whole.dropped > 0) && !whole.cut, "{whole:?}");
    let sample = whole.median_us / 1e3;
    for clock in Clock::ALL {
        // The first call, one to warm up, one for an estimate, and three samples.
        let left_ms = Some(6.5 * sample);
        let began = std::time::Instant::now();
        let timing = engine.time(&long, &Effort { left_ms, clock, ..usual }).expect("times");
        let gone_ms = began.elapsed().as_secs_f64() * 1e3;
        let samples = timing.samples_us.len();
        println!("cut: {samples} samples of {sample:.2} ms in {gone_ms:.2} ms, {:?}", timing.clock);
        assert!(timing.cut && (1..20).contains(&samples), "{timing:?}");
        // The whole has 23 calls.
        assert!(gone_ms < 15.0 * sample + 20.0, "{gone_ms} ms of {sample} ms each");
        let none =
            engine.time(&long, &Effort { left_ms: Some(0.0), clock, ..usual }).expect("times");
        assert!(none.cut && none.samples_us.len() == 1, "{none:?}");
        assert!(none.tells(clock) == (clock == Clock::Isolated || none.median_us >= 400.0));
    }
    let early = Effort { left_ms: Some(60_000.0), ..usual };
    assert!(!engine.time(&long, &early).expect("times").cut);
}

fn timing(engine: &mut CudaEngine) {
    let mut case = case(60_000, 60_000, 12, 32, Layout::Row);
    for policy in [L2Policy::Warm, L2Policy::Cold] {
        case.operands.l2_policy = policy;
        engine.load(case.operands.clone()).expect("loads");
        let real = case.kernel(STORE);
        let empty = case.kernel("if (sum == 1e30f) c[0] = sum;");
        let empty = altered(empty, |program| program.steps[0].grid = [1, 1, 1]);
        let zeroed = altered(real.clone(), |program| program.zero_output = true);
        for (name, recipe) in
            [("real", &real), ("again", &real), ("zeroed", &zeroed), ("one block", &empty)]
        {
            let started = std::time::Instant::now();
            let timing = engine.time(recipe, &EFFORT).expect("times");
            println!(
                "{policy} {name}: {:.2} us {:?}, {} samples, {} dropped, in {:.0?}",
                timing.median_us,
                timing.ci95_us,
                timing.samples_us.len(),
                timing.dropped,
                started.elapsed()
            );
            assert!(timing.samples_us.len() >= 20 && timing.median_us > 0.0);
        }
        let pair = engine
            .pair(&[real.clone(), vendor("csr_alg2"), real.clone()], 25, Clock::Isolated, None)
            .expect("pairs");
        let medians: Vec<f64> = pair.iter().map(|timing| timing.median_us).collect();
        println!("{policy} pair real, csr_alg2, real: {medians:.2?}");
        assert!(pair.iter().all(|timing| timing.samples_us.len() == 25));
        assert!(pair.iter().all(|timing| timing.clock == Clock::Isolated));
        let row = [&real, &vendor("csr_alg2"), &empty].map(Clone::clone);
        let row = engine.pair(&row, 25, Clock::Pipelined, None).expect("pairs back to back");
        let medians_of_row: Vec<f64> = row.iter().map(|timing| timing.median_us).collect();
        println!("{policy} back to back real, csr_alg2, one block: {medians_of_row:.2?}");
        let clock = Clock::Pipelined.under(policy);
        assert!(row.iter().all(|timing| timing.samples_us.len() == 25 && timing.clock == clock));
        let effort = Effort { clock: Clock::Pipelined, ..EFFORT };
        let short = engine.time(&empty, &effort).expect("times back to back");
        println!("{policy} back to back one block: {:.2} us", short.median_us);
        assert!(short.clock == clock && short.samples_us.len() >= 20);
        // What surrounds a call is in the time of a single one.
        assert!(medians_of_row[0] < 1.1 * medians[0], "{medians_of_row:?} against {medians:?}");
        let ratio = medians[0] / medians[2];
        assert!((0.8..1.25).contains(&ratio), "the same kernel twice: {medians:?}");
    }
}

fn vendors(engine: &mut CudaEngine) {
    for layout in [Layout::Row, Layout::Col] {
        let case = case(60_000, 60_000, 12, 32, layout);
        engine.load(case.operands.clone()).expect("loads");
        let mut ran = 0;
        for algorithm in ["default", "csr_alg1", "csr_alg2", "csr_alg3"] {
            let recipe = vendor(algorithm);
            match engine.verify(&recipe, None) {
                Ok(check) => {
                    assert!(right(check), "{algorithm} {layout}: {check:?}");
                    let timing = engine.time(&recipe, &EFFORT).expect("times");
                    let median_us = timing.median_us;
                    println!(
                        "{algorithm} {layout}: {median_us:.2} us, error {:.1e}",
                        check.rel_error
                    );
                    ran += 1;
                }
                Err(EngineError::Refused(reason)) => {
                    println!("{algorithm} {layout}: refused, {reason}")
                }
                Err(error) => panic!("{algorithm} {layout}: {error:?}"),
            }
        }
        assert!(ran > 0);
        let timing = engine.time(&case.kernel(STORE), &EFFORT).expect("times");
        println!("own row-per-thread {layout}: {:.2} us", timing.median_us);
    }
}

fn fault(engine: &mut CudaEngine) {
    let case = case(100, 100, 4, 8, Layout::Row);
    engine.load(case.operands.clone()).expect("loads");
    let faulting = case.kernel("*(volatile float*)0x10 = sum;");
    let fault = engine.verify(&faulting, None);
    println!("fault: {fault:?}");
    assert!(matches!(fault, Err(EngineError::Lost(_))), "{fault:?}");
    let after = engine.verify(&case.kernel(STORE), None);
    assert!(matches!(after, Err(EngineError::Lost(_))), "{after:?}");
}
