//! DLMC smtx: what is taken, and refusals.

use super::{Format, ReadErrorKind::*, entries, read, refused};

#[test]
fn reads_offsets_and_columns() {
    let parsed = read(b"2, 3, 3\n0 1 3\n2 1 0\n").unwrap();
    assert_eq!(parsed.format, Format::Smtx);
    assert_eq!(entries(&parsed), [(0, 2, 1.0), (1, 0, 1.0), (1, 1, 1.0)]);
    assert_eq!(entries(&read(b"2,3,3\r\n0 1 3 \r\n2 1\r\n1").unwrap()), [(0, 2, 1.0), (1, 1, 2.0)]);
    assert_eq!(read(b"0, 3, 0\n0\n\n").unwrap().csr.cols(), 3);
}

#[test]
fn refusals() {
    refused(b"2, 3, 3\n0 1 3\n2 1\n", Malformed, "ends where a column index is expected", Some(4));
    refused(b"2, 3, 3\n0 1 3\n2 1 0 0\n", Malformed, "unexpected '0'", Some(3));
    refused(b"2, 3, 3\n0 1 3\n2 1 3\n", OutOfRange, "'3' must be below 3", Some(3));
    refused(b"2, 3, 3\n0 1 4\n2 1 0\n", OutOfRange, "row offset '4'", Some(2));
    refused(b"2, 3, 3\n0 3 1\n2 1 0\n", Malformed, "row pointers must not decrease", Some(2));
    refused(b"2, 3, 3\n1 1 3\n2 1 0\n", Malformed, "first row pointer", Some(2));
    refused(b"2, 3, 3\n0 1 2\n2 1 0\n", Malformed, "last row pointer", Some(2));
    refused(b"2, 3, 3\n0 1 3\n2 -1 0\n", Malformed, "'-1'", Some(3));
    refused(b"2, 3, 3\n0 1 3\n2 1.5 0\n", Malformed, "'1.5'", Some(3));
    refused(b"2, 0, 1\n0 1 1\n0       \n", OutOfRange, "must be below 0", Some(3));
    refused(b"2, 3, 999\n0 1 3\n2 1 0\n", Malformed, "1002 numbers must follow", Some(1));
    refused(b"2147483648, 3, 0\n", TooLarge, "rows", Some(1));
    refused(b"2, 3, 4294967296\n", TooLarge, "nonzeros", Some(1));
    refused(b"2, 3, 3, 4\n", NotRecognised, "expected", None);
    refused(b"2, 3\n", NotRecognised, "expected", None);
}
