//! Bundles that are damaged, or contradict themselves.

use super::super::{Bundle, Extract, Named, Values, container};
use super::*;
use crate::domain::bundle::{MANIFEST, Manifest};
use std::io::Write;

/// One bundle, as its members.
fn some_bundle() -> (Vec<u8>, BTreeMap<String, Vec<u8>>) {
    let matrix = generated(GENERATED[0]).unwrap();
    let problem = spmm(3, Dtype::F32, Layout::Row);
    let candidate = candidates(&matrix, &problem, DeviceKind::Cpu).remove(0);
    let plan = plan(&matrix, &problem, DeviceKind::Cpu, &candidate).unwrap();
    let file = bundle(&matrix, &plan, Values::Included).unwrap();
    let read = Bundle::from_bytes(file.clone()).unwrap();
    let mut members: BTreeMap<String, Vec<u8>> = read
        .manifest()
        .members
        .keys()
        .map(|path| (path.clone(), read.member(path).unwrap().to_vec()))
        .collect();
    members.insert(MANIFEST.to_owned(), read.member(MANIFEST).unwrap().to_vec());
    (file, members)
}

fn packed(members: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let borrowed = members.iter().map(|(path, bytes)| (path.clone(), bytes.as_slice().into()));
    let mut file = Cursor::new(Vec::new());
    container::write(&mut file, &borrowed.collect()).unwrap();
    file.into_inner()
}

fn refused(members: &BTreeMap<String, Vec<u8>>) -> String {
    match Bundle::from_bytes(packed(members)) {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn hostile_bundles_are_refused_with_a_sentence() {
    let (_, members) = some_bundle();
    let with = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut members = members.clone();
        let mut manifest: serde_json::Value = serde_json::from_slice(&members[MANIFEST]).unwrap();
        change(&mut manifest);
        members.insert(MANIFEST.to_owned(), serde_json::to_vec(&manifest).unwrap());
        refused(&members)
    };
    type Change = fn(&mut serde_json::Value);
    let changes: [(Change, &str); 16] = [
        (|m| m["version"] = json!(4), "format version 4"),
        (|m| m["format"] = json!("x"), "its format is `x`"),
        (|m| m["surprise"] = json!(1), "unknown field"),
        (|m| m["forward"]["surprise"] = json!(1), "unknown field"),
        (|m| m["update_values"]["surprise"] = json!(1), "unknown field"),
        (|m| m["matrix"]["rows"] = json!(u64::MAX), "differ in the size of the matrix"),
        (|m| m["problem"]["n"] = json!(4), "differ in the problem"),
        (|m| m["arrays"][0]["length"] = json!(u64::MAX), "not as the manifest describes it"),
        (|m| m["arrays"][0]["name"] = json!("x"), "no tensor `x`"),
        (|m| m["arrays"][0]["included"] = json!(false), "is there"),
        (|m| m["arrays"][0]["element"] = json!("u16"), "cannot be of u16"),
        (|m| m["arrays"][2]["element"] = json!("f64"), "cannot be of f64"),
        (|m| m["scratch"] = json!([{"bytes": u64::MAX, "fill": 0}]), "scratch memory"),
        (|m| m["members"]["plan.json"]["bytes"] = json!(5), "its length"),
        (|m| m["members"]["plan.json"]["sha256"] = json!("00"), "SHA-256"),
        (|m| m["target"]["kind"] = json!("cuda"), "differ in the kind of device"),
    ];
    for (change, expected) in changes {
        let error = with(&change);
        assert!(error.contains(expected), "{error} for {expected}");
    }
    for (member, expected) in
        [("plan.json", "BLAKE3"), ("arrays.safetensors", "BLAKE3"), ("check.safetensors", "BLAKE3")]
    {
        let mut damaged = members.clone();
        let at = damaged[member].len() / 2;
        damaged.get_mut(member).unwrap()[at] ^= 1;
        let error = refused(&damaged);
        assert!(error.contains(expected) && error.contains(member), "{error}");
        let mut without = members.clone();
        without.remove(member);
        assert!(refused(&without).contains(member));
    }
    let mut more = members.clone();
    more.insert("kernels/evil.so".to_owned(), vec![1]);
    assert!(refused(&more).contains("does not list"));
    assert!(Bundle::from_bytes(b"PK\x05\x06".to_vec()).is_err());
    assert!(Bundle::open(std::path::Path::new("/nowhere.stplan")).is_err());
}

/// Changes a member and its hashes, as somebody who means harm would.
fn forged(member: &str, change: &dyn Fn(&mut serde_json::Value)) -> String {
    let (_, mut members) = some_bundle();
    let mut value: serde_json::Value = serde_json::from_slice(&members[member]).unwrap();
    change(&mut value);
    let bytes = serde_json::to_vec(&value).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&members[MANIFEST]).unwrap();
    manifest["members"][member] =
        serde_json::to_value(super::super::build::member(&bytes)).unwrap();
    members.insert(member.to_owned(), bytes);
    members.insert(MANIFEST.to_owned(), serde_json::to_vec(&manifest).unwrap());
    refused(&members)
}

