//! The readers of matrix files, and of the service's own file of a matrix.

use super::memory;
use flate2::Compression;
use flate2::write::GzEncoder;
use sparsetune::domain::Digest;
use sparsetune::sparse::read::{self, Coding, Limits, Pool, ReadErrorKind, decode};
use sparsetune::sparse::{Csr, canonical, digest, features, write};
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;

/// Small, so that files at the limits are read thousands of times in a second.
pub(crate) fn limits() -> Limits {
    Limits {
        max_rows: 1 << 14,
        max_cols: 1 << 14,
        max_nnz: 1 << 16,
        max_decompressed_bytes: 1 << 20,
        max_matrix_bytes: 16 << 20,
        memory: Pool::memory(16 << 20),
        disk: Pool::disk(1 << 20),
        ..Limits::default()
    }
}

/// Most bytes that a reader may hold, and what it takes beside what it charges: threads, zip and messages.
const MATRIX: u64 = 2 << 20;
const BESIDE: u64 = 1 << 20;

/// Reads any format. A matrix that is accepted survives round trips with the same digest, and its memory is given back.
fn any_format(data: &[u8]) {
    let own = Limits { max_matrix_bytes: MATRIX, ..limits() };
    let (read, peak) = memory::peak_of(|| read::read_bytes(data, &own));
    assert!(peak <= MATRIX + BESIDE, "{peak} bytes were taken, and {MATRIX} may be");
    if let Ok(parsed) = read {
        assert!(own.memory.taken() >= parsed.csr.bytes(), "the matrix itself is not charged");
        let name = digest_of(&parsed.csr);
        let facts = features::facts(&parsed.csr, parsed.declared_name.clone());
        assert_eq!(facts.nnz, parsed.csr.nnz() as u64);
        let mut text = Vec::new();
        write::matrix_market(&parsed.csr, None, &mut text).expect("writing to memory cannot fail");
        // It may be longer than what was unpacked.
        let larger = Limits { max_decompressed_bytes: 1 << 30, ..limits() };
        let again = read::read_bytes(&text, &larger).expect("what is written can be read");
        assert_eq!(digest_of(&again.csr), name, "a round trip changes the matrix");
        survives_canonical(&parsed.csr);
    }
    assert_eq!(own.memory.taken(), 0, "memory is not given back");
    assert_eq!(own.disk.taken(), 0, "disk is not given back");
}

fn digest_of(csr: &Csr) -> Digest {
    digest::digest(csr, &digest::pattern_digest(csr))
}

/// The service's own file of a matrix is that matrix.
fn survives_canonical(csr: &Csr) {
    let pattern = digest::pattern_digest(csr);
    let name = digest::digest(csr, &pattern);
    let mut bytes = Vec::new();
    canonical::write(csr, &mut bytes, pattern, name).expect("writing to memory cannot fail");
    assert_eq!(bytes.len() as u64, canonical::file_bytes(csr));
    let file = file_of(&bytes);
    let memory = Pool::memory(64 << 20);
    let (again, header, held) = canonical::read_in(file.as_file(), &memory).expect("it is whole");
    assert_eq!((header.pattern_digest, header.digest), (pattern, name));
    assert_eq!(digest_of(&again), name, "the canonical file changes the matrix");
    drop(held);
    assert_eq!(memory.taken(), 0);
}

pub(crate) fn file_of(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("a temporary file");
    file
}

/// `data` behind a header that leads to the format's reader, where it does not begin with one.
fn behind(header: &[u8], data: &[u8]) {
    if data.starts_with(header) {
        any_format(data);
    } else {
        any_format(&[header, data].concat());
    }
}

pub fn matrix_market(data: &[u8]) {
    behind(b"%%MatrixMarket matrix ", data);
}

pub fn npz(data: &[u8]) {
    behind(b"PK\x03\x04", data);
}

pub fn smtx(data: &[u8]) {
    any_format(data);
}

pub fn rutherford_boeing(data: &[u8]) {
    any_format(data);
}

pub fn harwell_boeing(data: &[u8]) {
    any_format(data);
}

/// What every array begins with.
const NUMPY: &[u8] = b"\x93NUMPY";

