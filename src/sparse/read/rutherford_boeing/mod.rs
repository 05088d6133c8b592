//! Harwell-Boeing (Duff, Grimes and Lewis, TOMS 1989) and its successor Rutherford-Boeing (RAL-TR-97-031): compressed
//! columns in Fortran cards. Assembled real, integer and pattern matrices; right-hand sides are ignored.

mod fortran;

use super::number::{self, NumberError};
use super::text::line;
use super::triplets::{self, Entry, Symmetry, check_pointers};
use super::{Format, Held, Limits, ReadError};
use crate::sparse::Csr;
use fortran::{Descriptor, FieldError, Fields};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Real,
    Integer,
    Pattern,
}

/// The second card: numbers of lines in total, of pointers, indices, values and right-hand sides.
struct Cards {
    format: Format,
    right_sides: u64,
}

/// Whether the second card consists of whole numbers and the third begins with a matrix type.
pub(super) fn recognise(bytes: &[u8]) -> bool {
    let (_, second) = line(bytes, 0);
    let (counts, third) = line(bytes, second);
    let (types, _) = line(bytes, third);
    let class = |place: usize, letters: &[u8]| {
        types.get(place).is_some_and(|byte| letters.contains(&byte.to_ascii_uppercase()))
    };
    let typed = class(0, b"RCPIQ") && class(1, b"SUHZR") && class(2, b"AE");
    typed && types.get(3).is_none_or(|&byte| byte == b' ') && cards(counts).is_some()
}

fn cards(card: &[u8]) -> Option<Cards> {
    let numbers = whole_numbers(card)?;
    match numbers[..] {
        [_, _, _, _] => Some(Cards { format: Format::RutherfordBoeing, right_sides: 0 }),
        [_, _, _, _, right_sides] => Some(Cards { format: Format::HarwellBoeing, right_sides }),
        _ => None,
    }
}

/// The numbers of a card, if it contains nothing else.
fn whole_numbers(card: &[u8]) -> Option<Vec<u64>> {
    let card = &card[..card.len().min(128)];
    let words = card.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words
        .map(|word| {
            let mut at = 0;
            number::digits(word, &mut at).filter(|_| at == word.len())
        })
        .collect()
}

/// The parsed header.
struct Header {
    field: Field,
    symmetry: Symmetry,
    cards: Cards,
    rows: usize,
    cols: usize,
    stored: usize,
    pointers: Descriptor,
    indices: Descriptor,
    values: Option<Descriptor>,
    body: usize,
    name: Option<String>,
}

fn header(text: &[u8], limits: &Limits) -> Result<Header, ReadError> {
    let (title, second) = line(text, 0);
    let (counts, third) = line(text, second);
    let cards = cards(counts).ok_or_else(|| {
        ReadError::malformed("the second card must have four or five counts").at(text, second)
    })?;
    let (types, fourth) = line(text, third);
    let place = |error: ReadError| error.at(text, third);
    let (field, symmetry) = matrix_type(types).map_err(place)?;
    let sizes = whole_numbers(types.get(3..).unwrap_or_default());
    let (&[rows, cols, stored] | &[rows, cols, stored, _]) = sizes.as_deref().unwrap_or_default()
    else {
        return Err(place(ReadError::malformed(
            "the third card must have the numbers of rows, columns and entries (and elements)",
        )));
    };
    let (rows, cols) = limits.shape(rows, cols, text.len() as u64).map_err(place)?;
    let stored = limits.entries(stored).map_err(place)?;
    if symmetry != Symmetry::General && rows != cols {
        return Err(place(ReadError::malformed(format!(
            "a {rows} x {cols} matrix cannot be symmetric, because it is not square"
        ))));
    }
    if cols as u64 + stored as u64 > text.len() as u64 {
        let error = format!(
            "the header declares {cols} columns and {stored} entries, which do not fit into {} bytes",
            text.len()
        );
        return Err(place(ReadError::malformed(error)));
    }
    let (formats, mut body) = line(text, fourth);
    let place = |error: ReadError| error.at(text, fourth);
    let format =
        |from: usize, to: usize| formats.get(from..to.min(formats.len())).unwrap_or_default();
    let pointers = Descriptor::parse_integers(format(0, 16)).map_err(place)?;
    let indices = Descriptor::parse_integers(format(16, 32)).map_err(place)?;
    let values = match field {
        Field::Pattern => None,
        Field::Integer => Some(Descriptor::parse_integers(format(32, 52)).map_err(place)?),
        Field::Real => Some(Descriptor::parse(format(32, 52)).map_err(place)?),
    };
    if cards.right_sides > 0 {
        body = line(text, body).1;
    }
    let name = key(title);
    Ok(Header { field, symmetry, cards, rows, cols, stored, pointers, indices, values, body, name })
}

/// The key in columns 73 to 80 of the title card.
fn key(title: &[u8]) -> Option<String> {
    let key = std::str::from_utf8(title.get(72..title.len().min(80))?).ok()?.trim();
    let key = key.trim_start_matches('|').trim();
    (!key.is_empty() && !key.chars().any(char::is_control)).then(|| key.to_owned())
}

