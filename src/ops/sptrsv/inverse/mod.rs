//! The family `inverse`: solves approximately, by the client's consent (`approximate` in the problem), by one product with a sparse matrix
//! that is near the inverse, or by two.
//!
//! AG-SpTRSV has no such family. An incomplete sparse approximate inverse (Anzt, Huckle, Braeckle and Dongarra, Parallel Computing 2018, section 2) has
//! the pattern of a power of the triangle, and is exact on it: each of its rows (or columns) is the solution of a small triangular system. A
//! call is one launch that waits for nothing, where `sweeps` has as many as it takes. Where all ways from one unknown to another have the
//! same length, as in factors of grids, M of `power` hops is what `power` + 1 sweeps compute.
//!
//! Which of the two is computed decides whether a pair of solves is symmetric. Of a system in the order of its matrix M is the left inverse
//! (M T is the identity on the pattern), of a reversed one the right inverse (T M is), so that of L and U = D L^T one has
//! M_U = M_L^T D^-1.

pub mod compute;
pub mod lower;
pub mod pattern;
pub mod scheme;
pub mod space;
pub mod text;

pub use lower::InverseLowerer;
pub use space::{admitted, share, whole};
