//! Moments in fragments: written as they are, so that a part that stays is the same bytes; the page tells their ages.

use crate::domain::Timestamp;

/// A moment for the page's script to tell the age of, and in words for who has no scripts.
pub struct Moment {
    pub iso: String,
    pub text: String,
}

impl Moment {
    pub fn of(at: Timestamp) -> Self {
        let iso = at.to_rfc3339();
        let text = iso.get(..16).unwrap_or(&iso).replace('T', " ");
        Self { iso, text }
    }
}
