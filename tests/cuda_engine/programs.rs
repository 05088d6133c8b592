//! Programs of several launches, of memory that calls share, of waits that end themselves, of clusters, on a real device.

use crate::case::{Case, case};
use crate::{EFFORT, STORE, altered, right};
use sparsetune::domain::protocol::Effort;
use sparsetune::domain::recipe::{Arg, CudaProgram, Program, Recipe, Scratch, Step};
use sparsetune::domain::{Candidate, Clock, L2Policy, Layout};
use sparsetune::engine::cuda::compile::options;
use sparsetune::engine::cuda::nvrtc::Nvrtc;
use sparsetune::engine::cuda::{CudaEngine, source};
use sparsetune::engine::libraries::Search;
use sparsetune::engine::{Engine, EngineError, Operands};
use std::time::{Duration, Instant};

const BLOCK: u32 = 128;

/// Half of each sum in the first kernel, the rest in the second, which also clears what the next call adds to. A call whose
/// scratch is not cleared reports it in the status, which the engine reads after every batch.
const HALVES: &str = r#"
extern "C" __global__ void first(const unsigned* row_ptr, const unsigned* col_idx, const float* values,
                                 const float* b, float* mine, unsigned* status, unsigned rows, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  if (mine[i] != 0.f) *status = 1;
  const unsigned begin = row_ptr[i / n], middle = begin + (row_ptr[i / n + 1] - begin) / 2;
  float sum = 0.f;
  for (unsigned k = begin; k < middle; ++k) sum += values[k] * b[col_idx[k] * n + i % n];
  mine[i] = sum + 1.f;
}
extern "C" __global__ void second(const unsigned* row_ptr, const unsigned* col_idx, const float* values,
                                  const float* b, float* c, const float* mine, float* other,
                                  unsigned rows, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  const unsigned begin = row_ptr[i / n], end = row_ptr[i / n + 1];
  float sum = mine[i] - 1.f;
  for (unsigned k = begin + (end - begin) / 2; k < end; ++k) sum += values[k] * b[col_idx[k] * n + i % n];
  c[i] ADD sum;
  other[i] = 0.f;
}
"#;

/// One row per block; reports in the status if the epoch is not one more than that of the last call.
const EPOCH: &str = r#"
extern "C" __global__ void epochs(const unsigned* row_ptr, const unsigned* col_idx, const float* values,
                                  const float* b, float* c, unsigned* last, unsigned* status, unsigned n,
                                  unsigned epoch) {
  const unsigned row = blockIdx.x;
  if (threadIdx.x == 0) {
    if (epoch != last[row] + 1) *status = 1;
    last[row] = epoch;
  }
  for (unsigned j = threadIdx.x; j < n; j += blockDim.x) {
    float sum = 0.f;
    for (unsigned k = row_ptr[row]; k < row_ptr[row + 1]; ++k) sum += values[k] * b[col_idx[k] * n + j];
    c[row * n + j] = sum;
  }
}
"#;

/// One row per block, each waiting for `flag` before it begins; a block that waits too long sets the status, which ends all
/// waits.
const WAITING: &str = r#"
extern "C" __global__ void waiting(const unsigned* row_ptr, const unsigned* col_idx, const float* values,
                                   const float* b, float* c, volatile unsigned* flag, volatile unsigned* status,
                                   unsigned long long deadline_ns, unsigned n, unsigned raises) {
  const unsigned row = blockIdx.x;
  if (raises && row == 0 && threadIdx.x == 0) *flag = 1;
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  while (*flag == 0) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (now - start > deadline_ns) *status = 1;
    if (*status != 0) return;
  }
  for (unsigned j = threadIdx.x; j < n; j += blockDim.x) {
    float sum = 0.f;
    for (unsigned k = row_ptr[row]; k < row_ptr[row + 1]; ++k) sum += values[k] * b[col_idx[k] * n + j];
    c[row * n + j] = sum;
  }
}
"#;

/// One row per block; the result is wrong unless the block's cluster has as many blocks as requested. `CLUSTERS` is the
/// number of blocks per cluster that is compiled in.
const CLUSTER: &str = r#"
extern "C" __global__ void
#if __CUDA_ARCH__ >= 900
    __cluster_dims__(CLUSTERS, 1, 1)
