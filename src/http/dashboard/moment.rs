//! Points in time in fragments: written as absolute times, so that an unchanged fragment has the same bytes; the page's
//! script shows their ages.

use crate::domain::Timestamp;

/// A point in time: in ISO form for the page's script, and as text for browsers without JavaScript.
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
