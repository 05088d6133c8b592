//! SciPy npz: element types, layouts, and refusals; object arrays are never looked into.

use super::fixtures::{format, npy, npy_f64, npy_i32, npy_i64, zip};
use super::{Format, ReadErrorKind::*, entries, read, read_bytes, refused};
use crate::sparse::read::Limits;

type Members = Vec<(&'static str, Vec<u8>)>;

/// 2 x 3: (0, 1) = 1.5, (1, 2) = -2, (1, 0) = 3, the second row not in order.
fn csr() -> Members {
    vec![
        ("format", format("csr")),
        ("shape", npy_i64(&[2, 3])),
        ("indptr", npy_i32(&[0, 1, 3])),
        ("indices", npy_i32(&[1, 2, 0])),
        ("data", npy_f64(&[1.5, -2.0, 3.0])),
    ]
}

fn with(name: &'static str, bytes: Vec<u8>) -> Vec<u8> {
    let mut members = csr();
    members.retain(|member| member.0 != name);
    members.push((name, bytes));
    zip(&members)
}

fn without(name: &str) -> Vec<u8> {
    let mut members = csr();
    members.retain(|member| member.0 != name);
    zip(&members)
}

#[test]
fn csr_unsorted_with_duplicates_and_a_tail() {
    let parsed = read(&zip(&csr())).unwrap();
    assert_eq!(parsed.format, Format::Npz);
    assert_eq!(entries(&parsed), [(0, 1, 1.5), (1, 0, 3.0), (1, 2, -2.0)]);
    let doubled = read(&with("indices", npy_i64(&[1, 2, 2]))).unwrap();
    assert_eq!(entries(&doubled), [(0, 1, 1.5), (1, 2, 1.0)]);
    let shorter = read(&with("indptr", npy_i32(&[0, 1, 2]))).unwrap();
    assert_eq!(entries(&shorter), [(0, 1, 1.5), (1, 2, -2.0)]);
}

#[test]
fn every_element_type() {
    let le = |descr: &str, data: &[u8]| {
        let bytes = with("data", npy(descr, "(3,)", data));
        read(&bytes).map(|parsed| entries(&parsed).iter().map(|entry| entry.2).collect::<Vec<_>>())
    };
    let f32s: Vec<u8> = [1f32, 2.0, 0.5].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(le("'<f4'", &f32s), Ok(vec![1.0, 0.5, 2.0]));
    let big: Vec<u8> = [1f64, 2.0, 0.5].iter().flat_map(|v| v.to_be_bytes()).collect();
    assert_eq!(le("'>f8'", &big), Ok(vec![1.0, 0.5, 2.0]));
    assert_eq!(le("'<f2'", &[0, 0x3c, 0, 0x40, 0, 0x38]), Ok(vec![1.0, 0.5, 2.0]));
    assert_eq!(le("'|i1'", &[1, 255, 2]), Ok(vec![1.0, 2.0, -1.0]));
    assert_eq!(le("'|u1'", &[1, 255, 2]), Ok(vec![1.0, 2.0, 255.0]));
    assert_eq!(le("'>i2'", &[0, 1, 255, 255, 1, 0]), Ok(vec![1.0, 256.0, -1.0]));
    assert_eq!(le("'|b1'", &[1, 0, 1]), Ok(vec![1.0, 1.0, 0.0]));
    assert_eq!(le("'<u8'", &[255; 24]).unwrap_err().kind, OutOfRange);
    assert_eq!(le("'<f4'", &[0xff; 12]).unwrap_err().kind, NotFinite);
    let unicode = npy("'<U3'", "()", b"c\0\0\0s\0\0\0r\0\0\0");
    assert!(read(&with("format", unicode)).is_ok());
}

#[test]
fn refuses_what_it_does_not_take() {
    let object = with("data", npy("'|O'", "(3,)", b"\x80\x04cos\nsystem\n."));
    refused(&object, Unsupported, "pickles, which are never loaded", None);
    refused(&with("data", npy("'<c16'", "(3,)", &[0; 48])), Unsupported, "complex", None);
    refused(
        &with("data", npy("[('a', '<f8')]", "(3,)", &[0; 24])),
        Unsupported,
        "structured",
        None,
    );
    refused(&with("data", npy("'<f16'", "(3,)", &[0; 48])), Unsupported, "'<f16'", None);
    refused(&with("data", npy("'|S8'", "(3,)", &[0; 24])), Malformed, "must contain numbers", None);
    refused(&with("data", npy("'|S0'", "(3,)", &[])), Unsupported, "'|S0'", None);
    refused(&with("indices", npy_f64(&[1.0, 2.0, 0.0])), Malformed, "must contain integers", None);
    for name in ["bsr", "dia", "lil"] {
        refused(&with("format", format(name)), Unsupported, name, None);
    }
    refused(&with("shape", npy_i64(&[3])), Unsupported, "one-dimensional", None);
    refused(&with("shape", npy_i64(&[2, 3, 4])), Malformed, "two elements", None);
    refused(&without("format"), NotRecognised, "format.npy", None);
    refused(&without("indices"), Malformed, "indices.npy", None);
}

#[test]
fn refuses_arrays_that_disagree() {
    refused(&with("indptr", npy_i32(&[0, 1])), Malformed, "must have 3 elements", None);
    refused(&with("indptr", npy_i32(&[1, 1, 3])), Malformed, "first indptr pointer", None);
    refused(&with("indptr", npy_i32(&[0, 2, 1])), Malformed, "do after", None);
    refused(
        &with("indptr", npy_i32(&[0, 1, 4])),
        Malformed,
        "the last element of indptr is 4",
        None,
    );
    refused(&with("indptr", npy_i32(&[0, -1, 3])), OutOfRange, "indptr[1] is -1", None);
    refused(&with("indices", npy_i32(&[1, 3, 0])), OutOfRange, "indices[1] is 3", None);
    refused(&with("indices", npy_i32(&[1, 2])), Malformed, "differ in length", None);
    refused(
        &with("data", npy("'<f8'", "(3,)", &[0; 23])),
        Malformed,
        "cannot be decompressed",
        None,
    );
    refused(
        &with("data", npy("'<f8'", "(3,)", &[0; 25])),
        Malformed,
        "unexpected bytes after",
        None,
    );
    refused(&with("data", npy("'<f8'", "(3, 1)", &[0; 24])), Malformed, "one dimension", None);
    refused(&with("data", npy_f64(&[0.0, f64::NAN, 0.0])), NotFinite, "data[1]", None);
    refused(&with("shape", npy_i64(&[2, 1 << 31])), TooLarge, "columns", None);
}

#[test]
fn claims_take_no_memory() {
    let huge = with("data", npy("'<f8'", "(2147483647,)", &[0; 24]));
    refused(&huge, TooLarge, "exceed the limit", None);
    let more = with("data", npy("'<f8'", "(99999999999999999999,)", &[0; 24]));
    refused(&more, Malformed, "no valid shape", None);
    let plausible = with("data", npy("'<f8'", "(1000000000,)", &[0; 24]));
    refused(&plausible, Malformed, "cannot be decompressed", None);
    let rows = vec![
        ("format", format("coo")),
        ("shape", npy_i64(&[2_000_000_000, 3])),
        ("row", npy_i32(&[0])),
        ("col", npy_i32(&[0])),
        ("data", npy_f64(&[1.0])),
    ];
    refused(&zip(&rows), TooLarge, "2000000000 rows", None);
}

/// Empty lines cost a zip next to nothing, whether their pointers are stored or not.
#[test]
fn empty_lines_are_paid_for_by_entries() {
    let lines = 17_000_000;
    let pointers = npy("'|i1'", &format!("({},)", lines + 1), &vec![0; lines + 1]);
    let none = ("data", npy_f64(&[]));
    let shape = |rows: usize, cols: usize| ("shape", npy_i64(&[rows as i64, cols as i64]));
    for (name, pointed) in [("csr", [lines, 3]), ("csc", [3, lines])] {
        for [rows, cols] in [pointed, [pointed[1], pointed[0]]] {
            let indptr = if [rows, cols] == pointed { pointers.clone() } else { npy_i32(&[0; 4]) };
            let members = vec![
                ("format", format(name)),
                shape(rows, cols),
                ("indptr", indptr),
                ("indices", npy_i32(&[])),
                none.clone(),
            ];
            let file = zip(&members);
            assert!(file.len() < 100_000);
            refused(&file, TooLarge, "almost all would be empty", None);
        }
    }
    let coo = vec![
        ("format", format("coo")),
        shape(3, lines),
        ("row", npy_i32(&[])),
        ("col", npy_i32(&[])),
        none,
    ];
    refused(&zip(&coo), TooLarge, "almost all would be empty", None);
}

/// Two bytes in the archive, before deflate, become 12 in memory, and 8 more while a row is put in order.
#[test]
fn what_entries_become_is_charged() {
    const ENTRIES: usize = 1 << 20;
    let bytes = |descr: &str| npy(descr, &format!("({ENTRIES},)"), &vec![1; ENTRIES]);
    let entries = [bytes("'|i1'"), bytes("'|b1'")];
    let [places, values] = entries;
    let pointers = npy_i32(&[0, ENTRIES as i32, ENTRIES as i32]);
    let compressed = |name| {
        vec![("format", format(name)), ("shape", npy_i64(&[2, 2])), ("indptr", pointers.clone())]
            .into_iter()
            .chain([("indices", places.clone()), ("data", values.clone())])
            .collect::<Members>()
    };
    let coo = vec![
        ("format", format("coo")),
        ("shape", npy_i64(&[2, 2])),
        ("row", places.clone()),
        ("col", places.clone()),
        ("data", values.clone()),
    ];
    for (members, held) in [(compressed("csr"), 20), (compressed("csc"), 32), (coo, 36)] {
        let file = zip(&members);
        let within = |max_matrix_bytes| {
            let limits = Limits { max_matrix_bytes, ..Limits::default() };
            read_bytes(&file, &limits).map(|parsed| parsed.csr.nnz())
        };
        let most = (held * ENTRIES) as u64;
        let error = within(most - 1).unwrap_err();
        assert_eq!(error.kind, TooLarge);
        assert!(error.message.contains("bytes of memory"), "{error}");
        assert_eq!(within(most + 10_000), Ok(1));
    }
}

#[test]
fn a_member_that_unpacks_to_too_much_is_refused() {
    let limits = Limits { max_decompressed_bytes: 1 << 20, ..Limits::default() };
    let bomb = with("data", npy("'|u1'", "(4000000,)", &vec![0; 4_000_000]));
    assert!(bomb.len() < 20_000);
    assert_eq!(read_bytes(&bomb, &limits).unwrap_err().kind, TooLarge);
}