#endif
    clusters(const unsigned* row_ptr, const unsigned* col_idx, const float* values, const float* b, float* c,
             unsigned rows, unsigned n, unsigned expected) {
  unsigned blocks = 1;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %cluster_nctaid.x;" : "=r"(blocks));
#endif
  const unsigned row = blockIdx.x;
  if (row >= rows) return;
  for (unsigned j = threadIdx.x; j < n; j += blockDim.x) {
    float sum = 0.f;
    for (unsigned k = row_ptr[row]; k < row_ptr[row + 1]; ++k) sum += values[k] * b[col_idx[k] * n + j];
    c[row * n + j] = blocks == expected ? sum : 1e9f;
  }
}
"#;

/// The texts compile without a device if there is a compiler. `SPARSETUNE_NVRTC` names the library or its folder.
#[test]
fn the_texts_compile() {
    let named = std::env::var_os("SPARSETUNE_NVRTC").map(std::path::PathBuf::from);
    let search = Search::new(&named.into_iter().collect::<Vec<_>>());
    let Ok(nvrtc) = Nvrtc::open(&search) else {
        println!("SKIPPED: no NVRTC");
        return;
    };
    let halves = HALVES.replace("ADD", "=");
    let clusters = clusters_of(8);
    for text in [&halves, EPOCH, WAITING, &clusters] {
        let unit = source::unit(text).expect("assembles");
        for architecture in ["sm_80", "sm_90"] {
            let built = nvrtc.compile(&unit, &options(architecture, None));
            assert!(built.is_ok(), "{architecture}: {built:?}");
        }
    }
}

pub fn run(engine: &mut CudaEngine) {
    let case = case(1000, 700, 9, 33, Layout::Row);
    engine.load(case.operands.clone()).expect("loads");
    turns(engine, &case);
    epochs(engine, &case);
    watchdog(engine, &case);
    clusters(engine, &case);
    residency(engine, &case);
    long_graph(engine, &case);
}

const OPERANDS: [Arg; 4] = [Arg::RowPtr, Arg::ColIdx, Arg::Values, Arg::B];

fn args(more: &[Arg]) -> Vec<Arg> {
    OPERANDS.iter().chain(more).copied().collect()
}

fn recipe(name: &str, program: CudaProgram, scratch: &[Scratch]) -> Recipe {
    let bare = Recipe::bare(&Candidate::new(name), Program::Cuda(program));
    Recipe { scratch: scratch.to_vec(), ..bare }
}

fn shape(case: &Case) -> [Arg; 2] {
    [Arg::U32(case.rows as u32), Arg::U32(case.spmm.n)]
}

/// Two launches; `add` is how the second treats C.
fn halves(case: &Case, add: &str, [mine, other]: [Arg; 2]) -> Recipe {
    let elements = case.rows as u32 * case.spmm.n;
    let [rows, n] = shape(case);
    let grid = elements.div_ceil(BLOCK);
    let first = Step::of("first", grid, BLOCK, args(&[mine, Arg::Status, rows, n]));
    let second = Step::of("second", grid, BLOCK, args(&[Arg::C, mine, other, rows, n]));
    let mut program = CudaProgram::of(HALVES.replace("ADD", add), first);
    program.steps.push(second);
    let scratch = Scratch { bytes: u64::from(elements) * 4, fill: 0 };
    recipe("halves", program, &[scratch, scratch])
}

const TURNS: [Arg; 2] = [Arg::Turn { even: 0, odd: 1 }, Arg::Turn { even: 1, odd: 0 }];

