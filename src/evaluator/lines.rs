//! Reads lines of bounded length from an untrusted reader.

use crate::domain::protocol::MAX_LINE_BYTES;
use serde::Deserialize;
use std::io::{self, BufRead, Read};

/// The result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Text(&'a [u8]),
    /// A line above the limit, which has been skipped completely.
    TooLong {
        limit: u64,
    },
    End,
}

/// Reads the next line that is not blank. A last line without a newline was truncated by the death of the writer; it
/// counts as the end, because a truncated request could be mistaken for another one.
pub(super) fn read<'a>(input: &mut impl BufRead, buffer: &'a mut Vec<u8>) -> io::Result<Line<'a>> {
    read_within(input, buffer, MAX_LINE_BYTES)
}

fn read_within<'a>(
    input: &mut impl BufRead,
    buffer: &'a mut Vec<u8>,
    limit: u64,
) -> io::Result<Line<'a>> {
    loop {
        buffer.clear();
        input.by_ref().take(limit).read_until(b'\n', buffer)?;
        if buffer.pop() != Some(b'\n') {
            // Truncated either by the limit or by the end of input.
            if buffer.len() as u64 + 1 < limit {
                return Ok(Line::End);
            }
            buffer.clear();
            input.skip_until(b'\n')?;
            return Ok(Line::TooLong { limit });
        }
        if !buffer.iter().all(u8::is_ascii_whitespace) {
            return Ok(Line::Text(buffer));
        }
    }
}

/// The `seq` of a line that is not a valid request, so that the error can be assigned to it; 0 if it has none.
pub(super) fn seq_of(line: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct Seq {
        seq: u64,
    }
    serde_json::from_slice::<Seq>(line).map_or(0, |found| found.seq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_skipped_and_truncated_lines_are_the_end() {
        let mut input = &b"ab\n\n \n0123456789\nabcdefg\nhalf"[..];
        let mut buffer = Vec::new();
        let mut next = || match read_within(&mut input, &mut buffer, 8).unwrap() {
            Line::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
            other => format!("{other:?}"),
        };
        assert_eq!(next(), "ab");
        assert_eq!(next(), "TooLong { limit: 8 }");
        assert_eq!(next(), "abcdefg");
        assert_eq!(next(), "End");
    }

    #[test]
    fn finds_the_seq_of_an_invalid_request() {
        assert_eq!(seq_of(br#"{"request":"dance","seq":7}"#), 7);
        assert_eq!(seq_of(b"nonsense"), 0);
    }
}