/// Arrays one after the other, put into an archive whose checksums are right: what is behind them is not reached by damaging
/// whole archives. The first byte chooses the names and how the members are packed.
pub fn npz_members(data: &[u8]) {
    let Some((&how, arrays)) = data.split_first() else { return };
    let names: &[&str] = match how & 1 {
        0 => &["format", "shape", "data", "indices", "indptr"],
        _ => &["format", "shape", "data", "row", "col"],
    };
    let method = match how & 2 {
        0 => zip::CompressionMethod::Stored,
        _ => zip::CompressionMethod::Deflated,
    };
    let options = SimpleFileOptions::default().compression_method(method);
    let mut out = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, array) in names.iter().zip(pieces(arrays, NUMPY)) {
        out.start_file(format!("{name}.npy"), options).expect("a new name");
        out.write_all(array).expect("writing to memory cannot fail");
    }
    any_format(&out.finish().expect("writing to memory cannot fail").into_inner());
}

/// Parts that begin with the mark, which what is before the first need not.
fn pieces<'a>(data: &'a [u8], mark: &[u8]) -> Vec<&'a [u8]> {
    let marks = data.windows(mark.len()).enumerate().filter(|(_, at)| *at == mark);
    let mut begins: Vec<usize> = marks.map(|(at, _)| at).collect();
    begins.push(data.len());
    begins.windows(2).map(|pair| &data[pair[0]..pair[1]]).collect()
}

/// The service's own file of a matrix, as whoever can write to its folder could change it.
pub fn canonical(data: &[u8]) {
    let file = file_of(data);
    let memory = Pool::memory(64 << 20);
    if let Ok((csr, header, held)) = canonical::read_in(file.as_file(), &memory) {
        assert_eq!(header.nnz, csr.nnz() as u64);
        assert!(memory.taken() >= csr.bytes(), "the matrix itself is not charged");
        drop(held);
        // The digests that it states are compared where that matters, without the matrix in memory.
        let right = header.pattern_digest == digest::pattern_digest(&csr)
            && header.digest == digest_of(&csr);
        let recomputed = canonical::recomputed(file.path());
        assert_eq!(recomputed.is_ok(), right, "{recomputed:?}");
        survives_canonical(&csr);
    }
    assert_eq!(memory.taken(), 0, "memory is not given back");
}

/// gzip and zstd around any format.
pub fn compressed(data: &[u8]) {
    behind(if data.first() == Some(&0x28) { b"\x28\xb5\x2f\xfd" } else { b"\x1f\x8b" }, data);
}

/// Most bytes that `coding` unpacks.
const UNPACKED: u64 = 1 << 18;

/// A body with a `Content-Encoding`. The first byte says which, and whether the rest is such a body or what one unpacks to, in
/// members of as many bytes as the second says.
pub fn coding(data: &[u8]) {
    let [how, length, rest @ ..] = data else { return };
    let coding = if how & 1 == 0 { Coding::Gzip } else { Coding::Zstd };
    if how & 2 == 0 {
        if let Ok(unpacked) = decode(rest, coding, UNPACKED) {
            assert!(unpacked.len() as u64 <= UNPACKED);
            let again = decode(&member(&unpacked, coding), coding, UNPACKED);
            assert_eq!(again.ok().as_ref(), Some(&unpacked));
        }
        return;
    }
    let members = rest.chunks(1 + usize::from(*length)).take(64);
    let whole: Vec<u8> = members.clone().flatten().copied().collect();
    let mut body: Vec<u8> = members.flat_map(|part| member(part, coding)).collect();
    let size = whole.len() as u64;
    if whole.is_empty() {
        return;
    }
    assert_eq!(decode(&body, coding, size).ok().as_ref(), Some(&whole));
    let small = decode(&body, coding, size - 1).map_err(|error| error.kind);
    assert_eq!(small, Err(ReadErrorKind::TooLarge), "the limit does not hold");
    assert!(decode(&body[..body.len() - 1], coding, size).is_err(), "cut, and accepted");
    // As an upload it is the same matrix as unpacked.
    let limits = limits();
    if let Ok(plain) = read::read_bytes(&whole, &limits) {
        let packed = read::read_file_coded(file_of(&body).as_file(), Some(coding), &limits);
        let packed = packed.expect("packing changes nothing");
        assert_eq!(digest_of(&packed.csr), digest_of(&plain.csr));
    }
    body.push(b'x');
    assert!(decode(&body, coding, size).is_err(), "junk behind it is accepted");
}

fn member(bytes: &[u8], coding: Coding) -> Vec<u8> {
    match coding {
        Coding::Gzip => {
            let mut out = GzEncoder::new(Vec::new(), Compression::fast());
            out.write_all(bytes).expect("writing to memory cannot fail");
            out.finish().expect("writing to memory cannot fail")
        }
        Coding::Zstd => zstd::encode_all(bytes, 1).expect("writing to memory cannot fail"),
    }
}
