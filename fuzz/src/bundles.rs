//! Bundles of strangers: damaged ones, and those that are whole but say what they like.

use super::memory::peak_of;
use serde_json::{Value, json};
use sparsetune::bundle::{Bundle, LoadedPlan, Place};
use sparsetune::domain::bundle::{DenseOperand, MANIFEST};
use std::collections::BTreeMap;
use std::io::{Cursor, Read, Write};
use std::sync::{Arc, OnceLock};
use zip::write::SimpleFileOptions;

/// A bundle as a file.
pub fn file(data: &[u8]) {
    opened(data.to_vec());
}

/// What opening a bundle may take at most: something, and so much for each of its bytes, as a service charges for JSON.
const MOST_MEMORY: u64 = 4 << 20;
const MEMORY_OF_A_BYTE: u64 = 66;

/// Most elements of the dense operands that are drawn here.
const DRAWN: u64 = 1 << 12;

/// What is accepted can be loaded or is refused with a reason, and a loaded plan runs, also with other values.
fn opened(bytes: Vec<u8>) {
    let size = bytes.len() as u64;
    let (opened, peak) = peak_of(|| Bundle::from_bytes(bytes));
    assert!(
        peak <= MOST_MEMORY + MEMORY_OF_A_BYTE * size,
        "{peak} bytes of memory for a bundle of {size} bytes"
    );
    let Ok(bundle) = opened else { return };
    let text = serde_json::to_vec(bundle.manifest()).expect("a manifest has a text");
    let again = serde_json::from_slice(&text);
    assert_eq!(again.ok().as_ref(), Some(bundle.manifest()));
    let (call, nnz) = (bundle.manifest().call.clone(), bundle.manifest().matrix.nnz);
    let small = |operand: &DenseOperand| {
        operand.rows.checked_mul(operand.cols).is_some_and(|elements| elements <= DRAWN)
    };
    if !small(&call.b) || !small(&call.c) || nnz > DRAWN {
        return;
    }
    let Ok(mut plan) = LoadedPlan::load(Arc::new(bundle), &Place::Host) else { return };
    let _ = plan.check();
    let _ = plan.update_values(&vec![0.5; nnz as usize]);
    let zeros = |operand: &DenseOperand| {
        vec![0; (operand.rows * operand.cols * operand.element.bytes()) as usize]
    };
    let _ = plan.run_on_host(&zeros(&call.b), &mut zeros(&call.c), 1.0, 0.0);
}

type Members = BTreeMap<String, Vec<u8>>;

const BASES: [&[u8]; 2] = [
    include_bytes!("../seeds/bundle/spmm.stplan"),
    include_bytes!("../seeds/bundle/sptrsv.stplan"),
];

fn bases() -> &'static [Members] {
    static READ: OnceLock<Vec<Members>> = OnceLock::new();
    READ.get_or_init(|| BASES.iter().map(|base| unpacked(base)).collect())
}

fn unpacked(file: &[u8]) -> Members {
    let mut archive = zip::ZipArchive::new(Cursor::new(file)).expect("a bundle of ours");
    let mut members = Members::new();
    for at in 0..archive.len() {
        let mut member = archive.by_index(at).expect("a bundle of ours");
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).expect("a bundle of ours");
        members.insert(member.name().expect("a bundle of ours").into_owned(), bytes);
    }
    members
}

/// Between two members of an input: bytes that no JSON has.
const NEXT: &[u8] = b"\xff\xfe\xfd";

/// Members that replace those of a bundle, with hashes that are right: each is the number of the member and its bytes. The first
/// byte of all chooses the bundle.
pub fn members(data: &[u8]) {
    let Some((&which, mut rest)) = data.split_first() else { return };
    let mut members = bases()[usize::from(which) % BASES.len()].clone();
    let names: Vec<String> = members.keys().cloned().collect();
    while !rest.is_empty() {
        let end = rest.windows(NEXT.len()).position(|at| at == NEXT);
        let (member, after) = rest.split_at(end.unwrap_or(rest.len()));
        if let Some((&number, bytes)) = member.split_first() {
            members.insert(names[usize::from(number) % names.len()].clone(), bytes.to_vec());
        }
        rest = after.get(NEXT.len()..).unwrap_or_default();
    }
    if let Ok(Value::Object(mut manifest)) = serde_json::from_slice(&members[MANIFEST]) {
        if let Some(Value::Object(listed)) = manifest.get_mut("members") {
            for (name, bytes) in members.iter().filter(|(name, _)| *name != MANIFEST) {
                listed.insert(name.clone(), described(bytes));
            }
        }
        let text = serde_json::to_vec(&manifest).expect("a value has a text");
        members.insert(MANIFEST.to_owned(), text);
    }
    opened(packed(&members));
}

fn described(bytes: &[u8]) -> Value {
    use sha2::Digest as _;
    let sha256: String =
        sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"bytes": bytes.len(), "blake3": blake3::hash(bytes).to_hex().as_str(), "sha256": sha256})
}

fn packed(members: &Members) -> Vec<u8> {
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .with_alignment(64);
    let mut out = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        out.start_file(name, options).expect("a new name");
        out.write_all(bytes).expect("writing to memory cannot fail");
    }
    out.finish().expect("writing to memory cannot fail").into_inner()
}
