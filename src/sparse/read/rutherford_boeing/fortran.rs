//! Fortran edit descriptors such as `(16I5)` and `(1P,4D20.12)`: numbers in columns of fixed width, with or without
//! blanks between them.

use super::super::number::{self, NumberError};
use super::super::text::line;
use super::super::{ReadError, ReadErrorKind};

/// `repeat` fields of `width` characters on each line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    repeat: usize,
    width: usize,
    real: bool,
    decimals: usize,
    scaled: bool,
}

impl Descriptor {
    /// Parses `[kP][,][r](I|E|D|F|G)w[.d[Ee]]` in one or two pairs of parentheses.
    pub(super) fn parse(format: &[u8]) -> Result<Self, ReadError> {
        Self::try_parse(format).ok_or_else(|| {
            ReadError::unsupported(format!(
                "the Fortran format '{}' is not supported; supported are forms such as (16I5), (4E20.12) and (1P,5D16.8)",
                format.trim_ascii().escape_ascii()
            ))
        })
    }

    fn try_parse(format: &[u8]) -> Option<Self> {
        let text: Vec<u8> =
            format.iter().filter(|&&byte| byte != b' ').map(u8::to_ascii_uppercase).collect();
        let mut inner = text.strip_prefix(b"(")?.strip_suffix(b")")?;
        let mut at = 0;
        let mut first = number::digits(inner, &mut at);
        let mut scaled = false;
        if first.is_some() && inner.get(at) == Some(&b'P') {
            scaled = first != Some(0);
            inner = inner.get(at + 1..)?;
            inner = inner.strip_prefix(b",").unwrap_or(inner);
            at = 0;
            first = number::digits(inner, &mut at);
        }
        if inner.get(at) == Some(&b'(') {
            let nested = Self::try_parse(&inner[at..])?;
            let repeat = nested.repeat.checked_mul(small(first)?)?;
            return Some(Self { repeat, scaled: nested.scaled || scaled, ..nested });
        }
        let repeat = small(first)?;
        let real = match inner.get(at)? {
            b'I' => false,
            b'E' | b'D' | b'F' | b'G' => true,
            _ => return None,
        };
        at += 1;
        let width = small(Some(number::digits(inner, &mut at)?))?;
        let mut decimals = 0;
        if inner.get(at) == Some(&b'.') {
            at += 1;
            decimals = number::digits(inner, &mut at).filter(|&d| d < 1000)? as usize;
            if real && inner.get(at) == Some(&b'E') {
                at += 1;
                number::digits(inner, &mut at)?;
            }
        }
        (at == inner.len()).then_some(Self { repeat, width, real, decimals, scaled })
    }

    /// An integer descriptor, as required for pointers and indices.
    pub(super) fn parse_integers(format: &[u8]) -> Result<Self, ReadError> {
        let descriptor = Self::parse(format)?;
        if descriptor.real {
            return Err(ReadError::malformed(
                "the Fortran format of pointers and indices must be an integer format",
            ));
        }
        Ok(descriptor)
    }

    /// Reads a float. A decimal point is required if the format implies decimals, and an exponent if it has a scale
    /// factor, because existing readers disagree about the value of a field without them.
    pub(super) fn float(self, field: &[u8]) -> Result<f64, NumberError> {
        let mut text = [0u8; 64];
        let mut length = 0;
        let (mut point, mut exponent) = (false, false);
        let mut push = |byte: u8| -> Option<()> {
            *text.get_mut(length)? = byte;
            length += 1;
            Some(())
        };
        for (place, &byte) in field.iter().enumerate() {
            let byte = match byte {
                b'D' | b'd' | b'E' | b'e' => b'e',
                other => other,
            };
            // Fortran omits the letter if the exponent has three digits: 1.5-103.
            if place > 0 && matches!(byte, b'+' | b'-') && !exponent {
                push(b'e').ok_or(NumberError::NotANumber)?;
                exponent = true;
            }
            point |= byte == b'.';
            exponent |= byte == b'e';
            push(byte).ok_or(NumberError::NotANumber)?;
        }
        let mut at = 0;
        let value = number::float(&text[..length], &mut at)?;
        if at != length || (self.decimals > 0 && !point) || (self.scaled && !exponent) {
            return Err(NumberError::NotANumber);
        }
        Ok(value)
    }
}

/// A repeat count or width; 1 if it is omitted.
fn small(count: Option<u64>) -> Option<usize> {
    let count = count.unwrap_or(1);
    (1..=100_000).contains(&count).then_some(count as usize)
}

/// Why a field was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldError {
    Number(NumberError),
    OutOfRange,
}

impl From<NumberError> for FieldError {
    fn from(error: NumberError) -> Self {
        Self::Number(error)
    }
}

/// Reads fields, starting at the beginning of a line.
pub(super) struct Fields<'a> {
    text: &'a [u8],
    /// Offset of the line after the last field.
    pub(super) next_line: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, next_line: at }
    }

    /// Reads `count` fields; each section begins on a new line.
    pub(super) fn read<T>(
        &mut self,
        count: usize,
        descriptor: Descriptor,
        what: &str,
        convert: impl Fn(&[u8]) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, ReadError> {
        // A field takes at least one byte, so this is in proportion to the file.
        let mut out = Vec::with_capacity(count.min(self.text.len() - self.next_line));
        while out.len() < count {
            let begin = self.next_line;
            if begin >= self.text.len() {
                let error = format!("the file ends after {} of {count} {what}", out.len());
                return Err(ReadError::malformed(error).at(self.text, begin));
            }
            let (content, next) = line(self.text, begin);
            self.next_line = next;
            let wanted = (count - out.len()).min(descriptor.repeat);
            let before = out.len();
            let card = Card { content, wanted, what, convert: &convert };
            if let Err((place, error)) = card.read(descriptor.width, &mut out) {
                out.truncate(before);
                // A card that is a column short in every field was written so (SciPy's `hb_write`). As declared it does not
                // read, or reads the same: fields begin with a blank or a sign.
                let narrow = descriptor.width - 1;
                let is_narrow = descriptor.real && content.len() == wanted * narrow;
                if !is_narrow || card.read(narrow, &mut out).is_err() {
                    return Err(error.at(self.text, begin + place));
                }
            }
        }
        Ok(out)
    }
}

