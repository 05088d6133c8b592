//! Parses numbers in text: indices eight digits at a time, floats with fast-float2, both without allocation.

/// What is wrong with a number; the caller adds the position and the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberError {
    NotANumber,
    NotFinite,
    /// An integer that float64 cannot represent exactly.
    Inexact,
}

pub(super) fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

pub(super) fn skip_blanks(text: &[u8], at: &mut usize) {
    while text.get(*at).is_some_and(|&byte| is_blank(byte)) {
        *at += 1;
    }
}

/// Reads decimal digits from `*at` on and moves past them; `None` if there is no digit. The result saturates, so a
/// number that does not fit into 64 bits is outside any range.
#[inline(always)]
pub(super) fn digits(text: &[u8], at: &mut usize) -> Option<u64> {
    let Some(word) = text.get(*at..).and_then(<[u8]>::first_chunk::<8>) else {
        return digits_slowly(text, at, 0, false);
    };
    // Digits become 0..=9; adding 0x76 sets the top bit of all other bytes. A carry can only affect bytes after the
    // first non-digit, which is the one searched for.
    let word = u64::from_le_bytes(*word) ^ 0x3030_3030_3030_3030;
    let others = (word.wrapping_add(0x7676_7676_7676_7676) | word) & 0x8080_8080_8080_8080;
    let count = others.trailing_zeros() / 8;
    if count == 0 {
        return None;
    }
    // The digits are shifted to the top, with zeros below that act as leading zeros. Then pairs, fours and eights are
    // combined.
    let pairs = word << (64 - 8 * count);
    let pairs = pairs.wrapping_mul(10).wrapping_add(pairs >> 8);
    let low = (pairs & 0x0000_00FF_0000_00FF).wrapping_mul(0x000F_4240_0000_0064);
    let high = ((pairs >> 16) & 0x0000_00FF_0000_00FF).wrapping_mul(0x0000_2710_0000_0001);
    let value = low.wrapping_add(high) >> 32;
    *at += count as usize;
    if count == 8 { digits_slowly(text, at, value, true) } else { Some(value) }
}

fn digits_slowly(text: &[u8], at: &mut usize, mut value: u64, mut any: bool) -> Option<u64> {
    while let Some(digit) = text.get(*at).map(|byte| byte.wrapping_sub(b'0')).filter(|&d| d <= 9) {
        value = value.saturating_mul(10).saturating_add(u64::from(digit));
        any = true;
        *at += 1;
    }
    any.then_some(value)
}

/// Reads a finite float from `*at` on, also with a Fortran exponent (`1.5D+03`).
#[inline]
pub(super) fn float(text: &[u8], at: &mut usize) -> Result<f64, NumberError> {
    let rest = text.get(*at..).unwrap_or_default();
    let Ok((value, length)) = fast_float2::parse_partial::<f64, _>(rest) else {
        return Err(NumberError::NotANumber);
    };
    if matches!(rest.get(length), Some(b'd' | b'D')) {
        return fortran_float(rest, length, at);
    }
    if !value.is_finite() {
        return Err(NumberError::NotFinite);
    }
    *at += length;
    Ok(value)
}

/// Longest number with a Fortran exponent, which must be rewritten before parsing.
const LONGEST: usize = 64;

/// A float whose mantissa ends at `mantissa` and whose exponent letter is D.
fn fortran_float(rest: &[u8], mantissa: usize, at: &mut usize) -> Result<f64, NumberError> {
    let mut text = [0u8; LONGEST];
    let take = rest.len().min(LONGEST);
    text[..take].copy_from_slice(&rest[..take]);
    *text.get_mut(mantissa).ok_or(NumberError::NotANumber)? = b'e';
    let Ok((value, length)) = fast_float2::parse_partial::<f64, _>(&text[..take]) else {
        return Err(NumberError::NotANumber);
    };
    // If no more than the mantissa was parsed, no digits follow the letter. At the end of the buffer the number may be
    // truncated.
    if length <= mantissa || length == LONGEST {
        return Err(NumberError::NotANumber);
    }
    if !value.is_finite() {
        return Err(NumberError::NotFinite);
    }
    *at += length;
    Ok(value)
}

/// Up to this integer, float64 represents all integers exactly.
pub(super) const MAX_EXACT: u64 = 1 << 53;

/// Reads a signed or unsigned integer that float64 represents exactly.
pub(super) fn integer(text: &[u8], at: &mut usize) -> Result<f64, NumberError> {
    let sign = text.get(*at).copied().filter(|byte| matches!(byte, b'-' | b'+'));
    let mut end = *at + usize::from(sign.is_some());
    let value = digits(text, &mut end).ok_or(NumberError::NotANumber)?;
    if value > MAX_EXACT {
        return Err(NumberError::Inexact);
    }
    *at = end;
    // 0 - x, not -x, so that "-0" gives +0.
    Ok(if sign == Some(b'-') { 0.0 - value as f64 } else { value as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_every_length() {
        for (text, value) in [
            ("0", 0),
            ("7 8 9 10 ", 7),
            ("12345678", 12_345_678),
            ("123456789012x", 123_456_789_012),
            ("00000000000000000000042\n", 42),
            ("99999999999999999999999", u64::MAX),
            ("1234567:", 1_234_567),
            ("1234567\u{fffd}", 1_234_567),
        ] {
            let mut at = 0;
            assert_eq!(digits(text.as_bytes(), &mut at), Some(value), "{text}");
            let length = text.bytes().take_while(u8::is_ascii_digit).count();
            assert_eq!(at, length, "{text}");
        }
        for text in ["", "-1", "x1234567", "/1234567", ":1234567", " 1234567"] {
            assert_eq!(digits(text.as_bytes(), &mut 0), None, "{text}");
        }
    }

    #[test]
    fn valid_and_invalid_floats() {
        for (text, value, length) in [
            ("1.5 ", 1.5, 3),
            ("-2.5e3\n", -2500.0, 6),
            ("+.5", 0.5, 3),
            ("1.25D+02", 125.0, 8),
            ("1d-1x", 0.1, 4),
            ("1e", 1.0, 1),
            ("4.9e-324", 5e-324, 8),
        ] {
            let mut at = 0;
            assert_eq!(float(text.as_bytes(), &mut at), Ok(value), "{text}");
            assert_eq!(at, length, "{text}");
        }
        for text in ["nan", "-inf", "Infinity", "1e400", "1d400"] {
            assert_eq!(float(text.as_bytes(), &mut 0), Err(NumberError::NotFinite), "{text}");
        }
        for text in ["", "x", "-", ".", "1D", "1Dx", "e5"] {
            assert_eq!(float(text.as_bytes(), &mut 0), Err(NumberError::NotANumber), "{text}");
        }
        let long = format!("{}D1", "1".repeat(70));
        assert_eq!(float(long.as_bytes(), &mut 0), Err(NumberError::NotANumber));
    }

    #[test]
    fn integers_stay_exact() {
        assert_eq!(integer(b"-42", &mut 0), Ok(-42.0));
        assert_eq!(integer(b"+9007199254740992", &mut 0), Ok(9_007_199_254_740_992.0));
        assert_eq!(integer(b"9007199254740993", &mut 0), Err(NumberError::Inexact));
        assert_eq!(integer(b"-", &mut 0), Err(NumberError::NotANumber));
        assert!(integer(b"-0", &mut 0).unwrap().is_sign_positive());
    }
}
