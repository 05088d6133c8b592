//! Every CUDA kernel family against the float64 oracle on a real device: odd shapes, empty rows, rows of every length that
//! decides how they are cut, any n.
//!
//! Skips with a message if there is no device. `SPARSETUNE_KERNELS_EVERY=k` tries every k-th candidate (default 7),
//! `SPARSETUNE_KERNELS_ONLY=text` only candidates whose text contains it (`row_split`, `m1=8`), `SPARSETUNE_KERNELS_N=33` only products
//! of that many columns: under a sanitizer little is much.

#[path = "fixture/engine.rs"]
mod engine;
#[path = "fixture/product.rs"]
mod product;

use product::operands;
use sparsetune::domain::candidate::EQUAL;
use sparsetune::domain::recipe::{Program, Recipe};
use sparsetune::domain::{Candidate, DeviceKind, Dtype, Layout, Output, Problem, Spmm};
use sparsetune::engine::cuda::CudaEngine;
use sparsetune::engine::{Engine, Expected};
use sparsetune::ops::TunableProblem;
use sparsetune::ops::spmm::constraints::is_legal;
use sparsetune::ops::spmm::walk::{is_near, with_equal, with_near};
use sparsetune::ops::spmm::{family, space};
use sparsetune::sparse::Csr;
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::operand::random;
use sparsetune::sparse::tolerance::tolerance;
use std::sync::Arc;

/// Rows of lengths 0, 1, 2, ... and one that is full, over a shape that divides by nothing.
fn ragged() -> Csr {
    let (rows, cols) = (67usize, 301usize);
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        let length = match row {
            13 => cols,
            _ if row % 5 == 0 => 0,
            _ => row % 41,
        };
        for i in 0..length {
            indices.push((i * cols / length) as u32);
            values.push((row as f64 - i as f64) / 7.0);
        }
        indptr.push(indices.len());
    }
    Csr::new(rows, cols, indptr, indices, values).expect("canonical")
}

/// Rows of these lengths; columns are spread and values small, as they alternate.
fn of_lengths(lengths: &[usize], cols: usize) -> Csr {
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for (row, &length) in lengths.iter().enumerate() {
        indices.extend((0..length).map(|i| (i * cols / length) as u32));
        values.extend((0..length).map(|i| ((row + i) % 7) as f64 / 8.0 - 0.375));
        indptr.push(indices.len());
    }
    Csr::new(lengths.len(), cols, indptr, indices, values).expect("canonical")
}

/// Rows at and beyond every threshold of the families that cut them, one of which has more than 64 segments of 256 entries.
fn long_rows() -> Csr {
    of_lengths(&[0, 32, 33, 3, 64, 65, 128, 129, 0, 256, 257, 1024, 1025, 5, 20_000], 20_011)
}

fn matrices() -> Vec<(&'static str, Csr)> {
    let generated = |spec: &str| Spec::parse(spec).expect(spec).generate().expect(spec);
    let one = Csr::new(1, 1, vec![0, 1], vec![0], vec![2.5]).expect("canonical");
    vec![
        ("one entry", one),
        ("ragged", ragged()),
        ("long rows", long_rows()),
        ("every row is long", of_lengths(&[200; 37], 499)),
        ("poisson2d", generated("poisson2d:nx=23,ny=19")),
        ("rmat", generated("rmat:scale=9,edge_factor=8,seed=3")),
        // Kernels for equal values, on such values, and where their word says that values are not.
        ("equal, ragged", equal(&ragged())),
        ("equal, long rows", equal(&long_rows())),
        ("equal, not so", long_rows()),
        // Kernels for columns of 16 bits, as far from their rows as these allow.
        ("near, ragged", ragged()),
        ("near, long rows", long_rows()),
        ("near, far", far()),
    ]
}

/// Columns at both ends of what 16 bits hold beside their rows.
fn far() -> Csr {
    let (rows, reach) = (40_000usize, 1usize << 15);
    let columns = |row: usize| {
        let ends = [row.checked_sub(reach), Some(row), Some(row + reach - 1)];
        ends.into_iter().flatten().filter(move |&col| col < rows)
    };
    let (mut indptr, mut indices) = (vec![0], Vec::new());
    for row in 0..rows {
        indices.extend(columns(row).map(|col| col as u32));
        indptr.push(indices.len());
    }
    let values = (0..indices.len()).map(|i| (i % 13) as f64 - 6.0).collect();
    Csr::new(rows, rows, indptr, indices, values).expect("a matrix")
}

/// The pattern with one value everywhere.
fn equal(matrix: &Csr) -> Csr {
    let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
    let values = vec![-1.25; matrix.nnz()];
    Csr::new(matrix.rows(), matrix.cols(), indptr, indices, values).expect("canonical")
}

