//! Rows by length, as bars.
