//! Exports of other stores: damaged ones, and those whose digests are right because somebody made them up.

use super::readers::file_of;
use super::requests::imported;
use serde_json::json;
use sparsetune::domain::Digest;
use sparsetune::service::transfer::{BadExport, Piece, Reader, Record};
use std::path::Path;

/// Most bytes that an export unpacks to here.
const MOST: u64 = 1 << 20;
/// What every zstd stream begins with.
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// A file, or the records of one, each on a line: they get their digests and the last record. What a server has taken in it can hand
/// out again, and taking the same in a second time changes nothing.
pub fn export(data: &[u8]) {
    if data.starts_with(ZSTD) {
        let _ = read(file_of(data).path());
        return;
    }
    let file = packed(data);
    if read(file_of(&file).path()).is_ok() {
        imported(&file);
    }
}

/// The number of records, if it is an export.
pub(crate) fn read(path: &Path) -> Result<usize, BadExport> {
    let mut reader = Reader::open(path, MOST)?;
    let mut records = 0;
    while let Some(entry) = reader.next_entry()? {
        if let Piece::Record(record) = entry.piece {
            let text = serde_json::to_vec(&record).expect("what was read has a text");
            let again = serde_json::from_slice::<Record>(&text).ok();
            assert_eq!(again.as_ref(), Some(&record), "a round trip changes it");
            records += 1;
        }
    }
    Ok(records)
}

fn packed(lines: &[u8]) -> Vec<u8> {
    let mut chain = Digest::of(b"sparsetune export v1\0");
    let mut text = Vec::new();
    let mut add = |line: &[u8]| {
        chain = Digest::of(&[chain.as_bytes(), line].concat());
        text.extend_from_slice(format!("{chain} ").as_bytes());
        text.extend_from_slice(line);
        text.push(b'\n');
    };
    let mut counts = [0; 6];
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        add(line);
        let kind = match serde_json::from_slice::<Record>(line) {
            Ok(Record::File(_)) => 0,
            Ok(Record::Plan(_)) => 1,
            Ok(Record::Job(_)) => 2,
            Ok(Record::Trial(_)) => 3,
            Ok(Record::Model(_)) => 4,
            Ok(Record::Matrix(_)) => 5,
            Ok(Record::Header(_) | Record::Part(_) | Record::End(_)) | Err(_) => continue,
        };
        counts[kind] += 1;
    }
    let [files, plans, jobs, trials, models, matrices] = counts;
    let end = json!({
        "record": "end", "files": files, "plans": plans, "jobs": jobs, "trials": trials, "models": models, "matrices": matrices,
    });
    add(end.to_string().as_bytes());
    zstd::encode_all(&text[..], 1).expect("writing to memory cannot fail")
}
