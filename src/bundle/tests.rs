//! Bundles from plan to file to result: every family's arrays, plans of the host run, hostile files.

mod approximate;
mod cpp;
mod documents;
mod hostile;
mod inverse;
mod pair;
mod refined;
mod updates;

use super::*;
use crate::domain::bundle::UpdateValues;
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::recipe::{Program, Recipe};
use crate::domain::{
    Candidate, Device, DeviceKind, Digest, Dtype, Layout, Output, Plan, Problem, Spmm, Sptrsv,
};
use crate::engine::cpu;
use crate::engine::cuda::launch_steps;
use crate::ops;
use crate::sparse::generate::Spec;
use crate::sparse::{Csr, Triangular, digest, oracle};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;

const GENERATED: [&str; 4] = [
    "poisson2d:nx=17,ny=11,seed=1",
    "rmat:scale=8,edge_factor=8,seed=2",
    "banded:n=300,half=9,seed=4",
    "pruned:rows=64,cols=900,sparsity=0.8,seed=5",
];

fn generated(spec: &str) -> Option<Arc<Csr>> {
    Some(Arc::new(Spec::parse(spec).ok()?.generate().ok()?))
}

fn matrices() -> Vec<Arc<Csr>> {
    let mut all: Vec<Arc<Csr>> = GENERATED.iter().map(|spec| generated(spec).unwrap()).collect();
    // One huge row, empty rows, and a last row with one entry.
    let (rows, cols) = (40usize, 1500usize);
    let mut indptr = vec![0usize; 8];
    indptr.extend(std::iter::repeat_n(cols, rows - 8));
    indptr.push(cols + 1);
    let indices = (0..cols as u32).chain([7]).collect();
    let values = (0..=cols).map(|i| 0.25 + (i as f64 * 0.37).cos()).collect();
    all.push(Arc::new(Csr::new(rows, cols, indptr, indices, values).unwrap()));
    all
}

fn device(kind: DeviceKind) -> Device {
    match kind {
        DeviceKind::Cuda => {
            let device = ops::tests::device(kind);
            Device { vendor: Some("cuSPARSE 12.6.3".to_owned()), ..device }
        }
        DeviceKind::Cpu => Device {
            name: cpu::host_name(),
            multiprocessors: cpu::plan_threads().unwrap() as u32,
            // Without MKL, whose place a kernel of this program takes.
            vendor: None,
            ..ops::tests::device(kind)
        },
    }
}

fn lowered(
    matrix: &Arc<Csr>,
    problem: &Problem,
    device: &Device,
    candidate: &Candidate,
) -> Option<Recipe> {
    let operand = ops::shared_operand(matrix, problem);
    ops::of(problem).lowerer(operand, device).ok()?.lower(candidate).ok()
}

