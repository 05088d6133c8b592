//! Exports for C++: what is written, that it compiles without a warning, and what the program says where it cannot run.

use super::super::cpp;
use super::*;
use std::path::Path;
use std::process::{Command, Output};

const FLAGS: [&str; 6] = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

fn exported(problem: &Problem, kind: DeviceKind, family: &str, folder: &Path) -> Bundle {
    let matrix = generated(GENERATED[0]).unwrap();
    let all = candidates(&matrix, problem, kind);
    let candidate = all.iter().find(|candidate| candidate.family == family);
    let plan = plan(&matrix, problem, kind, candidate.unwrap()).unwrap();
    let bundle = Bundle::from_bytes(bundle(&matrix, &plan, Values::Included).unwrap()).unwrap();
    let files = cpp::export(&bundle, "a-plan", folder).unwrap();
    assert!(files.iter().all(|file| file.is_file() && file.starts_with(folder)));
    bundle
}

/// The compiler's answer; `None` where there is no compiler.
fn compiled(folder: &Path, extra: &[&str]) -> Option<Output> {
    let mut compiler = Command::new("c++");
    compiler.current_dir(folder).args(FLAGS).args(extra).arg("main.cpp");
    match compiler.output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("SKIPPED: no C++ compiler: {error}");
            None
        }
    }
}

fn said(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

#[test]
fn every_kind_of_plan_compiles_without_a_warning() {
    let product = spmm(33, Dtype::F32, Layout::Row);
    let near = Problem::Sptrsv(Sptrsv { approximate: true, ..Sptrsv::PLAIN });
    let cases = [
        (product, DeviceKind::Cuda, "row_split"),
        (spmm(16, Dtype::F16, Layout::Row), DeviceKind::Cuda, "vendor"),
        (spmm(16, Dtype::Bf16, Layout::Row), DeviceKind::Cuda, "row_split"),
        (solve(1, Dtype::F64, Triangle::Lower, false), DeviceKind::Cuda, "slices"),
        (solve(1, Dtype::F32, Triangle::Upper, true), DeviceKind::Cuda, "vendor"),
        (near, DeviceKind::Cuda, "sweeps"),
        (product, DeviceKind::Cpu, "row_split"),
    ];
    for (problem, kind, family) in cases {
        let folder = tempfile::tempdir().unwrap();
        exported(&problem, kind, family, folder.path());
        let Some(output) = compiled(folder.path(), &["-fsyntax-only"]) else { return };
        assert!(output.status.success(), "{problem} {family}: {}", said(&output));
    }
}

#[test]
fn a_program_that_cannot_run_here_says_why_and_ends_with_2() {
    let product = spmm(3, Dtype::F32, Layout::Row);
    for (kind, family, word) in [
        (DeviceKind::Cuda, "row_split", "needs an NVIDIA GPU"),
        (DeviceKind::Cpu, "row_split", "libsparsetune_c.so"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let bundle = exported(&product, kind, family, folder.path());
        let Some(output) = compiled(folder.path(), &["-o", "check", "-ldl"]) else { return };
        assert!(output.status.success(), "{}", said(&output));
        let run = |file: &str| {
            let mut program = Command::new("./check");
            program.current_dir(folder.path()).arg(file).env_remove("LD_LIBRARY_PATH");
            program.output().unwrap()
        };
        let output = run("a-plan.stplan");
        assert!(said(&output).contains(&bundle.manifest().plan.to_string()));
        // Where there is a device, the driver does not take a test's machine code.
        if said(&output).contains(word) {
            assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        } else {
            assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        }
        // A file that is not the one described is refused before anything of it is used.
        let mut damaged = bundle.bytes().to_vec();
        let at = bundle.tensor("values").unwrap().start;
        damaged[at] ^= 1;
        std::fs::write(folder.path().join("damaged"), &damaged).unwrap();
        std::fs::write(folder.path().join("short"), &damaged[..at]).unwrap();
        for file in ["damaged", "short", "absent"] {
            let output = run(file);
            assert_eq!(output.status.code(), Some(1), "{file}: {}", said(&output));
        }
        assert!(said(&run("damaged")).contains("arrays.safetensors has another hash"));
    }
}

#[test]
fn a_pair_compiles_and_says_why_it_cannot_run_here() {
    let solve = Sptrsv { triangle: Triangle::Both, diagonal: Diagonal::Unit, ..Sptrsv::PLAIN };
    let parts = Problem::Sptrsv(solve).parts().unwrap();
    for (kind, families) in
        [(DeviceKind::Cuda, ["slices", "vendor"]), (DeviceKind::Cpu, ["serial", "levels"])]
    {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = [0, 1].map(|part| {
            let folder = tempfile::tempdir().unwrap();
            Arc::new(exported(&parts[part], kind, families[part], folder.path()))
        });
        let pair = Pair::of(first, second).unwrap();
        let files = cpp::export_pair(&pair, "both", folder.path()).unwrap();
        assert!(files.iter().all(|file| file.is_file()));
        let Some(output) = compiled(folder.path(), &["-o", "check", "-ldl"]) else { return };
        assert!(output.status.success(), "{kind:?}: {}", said(&output));
        let mut program = Command::new("./check");
        let output = program.current_dir(folder.path()).env_remove("LD_LIBRARY_PATH").output();
        let output = output.unwrap();
        let lacks =
            if kind == DeviceKind::Cuda { "needs an NVIDIA GPU" } else { "libsparsetune_c.so" };
        if said(&output).contains(lacks) {
            assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        } else {
            // There is a device, whose driver does not take a test's machine code; on a CPU the pair has run.
            let right = if kind == DeviceKind::Cuda { 1 } else { 0 };
            assert_eq!(output.status.code(), Some(right), "{}", said(&output));
        }
    }
}

/// A running program has the file mapped.
#[test]
fn an_earlier_export_is_replaced_and_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let product = spmm(3, Dtype::F32, Layout::Row);
    let export = || exported(&product, DeviceKind::Cpu, "row_split", folder.path());
    export();
    let path = folder.path().join("a-plan.stplan");
    let earlier = std::fs::File::open(&path).unwrap();
    // Shorter than before, as the file of another plan may be.
    let mut altered = std::fs::read(&path).unwrap();
    altered.push(0);
    std::fs::write(&path, &altered).unwrap();
    let bundle = export();
    assert_eq!(std::fs::read(&path).unwrap(), bundle.bytes());
    assert_eq!(earlier.metadata().unwrap().len(), altered.len() as u64);
    let hidden = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with('.');
    assert!(!std::fs::read_dir(folder.path()).unwrap().any(|entry| hidden(entry.unwrap())));
    // What is in the way of a file is reported, and nothing is left beside it.
    std::fs::remove_file(folder.path().join("main.cpp")).unwrap();
    std::fs::create_dir(folder.path().join("main.cpp")).unwrap();
    let refused = cpp::export(&bundle, "a-plan", folder.path());
    assert!(matches!(refused, Err(cpp::CppError::Io { path, .. }) if path.ends_with("main.cpp")));
    assert!(!std::fs::read_dir(folder.path()).unwrap().any(|entry| hidden(entry.unwrap())));
}

#[test]
fn names_that_are_no_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bundle =
        exported(&spmm(3, Dtype::F32, Layout::Row), DeviceKind::Cpu, "row_split", folder.path());
    for name in ["", "../a", ".a", "a b", "a/b"] {
        let refused = cpp::export(&bundle, name, folder.path());
        assert!(matches!(refused, Err(cpp::CppError::Name(_))), "{name}");
    }
}