fn matrix_type(types: &[u8]) -> Result<(Field, Symmetry), ReadError> {
    let upper = |place: usize| types.get(place).map_or(0, u8::to_ascii_uppercase);
    let field = match upper(0) {
        b'R' => Field::Real,
        b'I' => Field::Integer,
        b'P' => Field::Pattern,
        b'C' => {
            return Err(ReadError::unsupported(
                "complex matrices are not supported, only real ones",
            ));
        }
        _ => {
            return Err(ReadError::unsupported(
                "matrices with values in a separate file are not supported",
            ));
        }
    };
    let symmetry = match upper(1) {
        b'U' | b'R' => Symmetry::General,
        b'S' => Symmetry::Symmetric,
        b'Z' if field == Field::Pattern => {
            return Err(ReadError::malformed(
                "a pattern cannot be skew-symmetric, because its entries have no signs",
            ));
        }
        b'Z' => Symmetry::SkewSymmetric,
        _ => {
            return Err(ReadError::unsupported(
                "Hermitian matrices are complex, but only real matrices are supported",
            ));
        }
    };
    match upper(2) {
        b'A' => Ok((field, symmetry)),
        _ => Err(ReadError::unsupported(
            "elemental matrices are not supported, only assembled ones are",
        )),
    }
}

/// Reads a file; also returns which of the two formats it is, and its key.
pub(super) fn read(
    text: &[u8],
    limits: &Limits,
    held: &Held,
) -> Result<(Format, Csr, Option<String>), ReadError> {
    let header = header(text, limits)?;
    // Charge the stored columns; the resulting rows are charged when their number is known.
    let stored = header.stored as u64;
    let columns = held.charge(header.cols as u64 + 1, 8, "column pointers");
    columns
        .and_then(|()| held.charge(stored, triplets::ENTRY, "stored entries"))
        .map_err(|error| error.at(text, header.body))?;
    let mut fields = Fields::new(text, header.body);
    let index = |limit: usize| {
        move |field: &[u8]| {
            let mut at = 0;
            let value = number::digits(field, &mut at).filter(|_| at == field.len());
            let value = value.ok_or(NumberError::NotANumber)?.wrapping_sub(1);
            if value < limit as u64 { Ok(value as u32) } else { Err(FieldError::OutOfRange) }
        }
    };
    let pointer = index(header.stored + 1);
    let pointers = fields.read(header.cols + 1, header.pointers, "column pointers", |field| {
        pointer(field).map(|value| value as usize)
    })?;
    check_pointers("column", &pointers, header.stored)
        .map_err(|error| error.at(text, header.body))?;
    let body = fields.next_line;
    let indices = fields.read(header.stored, header.indices, "row indices", index(header.rows))?;
    let values = match (header.values, header.field) {
        (None, _) => vec![1.0; header.stored],
        (Some(format), Field::Integer) => {
            fields.read(header.stored, format, "values", |field| {
                let mut at = 0;
                let value = number::integer(field, &mut at)?;
                if at == field.len() { Ok(value) } else { Err(NumberError::NotANumber.into()) }
            })?
        }
        (Some(format), _) => {
            fields.read(header.stored, format, "values", |field| Ok(format.float(field)?))?
        }
    };
    let rest = fields.next_line;
    if header.cards.right_sides == 0 && !text[rest..].trim_ascii().is_empty() {
        return Err(ReadError::malformed("there are unexpected lines after the last section")
            .at(text, rest));
    }
    let sections = (&pointers[..], &indices[..], &values[..]);
    let csr = build(&header, sections, limits, held).map_err(|error| match error.line {
        None => error.at(text, body),
        Some(_) => error,
    })?;
    Ok((header.cards.format, csr, header.name))
}

fn build(
    header: &Header,
    (pointers, indices, values): (&[usize], &[u32], &[f64]),
    limits: &Limits,
    held: &Held,
) -> Result<Csr, ReadError> {
    let symmetry = header.symmetry;
    let stored = pointers.windows(2).zip(0u32..).flat_map(|(pair, col)| {
        let column = pair[0]..pair[1];
        indices[column.clone()]
            .iter()
            .zip(&values[column])
            .map(move |(&row, &value)| (row, col, value))
    });
    if symmetry != Symmetry::General {
        one_triangle(stored.clone())?;
    }
    let diagonal = stored.clone().filter(|&(row, col, _)| row == col).count();
    if symmetry == Symmetry::SkewSymmetric && diagonal > 0 {
        return Err(ReadError::malformed(
            "a skew-symmetric matrix must not have entries on its diagonal",
        ));
    }
    if symmetry != Symmetry::General {
        limits.entries(2 * header.stored as u64 - diagonal as u64)?;
    }
    let entries = stored.flat_map(|entry| std::iter::once(entry).chain(symmetry.mirror(entry)));
    triplets::assemble(header.rows, header.cols, entries, held)
}

/// Refuses a symmetric matrix whose file has entries in both triangles: the format stores one of them, and implies the other.
fn one_triangle(stored: impl Iterator<Item = Entry>) -> Result<(), ReadError> {
    let mut seen = None;
    for (row, col, _) in stored.filter(|&(row, col, _)| row != col) {
        let lower = row > col;
        if *seen.get_or_insert(lower) != lower {
            return Err(ReadError::malformed(format!(
                "a symmetric matrix is stored as one of its triangles, but this file has entries in both: that of row {}, column {} \
                 is in the second",
                u64::from(row) + 1,
                u64::from(col) + 1
            )));
        }
    }
    Ok(())
}