/// f32 for every matrix, width and layout, f16 or bf16 with C in f32, which adds to C every other time, and two of the others in
/// rotation, so that there are not eight times as many. `SPARSETUNE_KERNELS_OUTPUT=f32` leaves only those with C in f32.
fn problems(n: u32, layout: Layout, turn: usize) -> Vec<Spmm> {
    let plain = |dtype| Spmm::new(n, dtype, layout);
    let adding = |dtype| Spmm { accumulate: true, ..plain(dtype) };
    let others = [
        plain(Dtype::F16),
        plain(Dtype::F64),
        plain(Dtype::Bf16),
        adding(Dtype::F32),
        adding(Dtype::F16),
        adding(Dtype::F64),
        adding(Dtype::Bf16),
        Spmm { tf32: true, ..plain(Dtype::F32) },
    ];
    let [first, second] = [turn, turn + 3].map(|at| others[at % others.len()]);
    let half = if (turn / 2).is_multiple_of(2) { Dtype::F16 } else { Dtype::Bf16 };
    let wide = Spmm { output: Output::F32, accumulate: turn % 2 == 1, ..plain(half) };
    match std::env::var("SPARSETUNE_KERNELS_OUTPUT").is_ok_and(|named| named == "f32") {
        true => vec![wide, Spmm { accumulate: !wide.accumulate, ..wide }],
        false => vec![plain(Dtype::F32), first, second, wide],
    }
}

/// The number of candidates tried, and those with wrong results.
#[derive(Default)]
struct Tried {
    every: usize,
    only: Option<String>,
    problems: usize,
    kernels: usize,
    wrong: Vec<String>,
}

impl Tried {
    fn problem(&mut self, engine: &mut CudaEngine, name: &str, matrix: &Arc<Csr>, spmm: &Spmm) {
        let problem = Problem::Spmm(*spmm);
        engine.load(operands(matrix, spmm, 7)).expect("loads");
        let device = engine.device().clone();
        let mut lowerer = spmm.lowerer(matrix.clone(), &device).expect("spmm");
        let legal = |c: &Candidate| {
            family::kernel(c, spmm).is_some_and(|kernel| {
                let tile = kernel.tile();
                is_legal(&tile, spmm)
                    && u64::from(tile.shared_bytes) <= device.shared_bytes_per_block
            })
        };
        let wanted = |c: &Candidate| match &self.only {
            Some(only) => c.to_string().contains(only.as_str()),
            None => true,
        };
        let mut candidates = space::enumerate(spmm, DeviceKind::Cuda);
        if name.starts_with("equal") {
            with_equal(&mut candidates);
            candidates.retain(|candidate| candidate.params.contains_key(EQUAL));
        }
        if name.starts_with("near") {
            with_near(&mut candidates, matrix, spmm, true);
            candidates.retain(is_near);
        }
        let candidates = candidates.into_iter().filter(legal).filter(wanted);
        let vendor = space::vendor(matrix, spmm, &device).into_iter().filter(wanted);
        // A different residue each time, so that all candidates are tried over the problems.
        let chosen = candidates.skip(self.problems % self.every).step_by(self.every);
        let recipes: Vec<Recipe> =
            chosen.chain(vendor).filter_map(|c| lowerer.lower(&c).ok()).collect();
        self.problems += 1;
        engine.prepare(&recipes);
        for recipe in recipes {
            let label = format!("{name}, {problem}: {}", recipe.candidate);
            self.one(engine, &recipe, spmm, label);
        }
    }

    fn one(&mut self, engine: &mut CudaEngine, recipe: &Recipe, spmm: &Spmm, label: String) {
        let vendor = matches!(recipe.program, Program::Vendor { .. });
        if let Err(error) = engine.compile(recipe) {
            // A vendor routine may decline; a kernel of ours may not.
            if !vendor {
                self.wrong.push(format!("{label}: {error}"));
            }
            return;
        }
        self.kernels += 1;
        let fault = match engine.verify(recipe, None) {
            Ok(check) if check.unwritten == 0 && check.rel_error <= tolerance(spmm) => return,
            Ok(check) => format!("{label}: {check:?}, allowed {:.2e}", tolerance(spmm)),
            Err(error) => format!("{label}: {error}"),
        };
        // The vendor does not document how it rounds in these two cases.
        if vendor && (spmm.dtype.is_half() || spmm.tf32) {
            println!("the vendor's: {fault}");
        } else {
            self.wrong.push(fault);
        }
    }
}

