//! Matrix Market: dialects taken, and refusals by kind, message and line.

use super::{Format, ReadErrorKind::*, entries, read, read_bytes, refused};
use crate::sparse::read::Limits;

/// Reads a body under a banner with these last three words.
fn body(words: &str, body: &str) -> Vec<(usize, u32, f64)> {
    entries(&read(format!("%%MatrixMarket matrix {words}\n{body}").as_bytes()).unwrap())
}

#[track_caller]
fn refuse(
    words: &str,
    body: &str,
    kind: crate::sparse::read::ReadErrorKind,
    message: &str,
    line: u64,
) {
    let text = format!("%%MatrixMarket matrix {words}\n{body}");
    refused(text.as_bytes(), kind, message, Some(line));
}

#[test]
fn coordinate_real_in_any_dress() {
    let expected = [(0, 1, 1.5), (1, 0, -2000.0), (1, 2, 0.0)];
    assert_eq!(body("coordinate real general", "2 3 3\n1 2 1.5\n2 1 -2e3\n2 3 0\n"), expected);
    let dressed = "%%matrixMARKET Matrix COORDINATE Double General\r\n% name: A/b\r\n\r\n %c\r\n\t2  3\t3 \r\n\r\n\
                   % between\r\n2 3 0\r\n  2\t1  -2.0D+3 \r\n\r\n01 2 +1.5\r\n \r\n";
    let parsed = read(dressed.as_bytes()).unwrap();
    assert_eq!(
        (parsed.format, parsed.declared_name.as_deref()),
        (Format::MatrixMarket, Some("A/b"))
    );
    assert_eq!(entries(&parsed), expected);
    assert_eq!(body("coordinate real general", "1 1 1\n1 1 7"), [(0, 0, 7.0)]);
    assert_eq!(
        read(b"%MatrixMarket matrix coordinate real general\n0 0 0\n").unwrap().csr.rows(),
        0
    );
}

#[test]
fn integers_and_patterns() {
    assert_eq!(
        body("coordinate integer general", "1 2 2\n1 1 -7\n1 2 +9007199254740992\n").len(),
        2
    );
    assert_eq!(body("coordinate pattern general", "2 2 2\n2 2\n1 2"), [(0, 1, 1.0), (1, 1, 1.0)]);
    let words = "coordinate integer general";
    refuse(words, "1 1 1\n1 1 9007199254740993\n", OutOfRange, "exceeds 2^53", 3);
    refuse(words, "1 1 1\n1 1 99999999999999999999\n", OutOfRange, "exceeds 2^53", 3);
    refuse(words, "1 1 1\n1 1 1.5\n", Malformed, "unexpected '.5'", 3);
    refuse(
        "coordinate pattern general",
        "1 1 1\n1 1 1\n",
        Malformed,
        "a line of a pattern file",
        3,
    );
}

#[test]
fn duplicates_are_summed_and_zeros_kept() {
    assert_eq!(
        body("coordinate real general", "1 3 4\n1 3 2\n1 1 0\n1 3 3\n1 3 -5\n"),
        [(0, 0, 0.0), (0, 2, 0.0)]
    );
    let huge = "1 1 2\n1 1 1e308\n1 1 1e308\n";
    let error = read(format!("%%MatrixMarket matrix coordinate real general\n{huge}").as_bytes())
        .unwrap_err();
    assert_eq!(error.kind, NotFinite);
}

#[test]
fn symmetry_is_expanded_from_either_triangle() {
    let words = "coordinate real symmetric";
    assert_eq!(body(words, "2 2 2\n1 1 3\n2 1 5\n"), [(0, 0, 3.0), (0, 1, 5.0), (1, 0, 5.0)]);
    assert_eq!(body(words, "2 2 2\n1 1 3\n1 2 5\n"), [(0, 0, 3.0), (0, 1, 5.0), (1, 0, 5.0)]);
    assert_eq!(body(words, "2 2 2\n1 2 5\n2 1 6\n"), [(0, 1, 11.0), (1, 0, 11.0)]);
    assert_eq!(body("coordinate pattern symmetric", "2 2 1\n2 1\n"), [(0, 1, 1.0), (1, 0, 1.0)]);
    let skew = "coordinate integer skew-symmetric";
    assert_eq!(body(skew, "2 2 1\n2 1 4\n"), [(0, 1, -4.0), (1, 0, 4.0)]);
    refuse(skew, "2 2 2\n2 1 4\n2 2 0\n", Malformed, "entries on its diagonal", 4);
    refuse(words, "2 3 0\n", Malformed, "2 x 3 matrix cannot be symmetric", 2);
    refuse("coordinate pattern skew-symmetric", "1 1 0\n", Malformed, "have no signs", 1);
}

#[test]
fn arrays_are_dense_and_by_columns() {
    let general = [(0, 0, 1.0), (0, 1, 3.0), (1, 0, 0.0), (1, 1, 4.0)];
    assert_eq!(body("array real general", "2 2\n1\n%c\n\n0\r\n 3 \n4"), general);
    let symmetric = [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 2.0), (1, 1, 3.0)];
    assert_eq!(body("array integer symmetric", "2 2\n1\n2\n3\n"), symmetric);
    assert_eq!(body("array real skew-symmetric", "2 2\n5\n"), [(0, 1, -5.0), (1, 0, 5.0)]);
    assert_eq!(body("array real skew-symmetric", "0 0\n"), []);
    let wide = read(b"%%MatrixMarket matrix array real general\n0 16777216\n").unwrap();
    assert_eq!((wide.csr.rows(), wide.csr.cols()), (0, 1 << 24));
    let words = "array real general";
    refuse(words, "1 2\n1\n2 3\n", Malformed, "one value per line", 4);
    refuse(words, "1 2\n1\nx\n", Malformed, "found 'x'", 4);
    refuse(words, "1 2\n1\nnan\n", NotFinite, "'nan'", 4);
    refuse(words, "1 2\n1234\n", Malformed, "ends after 1 of the 2", 4);
    refuse(words, "1 2\n1\n2\n3\n", Malformed, "more entries than the 2", 5);
    refuse(words, "1 2 3\n", Malformed, "after its 2 numbers", 2);
    refuse(words, "60000 60000\n1\n", TooLarge, "3600000000 nonzeros", 2);
    refuse("array integer general", "1 1\n9007199254740993\n", OutOfRange, "exceeds 2^53", 3);
    refuse("array pattern general", "1 1\n1\n", Malformed, "cannot be a pattern", 1);
}

