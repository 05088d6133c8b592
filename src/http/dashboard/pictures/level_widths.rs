//! Rows of each level of a triangular solve, along the levels.
