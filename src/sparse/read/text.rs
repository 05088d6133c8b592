//! Lines of text that is not necessarily UTF-8.

/// The line that begins at `at`, without its line end, and the offset of the next line.
pub(super) fn line(text: &[u8], at: usize) -> (&[u8], usize) {
    let rest = text.get(at..).unwrap_or_default();
    let (line, next) = match memchr::memchr(b'\n', rest) {
        Some(end) => (&rest[..end], at + end + 1),
        None => (rest, text.len()),
    };
    (line.strip_suffix(b"\r").unwrap_or(line), next)
}
