//! The body of a coordinate file: `row column [value]` lines are parsed in parallel into runs, then assembled to CSR.

use super::super::error::quote;
use super::super::number::{self, NumberError};
use super::super::runs::{self, Buckets, Run};
use super::super::triplets::{Entry, Symmetry};
use super::super::{Held, Limits, ReadError, ReadErrorKind};
use super::header::{Field, Header};
use super::{check_count, pieces};
use crate::sparse::Csr;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// State shared by the pieces, so that parsing stops once an error is known.
struct Progress {
    stored: AtomicU64,
    expanded: AtomicU64,
    /// Lowest piece with an error; later pieces are skipped, earlier ones may still contain an earlier error.
    bad: AtomicUsize,
}

pub(super) fn read(
    text: &[u8],
    header: &Header,
    limits: &Limits,
    held: &Held,
) -> Result<Csr, ReadError> {
    held.charge(header.rows as u64 + 1, 8, "row pointers")?;
    held.charge(header.stored, runs::ENTRY, "entries")?;
    let most = limits.max_entries();
    let buckets = Buckets::new(header.rows);
    let pieces = pieces(text, header.body);
    held.charge(pieces.len() as u64, buckets.run_bytes(), "lists of runs")?;
    let scratch = Scratch::of(&pieces, header);
    held.charge(scratch.bytes(), rayon::current_num_threads() as u64, "pieces being parsed")?;
    let progress =
        Progress { stored: 0.into(), expanded: 0.into(), bad: AtomicUsize::new(usize::MAX) };
    let parsed: Vec<Result<Run, ReadError>> = pieces
        .into_par_iter()
        .enumerate()
        .map_init(Vec::new, |entries, (number, range)| {
            entries.clear();
            // Not grown step by step, which would take more; what is not used is not touched.
            entries.reserve_exact(scratch.entries);
            if number < progress.bad.load(Relaxed) {
                let found = piece(text, range, header, entries).map_err(|fault| {
                    progress.bad.fetch_min(number, Relaxed);
                    fault.explain(text, header)
                })?;
                let stored = progress.stored.fetch_add(found, Relaxed) + found;
                let expanded = entries.len() as u64;
                let mirrored = expanded - found;
                held.charge(mirrored, runs::ENTRY, "entries implied by symmetry")
                    .inspect_err(|_| progress.bad.store(0, Relaxed))?;
                let expanded = progress.expanded.fetch_add(expanded, Relaxed) + expanded;
                if stored > header.stored || expanded > most {
                    progress.bad.store(0, Relaxed);
                    entries.clear();
                }
            }
            Run::new(buckets, entries)
        })
        .collect();
    let expanded = progress.expanded.into_inner();
    limits.entries(expanded)?;
    let stored = progress.stored.into_inner();
    if stored > header.stored {
        check_count(text, header, stored)?;
    }
    let runs = parsed.into_iter().collect::<Result<Vec<Run>, _>>()?;
    check_count(text, header, stored)?;
    runs::assemble(header.cols, buckets, runs)
}

/// The list into which a thread parses one piece after the other.
#[derive(Clone, Copy)]
struct Scratch {
    /// The most that a piece can have.
    entries: usize,
}

impl Scratch {
    fn of(pieces: &[Range<usize>], header: &Header) -> Self {
        let longest = pieces.iter().map(ExactSizeIterator::len).max().unwrap_or_default();
        let each = if header.symmetry == Symmetry::General { 1 } else { 2 };
        Self { entries: each * (longest / header.shortest_line() + 1) }
    }

    fn bytes(self) -> u64 {
        (self.entries * size_of::<Entry>()) as u64
    }
}

