//! DLMC's `.smtx` (Gale et al., "Sparse GPU Kernels for Deep Learning", SC 2020): `rows, cols, nnz`, then row offsets,
//! then column indices, 0-based, without values; every entry is 1.

use super::error::quote;
use super::triplets::{self, check_pointers};
use super::{Held, Limits, ReadError, number};
use crate::sparse::Csr;

/// Whether the first line consists of three whole numbers separated by commas.
pub(super) fn recognise(bytes: &[u8]) -> bool {
    header(bytes).is_some()
}

/// The three numbers of the first line, and the offset of the next line.
fn header(bytes: &[u8]) -> Option<([u64; 3], usize)> {
    let mut numbers = [0; 3];
    let mut at = 0;
    for (place, value) in numbers.iter_mut().enumerate() {
        number::skip_blanks(bytes, &mut at);
        *value = number::digits(bytes, &mut at)?;
        number::skip_blanks(bytes, &mut at);
        if place < 2 {
            if bytes.get(at) != Some(&b',') {
                return None;
            }
            at += 1;
        }
    }
    matches!(bytes.get(at), None | Some(b'\r' | b'\n')).then_some((numbers, at))
}

pub(super) fn read(text: &[u8], limits: &Limits, held: &Held) -> Result<Csr, ReadError> {
    let Some(([rows, cols, nnz], mut at)) = header(text) else {
        return Err(ReadError::malformed("the first line must be 'rows, cols, nnz'").at(text, 0));
    };
    let left = (text.len() - at) as u64;
    let place = |error: ReadError| error.at(text, 0);
    let (rows, cols) = limits.shape(rows, cols, left).map_err(place)?;
    let nnz = limits.entries(nnz).map_err(place)?;
    // Each number takes a digit and a space, so the memory reserved below is in proportion to the file.
    let numbers = rows as u64 + 1 + nnz as u64;
    if numbers > left.div_ceil(2) {
        let error = format!("{numbers} numbers must follow, but only {left} bytes do");
        return Err(place(ReadError::malformed(error)));
    }
    held.charge(rows as u64 + 1, 8, "row pointers").map_err(place)?;
    held.charge(nnz as u64, triplets::ENTRY, "entries").map_err(place)?;
    let mut indptr = Vec::with_capacity(rows + 1);
    for _ in 0..=rows {
        indptr.push(next(text, &mut at, nnz as u64 + 1, "row offset")? as usize);
    }
    let body = at;
    check_pointers("row", &indptr, nnz).map_err(|error| error.at(text, body))?;
    let mut indices = Vec::with_capacity(nnz);
    for _ in 0..nnz {
        indices.push(next(text, &mut at, cols as u64, "column index")? as u32);
    }
    skip_space(text, &mut at);
    if at < text.len() {
        let error = format!("unexpected {} after the {nnz} column indices", quote(text, at));
        return Err(ReadError::malformed(error).at(text, at));
    }
    let values = vec![1.0; nnz];
    triplets::finish(rows, cols, indptr, indices, values, held)
}

fn skip_space(text: &[u8], at: &mut usize) {
    while text.get(*at).is_some_and(u8::is_ascii_whitespace) {
        *at += 1;
    }
}

/// The next number, below `limit`.
fn next(text: &[u8], at: &mut usize, limit: u64, what: &str) -> Result<u64, ReadError> {
    skip_space(text, at);
    let begin = *at;
    let value = number::digits(text, at);
    let ended = text.get(*at).is_none_or(u8::is_ascii_whitespace);
    let error = match value {
        Some(value) if ended && value < limit => return Ok(value),
        Some(_) if ended => ReadError::out_of_range(format!(
            "the {what} {} must be below {limit}",
            quote(text, begin)
        )),
        _ if begin >= text.len() => {
            ReadError::malformed(format!("the file ends where a {what} is expected"))
        }
        _ => ReadError::malformed(format!(
            "expected a whole number as {what}, found {}",
            quote(text, begin)
        )),
    };
    Err(error.at(text, begin))
}
