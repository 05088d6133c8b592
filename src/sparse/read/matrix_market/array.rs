//! The body of an array file: one value per line, column by column. Zeros are kept as explicit entries.

use super::super::error::quote;
use super::super::number::{self, NumberError};
use super::super::text::line;
use super::super::triplets::{self, Symmetry};
use super::super::{Held, Limits, ReadError, ReadErrorKind};
use super::header::{Field, Header};
use super::{check_count, pieces};
use crate::sparse::Csr;
use rayon::prelude::*;
use std::ops::Range;

pub(super) fn read(
    text: &[u8],
    header: &Header,
    limits: &Limits,
    held: &Held,
) -> Result<Csr, ReadError> {
    let whole = header.rows as u64 * header.cols as u64;
    limits.entries(whole)?;
    // Parsed values are in lists that grow by doubling.
    held.charge(header.stored, 16, "parsed values")?;
    let parsed: Vec<Result<Vec<f64>, ReadError>> = pieces(text, header.body)
        .into_par_iter()
        .map(|range| piece(text, range, header.field))
        .collect();
    let values = parsed.into_iter().collect::<Result<Vec<_>, _>>()?;
    check_count(text, header, values.iter().map(|part| part.len() as u64).sum())?;

    let (rows, cols, symmetry) = (header.rows as u32, header.cols as u32, header.symmetry);
    let first_row = move |col| match symmetry {
        Symmetry::General => 0,
        Symmetry::Symmetric => col,
        Symmetry::SkewSymmetric => col + 1,
    };
    let places = (0..cols).flat_map(move |col| (first_row(col)..rows).map(move |row| (row, col)));
    // The loop runs over values, so that billions of empty columns are not traversed.
    let entries = values
        .iter()
        .flatten()
        .zip(places)
        .map(|(&value, (row, col))| (row, col, value))
        .flat_map(|entry| std::iter::once(entry).chain(symmetry.mirror(entry)));
    triplets::assemble(header.rows, header.cols, entries, held)
}

fn piece(text: &[u8], range: Range<usize>, field: Field) -> Result<Vec<f64>, ReadError> {
    let mut values = Vec::new();
    let text = &text[..range.end];
    let mut at = range.start;
    while at < range.end {
        let next = line(text, at).1;
        number::skip_blanks(text, &mut at);
        if !matches!(text.get(at), None | Some(b'\n' | b'\r' | b'%')) {
            let begin = at;
            let value = match field {
                Field::Integer => number::integer(text, &mut at),
                Field::Real | Field::Pattern => number::float(text, &mut at),
            };
            values.push(value.map_err(|error| refuse(error, text, begin))?);
            if !text[at..next].trim_ascii().is_empty() {
                number::skip_blanks(text, &mut at);
                let error = format!(
                    "unexpected {} after the value: an array file has one value per line",
                    quote(text, at)
                );
                return Err(ReadError::malformed(error).at(text, at));
            }
        }
        at = next;
    }
    Ok(values)
}

fn refuse(error: NumberError, text: &[u8], at: usize) -> ReadError {
    let found = quote(text, at);
    let error = match error {
        NumberError::NotANumber => {
            ReadError::malformed(format!("expected a number as value, found {found}"))
        }
        NumberError::NotFinite => ReadError::new(
            ReadErrorKind::NotFinite,
            format!("the value {found} is not a finite float64 number"),
        ),
        NumberError::Inexact => ReadError::out_of_range(format!(
            "the integer {found} exceeds 2^53, so float64 cannot represent it exactly"
        )),
    };
    error.at(text, at)
}
