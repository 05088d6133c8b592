//! Times of several plans side by side.