/// A plan for a candidate, with blobs as a service would keep them.
fn plan(
    matrix: &Arc<Csr>,
    problem: &Problem,
    kind: DeviceKind,
    candidate: &Candidate,
) -> Option<(Plan, BTreeMap<Digest, Vec<u8>>)> {
    let device = device(kind);
    let recipe = lowered(matrix, problem, &device, candidate)?;
    let mut blobs = BTreeMap::new();
    let mut keep = |bytes: &[u8]| {
        blobs.insert(Digest::of(bytes), bytes.to_vec());
        Digest::of(bytes)
    };
    let launch = match &recipe.program {
        Program::Cuda(program) => {
            let steps = launch_steps(&recipe, program);
            let arrays: Vec<_> = recipe
                .arrays
                .iter()
                .map(|array| {
                    json!({"name": array.name, "element": array.data.element().name(),
                           "length": array.data.len(), "blob": keep(array.data.bytes())})
                })
                .collect();
            json!({"entry": "k", "source": keep(b"text"), "cubin": keep(b"cubin"),
                   "ptx": keep(b"ptx"), "compiler": "NVRTC 13.0", "grid": [1, 1, 1], "block": [1, 1, 1], "shared_bytes": 0,
                   "arguments": [], "steps": steps, "arrays": arrays, "scratch": recipe.scratch,
                   "update": {"entry": "gather_values", "quotients": "gather_quotients", "source": keep(b"gather"),
                              "cubin": keep(b"gather cubin"), "ptx": keep(b"gather ptx")}})
        }
        _ => json!({"entry": "cpu::kernel", "source": null, "cubin": null, "grid": [1, 1, 1],
                    "block": [1, 1, 1], "shared_bytes": 0, "arguments": []}),
    };
    let pattern = digest::pattern_digest(matrix);
    let kernel_digest = match &recipe.program {
        Program::Host(program) => Some(cpu::program_digest(program)),
        _ => None,
    };
    let plan = json!({
        "version": 1, "id": "01900000-0000-7000-8000-000000000000",
        "matrix": digest::digest(matrix, &pattern), "pattern_digest": pattern,
        "problem": problem, "l2_policy": "warm", "device": device, "candidate": candidate,
        "measured": {"median_us": 10.0, "ci95_us": [9.0, 11.0], "samples": 30, "rel_error": 1e-7},
        "tie": false, "runner_up": null, "baseline": null, "speedup": null,
        "limit": {"us": 1.0, "bound": "bytes", "fraction": 0.1, "bytes": 1000}, "predicted": null,
        "funnel": [], "trials": {"measured": 1, "failed": {}}, "preprocess_ms": 1.0,
        "break_even_calls": null,
        "validity": {"values_may_change": true, "pattern_may_change": false,
                     "dense_must_be_finite": false, "n_may_change": false, "update_values_ms": 2.5},
        "launch": launch, "resources": null,
        "provenance": {"job": null, "version": "0.1.0", "environment": "", "seed": 7,
                       "kernel_digest": kernel_digest, "stopped_by": "completed", "search_seconds": 1.0},
        "created_at": 0
    });
    Some((serde_json::from_value(plan).unwrap(), blobs))
}

fn bundle(
    matrix: &Arc<Csr>,
    plan: &(Plan, BTreeMap<Digest, Vec<u8>>),
    values: Values,
) -> Result<Vec<u8>, BuildError> {
    let blob =
        |digest: &Digest| plan.1.get(digest).cloned().ok_or(std::io::ErrorKind::NotFound.into());
    let parts = Parts { plan: &plan.0, matrix: matrix.clone(), blob: &blob };
    let mut file = Cursor::new(Vec::new());
    build(&parts, values, &mut file)?;
    Ok(file.into_inner())
}

fn spmm(n: u32, dtype: Dtype, layout: Layout) -> Problem {
    Problem::Spmm(Spmm::new(n, dtype, layout))
}

fn solve(rhs: u32, dtype: Dtype, triangle: Triangle, transpose: bool) -> Problem {
    let diagonal = if transpose { Diagonal::Unit } else { Diagonal::NonUnit };
    Problem::Sptrsv(Sptrsv { rhs, dtype, triangle, diagonal, transpose, ..Sptrsv::PLAIN })
}

/// The first candidates of each family and of each kernel of it.
fn candidates(matrix: &Arc<Csr>, problem: &Problem, kind: DeviceKind) -> Vec<Candidate> {
    let Ok(space) = ops::space(matrix, problem, &device(kind)) else { return Vec::new() };
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let all = space.scored.into_iter().map(|(candidate, _)| candidate).chain(space.vendor);
    all.filter(|candidate| {
        let kernel = ops::Kernels::of(problem, kind).find(candidate);
        let id = kernel.map(|kernel| kernel.descriptor().id.0.to_owned()).unwrap_or_default();
        let count = taken.entry(id).or_default();
        *count += 1;
        *count <= 3
    })
    .collect()
}