/// A line of fields.
struct Card<'a, C> {
    content: &'a [u8],
    /// The number of its fields.
    wanted: usize,
    what: &'a str,
    convert: &'a C,
}

impl<T, C: Fn(&[u8]) -> Result<T, FieldError>> Card<'_, C> {
    /// Appends the values of fields that are `width` columns wide; else the error and its place on the line.
    fn read(&self, width: usize, out: &mut Vec<T>) -> Result<(), (usize, ReadError)> {
        for number in 0..self.wanted {
            let place = number * width;
            let end = self.content.len().min(place + width);
            let field = self.content.get(place..end).unwrap_or_default().trim_ascii();
            let value = (self.convert)(field).map_err(|error| {
                (place.min(self.content.len()), refuse(error, field, self.what))
            })?;
            out.push(value);
        }
        Ok(())
    }
}

fn refuse(error: FieldError, field: &[u8], what: &str) -> ReadError {
    let shown = field[..field.len().min(40)].escape_ascii();
    let (kind, why) = match error {
        FieldError::Number(NumberError::NotANumber) if field.is_empty() => {
            return ReadError::malformed(format!("blank field among the {what}"));
        }
        FieldError::Number(NumberError::NotANumber) => {
            (ReadErrorKind::Malformed, "not a number in the declared format")
        }
        FieldError::Number(NumberError::NotFinite) => {
            (ReadErrorKind::NotFinite, "not a finite float64 number")
        }
        FieldError::Number(NumberError::Inexact) => {
            (ReadErrorKind::OutOfRange, "larger than 2^53, so float64 cannot represent it exactly")
        }
        FieldError::OutOfRange => (ReadErrorKind::OutOfRange, "out of range (indices begin at 1)"),
    };
    ReadError::new(kind, format!("the field '{shown}' among the {what} is {why}"))
}

#[cfg(test)]
mod tests {
    use super::{Descriptor, Fields};
    use crate::sparse::read::number::NumberError;

    fn shape(format: &str) -> Option<(usize, usize, bool)> {
        Descriptor::parse(format.as_bytes()).ok().map(|d| (d.repeat, d.width, d.real))
    }

    #[test]
    fn descriptors() {
        assert_eq!(shape("(16I5)          "), Some((16, 5, false)));
        assert_eq!(shape("(1P,4D20.12)"), Some((4, 20, true)));
        assert_eq!(shape("(1P5D16.8)"), Some((5, 16, true)));
        assert_eq!(shape("(3(1PE25.17E3))"), Some((3, 25, true)));
        assert_eq!(shape("( I8 )"), Some((1, 8, false)));
        for bad in [
            "",
            "(",
            "()",
            "(0I5)",
            "(3X5)",
            "(3I)",
            "(3I0)",
            "(99999999999I5)",
            "3I5",
            "(3I5",
            "(3I5)x",
            "(A20)",
        ] {
            assert_eq!(shape(bad), None, "{bad}");
        }
    }

    #[test]
    fn values() {
        let plain = Descriptor::parse(b"(4E20.12)").unwrap();
        for (text, value) in
            [("1.5D+02", 150.0), ("-1.5-103", -1.5e-103), (".5", 0.5), ("+2.E0", 2.0)]
        {
            assert_eq!(plain.float(text.as_bytes()), Ok(value), "{text}");
        }
        assert_eq!(plain.float(b"NaN"), Err(NumberError::NotFinite));
        assert_eq!(plain.float(b"1.0E999"), Err(NumberError::NotFinite));
        for bad in ["15", "1.5 2", "1.5x", "", "1.5D+", "--1.0"] {
            assert_eq!(plain.float(bad.as_bytes()), Err(NumberError::NotANumber), "{bad}");
        }
        let whole = Descriptor::parse(b"(20F4.0)").unwrap();
        assert_eq!(whole.float(b"15"), Ok(15.0));
        let scaled = Descriptor::parse(b"(1P,4F20.12)").unwrap();
        assert_eq!(scaled.float(b"1.5"), Err(NumberError::NotANumber));
    }

    #[test]
    fn fields_are_adjacent_and_sections_begin_on_new_lines() {
        let text = b"  1 23456\r\n789\n  5\n";
        let mut fields = Fields::new(text, 0);
        let threes = Descriptor::parse(b"(3I3)").unwrap();
        let number = |field: &[u8]| {
            let text = std::str::from_utf8(field).map_err(|_| NumberError::NotANumber)?;
            Ok(text.parse::<u32>().map_err(|_| NumberError::NotANumber)?)
        };
        assert_eq!(fields.read(4, threes, "numbers", number), Ok(vec![1, 23, 456, 789]));
        assert_eq!(fields.read(1, threes, "numbers", number), Ok(vec![5]));
        assert!(fields.read(1, threes, "numbers", number).is_err());
    }
}
