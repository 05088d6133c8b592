//! SpMM on odd matrices and with odd parameters: every prediction is a valid time, every parameter value without a kernel is
//! refused, and inspecting a pattern stays cheap.

#[path = "fixture/gpu.rs"]
mod fixture;

use sparsetune::domain::{Candidate, Dtype, Layout, Param, Spmm};
use sparsetune::ops::TunableProblem;
use sparsetune::ops::spmm::family::{self, FAMILIES};
use sparsetune::ops::spmm::inspect::Inspection;
use sparsetune::sparse::Csr;
use std::collections::BTreeMap;
use std::time::Instant;

/// Rows of the given lengths; the columns of each are spread over all, from `row % 7` on.
fn of_lengths(lengths: impl Iterator<Item = usize>, cols: usize) -> Csr {
    let (mut indices, mut indptr) = (Vec::new(), vec![0]);
    for (row, length) in lengths.enumerate() {
        let step = (cols / length.max(1)).max(1);
        indices.extend((0..length).map(|i| (i * step + row % 7 % step) as u32));
        indptr.push(indices.len());
    }
    let values = vec![1.0; indices.len()];
    Csr::new(indptr.len() - 1, cols, indptr, indices, values).unwrap()
}

fn odd() -> Vec<(&'static str, Csr)> {
    let one_of = |rows: usize, at: usize, length: usize| {
        (0..rows).map(move |row| if row == at { length } else { 0 })
    };
    vec![
        ("nothing", of_lengths(std::iter::empty(), 0)),
        ("no entry", of_lengths([0; 9].into_iter(), 4)),
        ("one entry", of_lengths([1].into_iter(), 1)),
        ("one long row of many", of_lengths(one_of(400_000, 123_457, 5000), 5000)),
        ("few entries in many rows", of_lengths((0..300_000).map(|row| row / 299_998), 70_000)),
        ("one row", of_lengths([70_000].into_iter(), 70_000)),
        ("one column", of_lengths([1; 3000].into_iter(), 1)),
        ("few long rows", of_lengths([20_000; 5].into_iter(), 100_000)),
        ("dense", of_lengths([300; 300].into_iter(), 300)),
    ]
}

fn problems() -> Vec<Spmm> {
    let mut all = Vec::new();
    for layout in [Layout::Row, Layout::Col] {
        for (n, dtype) in [
            (1, Dtype::F32),
            (33, Dtype::F32),
            (64, Dtype::F16),
            (33, Dtype::Bf16),
            (8, Dtype::F64),
        ] {
            all.push(Spmm::new(n, dtype, layout));
        }
    }
    all
}

#[test]
fn every_prediction_is_a_time() {
    let device = fixture::gpu();
    for (name, matrix) in odd() {
        let seen = Inspection::of(&matrix);
        for problem in problems() {
            for family in FAMILIES {
                for candidate in family.candidates(&problem) {
                    let kernel = family.kernel(&candidate, &problem).unwrap();
                    let us = kernel.predict_us(&seen, &problem, &device);
                    assert!(us.is_finite() && us > 0.0, "{name} {problem:?} {candidate}: {us}");
                }
            }
        }
    }
}

/// The candidate with one parameter changed to a value outside its domain.
fn changed(candidate: &Candidate) -> Vec<Candidate> {
    let values = [0, -1, 3, 33, 1 << 31, u32::MAX.into(), 1 << 32, i64::MAX, i64::MIN];
    let texts = ["", "nothing"];
    let values = values.into_iter().map(Param::Int);
    let values: Vec<Param> = values.chain(texts.map(|text| Param::Text(text.to_owned()))).collect();
    let with = |name: &String, value: &Param| {
        let mut changed = candidate.clone();
        changed.params.insert(name.clone(), value.clone());
        changed
    };
    candidate.params.keys().flat_map(|name| values.iter().map(|value| with(name, value))).collect()
}

#[test]
fn unlisted_parameter_values_are_refused() {
    for problem in problems() {
        for family in FAMILIES {
            let domains = family.domains();
            let optional = |name: &str| domains.iter().all(|domain| domain.name != name);
            // One of each form: with the parameters that only some have, and without.
            let forms: BTreeMap<Vec<String>, Candidate> = family
                .candidates(&problem)
                .into_iter()
                .map(|it| (it.params.keys().cloned().collect(), it))
                .collect();
            for candidate in forms.into_values() {
                let odd = changed(&candidate).into_iter().filter(|it| {
                    let mut own = it.params.iter().filter(|(name, _)| optional(name));
                    !family::among(it, domains)
                        || own.any(|(name, value)| candidate.params.get(name) != Some(value))
                });
                for other in odd {
                    let taken = family::kernel(&other, &problem).is_some();
                    assert!(!taken, "{problem:?} {other} is taken for a kernel");
                }
                for missing in candidate.params.keys().filter(|name| !optional(name)) {
                    let mut other = candidate.clone();
                    other.params.remove(missing);
                    assert!(family.kernel(&other, &problem).is_none(), "{other}");
                }
            }
        }
    }
}

#[test]
fn no_grid_is_higher_than_a_device_takes() {
    let matrix = std::sync::Arc::new(of_lengths([3; 40].into_iter(), 50));
    for layout in [Layout::Row, Layout::Col] {
        let problem = Spmm::new(1 << 18, Dtype::F32, layout);
        let mut lowerer = problem.lowerer(matrix.clone(), &fixture::gpu()).unwrap();
        for family in FAMILIES {
            for candidate in family.candidates(&problem) {
                let Ok(recipe) = lowerer.lower(&candidate) else { continue };
                let sparsetune::domain::recipe::Program::Cuda(program) = &recipe.program else {
                    continue;
                };
                let legal = program.steps.iter().all(|step| step.grid[1] <= 65_535);
                assert!(legal, "{candidate} {layout}");
            }
        }
    }
}

/// For measuring by hand: `cargo test --test spmm_odd -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn time_of_an_inspection() {
    let circuit =
        (0..1_000_000).map(|row| 4 + (row * 7919) % 5 + (row % 250_000 == 9) as usize * 100_000);
    for (name, matrix) in [
        ("64 x 1e6", of_lengths([100_000; 64].into_iter(), 1_000_000)),
        ("8192 x 8192", of_lengths([819; 8192].into_iter(), 8192)),
        ("circuit", of_lengths(circuit, 1_000_000)),
    ] {
        let started = Instant::now();
        let seen = Inspection::of(&matrix);
        println!("{name}: {} entries, {:.2?}", seen.nnz, started.elapsed());
    }
}