#[test]
fn forged_plans_and_matrices_are_refused() {
    type Change = fn(&mut serde_json::Value);
    let changes: [(&str, Change, &str); 7] = [
        ("plan.json", |p| p["version"] = json!(0), "version 0"),
        ("plan.json", |p| p["measured"] = json!(null), "measured in one place"),
        ("plan.json", |p| p["id"] = json!("no uuid\n<b>"), "not a UUID"),
        ("plan.json", |p| p["device"]["kind"] = json!("cuda"), "differ in the kind of device"),
        ("matrix.json", |m| m["features"]["row_nnz"]["mean"] = json!(-5.0), "no matrix has"),
        ("matrix.json", |m| m["name"] = json!("x".repeat(201)), "name is too long"),
        ("matrix.json", |m| m["name"] = json!("x".repeat(70_000)), "at most 65536 are read"),
    ];
    for (member, change, expected) in changes {
        let error = forged(member, &change);
        assert!(error.contains(expected), "{error} for {expected}");
    }
}

#[test]
fn damaged_files_never_panic() {
    let (file, _) = some_bundle();
    let step = (file.len() / 400).max(1);
    for at in (0..file.len()).step_by(step) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x41;
        let _ = Bundle::from_bytes(damaged);
        assert!(Bundle::from_bytes(file[..at].to_vec()).is_err());
    }
    // Every byte that is not padding is covered by a hash or by the archive.
    let mut unnoticed = 0;
    for at in (0..file.len()).step_by(step) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x41;
        unnoticed += usize::from(Bundle::from_bytes(damaged).is_ok());
    }
    assert!(unnoticed < 40, "{unnoticed}");
}

#[test]
fn a_mapped_file_is_as_good_as_one_in_memory() {
    let (file, _) = some_bundle();
    let mut written = tempfile::NamedTempFile::new().unwrap();
    written.write_all(&file).unwrap();
    let read = Bundle::open(written.path()).unwrap();
    assert_eq!(read.bytes(), file);
    let manifest: Manifest = serde_json::from_slice(read.member(MANIFEST).unwrap()).unwrap();
    assert_eq!(&manifest, read.manifest());
    let place = read.tensor("values").unwrap();
    assert_eq!(&file[place], read.array("values").unwrap());
}

/// The service believes nothing of what another process says of a bundle.
#[test]
fn what_is_said_of_a_bundle_is_checked_anew() {
    let matrix = generated(GENERATED[0]).unwrap();
    let problem = spmm(3, Dtype::F32, Layout::Row);
    let candidate = candidates(&matrix, &problem, DeviceKind::Cuda).remove(0);
    let plan = plan(&matrix, &problem, DeviceKind::Cuda, &candidate).unwrap();
    let file = bundle(&matrix, &plan, Values::Included).unwrap();
    let whole = file.len() as u64;
    let honest = Extract::of(&Bundle::from_bytes(file.clone()).unwrap());
    assert!(!honest.files.is_empty() && honest.plan == plan.0);
    for named in &honest.files {
        let Named { digest, start, bytes } = *named;
        assert_eq!(Digest::of(&file[start as usize..(start + bytes) as usize]), digest);
    }
    assert_eq!(Extract::read(&honest.to_json().unwrap(), whole).unwrap(), honest);
    type Change = fn(&mut Extract);
    let changes: [(Change, &str); 9] = [
        (|it| it.files[0].start = u64::MAX, "or nowhere"),
        (|it| it.files[0].bytes = u64::MAX, "or nowhere"),
        (|it| it.files[0].digest = Digest::of(b"other"), "does not name"),
        (|it| it.files.push(it.files[0]), "does not name"),
        (|it| it.plan.version = 99, "version 99"),
        (|it| it.plan.id.0 = "../x".to_owned(), "not a UUID"),
        (|it| it.facts.digest = Digest::of(b"other"), "properties of the matrix"),
        (|it| it.facts.name = Some("a\nb".to_owned()), "control characters"),
        (|it| it.facts.rows = u64::MAX, "larger than any"),
    ];
    for (change, why) in changes {
        let mut changed = honest.clone();
        change(&mut changed);
        let refused = Extract::read(&changed.to_json().unwrap(), whole).unwrap_err().to_string();
        assert!(refused.contains(why), "{why}: {refused}");
    }
    let shorter = Extract::read(&honest.to_json().unwrap(), 10).unwrap_err().to_string();
    assert!(shorter.contains("or nowhere"), "{shorter}");
    assert!(Extract::read(b"[]", whole).is_err());
}
