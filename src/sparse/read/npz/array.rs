//! One NumPy array file (NEP 1): its header, and its elements, which are streamed out of the archive. Object arrays are
//! refused by their header, so no pickle is ever loaded.

use super::super::{ReadError, ReadErrorKind, number};
use std::io::{self, Read};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    Signed,
    Unsigned,
    Float,
    /// Bytes (`S`) or code points (`U`), used only for the name of the format.
    Bytes,
    Unicode,
}

/// An array whose header has been read and whose elements follow in `reader`.
pub(super) struct Array<R> {
    name: &'static str,
    reader: R,
    kind: Kind,
    /// Bytes of one element.
    width: usize,
    big_endian: bool,
    shape: Vec<u64>,
    /// Upper bound of the decompressed size, whatever the archive declares.
    roomy: u64,
}

impl<R: Read> Array<R> {
    pub(super) fn open(name: &'static str, mut reader: R, roomy: u64) -> Result<Self, ReadError> {
        let mut start = [0u8; 8];
        fill(name, &mut reader, &mut start)?;
        let length = match start {
            [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _] => {
                let mut length = [0u8; 2];
                fill(name, &mut reader, &mut length)?;
                usize::from(u16::from_le_bytes(length))
            }
            [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _] => {
                let mut length = [0u8; 4];
                fill(name, &mut reader, &mut length)?;
                u32::from_le_bytes(length) as usize
            }
            _ => return Err(broken(name, "it is not a NumPy array of format version 1, 2 or 3")),
        };
        // NumPy refuses longer headers as well.
        if length > 10_000 {
            return Err(broken(name, "its header is longer than 10000 bytes"));
        }
        let mut header = vec![0u8; length];
        fill(name, &mut reader, &mut header)?;
        let header = String::from_utf8_lossy(&header);
        let (kind, width, big_endian) = descr(name, &header)?;
        let shape = shape(&header).ok_or_else(|| broken(name, "its header has no valid shape"))?;
        Ok(Self { name, reader, kind, width, big_endian, shape, roomy })
    }

    /// The number of elements of a one-dimensional array.
    pub(super) fn length(&self) -> Result<u64, ReadError> {
        match self.shape[..] {
            [length] => Ok(length),
            _ => Err(broken(self.name, "it must have one dimension")),
        }
    }

    /// The number of elements according to the header.
    pub(super) fn count(&self) -> u64 {
        self.shape.iter().fold(1u64, |product, &side| product.saturating_mul(side))
    }

    /// Decompressed size of the elements in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.count().saturating_mul(self.width as u64)
    }

    /// The text of a scalar of bytes or code points.
    pub(super) fn text(mut self) -> Result<String, ReadError> {
        let text = matches!(self.kind, Kind::Bytes | Kind::Unicode);
        if !text || !self.shape.is_empty() || self.width > 64 {
            return Err(broken(self.name, "it must be one short string"));
        }
        let mut bytes = vec![0u8; self.width];
        fill(self.name, &mut self.reader, &mut bytes)?;
        // Only ASCII names exist, so zero bytes are padding of wide characters in any byte order.
        Ok(bytes.iter().filter(|&&byte| byte != 0).map(|&byte| char::from(byte)).collect())
    }

    /// Non-negative integers below `limit`.
    pub(super) fn indices<T>(
        self,
        limit: u64,
        convert: impl Fn(u64) -> T,
    ) -> Result<Vec<T>, ReadError> {
        let (name, kind) = (self.name, self.kind);
        if !matches!(kind, Kind::Signed | Kind::Unsigned) {
            return Err(broken(name, "it must contain integers"));
        }
        self.elements(|element, place| {
            let value = integer(kind, element);
            match u64::try_from(value) {
                Ok(value) if value < limit => Ok(convert(value)),
                _ => Err(ReadError::out_of_range(format!(
                    "{name}[{place}] is {value}, which is outside 0..{limit}"
                ))),
            }
        })
    }

    /// Finite values that float64 represents exactly.
    pub(super) fn values(self) -> Result<Vec<f64>, ReadError> {
        let (name, kind) = (self.name, self.kind);
        if matches!(kind, Kind::Bytes | Kind::Unicode) {
            return Err(broken(name, "it must contain numbers"));
        }
        self.elements(|element, place| {
            let value = match (kind, element) {
                (Kind::Float, &[a, b]) => half(u16::from_le_bytes([a, b])),
                (Kind::Float, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
                (Kind::Float, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
                (Kind::Bool, &[byte]) => f64::from(byte != 0),
                (Kind::Signed | Kind::Unsigned, _) => {
                    let value = integer(kind, element);
                    if value.unsigned_abs() > u128::from(number::MAX_EXACT) {
                        return Err(ReadError::out_of_range(format!(
                            "{name}[{place}] is {value}, which exceeds 2^53, so float64 cannot represent it exactly"
                        )));
                    }
                    value as f64
                }
                _ => return Err(broken(name, "it must contain numbers")),
            };
            if value.is_finite() {
                return Ok(value);
            }
            Err(ReadError::new(ReadErrorKind::NotFinite, format!("{name}[{place}] is {value}, which is not a finite number")))
        })
    }

    /// Streams the little-endian elements through `convert`. Memory is reserved for at most `roomy` bytes, and grows
    /// with the elements beyond that.
    fn elements<T>(
        mut self,
        convert: impl Fn(&[u8], u64) -> Result<T, ReadError>,
    ) -> Result<Vec<T>, ReadError> {
        let length = self.length()?;
        let mut out = Vec::new();
        let certain = length.min(self.roomy / self.width as u64) as usize;
        if out.try_reserve_exact(certain).is_err() {
            return Err(ReadError::too_large(format!(
                "array {}: not enough memory for {length} elements",
                self.name
            )));
        }
        let mut buffer = vec![0u8; self.width * 8192];
        let mut place = 0;
        while place < length {
            let part = (length - place).min(8192) as usize * self.width;
            fill(self.name, &mut self.reader, &mut buffer[..part])?;
            for element in buffer[..part].chunks_exact_mut(self.width) {
                if self.big_endian {
                    element.reverse();
                }
                out.push(convert(element, place)?);
                place += 1;
            }
        }
        let more = self.reader.read(&mut [0]).map_err(|error| unpacking(self.name, &error))?;
        if more > 0 {
            return Err(broken(self.name, "there are unexpected bytes after its last element"));
        }
        Ok(out)
    }
}

fn broken(name: &str, why: &str) -> ReadError {
    ReadError::malformed(format!("array {name}: {why}"))
}

fn unpacking(name: &str, error: &io::Error) -> ReadError {
    ReadError::malformed(format!("array {name} cannot be decompressed: {error}"))
}

fn fill(name: &str, reader: &mut impl Read, buffer: &mut [u8]) -> Result<(), ReadError> {
    reader.read_exact(buffer).map_err(|error| unpacking(name, &error))
}

/// The text after `'key':` in the header, which is a Python dictionary in NumPy's usual spelling.
fn entry<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let rest = header.split_once(&format!("'{key}'"))?.1.trim_start();
    Some(rest.strip_prefix(':')?.trim_start())
}

