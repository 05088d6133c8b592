//! Rutherford-Boeing and Harwell-Boeing: what is taken, and refusals.

use super::{Format, ReadErrorKind, ReadErrorKind::*, entries, read, refused};

/// A 3 x 3 matrix of four entries, after the Harwell-Boeing guide's layout. Each part may be replaced.
struct File {
    counts: &'static str,
    kind: &'static str,
    sizes: &'static str,
    formats: &'static str,
    body: &'static str,
}

const PLAIN: File = File {
    counts: "             3             1             1             1",
    kind: "RUA",
    sizes: "             3             3             4             0",
    formats: "(4I3)           (4I3)           (4E8.1)             ",
    body: "  1  3  4  5\n  1  3  2  3\n 1.0E+00-2.0D+00   3.0+0     4.5\n",
};

impl File {
    fn text(&self) -> Vec<u8> {
        let title = format!("{:72}{:8}", "a title, with words", "KEY1");
        let Self { counts, kind, sizes, formats, body } = self;
        format!("{title}\n{counts}\n{kind}           {sizes}\n{formats}\n{body}").into_bytes()
    }

    #[track_caller]
    fn refused(&self, kind: ReadErrorKind, message: &str, line: u64) {
        refused(&self.text(), kind, message, Some(line));
    }
}

#[test]
fn columns_become_rows() {
    let expected = [(0, 0, 1.0), (1, 1, 3.0), (2, 0, -2.0), (2, 2, 4.5)];
    let parsed = read(&PLAIN.text()).unwrap();
    assert_eq!(
        (parsed.format, parsed.declared_name.as_deref()),
        (Format::RutherfordBoeing, Some("KEY1"))
    );
    assert_eq!(entries(&parsed), expected);
    let crlf = String::from_utf8(PLAIN.text()).unwrap().replace('\n', "\r\n");
    assert_eq!(entries(&read(crlf.as_bytes()).unwrap()), expected);
}

#[test]
fn kinds() {
    let pattern = File { kind: "psa", body: "  1  3  4  5\n  1  3  2  3\n", ..PLAIN };
    let expected = [(0, 0, 1.0), (0, 2, 1.0), (1, 1, 1.0), (2, 0, 1.0), (2, 2, 1.0)];
    assert_eq!(entries(&read(&pattern.text()).unwrap()), expected);
    let formats = "(4I3)           (4I3)           (4I3)               ";
    let body = "  1  3  4  4\n  2  3  3\n  7 -8  9\n";
    let sizes = "             3             3             3             0";
    let skew = File { kind: "IZA", sizes, formats, body, ..PLAIN };
    let expected =
        [(0, 1, -7.0), (0, 2, 8.0), (1, 0, 7.0), (1, 2, -9.0), (2, 0, -8.0), (2, 1, 9.0)];
    assert_eq!(entries(&read(&skew.text()).unwrap()), expected);
}

/// One triangle is stored, either one; a file with both was read as a matrix with twice the values.
#[test]
fn both_triangles_are_refused() {
    let upper = File {
        kind: "rsa",
        body: "  1  2  4  5\n  1  1  2  1\n     1.0     2.0     3.0     4.0\n",
        ..PLAIN
    };
    let expected = [(0, 0, 1.0), (0, 1, 2.0), (0, 2, 4.0), (1, 0, 2.0), (1, 1, 3.0), (2, 0, 4.0)];
    assert_eq!(entries(&read(&upper.text()).unwrap()), expected);
    let body = "  1  3  4  5\n  1  2  1  3\n     1.0     2.0     2.0     4.0\n";
    for kind in ["rsa", "psa"] {
        let body = if kind == "psa" { &body[..26] } else { body };
        File { kind, body, ..PLAIN }.refused(Malformed, "row 1, column 2", 6);
    }
    let skew = "  1  2  3  3\n  2  1\n     1.0    -1.0\n";
    let sizes = "             3             3             2             0";
    File { kind: "RZA", sizes, body: skew, ..PLAIN }.refused(Malformed, "one of its triangles", 6);
}

/// SciPy declares a column more than it writes.
#[test]
fn fields_that_are_a_column_short() {
    let scipy = File {
        formats: "(4I3)           (4I3)           (3E25.16)           ",
        counts: "             4             1             1             2",
        body: "  1  3  4  5\n  1  3  2  3\n  1.5000000000000000E+00 -2.5000000000000000E+00 -3.2500000000000000E+00\n \
               -4.0000000000000000E+00\n",
        ..PLAIN
    };
    let expected = [(0, 0, 1.5), (1, 1, -3.25), (2, 0, -2.5), (2, 2, -4.0)];
    assert_eq!(entries(&read(&scipy.text()).unwrap()), expected);
    // With exponents of three digits there is no blank between fields.
    let tight = File {
        body: "  1  3  4  5\n  1  3  2  3\n-1.5000000000000000E-100-2.5000000000000000E-100 3.2500000000000000E+100\n\
               -4.0000000000000000E-100\n",
        ..scipy
    };
    let expected = [(0, 0, -1.5e-100), (1, 1, 3.25e100), (2, 0, -2.5e-100), (2, 2, -4e-100)];
    assert_eq!(entries(&read(&tight.text()).unwrap()), expected);
    // Neither width fits.
    let body = "  1  3  4  5\n  1  3  2  3\n  1.5000000000000000E+00 -2.50000000000 0000E+00 -3.2500000000000000E+00\n \
                -4.0000000000000000E+00\n";
    File { body, ..scipy }.refused(Malformed, "not a number", 7);
}

