//! A C program runs plans from their bundles: compiled with `cc` against the library that cargo built.

use serde_json::{Value, json};
use sparsetune_core::bundle::{Bundle, Pair, Parts, Values, build};
use sparsetune_core::domain::{Candidate, Digest, Plan};
use sparsetune_core::engine::cpu;
use sparsetune_core::sparse::{Csr, digest};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const ROWS: usize = 200;

/// 4 on the diagonal, -1 beside it.
fn matrix() -> Arc<Csr> {
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..ROWS {
        for col in row.saturating_sub(1)..(row + 2).min(ROWS) {
            indices.push(col as u32);
            values.push(if col == row { 4.0 } else { -1.0 });
        }
        indptr.push(indices.len());
    }
    Arc::new(Csr::new(ROWS, ROWS, indptr, indices, values).unwrap())
}

fn plan(
    matrix: &Csr,
    kind: &str,
    problem: &Value,
    candidate: &Candidate,
    kernels: &Digest,
) -> Plan {
    let pattern = digest::pattern_digest(matrix);
    let device = json!({
        "id": kind, "kind": kind, "name": cpu::host_name(), "compute_capability": "scalar",
        "multiprocessors": 2, "warp_size": 4, "max_threads_per_block": 1,
        "max_threads_per_multiprocessor": 1, "max_blocks_per_multiprocessor": 1,
        "registers_per_thread": 16, "registers_per_block": 16, "registers_per_multiprocessor": 16,
        "shared_bytes_per_block": 1, "shared_bytes_per_multiprocessor": 1, "l2_bytes": 1,
        "memory_bytes": 1, "copy_gbps": 1.0, "driver": "", "compiler": "", "vendor": "sprs 0.11"
    });
    let plan = json!({
        "version": 1, "id": "01900000-0000-7000-8000-000000000000",
        "matrix": digest::digest(matrix, &pattern), "pattern_digest": pattern, "problem": problem,
        "l2_policy": "warm", "device": device, "candidate": candidate,
        "measured": {"median_us": 10.0, "ci95_us": [9.0, 11.0], "samples": 30, "rel_error": 1e-7},
        "tie": false, "runner_up": null, "baseline": null, "speedup": null,
        "limit": {"us": 1.0, "bound": "bytes", "fraction": 0.1, "bytes": 1000}, "predicted": null,
        "funnel": [], "trials": {"measured": 1, "failed": {}}, "preprocess_ms": 1.0,
        "break_even_calls": null,
        "validity": {"values_may_change": true, "pattern_may_change": false,
                     "dense_must_be_finite": false, "n_may_change": false, "update_values_ms": 0.0},
        "launch": {"entry": "cpu::kernel", "source": null, "cubin": null, "grid": [1, 1, 1],
                   "block": [1, 1, 1], "shared_bytes": 0, "arguments": []},
        "resources": null,
        "provenance": {"job": null, "version": "0.1.0", "environment": "", "seed": 7,
                       "kernel_digest": kernels, "stopped_by": "completed", "search_seconds": 1.0},
        "created_at": 0
    });
    serde_json::from_value(plan).unwrap()
}

fn write(folder: &Path, name: &str, plan: &Plan, matrix: &Arc<Csr>) -> PathBuf {
    let path = folder.join(name);
    let blob = |_: &Digest| Err(ErrorKind::NotFound.into());
    let parts = Parts { plan, matrix: matrix.clone(), blob: &blob };
    build(&parts, Values::Included, File::create(&path).unwrap()).unwrap();
    path
}

/// The folder of the library: cargo builds it beside its tests.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let name =
        format!("{}sparsetune_c{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    assert!(folder.join(&name).exists(), "{name} is not in {}", folder.display());
    folder.to_owned()
}

#[test]
fn a_c_program_runs_plans() {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: there is no C compiler `cc` on the path");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let matrix = matrix();
    let problem =
        json!({"op": "spmm", "n": 3, "dtype": "f64", "layout": "row", "accumulate": true});
    let split = Candidate::new("row_split").with("n1", 8).with("rows_per_task", 16);
    let product = plan(&matrix, "cpu", &problem, &split, &cpu::kernel_digest());
    let product_path = write(folder.path(), "product.stplan", &product, &matrix);
    let problem = json!({"op": "sptrsv", "rhs": 3, "dtype": "f64", "triangle": "lower", "diagonal": "non-unit"});
    let serial = Candidate::new("serial");
    let solve = plan(&matrix, "cpu", &problem, &serial, &cpu::solve_digest());
    let solve = write(folder.path(), "solve.stplan", &solve, &matrix);
    let mut bytes = std::fs::read(&product_path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = folder.path().join("damaged.stplan");
    std::fs::write(&damaged, bytes).unwrap();
    let routine = Candidate::new("vendor").with_text("algorithm", "csr_alg2");
    let problem = json!({"op": "spmm", "n": 3, "dtype": "f64", "layout": "row"});
    let gpu = plan(&matrix, "cuda", &problem, &routine, &cpu::kernel_digest());
    let gpu = write(folder.path(), "gpu.stplan", &gpu, &matrix);

    let both = folder.path().join("both.stplan");
    let parts = [("lower", "unit"), ("upper", "non-unit")].map(|(triangle, diagonal)| {
        let problem = json!({"op": "sptrsv", "rhs": 3, "dtype": "f64", "triangle": triangle, "diagonal": diagonal});
        let part = plan(&matrix, "cpu", &problem, &serial, &cpu::solve_digest());
        let part = write(folder.path(), &format!("{triangle}.stplan"), &part, &matrix);
        Arc::new(Bundle::open(&part).unwrap())
    });
    let [lower, upper] = parts;
    Pair::of(lower, upper).unwrap().write(File::create(&both).unwrap()).unwrap();

    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.path().join("program");
    let libraries = libraries();
    let compiled = Command::new("cc")
        .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1"])
        .arg(here.join("tests/program.c"))
        .arg("-I")
        .arg(here.join("include"))
        .arg("-L")
        .arg(&libraries)
        .args(["-lsparsetune_c", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let loader = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
    let ran = Command::new(&program)
        .args([product_path, solve, damaged, gpu, both])
        .env(loader, &libraries)
        .output()
        .unwrap();
    let (said, error) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.is_empty(), "{}: {said}{error}", ran.status);
}