#[test]
fn every_family_agrees_with_the_oracle() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let Some(mut engine) = engine::engine(cache.path()) else { return };
    let setting = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let every = setting("SPARSETUNE_KERNELS_EVERY").and_then(|k| k.parse().ok()).unwrap_or(7);
    let only = setting("SPARSETUNE_KERNELS_ONLY");
    let columns: Option<u32> = setting("SPARSETUNE_KERNELS_N").and_then(|n| n.parse().ok());
    let mut tried = Tried { every: every.max(1), only, ..Tried::default() };
    let mut turn = 0;
    for (name, matrix) in matrices() {
        let matrix = Arc::new(matrix);
        for n in [1, 2, 3, 8, 31, 32, 33, 64, 96, 100, 130, 256] {
            if columns.is_some_and(|asked| asked != n) {
                continue;
            }
            for layout in [Layout::Row, Layout::Col] {
                for spmm in problems(n, layout, turn) {
                    tried.problem(&mut engine, name, &matrix, &spmm);
                }
            }
            turn += 1;
        }
    }
    let Tried { problems, kernels, wrong, only, .. } = tried;
    let enough = if only.is_some() || columns.is_some() { 1 } else { 100 };
    assert!(kernels >= enough, "only {kernels} kernels were tried");
    println!("{kernels} kernels of {problems} problems verified, {} wrong", wrong.len());
    assert!(
        wrong.is_empty(),
        "{} of {kernels} wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}

/// Blocks of column-major kernels that sum several groups of columns in turn, which takes more rows than the other matrices have.
#[test]
fn columns_in_turn_agree_with_the_oracle() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let Some(mut engine) = engine::engine(cache.path()) else { return };
    let mut lengths: Vec<usize> = (0..36_001).map(|row| row * 7 % 9).collect();
    lengths[500] = 2000;
    let matrix = Arc::new(of_lengths(&lengths, 36_001));
    let mut tried = 0;
    for (n, dtype, accumulate) in [
        (130, Dtype::F32, false),
        (129, Dtype::F32, true),
        (160, Dtype::F16, false),
        (130, Dtype::F64, false),
    ] {
        let spmm = Spmm { accumulate, ..Spmm::new(n, dtype, Layout::Col) };
        engine.load(operands(&matrix, &spmm, 7)).expect("loads");
        let device = engine.device().clone();
        let mut lowerer = spmm.lowerer(matrix.clone(), &device).expect("spmm");
        let in_turn = |c: &Candidate| c.int("lanes") == Some(1) && c.int("r") >= Some(8);
        let candidates = space::enumerate(&spmm, DeviceKind::Cuda).into_iter().filter(in_turn);
        let recipes: Vec<Recipe> = candidates.filter_map(|c| lowerer.lower(&c).ok()).collect();
        engine.prepare(&recipes);
        for recipe in recipes {
            let Program::Cuda(program) = &recipe.program else { continue };
            let r = recipe.candidate.int("r").unwrap_or(1) as u32;
            // Registers of the widest types do not fit the largest blocks.
            if program.steps[0].grid[1] == n.div_ceil(r) || engine.compile(&recipe).is_err() {
                continue;
            }
            let check = engine.verify(&recipe, None).expect("a check");
            let right = check.unwritten == 0 && check.rel_error <= tolerance(&spmm);
            assert!(right, "{n} {dtype:?} {}: {check:?}", recipe.candidate);
            tried += 1;
        }
    }
    assert!(tried > 30, "{tried}");
}

/// Tensor cores cut off what they do not keep of a sum, always towards 0. Of terms of one sign that adds up, unless kernels sum in
/// short pieces: a twentieth of what long rows are allowed is far more than rounding takes.
#[test]
fn long_sums_of_positive_terms_do_not_drift() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let Some(mut engine) = engine::engine(cache.path()) else { return };
    let spec = "uniform:rows=150,cols=20000,nnz=600000,seed=1";
    let matrix = Spec::parse(spec).expect(spec).generate().expect(spec);
    let values = matrix.values().iter().map(|value| value.abs()).collect();
    let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
    let matrix = Csr::new(150, 20_000, indptr, indices, values).expect("canonical");
    let matrix = Arc::new(matrix);
    let spmm = Spmm::new(64, Dtype::F32, Layout::Row);
    let mut operands = operands(&matrix, &spmm, 7);
    let b: Vec<f32> = random(matrix.cols() * 64, 7).into_iter().map(f32::abs).collect();
    operands.expected =
        Expected::Product(Arc::new(product::product(&matrix, &b, &[0f32; 0], &spmm)));
    operands.b = b.into();
    engine.load(operands).expect("loads");
    let device = engine.device().clone();
    let mut lowerer = spmm.lowerer(matrix.clone(), &device).expect("spmm");
    let mut seen = std::collections::BTreeSet::new();
    for candidate in space::enumerate(&spmm, DeviceKind::Cuda) {
        let tensor = ["tca", "condensed_tc", "expanded_tc"].contains(&candidate.family.as_str());
        let Some(recipe) = tensor.then(|| lowerer.lower(&candidate).ok()).flatten() else {
            continue;
        };
        if engine.compile(&recipe).is_err() {
            continue;
        }
        let check = engine.verify(&recipe, None).expect("a check");
        assert!(check.rel_error <= tolerance(&spmm) / 20.0, "{candidate}: {check:?}");
        println!("{candidate}: {:.2e}", check.rel_error);
        seen.insert(candidate.family);
    }
    assert!(seen.contains("condensed_tc"), "{seen:?}");
    assert_eq!(seen.contains("expanded_tc"), device.compute_capability == "9.0");
}
