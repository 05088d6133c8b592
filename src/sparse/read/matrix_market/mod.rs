//! Matrix Market exchange format (Boisvert, Pozo and Remington, NISTIR 5935), coordinate and array, cut at line ends
//! and parsed in parallel.

mod array;
mod coordinate;
mod header;

use super::text::line;
use super::{Limits, ReadError};
use crate::sparse::Csr;
use header::{Header, Layout};
use std::ops::Range;

/// Whether the bytes begin with the banner, in any case. A few writers put one percent sign, not two.
pub(super) fn recognise(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(b"%") else { return false };
    let rest = rest.strip_prefix(b"%").unwrap_or(rest);
    let banner = b"matrixmarket";
    rest.get(..banner.len()).is_some_and(|start| start.eq_ignore_ascii_case(banner))
}

/// Reads a whole file; also returns the name its comments give it.
pub(super) fn read(text: &[u8], limits: &Limits) -> Result<(Csr, Option<String>), ReadError> {
    let header = header::read(text, limits)?;
    let csr = match header.layout {
        Layout::Coordinate => coordinate::read(text, &header, limits)?,
        Layout::Array => array::read(text, &header, limits)?,
    };
    Ok((csr, header.name))
}

/// Cuts the body into pieces that end at line ends. Small enough that what is parsed from one stays in a core's cache,
/// and never so many that each of them cannot have a mapping of its own.
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

/// Where the entry line number `entry` (from 0) begins, passing over blank lines and comments.
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

/// Refuses a body that holds more or fewer entries than the size line says.
fn check_count(text: &[u8], header: &Header, found: u64) -> Result<(), ReadError> {
    let declared = header.stored;
    if found > declared {
        let error = format!("there are more entries than the {declared} the size line says");
        return Err(ReadError::malformed(error).at(text, entry_line(text, header, declared)));
    }
    if found < declared {
        let error =
            format!("the file ends after {found} of the {declared} entries its size line says");
        return Err(ReadError::malformed(error).at(text, text.len()));
    }
    Ok(())
}
