//! gzip and zstd around any format, their bounds, and what is recognised at all.

use super::{Format, ReadErrorKind::*, entries, read, read_bytes, refused};
use crate::sparse::read::{Limits, Pool, Spooling, read_path};
use flate2::{Compression, write::GzEncoder};
use std::io::Write;

const TEXT: &[u8] = b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 2\n";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

#[test]
fn packed_is_the_same() {
    let plain = entries(&read(TEXT).unwrap());
    let (first, second) = TEXT.split_at(50);
    assert_eq!(entries(&read(&gzip(TEXT)).unwrap()), plain);
    assert_eq!(entries(&read(&[gzip(first), gzip(second)].concat()).unwrap()), plain);
    assert_eq!(entries(&read(&zstd(TEXT)).unwrap()), plain);
    assert_eq!(entries(&read(&[zstd(first), zstd(second)].concat()).unwrap()), plain);
    assert_eq!(read(&gzip(b"1, 1, 1\n0 1\n0\n")).unwrap().format, Format::Smtx);
}

#[test]
fn large_ones_go_through_a_file() {
    let mut text = TEXT.to_vec();
    text.extend(std::iter::repeat_n(b"% filling\n", 1 << 20).flatten());
    assert_eq!(read(&zstd(&text)).unwrap().csr.nnz(), 2);
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().to_owned();
    let limits = Limits { spool: Spooling::Folder(spool), ..Limits::default() };
    assert_eq!(read_bytes(&gzip(&text), &limits).unwrap().csr.nnz(), 2);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // It is that folder, and no other.
    folder.close().unwrap();
    assert_eq!(read_bytes(&gzip(&text), &limits).unwrap_err().kind, Io);
}

#[test]
fn bombs_are_refused() {
    let limits = Limits { max_decompressed_bytes: 1 << 20, ..Limits::default() };
    let much = [TEXT, &vec![b' '; 2 << 20]].concat();
    for bomb in [gzip(&much), zstd(&much)] {
        let error = read_bytes(&bomb, &limits).unwrap_err();
        assert_eq!(error.kind, TooLarge);
        assert!(error.message.contains("more than the limit of 1048576 bytes"), "{error}");
    }
    let exact = [TEXT, &vec![b' '; (1 << 20) - TEXT.len()]].concat();
    assert!(read_bytes(&gzip(&exact), &limits).is_ok());
}

/// What is inside is seen from its first bytes: 10 GB of gzip in gzip are never written anywhere.
#[test]
fn what_is_packed_in_it_is_refused_by_its_first_bytes() {
    let inner = gzip(&vec![b' '; 64 << 20]);
    let folder = tempfile::tempdir().unwrap();
    let disk = Pool::disk(0);
    let spool = Spooling::Folder(folder.path().to_owned());
    let limits = Limits { spool, disk, max_matrix_bytes: 16 << 20, ..Limits::default() };
    for (outer, inner) in
        [(gzip(&inner.repeat(300)), "packed more"), (zstd(&vec![b'x'; 64 << 20]), "begins with")]
    {
        let error = read_bytes(&outer, &limits).unwrap_err();
        assert_eq!(error.kind, NotRecognised, "{error}");
        assert!(error.message.contains(inner), "{error}");
    }
}

#[test]
fn what_unpacks_out_of_proportion_is_refused() {
    let mut text = TEXT.to_vec();
    text.resize(80 << 20, b' ');
    let packed = gzip(&text);
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { spool: Spooling::Folder(folder.path().to_owned()), ..Limits::default() };
    let strict = Limits { max_ratio: 10, ..limits.clone() };
    let error = read_bytes(&packed, &strict).unwrap_err();
    assert_eq!(error.kind, TooLarge);
    assert!(error.message.contains("in proportion"), "{error}");
    assert_eq!(read_bytes(&packed, &limits).unwrap().csr.nnz(), 2);
}

#[test]
fn nothing_may_follow_what_is_packed() {
    for whole in [gzip(TEXT), zstd(TEXT)] {
        refused(&[&whole[..], b"junk"].concat(), Malformed, "stream is corrupt", None);
    }
}