#[test]
fn right_hand_sides_are_passed_over() {
    let file = File {
        counts: "             5             1             1             1             1",
        formats: "(4I3)           (4I3)           (4E8.1)             (3E8.1)\nF             1             0",
        body: "  1  3  4  5\n  1  3  2  3\n 1.0E+00-2.0D+00   3.0+0     4.5\n     1.0     2.0     3.0\n",
        ..PLAIN
    };
    let parsed = read(&file.text()).unwrap();
    assert_eq!((parsed.format, parsed.csr.nnz()), (Format::HarwellBoeing, 4));
}

#[test]
fn kinds_refused() {
    File { kind: "CUA", ..PLAIN }.refused(Unsupported, "complex", 3);
    File { kind: "CHA", ..PLAIN }.refused(Unsupported, "complex", 3);
    File { kind: "RHA", ..PLAIN }.refused(Unsupported, "Hermitian", 3);
    File { kind: "RUE", ..PLAIN }.refused(Unsupported, "elemental", 3);
    File { kind: "QUA", ..PLAIN }.refused(Unsupported, "in a separate file", 3);
    File { kind: "PZA", ..PLAIN }.refused(Malformed, "have no signs", 3);
    File { kind: "RZA", ..PLAIN }.refused(Malformed, "entries on its diagonal", 6);
    refused(&File { kind: "XUA", ..PLAIN }.text(), NotRecognised, "expected", None);
}

#[test]
fn headers_refused() {
    File { sizes: "             3             3", ..PLAIN }.refused(Malformed, "third card", 3);
    File { sizes: "             3             3    2147483648", ..PLAIN }
        .refused(TooLarge, "nonzeros", 3);
    File { sizes: "    2147483648             3             4", ..PLAIN }
        .refused(TooLarge, "rows", 3);
    File { sizes: "    2147483647             3             4", ..PLAIN }
        .refused(TooLarge, "empty", 3);
    File { sizes: "             3             3       4000000", ..PLAIN }.refused(
        Malformed,
        "do not fit",
        3,
    );
    let square = File { kind: "RSA", sizes: "             4             3             4", ..PLAIN };
    square.refused(Malformed, "4 x 3", 3);
    File { formats: "(4X3)           (4I3)           (4E8.1)", ..PLAIN }.refused(
        Unsupported,
        "(4X3)",
        4,
    );
    File { formats: "(4E8.1)         (4I3)           (4E8.1)", ..PLAIN }.refused(
        Malformed,
        "an integer format",
        4,
    );
}

#[test]
fn bodies_refused() {
    let body = |body| File { body, ..PLAIN };
    body("  1  3  4  5\n  1  3  2  4\n     1.0     1.0     1.0     1.0\n")
        .refused(OutOfRange, "'4'", 6);
    body("  1  3  4  5\n  1  0  2  3\n     1.0     1.0     1.0     1.0\n")
        .refused(OutOfRange, "'0'", 6);
    body("  1  3  4  6\n  1  3  2  3\n     1.0     1.0     1.0     1.0\n")
        .refused(OutOfRange, "'6'", 5);
    body("  1  4  3  5\n  1  3  2  3\n     1.0     1.0     1.0     1.0\n").refused(
        Malformed,
        "pointers must not decrease",
        5,
    );
    body("  2  3  4  5\n  1  3  2  3\n     1.0     1.0     1.0     1.0\n").refused(
        Malformed,
        "first column",
        5,
    );
    body("  1  3  4  4\n  1  3  2  3\n     1.0     1.0     1.0     1.0\n").refused(
        Malformed,
        "last column",
        5,
    );
    body("  1  3  4  5\n  1  3  2\n     1.0     1.0     1.0     1.0\n").refused(
        Malformed,
        "blank field",
        6,
    );
    body("  1  3  4  5\n  1  3  2  x\n     1.0     1.0     1.0     1.0\n")
        .refused(Malformed, "'x'", 6);
    body("  1  3  4  5\n  1  3  2  3\n     1.0     1.0     1.0 1.0E999\n")
        .refused(NotFinite, "1.0E999", 7);
    body("  1  3  4  5\n  1  3  2  3\n     1.0     1.0     1.0      15\n")
        .refused(Malformed, "'15'", 7);
    body("  1  3  4  5\n  1  3  2  3\n").refused(Malformed, "ends after 0 of 4 values", 7);
    let more = body("  1  3  4  5\n  1  3  2  3\n     1.0     1.0     1.0     1.0\nmore\n");
    more.refused(Malformed, "after the last section", 8);
}