/// An error in a line and its position; small, so that the hot loop can return it cheaply.
#[derive(Clone, Copy, Debug)]
struct Fault {
    at: usize,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Index(&'static str),
    IndexRange(&'static str),
    Value(NumberError),
    Extra,
    SkewDiagonal,
}

/// Parses one piece and returns the number of stored entries. A mirrored entry directly follows its original.
fn piece(
    text: &[u8],
    range: Range<usize>,
    header: &Header,
    entries: &mut Vec<Entry>,
) -> Result<u64, Fault> {
    match header.field {
        Field::Real => lines(text, range, header, entries, number::float),
        Field::Integer => lines(text, range, header, entries, number::integer),
        Field::Pattern => lines(text, range, header, entries, |_, _| Ok(1.0)),
    }
}

fn lines(
    text: &[u8],
    range: Range<usize>,
    header: &Header,
    entries: &mut Vec<Entry>,
    value: impl Fn(&[u8], &mut usize) -> Result<f64, NumberError>,
) -> Result<u64, Fault> {
    let text = &text[..range.end];
    let symmetry = header.symmetry;
    let mut at = range.start;
    let mut stored = 0;
    loop {
        number::skip_blanks(text, &mut at);
        match text.get(at) {
            None => return Ok(stored),
            Some(b'\n') => at += 1,
            Some(b'\r') => line_end(text, &mut at)?,
            Some(b'%') => {
                at = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |end| at + end + 1)
            }
            Some(_) => {
                let begin = at;
                let row = index(text, &mut at, header.rows, "row")?;
                number::skip_blanks(text, &mut at);
                let col = index(text, &mut at, header.cols, "column")?;
                number::skip_blanks(text, &mut at);
                let value =
                    value(text, &mut at).map_err(|error| Fault { at, what: What::Value(error) })?;
                line_end(text, &mut at)?;
                if symmetry == Symmetry::SkewSymmetric && row == col {
                    return Err(Fault { at: begin, what: What::SkewDiagonal });
                }
                entries.push((row, col, value));
                if symmetry != Symmetry::General {
                    entries.extend(symmetry.mirror((row, col, value)));
                }
                stored += 1;
            }
        }
    }
}

/// Reads a 1-based index and makes it 0-based.
#[inline(always)]
fn index(text: &[u8], at: &mut usize, limit: usize, which: &'static str) -> Result<u32, Fault> {
    let begin = *at;
    let fault = |what| Fault { at: begin, what };
    let value = number::digits(text, at).ok_or(fault(What::Index(which)))?;
    if !matches!(text.get(*at), None | Some(b' ' | b'\t' | b'\n' | b'\r')) {
        return Err(fault(What::Index(which)));
    }
    let index = value.wrapping_sub(1);
    if index < limit as u64 { Ok(index as u32) } else { Err(fault(What::IndexRange(which))) }
}

/// Skips the rest of a line, which must be blank.
#[inline(always)]
fn line_end(text: &[u8], at: &mut usize) -> Result<(), Fault> {
    number::skip_blanks(text, at);
    match &text[*at..] {
        [] => Ok(()),
        [b'\n', ..] => {
            *at += 1;
            Ok(())
        }
        [b'\r'] | [b'\r', b'\n', ..] => {
            *at = text.len().min(*at + 2);
            Ok(())
        }
        _ => Err(Fault { at: *at, what: What::Extra }),
    }
}

impl Fault {
    #[cold]
    fn explain(self, text: &[u8], header: &Header) -> ReadError {
        let found = quote(text, self.at);
        let Header { rows, cols, .. } = header;
        let error = match self.what {
            What::Index(which) => ReadError::malformed(format!(
                "expected a whole number as {which} index, found {found}"
            )),
            What::IndexRange(which) if found.trim_matches(['\'', '0']).is_empty() => {
                ReadError::out_of_range(format!("the {which} index is 0, but indices begin at 1"))
            }
            What::IndexRange(which) => ReadError::out_of_range(format!(
                "the {which} index {found} is outside the {rows} x {cols} matrix"
            )),
            What::Value(NumberError::NotANumber) => {
                ReadError::malformed(format!("expected a number as value, found {found}"))
            }
            What::Value(NumberError::NotFinite) => ReadError::new(
                ReadErrorKind::NotFinite,
                format!("the value {found} is not a finite float64 number"),
            ),
            What::Value(NumberError::Inexact) => ReadError::out_of_range(format!(
                "the integer {found} exceeds 2^53, so float64 cannot represent it exactly"
            )),
            What::Extra if header.field == Field::Pattern => ReadError::malformed(format!(
                "a line of a pattern file consists of a row and a column only, but found also {found}"
            )),
            What::Extra => ReadError::malformed(format!("unexpected {found} after the value")),
            What::SkewDiagonal => ReadError::malformed(
                "a skew-symmetric matrix must not have entries on its diagonal",
            ),
        };
        error.at(text, self.at)
    }
}