/// As long as its window, which is what the programs write for inputs of a known size with --long or --ultra.
#[test]
fn a_frame_of_a_single_segment_may_be_as_large_as_memory_permits() {
    let mut text = TEXT.to_vec();
    // Not so small that its window would be in proportion to nothing.
    text.extend((0..2_000_000u32).flat_map(|i| format!("% {i}\n").into_bytes()));
    assert!(text.len() > 9 << 20);
    let mut packer = zstd::bulk::Compressor::new(1).unwrap();
    packer.set_parameter(zstd::zstd_safe::CParameter::WindowLog(27)).unwrap();
    let packed = packer.compress(&text).unwrap();
    assert_ne!(packed[4] & 0x20, 0, "a single segment");
    let plain = entries(&read(TEXT).unwrap());
    assert_eq!(entries(&read(&packed).unwrap()), plain);
    // Also if it is not the first, and behind frames that hold nothing.
    let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let comments = [TEXT, b"% more\n"].concat();
    let several =
        [&skipped[..], &zstd(&comments), &skipped, &packer.compress(&text[TEXT.len()..]).unwrap()];
    assert_eq!(entries(&read(&several.concat()).unwrap()), plain);
    // The window is memory like any other: too much for this reader, or for now.
    let limits = |most, all| Limits {
        max_matrix_bytes: most,
        memory: Pool::memory(all),
        ..Limits::default()
    };
    let error = read_bytes(&packed, &limits(8 << 20, u64::MAX)).unwrap_err();
    assert_eq!(error.kind, TooLarge);
    assert!(error.message.contains("the window of zstd"), "{error}");
    let shared = limits(64 << 20, 64 << 20);
    let other = shared.memory.open(u64::MAX);
    other.charge(56 << 20, 1, "another reader").unwrap();
    assert_eq!(read_bytes(&packed, &shared).unwrap_err().kind, Busy);
    drop(other);
    assert!(read_bytes(&packed, &shared).is_ok());
    // What it declares is refused before it is unpacked, or allocated.
    let small = Limits { max_decompressed_bytes: 1 << 20, ..Limits::default() };
    let error = read_bytes(&packed, &small).unwrap_err();
    assert!(error.message.contains("more than the limit of 1048576 bytes"), "{error}");
}

/// A window of 2^41 bytes is no reason to allocate any.
#[test]
fn a_window_beyond_what_the_decoder_can_is_refused() {
    let head = [0x28, 0xb5, 0x2f, 0xfd, 0, 0xf8, 1, 0, 0];
    refused(&head, TooLarge, "refers back over 2199023255552 bytes", None);
}

/// As tapes write it; gzip itself passes over the zeros.
#[test]
fn zeros_may_fill_up_the_last_block_of_gzip() {
    let plain = entries(&read(TEXT).unwrap());
    for zeros in [1, 511, 1 << 20] {
        let filled = [gzip(TEXT), vec![0; zeros]].concat();
        assert_eq!(entries(&read(&filled).unwrap()), plain);
        for behind in [&b"x"[..], &gzip(TEXT)] {
            let junk = [&filled[..], behind].concat();
            refused(&junk, Malformed, "other than zeros", None);
        }
    }
    refused(&[zstd(TEXT), vec![0; 512]].concat(), Malformed, "stream is corrupt", None);
}

#[test]
fn broken_streams_are_refused() {
    for whole in [gzip(TEXT), zstd(TEXT)] {
        refused(&whole[..whole.len() - 5], Malformed, "stream is corrupt", None);
    }
    let mut flipped = gzip(TEXT);
    *flipped.iter_mut().nth_back(6).unwrap() ^= 1;
    refused(&flipped, Malformed, "stream is corrupt", None);
}

#[test]
fn what_is_not_recognised() {
    refused(b"", NotRecognised, "empty", None);
    refused(b"hello\nworld\n", NotRecognised, "begins with \"hello", None);
    refused(b"\x89PNG\r\n", NotRecognised, "\\x89PNG", None);
    refused(&gzip(&gzip(TEXT)), NotRecognised, "packed more than once", None);
    refused(&gzip(b""), NotRecognised, "empty", None);
}

#[test]
fn files_are_read_whatever_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("matrix.npz");
    std::fs::write(&path, TEXT).unwrap();
    assert_eq!(read_path(&path, &Limits::default()).unwrap().format, Format::MatrixMarket);
    std::fs::write(&path, b"").unwrap();
    assert_eq!(read_path(&path, &Limits::default()).unwrap_err().kind, NotRecognised);
    assert_eq!(read_path(folder.path(), &Limits::default()).unwrap_err().kind, Io);
    assert_eq!(read_path(&folder.path().join("none"), &Limits::default()).unwrap_err().kind, Io);
}

#[test]
fn an_error_says_where() {
    let error = read(b"%%MatrixMarket matrix coordinate real general\n2 2 1\n1 3 1\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the column index '3' is outside the 2 x 2 matrix (line 3, byte 54)"
    );
}
