//! Matrix Market exchange format (Boisvert, Pozo and Remington, NISTIR 5935), coordinate and array, split at line ends
//! and parsed in parallel.

mod array;
mod coordinate;
mod header;

use super::text::line;
use super::{Held, Limits, ReadError};
use crate::sparse::Csr;
use header::{Header, Layout};
use std::ops::Range;

/// Whether the bytes begin with the banner, case-insensitively. Some programs write only one percent sign.
pub(super) fn recognise(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(b"%") else { return false };
    let rest = rest.strip_prefix(b"%").unwrap_or(rest);
    let banner = b"matrixmarket";
    rest.get(..banner.len()).is_some_and(|start| start.eq_ignore_ascii_case(banner))
}

/// Reads a file; also returns the name given in its comments.
pub(super) fn read(
    text: &[u8],
    limits: &Limits,
    held: &Held,
) -> Result<(Csr, Option<String>), ReadError> {
    let header = header::read(text, limits)?;
    let csr = match header.layout {
        Layout::Coordinate => coordinate::read(text, &header, limits, held)?,
        Layout::Array => array::read(text, &header, limits, held)?,
    };
    Ok((csr, header.name))
}

/// Splits the body into pieces at line ends: small enough that the parsed entries of one stay in a core's cache, and
/// not so many that the number of memory mappings becomes a problem.
fn pieces(text: &[u8], body: usize) -> Vec<Range<usize>> {
    const SMALLEST: usize = 64 << 10;
    const LARGEST: usize = 2 << 20;
    const MOST: usize = 8192;
    let length = text.len() - body;
    let size = (length / 64).clamp(SMALLEST, LARGEST).max(length / MOST);
    let mut pieces = Vec::with_capacity(length / size + 1);
    let mut begin = body;
    while begin < text.len() {
        let end = match text.get(begin + size..) {
            Some(rest) => {
                memchr::memchr(b'\n', rest).map_or(text.len(), |found| begin + size + found + 1)
            }
            None => text.len(),
        };
        pieces.push(begin..end);
        begin = end;
    }
    pieces
}

/// Offset of the line with entry number `entry` (from 0), skipping blank lines and comments.
fn entry_line(text: &[u8], header: &Header, entry: u64) -> usize {
    let mut seen = 0;
    let mut at = header.body;
    while at < text.len() {
        let (content, next) = line(text, at);
        if !matches!(content.trim_ascii_start().first(), None | Some(b'%')) {
            if seen == entry {
                return at;
            }
            seen += 1;
        }
        at = next;
    }
    text.len()
}

/// Refuses a body with more or fewer entries than declared in the size line.
fn check_count(text: &[u8], header: &Header, found: u64) -> Result<(), ReadError> {
    let declared = header.stored;
    if found > declared {
        let error = format!("there are more entries than the {declared} the size line says");
        return Err(ReadError::malformed(error).at(text, entry_line(text, header, declared)));
    }
    if found < declared {
        let error = format!(
            "the file ends after {found} of the {declared} entries declared in its size line"
        );
        return Err(ReadError::malformed(error).at(text, text.len()));
    }
    Ok(())
}