fn other_values(matrix: &Csr) -> Csr {
    let values = (0..matrix.nnz()).map(|i| 1.5 + (i as f64 * 1.7).sin()).collect();
    let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
    Csr::new(matrix.rows(), matrix.cols(), indptr, indices, values).unwrap()
}

fn run(loaded: &LoadedPlan, b: &[f32], c_len: usize) -> Vec<f32> {
    let mut c = vec![f32::NAN; c_len];
    loaded
        .run_on_host(bytemuck::cast_slice(b), bytemuck::cast_slice_mut(&mut c), 1.0, 0.0)
        .unwrap();
    c
}

#[test]
fn host_plans_run_from_their_file_alone_and_take_new_values() {
    for matrix in matrices() {
        let other = other_values(&matrix);
        for (n, layout) in [(1, Layout::Row), (3, Layout::Col), (33, Layout::Row)] {
            let problem = spmm(n, Dtype::F32, layout);
            let Problem::Spmm(product) = problem else { unreachable!() };
            for candidate in candidates(&matrix, &problem, DeviceKind::Cpu) {
                let plan = plan(&matrix, &problem, DeviceKind::Cpu, &candidate).unwrap();
                let b = crate::sparse::operand::random(matrix.cols() * n as usize, 9);
                let c_len = matrix.rows() * n as usize;
                for values in [Values::Included, Values::External] {
                    let file = bundle(&matrix, &plan, values).unwrap();
                    assert_eq!(file, bundle(&matrix, &plan, values).unwrap());
                    let read = Arc::new(Bundle::from_bytes(file).unwrap());
                    let mut loaded = LoadedPlan::load(read, &Place::Host).unwrap();
                    if values == Values::Included {
                        let report = loaded.check().unwrap();
                        assert!(report.passed() && report.samples >= 20, "{candidate} {report:?}");
                        close(&run(&loaded, &b, c_len), &oracle::spmm(&matrix, &b, &product));
                    } else {
                        let mut c = vec![0u8; c_len * 4];
                        let refused =
                            loaded.run_on_host(bytemuck::cast_slice(&b), &mut c, 1.0, 0.0);
                        assert_eq!(refused, Err(RunError::NoValues));
                    }
                    loaded.update_values(other.values()).unwrap();
                    close(&run(&loaded, &b, c_len), &oracle::spmm(&other, &b, &product));
                    assert!(loaded.check().is_err());
                }
            }
        }
    }
}

fn close(c: &[f32], reference: &oracle::Product) {
    let errors = c.iter().zip(&reference.value).zip(&reference.scale);
    for ((&c, value), scale) in errors {
        assert!((f64::from(c) - value).abs() <= 1e-5 * f64::from(*scale), "{c} {value}");
    }
}

/// A bundle whose arrays another version packed says so, and its values stay as they are.
#[test]
fn values_that_cannot_be_updated_are_not() {
    let matrix = generated(GENERATED[0]).unwrap();
    let problem = spmm(3, Dtype::F32, Layout::Row);
    let candidate = candidates(&matrix, &problem, DeviceKind::Cpu).remove(0);
    let plan = plan(&matrix, &problem, DeviceKind::Cpu, &candidate).unwrap();
    let read = Bundle::from_bytes(bundle(&matrix, &plan, Values::Included).unwrap()).unwrap();
    let mut members: BTreeMap<String, Vec<u8>> = (read.manifest().members.keys())
        .map(|path| (path.clone(), read.member(path).unwrap().to_vec()))
        .collect();
    let mut manifest = read.manifest().clone();
    manifest.update_values = UpdateValues::Impossible { reason: "of a test".to_owned() };
    members.insert("manifest.json".to_owned(), serde_json::to_vec(&manifest).unwrap());
    let borrowed = members.iter().map(|(path, bytes)| (path.clone(), bytes.as_slice().into()));
    let mut file = Cursor::new(Vec::new());
    container::write(&mut file, &borrowed.collect()).unwrap();
    let read = Arc::new(Bundle::from_bytes(file.into_inner()).unwrap());
    let mut loaded = LoadedPlan::load(read, &Place::Host).unwrap();
    let refused = loaded.update_values(matrix.values()).unwrap_err();
    assert!(refused.to_string().contains("of a test"), "{refused}");
    assert!(loaded.check().unwrap().passed());
}