fn descr(name: &str, header: &str) -> Result<(Kind, usize, bool), ReadError> {
    let descr = entry(header, "descr").ok_or_else(|| broken(name, "its header has no descr"))?;
    let quoted = descr.strip_prefix('\'').and_then(|rest| rest.split_once('\''));
    let refuse =
        |what: &str| ReadError::unsupported(format!("array {name}: {what} are not supported"));
    let Some((dtype, _)) = quoted else {
        return Err(refuse("structured elements"));
    };
    let mut letters = dtype.chars();
    let (order, kind) = (letters.next(), letters.next());
    let width: Option<usize> = letters.as_str().parse().ok();
    let (kind, widths): (Kind, &[usize]) = match kind {
        Some('O') => {
            return Err(refuse("object arrays (they are pickles, which are never loaded)"));
        }
        Some('c') => return Err(refuse("complex values")),
        Some('b') => (Kind::Bool, &[1]),
        Some('i') => (Kind::Signed, &[1, 2, 4, 8]),
        Some('u') => (Kind::Unsigned, &[1, 2, 4, 8]),
        Some('f') => (Kind::Float, &[2, 4, 8]),
        Some('S') => (Kind::Bytes, &[]),
        Some('U') => (Kind::Unicode, &[]),
        _ => return Err(refuse(&format!("elements of type '{}'", dtype.escape_default()))),
    };
    let big_endian = match order {
        Some('<' | '|' | '=') => false,
        Some('>') => true,
        _ => return Err(broken(name, "its byte order is not one of < > | =")),
    };
    match width {
        Some(width) if widths.contains(&width) => Ok((kind, width, big_endian)),
        Some(width) if widths.is_empty() && width > 0 => {
            let bytes = if kind == Kind::Unicode { 4 } else { 1 };
            Ok((kind, width.saturating_mul(bytes), big_endian))
        }
        _ => Err(refuse(&format!("elements of type '{}'", dtype.escape_default()))),
    }
}

fn shape(header: &str) -> Option<Vec<u64>> {
    let (sides, _) = entry(header, "shape")?.strip_prefix('(')?.split_once(')')?;
    sides
        .split(',')
        .map(str::trim)
        .filter(|side| !side.is_empty())
        .map(|side| side.parse().ok())
        .collect()
}

fn integer(kind: Kind, element: &[u8]) -> i128 {
    let negative = kind == Kind::Signed && element.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 16];
    wide[..element.len()].copy_from_slice(element);
    i128::from_le_bytes(wide)
}

/// Converts IEEE 754 binary16, which float64 represents exactly.
fn half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    match exponent {
        0 => sign * fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, descr, half, integer, shape};
    use crate::sparse::read::ReadErrorKind;

    #[test]
    fn halves() {
        for (bits, value) in
            [(0, 0.0), (1, 5.960464477539063e-8), (0x3c00, 1.0), (0xc100, -2.5), (0x7bff, 65504.0)]
        {
            assert_eq!(half(bits), value, "{bits:x}");
        }
        assert!(half(0x7c00).is_infinite() && half(0x7e00).is_nan());
    }

    #[test]
    fn integers_of_each_width() {
        assert_eq!(integer(Kind::Signed, &[0xff]), -1);
        assert_eq!(integer(Kind::Unsigned, &[0xff; 8]), i128::from(u64::MAX));
        assert_eq!(integer(Kind::Signed, &[0, 0, 0, 0x80]), i128::from(i32::MIN));
    }

    #[test]
    fn headers() {
        let header = "{'descr': '>i4', 'fortran_order': False, 'shape': (3,), }";
        assert_eq!(descr("x", header), Ok((Kind::Signed, 4, true)));
        assert_eq!(shape(header), Some(vec![3]));
        assert_eq!(shape("{'shape': ()}"), Some(vec![]));
        assert_eq!(shape("{'shape': (-3,)}"), None);
        for text in [
            "{'descr': '|O'}",
            "{'descr': [('a', '<f8')]}",
            "{'descr': '<c16'}",
            "{'descr': '<f16'}",
        ] {
            assert_eq!(descr("x", text).unwrap_err().kind, ReadErrorKind::Unsupported, "{text}");
        }
        assert!(descr("x", "{'descr': '<O'}").unwrap_err().message.contains("pickles"));
    }
}
