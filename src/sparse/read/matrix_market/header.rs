//! The banner, the comments and the size line of a Matrix Market file.

use super::super::error::quote;
use super::super::number;
use super::super::text::line;
use super::super::triplets::Symmetry;
use super::super::{Limits, ReadError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Coordinate,
    Array,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Real,
    Integer,
    Pattern,
}

#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) layout: Layout,
    pub(super) field: Field,
    pub(super) symmetry: Symmetry,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Number of entries in the body, as declared by the size line, or derived from the shape for an array. Used only
    /// for validation, never to allocate memory.
    pub(super) stored: u64,
    /// Offset of the first entry.
    pub(super) body: usize,
    pub(super) name: Option<String>,
}

impl Header {
    /// Bytes of the shortest line that has an entry.
    pub(super) const fn shortest_line(&self) -> usize {
        match (self.layout, self.field) {
            (Layout::Coordinate, Field::Pattern) => "1 1\n".len(),
            (Layout::Coordinate, _) => "1 1 1\n".len(),
            (Layout::Array, _) => "1\n".len(),
        }
    }
}

pub(super) fn read(text: &[u8], limits: &Limits) -> Result<Header, ReadError> {
    let (banner, mut at) = line(text, 0);
    let (layout, field, symmetry) = banner_words(banner).map_err(|error| error.at(text, 0))?;
    let mut name = None;
    loop {
        if at >= text.len() {
            return Err(ReadError::malformed("the file ends before its size line").at(text, at));
        }
        let (content, next) = line(text, at);
        match content.trim_ascii_start() {
            [] => {}
            [b'%', comment @ ..] => name = name.or_else(|| named(comment)),
            _ => break,
        }
        at = next;
    }
    let (size, body) = line(text, at);
    let header = Header { layout, field, symmetry, rows: 0, cols: 0, stored: 0, body, name };
    size_line(size, header, text.len() - body, limits).map_err(|error| error.at(text, at))
}

fn banner_words(banner: &[u8]) -> Result<(Layout, Field, Symmetry), ReadError> {
    let banner = String::from_utf8_lossy(&banner[..banner.len().min(1024)]).to_ascii_lowercase();
    let words: Vec<&str> = banner.split_ascii_whitespace().collect();
    let [_, object, layout, field, symmetry] = words[..] else {
        return Err(ReadError::malformed(
            "the banner must have five words: '%%MatrixMarket matrix FORMAT FIELD SYMMETRY'",
        ));
    };
    if object != "matrix" {
        return Err(ReadError::unsupported(format!(
            "the object '{object}' is not supported, only 'matrix' is"
        )));
    }
    let layout = match layout {
        "coordinate" => Layout::Coordinate,
        "array" => Layout::Array,
        other => return Err(unknown("format", other, "coordinate, array")),
    };
    let field = match field {
        "real" | "double" => Field::Real,
        "integer" => Field::Integer,
        "pattern" => Field::Pattern,
        "complex" => {
            return Err(ReadError::unsupported(
                "complex matrices are not supported, only real ones",
            ));
        }
        other => return Err(unknown("field", other, "real, double, integer, pattern")),
    };
    let symmetry = match symmetry {
        "general" => Symmetry::General,
        "symmetric" => Symmetry::Symmetric,
        "skew-symmetric" => Symmetry::SkewSymmetric,
        "hermitian" => {
            return Err(ReadError::unsupported(
                "Hermitian matrices are complex, but only real matrices are supported",
            ));
        }
        other => return Err(unknown("symmetry", other, "general, symmetric, skew-symmetric")),
    };
    if field == Field::Pattern && layout == Layout::Array {
        return Err(ReadError::malformed(
            "an array file cannot be a pattern, because it consists of values",
        ));
    }
    if field == Field::Pattern && symmetry == Symmetry::SkewSymmetric {
        return Err(ReadError::malformed(
            "a pattern cannot be skew-symmetric, because its entries have no signs",
        ));
    }
    Ok((layout, field, symmetry))
}

fn unknown(what: &str, word: &str, known: &str) -> ReadError {
    ReadError::malformed(format!(
        "the banner's {what} is {}, but must be one of: {known}",
        quote(word.as_bytes(), 0)
    ))
}

/// The name from a comment `% name: Group/name`, as in the SuiteSparse collection.
fn named(comment: &[u8]) -> Option<String> {
    let comment = std::str::from_utf8(comment).ok()?.trim_start_matches('%').trim();
    let name = comment.strip_prefix("name:")?.trim();
    let plain = !name.is_empty() && name.len() <= 200 && !name.chars().any(char::is_control);
    plain.then(|| name.to_owned())
}

fn size_line(
    line: &[u8],
    mut header: Header,
    left: usize,
    limits: &Limits,
) -> Result<Header, ReadError> {
    let wanted = if header.layout == Layout::Coordinate { 3 } else { 2 };
    let mut sizes = [0u64; 3];
    let mut at = 0;
    for size in &mut sizes[..wanted] {
        number::skip_blanks(line, &mut at);
        let begin = at;
        let value = number::digits(line, &mut at);
        match (value, line.get(at)) {
            (Some(value), None | Some(b' ' | b'\t')) => *size = value,
            _ => {
                return Err(ReadError::malformed(format!(
                    "the size line must have {wanted} whole numbers, found {}",
                    quote(line, begin)
                )));
            }
        }
    }
    number::skip_blanks(line, &mut at);
    if at < line.len() {
        return Err(ReadError::malformed(format!(
            "the size line has an unexpected {} after its {wanted} numbers",
            quote(line, at)
        )));
    }
    let [rows, cols, stored] = sizes;
    (header.rows, header.cols) = limits.shape(rows, cols, (line.len() + left) as u64)?;
    if header.symmetry != Symmetry::General && rows != cols {
        return Err(ReadError::malformed(format!(
            "a {rows} x {cols} matrix cannot be symmetric, because it is not square"
        )));
    }
    let stored = match header.layout {
        Layout::Coordinate => stored,
        Layout::Array => array_entries(header.symmetry, rows, cols),
    };
    limits.entries(stored)?;
    let room = (left as u64 + 1) / header.shortest_line() as u64;
    if stored > room {
        return Err(ReadError::malformed(format!(
            "the size line declares {stored} entries, but the remaining {left} bytes can contain at most {room}"
        )));
    }
    header.stored = stored;
    Ok(header)
}

/// Number of values of an array file: all, or one triangle with or without its diagonal. Both sizes are below 2^31.
fn array_entries(symmetry: Symmetry, rows: u64, cols: u64) -> u64 {
    match symmetry {
        Symmetry::General => rows * cols,
        Symmetry::Symmetric => rows * (rows + 1) / 2,
        Symmetry::SkewSymmetric => rows * rows.saturating_sub(1) / 2,
    }
}