fn turns(engine: &mut CudaEngine, case: &Case) {
    let two = halves(case, "=", TURNS);
    let compiled = engine.compile(&two).expect("compiles");
    assert!(compiled.resources.expect("figures").registers > 0);
    assert!(right(engine.verify(&two, None).expect("verifies")));
    let zeroed = altered(halves(case, "+=", TURNS), |program| program.zero_output = true);
    assert!(right(engine.verify(&zeroed, None).expect("verifies")));
    assert!(!right(engine.verify(&halves(case, "+=", TURNS), None).expect("verifies")));
    // Without alternation the first call is right, and every later one finds its own results.
    let fixed = halves(case, "=", [Arg::Scratch(0), Arg::Scratch(1)]);
    assert!(right(engine.verify(&fixed, None).expect("verifies")));
    let found = engine.time(&fixed, &EFFORT);
    assert!(matches!(found, Err(EngineError::Watchdog(_))), "{found:?}");
    for policy in [L2Policy::Warm, L2Policy::Cold] {
        engine.load(Operands { l2_policy: policy, ..case.operands.clone() }).expect("loads");
        let graph = engine.time(&two, &EFFORT).expect("times").median_us;
        let one = engine.time(&case.kernel(STORE), &EFFORT).expect("times").median_us;
        println!("{policy}: a graph of two kernels {graph:.2} us, one kernel {one:.2} us");
    }
    // The same recipe twice shares its memory and its alternation.
    let pair = engine
        .pair(&[two.clone(), case.kernel(STORE), two.clone()], 11, Clock::Isolated, None)
        .expect("pairs");
    assert!(pair.iter().all(|timing| timing.samples_us.len() == 11));
    let row = engine
        .pair(&[two.clone(), case.kernel(STORE), two.clone()], 11, Clock::Pipelined, None)
        .expect("pairs, though the policy allows single calls alone");
    assert!(row.iter().all(|timing| timing.clock == Clock::Isolated));
    engine.load(case.operands.clone()).expect("loads");
    let row = engine
        .pair(&[two.clone(), case.kernel(STORE), two.clone()], 11, Clock::Pipelined, None)
        .expect("pairs back to back");
    println!("back to back: {:.2} and {:.2} us", row[0].median_us, row[1].median_us);
    assert!(row.iter().all(|timing| timing.samples_us.len() == 11));
    let exported = engine.export(&two).expect("exports");
    assert_eq!((exported.steps.len(), exported.scratch.len()), (2, 2));
    assert!(exported.steps[1].arguments.contains(&"turn:1,0".to_owned()));

    let missing = Recipe { scratch: Vec::new(), ..two.clone() };
    assert!(matches!(engine.compile(&missing), Err(EngineError::Refused(_))));
    let empty = altered(two.clone(), |program| program.steps.clear());
    assert!(matches!(engine.compile(&empty), Err(EngineError::Refused(_))));
    assert!(right(engine.verify(&two, None).expect("verifies")));
}

fn epochs(engine: &mut CudaEngine, case: &Case) {
    let [_, n] = shape(case);
    let step = |epoch| {
        let own = [Arg::C, Arg::Scratch(0), Arg::Status, n, epoch];
        Step::of("epochs", case.rows as u32, 32, args(&own))
    };
    let scratch = [Scratch { bytes: case.rows as u64 * 4, fill: 0 }];
    let of = |epoch| recipe("epochs", CudaProgram::of(EPOCH.to_owned(), step(epoch)), &scratch);
    let counting = of(Arg::Epoch);
    for _ in 0..2 {
        // From 1 again at each verification, and on through all calls that follow.
        assert!(right(engine.verify(&counting, None).expect("verifies")));
        engine.time(&counting, &EFFORT).expect("times");
        engine
            .pair(&[counting.clone(), case.kernel(STORE)], 5, Clock::Isolated, None)
            .expect("pairs");
    }
    let wrong = engine.verify(&of(Arg::U32(2)), None);
    assert!(matches!(wrong, Err(EngineError::Watchdog(_))), "{wrong:?}");
    // A recorded epoch would not advance.
    let twice = altered(counting, |program| program.steps.push(step(Arg::Epoch)));
    match engine.compile(&twice) {
        Err(EngineError::Refused(reason)) => println!("refused: {reason}"),
        other => panic!("{other:?}"),
    }
}

fn waiting(case: &Case, name: &str, raises: u32, steps: usize) -> Recipe {
    let [_, n] = shape(case);
    let own = [Arg::C, Arg::Scratch(0), Arg::Status, Arg::DeadlineNs, n, Arg::U32(raises)];
    let step = Step::of("waiting", case.rows as u32, 32, args(&own));
    let mut program = CudaProgram::of(WAITING.to_owned(), step.clone());
    program.steps = vec![step; steps];
    recipe(name, program, &[Scratch { bytes: 4, fill: 0 }])
}

/// A kernel that waits for a value that never arrives ends itself, and the engine goes on.
fn watchdog(engine: &mut CudaEngine, case: &Case) {
    for steps in [1, 3] {
        let raised = waiting(case, "raised", 1, steps);
        assert!(right(engine.verify(&raised, Some(50.0)).expect("verifies")));
        let lost = waiting(case, "lost", 0, steps);
        for give_up_us in [Some(2000.0), None] {
            let started = Instant::now();
            let stopped = engine.verify(&lost, give_up_us);
            let took = started.elapsed();
            println!("{steps} steps, {give_up_us:?}: {stopped:?} after {took:.0?}");
            assert!(matches!(stopped, Err(EngineError::Watchdog(_))), "{stopped:?}");
            let most = if give_up_us.is_some() { 900 } else { 5000 };
            assert!(took < Duration::from_millis(most), "{took:?}");
        }
        let effort = Effort { give_up_us: Some(500.0), ..EFFORT };
        let stopped = engine.time(&lost, &effort);
        assert!(matches!(stopped, Err(EngineError::Watchdog(_))), "{stopped:?}");
        // A call that gives up ends neither the other calls of a batch nor the engine.
        let stopped = engine.pair(
            &[raised.clone(), lost.clone(), case.kernel(STORE)],
            3,
            Clock::Isolated,
            None,
        );
        assert!(matches!(&stopped, Err(EngineError::Watchdog(why)) if why.starts_with("lost")));
        let timing = engine.time(&raised, &EFFORT).expect("times");
        println!("{steps} steps that wait: {:.2} us", timing.median_us);
        assert!(right(engine.verify(&raised, None).expect("verifies")));
        assert!(right(engine.verify(&case.kernel(STORE), None).expect("verifies")));
    }
}