#[test]
fn banners_refused() {
    refuse("coordinate complex general", "", Unsupported, "complex matrices are not supported", 1);
    refuse("array complex general", "", Unsupported, "complex matrices are not supported", 1);
    refuse("coordinate real hermitian", "", Unsupported, "Hermitian", 1);
    refuse("coordinate real", "", Malformed, "five words", 1);
    refuse("coordinate quaternion general", "", Malformed, "'quaternion'", 1);
    refuse("ragged real general", "", Malformed, "coordinate, array", 1);
    refuse("coordinate real lopsided", "", Malformed, "'lopsided'", 1);
    refused(b"%%MatrixMarket vector array real general\n", Unsupported, "'vector'", Some(1));
}

#[test]
fn size_lines_refused() {
    let words = "coordinate real general";
    refuse(words, "% only comments\n", Malformed, "before its size line", 3);
    refuse(words, "2 2\n", Malformed, "found the end of the line", 2);
    refuse(words, "2 x 1\n", Malformed, "'x'", 2);
    refuse(words, "2 -2 1\n", Malformed, "'-2'", 2);
    refuse(words, "2 2 1 9\n", Malformed, "'9' after its 3 numbers", 2);
    refuse(words, "2147483648 2 0\n", TooLarge, "2147483648 rows", 2);
    refuse(words, "2 2147483648 0\n", TooLarge, "2147483648 columns", 2);
    refuse(words, "2 99999999999999999999999 0\n", TooLarge, "columns", 2);
    refuse(words, "2147483647 2 1\n1 1 1\n", TooLarge, "almost all would be empty", 2);
    refuse(words, "2 2 2147483648\n", TooLarge, "2147483648 nonzeros", 2);
    refuse(words, "2 2 2000000000\n1 1 1\n", Malformed, "can contain at most 1", 2);
}

#[test]
fn entries_refused() {
    let words = "coordinate real general";
    refuse(words, "2 2 1\n0 1 1\n", OutOfRange, "indices begin at 1", 3);
    refuse(words, "2 2 1\n1 0 1\n", OutOfRange, "the column index is 0", 3);
    refuse(words, "2 2 2\n1 1 1\n3 1 1\n", OutOfRange, "row index '3' is outside the 2 x 2", 4);
    refuse(words, "2 2 1\n1 3 1\n", OutOfRange, "column index '3'", 3);
    refuse(words, "2 2 1\n1 18446744073709551617 1\n", OutOfRange, "'18446744073709551617'", 3);
    refuse(words, "2 2 1\n-1 1 1\n", Malformed, "'-1'", 3);
    refuse(words, "2 2 1\n1.0 1 1\n", Malformed, "'1.0'", 3);
    refuse(words, "2 2 1\n1,1,1\n", Malformed, "'1,1,1'", 3);
    refuse(words, "2 2 1\n1 1\n  ", Malformed, "found the end of the line", 3);
    refuse(words, "2 2 1\n1\n    ", Malformed, "as column index", 3);
    refuse(words, "2 2 1\n1 1 1 1\n", Malformed, "unexpected '1' after", 3);
    refuse(words, "2 2 1\n1 1 1\r1\n", Malformed, "unexpected", 3);
    refuse(words, "2 2 1\n1 1 0x10\n", Malformed, "'x10'", 3);
    refuse(words, "2 2 1\n1 1 one\n", Malformed, "'one'", 3);
    for text in ["nan", "NaN", "inf", "-Infinity", "1e999"] {
        refuse(words, &format!("2 2 1\n1 1 {text}\n"), NotFinite, text, 3);
    }
    refuse(words, "2 2 2\n1 1 1\n     ", Malformed, "ends after 1 of the 2", 4);
    refuse(
        words,
        "2 2 1\n1 1 1\n% no entry\n\n2 2 2\n1 2 3\n",
        Malformed,
        "more entries than the 1",
        6,
    );
}

#[test]
fn limits_are_kept() {
    let text = b"%%MatrixMarket matrix coordinate pattern symmetric\n3 3 3\n2 1\n3 1\n3 3\n";
    let with = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        read_bytes(text, &limits).map(|parsed| parsed.csr.nnz()).map_err(|error| error.kind)
    };
    assert_eq!(with(|limits| limits.max_nnz = 5), Ok(5));
    assert_eq!(with(|limits| limits.max_nnz = 4), Err(TooLarge));
    assert_eq!(with(|limits| limits.max_rows = 2), Err(TooLarge));
    assert_eq!(with(|limits| limits.max_cols = 2), Err(TooLarge));
}

#[test]
fn the_first_of_several_errors_is_named_whatever_the_cut() {
    let mut text = String::from("%%MatrixMarket matrix coordinate real general\n9 9 200000\n");
    for line in 3..200_003 {
        text.push_str(if line == 70_000 || line % 99_999 == 0 {
            "1 1 oops\n"
        } else {
            "1 1 1.0\n"
        });
    }
    for _ in 0..5 {
        refused(text.as_bytes(), Malformed, "'oops'", Some(70_000));
    }
}
