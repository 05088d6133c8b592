//! The family `sweeps`: solves approximately, by the client's consent (`approximate` in the problem), in a few launches that wait for
//! nothing.
//!
//! Beyond the paper. Jacobi's iteration on a triangular system is exact after as many sweeps as there are levels, and near where the
//! diagonal dominates after a few (Chow and Patel, SIAM J. Sci. Comput. 2015; Anzt, Chow and Dongarra, Euro-Par 2015). As a part of a
//! preconditioner that is enough: its map is linear and fixed, and iterations that it costs are repaid where levels are many. Within a
//! block, rows are swept several times with the unknowns of others as they were (two-stage iteration: Frommer and Szyld,
//! Numerische Mathematik 1992).

pub mod estimate;
pub mod lower;
pub mod scheme;
pub mod space;
pub mod text;

pub use lower::lower;
pub use space::{admitted, share, whole};