fn clusters_of(blocks: u32) -> String {
    CLUSTER.replace("CLUSTERS", &blocks.to_string())
}

fn clusters(engine: &mut CudaEngine, case: &Case) {
    let [rows, n] = shape(case);
    let clustered = |cluster: u32, resident| {
        let args = args(&[Arg::C, rows, n, Arg::U32(cluster)]);
        let grid = (case.rows as u32).next_multiple_of(cluster.max(1));
        let step = Step { cluster, resident, ..Step::of("clusters", grid, 32, args) };
        recipe("clusters", CudaProgram::of(clusters_of(cluster), step), &[])
    };
    let (major, _) = engine.device().compute_capability.split_once('.').expect("a point");
    let has_clusters = major.parse::<u32>().expect("a number") >= 9;
    for cluster in [1, 2, 8, 16] {
        for resident in [false, true] {
            let clustered = clustered(cluster, resident);
            // Also in a graph, which must keep the cluster.
            let twice = altered(clustered.clone(), |program| {
                program.steps.push(program.steps[0].clone());
            });
            for recipe in [&clustered, &twice] {
                match engine.verify(recipe, None) {
                    Ok(check) => assert!(right(check), "{cluster}: {check:?}"),
                    Err(EngineError::Refused(reason)) => {
                        println!("cluster of {cluster} refused: {reason}");
                        assert!(resident || (cluster > 1 && !has_clusters) || cluster > 8);
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    }
    // Beyond the limit, and a launch that asks for other clusters than the kernel has.
    let other =
        |cluster| altered(clustered(1, false), |program| program.steps[0].cluster = cluster);
    for cluster in [0, 17, 8] {
        let refused = engine.compile(&other(cluster));
        assert!(matches!(refused, Err(EngineError::Refused(_))), "{refused:?}");
    }
    let uneven = altered(clustered(8, false), |program| program.steps[0].grid[0] = 1001);
    assert!(matches!(engine.compile(&uneven), Err(EngineError::Refused(_))));
}

fn residency(engine: &mut CudaEngine, case: &Case) {
    let resident = |blocks: u32| {
        altered(case.kernel(STORE), |program| {
            program.steps[0].grid[0] = blocks;
            program.steps[0].resident = true;
        })
    };
    let fits = engine.compile(&resident(1)).expect("compiles").resources.expect("figures");
    let room = fits.blocks_per_multiprocessor * engine.device().multiprocessors;
    assert!(engine.compile(&resident(room)).is_ok());
    match engine.compile(&resident(room + 1)) {
        Err(EngineError::Refused(reason)) => println!("refused: {reason}"),
        other => panic!("{other:?}"),
    }
}

/// More launches than the driver's queue is safe for in one batch.
fn long_graph(engine: &mut CudaEngine, case: &Case) {
    let long = altered(case.kernel(STORE), |program| {
        program.steps = vec![program.steps[0].clone(); 1500];
    });
    let started = Instant::now();
    let compiled = engine.compile(&long).expect("compiles");
    println!("1500 steps recorded in {:.0?}, {compiled:?}", started.elapsed());
    assert!(right(engine.verify(&long, None).expect("verifies")));
    let effort = Effort { min_samples: 5, max_samples: 5, ..EFFORT };
    let started = Instant::now();
    let timing = engine.time(&long, &effort).expect("times");
    let one = engine.time(&case.kernel(STORE), &EFFORT).expect("times");
    println!(
        "1500 steps: {:.0} us, {:.2} us each, timed in {:.0?}; one launch {:.2} us",
        timing.median_us,
        timing.median_us / 1500.0,
        started.elapsed(),
        one.median_us
    );
}
