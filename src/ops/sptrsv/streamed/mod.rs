//! The family `streamed`: rows in their own order, whose terms lie one after the other.
//!
//! Beyond the paper. Where levels have tens of thousands of rows, no hop decides but the requests that the L2 answers: one for each
//! gathered unknown, and with rows by length (`slices`) one more each for an entry of b and of x. A warp takes a run of neighbouring rows,
//! and its lanes take the terms of the run whatever their row, as products of sparse matrices with vectors are computed by streams of
//! entries (CSR-stream of Greathouse and Daga, SC 2014). No equation is rewritten: the solution is that of forward substitution row by row.

pub mod lower;
pub mod pack;
pub mod prove;
pub mod scheme;
pub mod space;
pub mod text;

pub use lower::StreamedLowerer;
pub use space::{admitted, share, whole};
