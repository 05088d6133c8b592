//! Family `tca` from outside: the candidates of a problem, their recipes, and that all of their texts compile.

#[path = "fixture/gpu.rs"]
mod fixture;

use sparsetune::domain::recipe::{Arg, Program};
use sparsetune::domain::{Candidate, Device, Dtype, Layout, Output, Spmm};
use sparsetune::engine::cuda::compile::options;
use sparsetune::engine::cuda::nvrtc::Nvrtc;
use sparsetune::engine::cuda::source::unit;
use sparsetune::engine::libraries::Search;
use sparsetune::ops::TunableProblem;
use sparsetune::ops::spmm::constraints::is_legal;
use sparsetune::ops::spmm::family::{SpmmFamily, SpmmKernel};
use sparsetune::ops::spmm::inspect::Inspection;
use sparsetune::ops::spmm::tca::TensorDots;
use sparsetune::sparse::Csr;
use sparsetune::sparse::generate::Spec;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

fn problem(n: u32) -> Spmm {
    Spmm::new(n, Dtype::F16, Layout::Row)
}

fn legal(problem: &Spmm) -> Vec<(Candidate, Box<dyn SpmmKernel>)> {
    TensorDots
        .candidates(problem)
        .into_iter()
        .filter_map(|candidate| {
            let kernel = TensorDots.kernel(&candidate, problem)?;
            is_legal(&kernel.tile(), problem).then_some((candidate, kernel))
        })
        .collect()
}

fn matrix(spec: &str) -> Csr {
    Spec::parse(spec).expect(spec).generate().expect(spec)
}

#[test]
fn candidates_are_for_row_major_types_of_16_bits_and_several_columns() {
    assert_eq!(legal(&Spmm { dtype: Dtype::Bf16, ..problem(128) }).len(), 21);
    assert_eq!(legal(&problem(128)).len(), 21);
    // Rows of B that are not aligned for vectors leave the widest shape out.
    assert_eq!(legal(&problem(31)).len(), 15);
    for none in [
        problem(1),
        Spmm::new(128, Dtype::F16, Layout::Col),
        Spmm::new(128, Dtype::Bf16, Layout::Col),
        Spmm::new(128, Dtype::F32, Layout::Row),
        Spmm::new(128, Dtype::F64, Layout::Row),
    ] {
        assert_eq!(legal(&none).len(), 0, "{none:?}");
    }
}

#[test]
fn predictions_rise_with_the_work() {
    let device = fixture::gpu();
    let small = Inspection::of(&matrix("poisson2d:nx=50,ny=50"));
    let large = Inspection::of(&matrix("poisson2d:nx=400,ny=400"));
    let long = Inspection::of(&matrix("rmat:scale=12,edge_factor=64,seed=3"));
    for (candidate, kernel) in legal(&problem(128)) {
        let us = |seen| kernel.predict_us(seen, &problem(128), &device);
        assert!(us(&small) > 0.0 && us(&small) < us(&large), "{candidate}");
        assert!(us(&large).is_finite() && us(&long).is_finite(), "{candidate}");
    }
}

#[test]
fn a_recipe_has_a_warp_for_every_share_and_no_more_blocks_than_it_needs() {
    let matrix = Arc::new(matrix("poisson2d:nx=20,ny=20"));
    let scaled = Spmm { accumulate: true, ..problem(64) };
    let device = fixture::gpu();
    let mut lowerer = scaled.lowerer(matrix.clone(), &device).expect("a problem of SpMM");
    for (candidate, _) in legal(&scaled) {
        let recipe = lowerer.lower(&candidate).expect("lowers");
        let Program::Cuda(program) = &recipe.program else { panic!("{candidate} runs on a GPU") };
        let step = &program.steps[0];
        // 3 to 5 nonzeros per row: one warp each, and 400 warps fill their blocks.
        let warps = candidate.int("warps").expect("a parameter") as u32;
        assert_eq!((step.grid, step.block), ([400 / warps, 1, 1], [32 * warps, 1, 1]));
        assert!(step.args.ends_with(&[Arg::Alpha, Arg::Beta]), "{candidate}");
        assert_eq!(recipe.update_ms, None, "the kernel reads A's own values");
    }
}

#[test]
fn an_older_device_is_refused_with_the_reason() {
    let device = Device { compute_capability: "7.5".to_owned(), ..fixture::gpu() };
    let matrix = Arc::new(matrix("poisson2d:nx=4,ny=4"));
    let spmm = problem(64);
    let mut lowerer = spmm.lowerer(matrix, &device).expect("a problem of SpMM");
    let refusal = lowerer.lower(&legal(&spmm)[0].0).expect_err("refused");
    assert!(refusal.to_string().contains("8.0"), "{refusal}");
}

#[test]
fn every_text_compiles_without_spills_in_about_the_registers_it_was_counted_for() {
    let named = std::env::var_os("SPARSETUNE_NVRTC").map(PathBuf::from);
    let nvrtc = match Nvrtc::open(&Search::new(&named.into_iter().collect::<Vec<_>>())) {
        Ok(nvrtc) => nvrtc,
        Err(error) => {
            let required = ["CI", "SPARSETUNE_REQUIRE_NVRTC"];
            let required = required.into_iter().any(|name| std::env::var_os(name).is_some());
            assert!(!required, "{error}");
            println!("SKIPPED: {error}; `pip install nvidia-cuda-nvrtc` and set SPARSETUNE_NVRTC");
            return;
        }
    };
    let mut texts = BTreeMap::new();
    for n in [31, 64, 128] {
        for (accumulate, output) in
            [false, true].into_iter().flat_map(|adds| [(adds, Output::Same), (adds, Output::F32)])
        {
            for dtype in [Dtype::F16, Dtype::Bf16] {
                let problem = Spmm { accumulate, output, dtype, ..problem(n) };
                for (candidate, kernel) in legal(&problem) {
                    let counted = kernel.tile().registers;
                    texts.entry(kernel.source()).or_insert((candidate, counted));
                }
            }
        }
    }
    assert_eq!(texts.len(), 56);
    for (text, (candidate, counted)) in &texts {
        for architecture in ["sm_80", "sm_90"] {
            let unit = unit(text).expect("its headers are there");
            let binary = nvrtc.compile(&unit, &options(architecture, None)).expect("compiles");
            let registers = binary.registers;
            println!("{architecture}: {registers} registers, {counted} counted: {candidate}");
            assert_eq!(binary.spill_bytes, 0, "{candidate}");
            assert!(registers.abs_diff(*counted) <= 12, "{candidate}: {registers} of {counted}");
        }
    }
}