#[test]
fn host_solves_run_from_their_file_and_take_new_values() {
    let matrix = generated(GENERATED[0]).unwrap();
    let other = Arc::new(other_values(&matrix));
    for problem in [
        solve(1, Dtype::F64, Triangle::Lower, false),
        solve(3, Dtype::F64, Triangle::Upper, false),
        solve(2, Dtype::F64, Triangle::Lower, true),
    ] {
        let Problem::Sptrsv(system) = problem else { unreachable!() };
        let rhs = system.rhs as usize;
        let b = crate::sparse::operand::random_double(matrix.rows() * rhs, 3);
        let solved = |loaded: &LoadedPlan| {
            let mut x = vec![f64::NAN; b.len()];
            let (b, x_bytes) = (bytemuck::cast_slice(&b), bytemuck::cast_slice_mut(&mut x));
            loaded.run_on_host(b, x_bytes, 1.0, 0.0).unwrap();
            x
        };
        let right = |matrix: &Csr, x: Vec<f64>| {
            let expected = oracle::sptrsv(&Triangular::of(matrix, &system).unwrap(), &b, rhs);
            for (x, expected) in x.iter().zip(expected) {
                assert!((x - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{x} {expected}");
            }
        };
        let listed = candidates(&matrix, &problem, DeviceKind::Cpu);
        assert!(listed.len() >= 2, "{listed:?}");
        for candidate in listed {
            let Some(plan) = plan(&matrix, &problem, DeviceKind::Cpu, &candidate) else { continue };
            for values in [Values::Included, Values::External] {
                let read =
                    Arc::new(Bundle::from_bytes(bundle(&matrix, &plan, values).unwrap()).unwrap());
                let mut loaded = LoadedPlan::load(read, &Place::Host).unwrap();
                if values == Values::Included {
                    assert!(loaded.check().unwrap().passed(), "{candidate}");
                    right(&matrix, solved(&loaded));
                }
                loaded.update_values(other.values()).unwrap();
                right(&other, solved(&loaded));
            }
        }
        let mut untuned = LoadedPlan::untuned(&matrix, &problem).unwrap();
        right(&matrix, solved(&untuned));
        untuned.update_values(other.values()).unwrap();
        right(&other, solved(&untuned));
    }
}

/// Such as the U of an incomplete factorisation of a lower triangle, or a system of one row.
#[test]
fn a_triangle_that_is_all_diagonal_takes_new_values() {
    let values = (1..=5).map(f64::from).collect();
    let matrix = Arc::new(Csr::new(5, 5, (0..=5).collect(), (0..5).collect(), values).unwrap());
    let problem = solve(1, Dtype::F64, Triangle::Lower, false);
    for candidate in candidates(&matrix, &problem, DeviceKind::Cpu) {
        let plan = plan(&matrix, &problem, DeviceKind::Cpu, &candidate).unwrap();
        let file = bundle(&matrix, &plan, Values::Included).unwrap();
        let read = Arc::new(Bundle::from_bytes(file).unwrap());
        let mut loaded = LoadedPlan::load(read, &Place::Host).unwrap();
        loaded.update_values(&[2.0, 4.0, 5.0, 8.0, 10.0]).unwrap();
        let (b, mut x) = ([40.0f64; 5], [0.0f64; 5]);
        let (b, out) = (bytemuck::cast_slice(&b), bytemuck::cast_slice_mut(&mut x));
        loaded.run_on_host(b, out, 1.0, 0.0).unwrap();
        assert_eq!(x, [20.0, 10.0, 8.0, 5.0, 4.0], "{candidate}");
    }
}
