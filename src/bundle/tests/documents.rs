//! What is written about the format: the schema of manifests, and the reader in Python that `docs/bundle.md` shows.

use super::*;
use crate::domain::bundle::{ARRAYS, Forward, MANIFEST, Manifest};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set when the test is compiled, it writes the schema instead of comparing it.
const WRITE: &str = "SPARSETUNE_WRITE_SCHEMA";

fn document(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// The schema of the types, with the address of its dialect.
fn generated_schema() -> Value {
    schemars::schema_for!(Manifest).to_value()
}

#[test]
fn the_schema_of_manifests_is_that_of_the_types() {
    let (path, schema) = (document("bundle.schema.json"), generated_schema());
    if option_env!("SPARSETUNE_WRITE_SCHEMA").is_some() {
        let text = serde_json::to_string_pretty(&schema).unwrap();
        std::fs::write(&path, text + "\n").unwrap();
    }
    let committed: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(
        committed == schema,
        "docs/bundle.schema.json is not what the types say: run this test with {WRITE}=1"
    );
}

/// Bundles of all kinds: of every GPU family and host kernel, of vendors' routines, with and without values.
fn every_kind() -> Vec<Vec<u8>> {
    let matrix = generated(GENERATED[0]).unwrap();
    let accumulating =
        Problem::Spmm(Spmm { accumulate: true, ..Spmm::new(5, Dtype::F64, Layout::Row) });
    let wide =
        Problem::Spmm(Spmm { output: Output::F32, ..Spmm::new(40, Dtype::F16, Layout::Row) });
    let near = Problem::Sptrsv(Sptrsv { approximate: true, ..Sptrsv::PLAIN });
    let cases = [
        (spmm(32, Dtype::F32, Layout::Row), DeviceKind::Cuda),
        (spmm(3, Dtype::F16, Layout::Col), DeviceKind::Cuda),
        (spmm(3, Dtype::Bf16, Layout::Row), DeviceKind::Cuda),
        (wide, DeviceKind::Cuda),
        (accumulating, DeviceKind::Cuda),
        (spmm(33, Dtype::F32, Layout::Row), DeviceKind::Cpu),
        (solve(1, Dtype::F64, Triangle::Lower, false), DeviceKind::Cuda),
        (solve(2, Dtype::F32, Triangle::Upper, true), DeviceKind::Cpu),
        (near, DeviceKind::Cuda),
    ];
    let mut files = Vec::new();
    for (problem, kind) in cases {
        let mut families = BTreeSet::new();
        for candidate in candidates(&matrix, &problem, kind) {
            if !families.insert(candidate.family.clone()) {
                continue;
            }
            let Some(plan) = plan(&matrix, &problem, kind, &candidate) else { continue };
            files.push(bundle(&matrix, &plan, Values::Included).unwrap());
            files.extend(bundle(&matrix, &plan, Values::External));
        }
    }
    files
}

#[test]
fn manifests_are_as_their_schema_says() {
    let schema = jsonschema::validator_for(&generated_schema()).unwrap();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for file in every_kind() {
        let read = Bundle::from_bytes(file).unwrap();
        let manifest: Value = serde_json::from_slice(read.member(MANIFEST).unwrap()).unwrap();
        let element = |operand: &str| manifest["call"][operand]["element"].clone();
        assert_eq!(element("b"), manifest["problem"]["dtype"]);
        let wide = manifest["problem"]["output"] == "f32";
        assert_eq!(element("c"), if wide { json!("f32") } else { element("b") });
        if let Err(error) = schema.validate(&manifest) {
            panic!("{}: {error} at {}", manifest["candidate"], error.instance_path());
        }
        for part in ["forward", "update_values", "check"] {
            *kinds.entry(manifest[part]["kind"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        for change in [
            |it: &mut Value| it["surprise"] = json!(1),
            |it: &mut Value| it["forward"]["surprise"] = json!(1),
            |it: &mut Value| it["matrix"]["digest"] = json!("no digest"),
            |it: &mut Value| it["call"]["b"]["layout"] = json!("diagonal"),
        ] {
            let mut changed = manifest.clone();
            change(&mut changed);
            assert!(!schema.is_valid(&changed), "{changed}");
        }
    }
    let seen: Vec<&str> = kinds.keys().map(String::as_str).collect();
    assert_eq!(seen, ["cuda", "equations", "gather", "host", "product", "vendor"], "{kinds:?}");
}

#[test]
fn the_reader_of_the_documentation_reads_bundles_and_finds_damage() {
    let read = |file: &[u8]| {
        let mut written = tempfile::Builder::new().suffix(".stplan").tempfile().unwrap();
        written.write_all(file).unwrap();
        let script = document("read_bundle.py");
        let ran = Command::new("python3").arg(script).arg(written.path()).output().unwrap();
        let said = String::from_utf8(ran.stdout).unwrap() + &String::from_utf8_lossy(&ran.stderr);
        (ran.status.success(), said)
    };
    let files = every_kind();
    for file in &files {
        let (sound, said) = read(file);
        let manifest = Bundle::from_bytes(file.clone()).unwrap().manifest().clone();
        assert!(sound && said.contains(&manifest.plan.0), "{said}");
        assert!(said.contains("the inputs of the check are as they were"), "{said}");
        if let Forward::Cuda(forward) = &manifest.forward {
            for step in &forward.steps {
                assert!(said.contains(&step.symbol), "{said}");
            }
        }
    }
    // Packed again, so that the archive's own sums are right and only the hashes tell.
    let mut members: container::Members<'_> = container::read(&files[0])
        .unwrap()
        .into_iter()
        .map(|(path, place)| (path, files[0][place].to_vec().into()))
        .collect();
    let arrays = members.get_mut(ARRAYS).unwrap().to_mut();
    *arrays.last_mut().unwrap() ^= 1;
    let mut damaged = Cursor::new(Vec::new());
    container::write(&mut damaged, &members).unwrap();
    let (sound, said) = read(&damaged.into_inner());
    assert!(!sound && said.contains("arrays.safetensors is damaged"), "{said}");
}
