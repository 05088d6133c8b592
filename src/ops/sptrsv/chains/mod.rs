//! The family `chains`: rows of which each needs the one before it are solved by one warp, as one piece of work.
//!
//! Beyond the paper. In factors of Cholesky and LU, and in matrices with several unknowns a node, consecutive levels have rows that
//! need each other and, before that, nearly the same earlier unknowns: supernodes (Ashcraft and Grimes, TOMS 1989; Liu, Ng and Peyton,
//! SIAM J. Matrix Anal. 1993). A level costs a hop through L2 because its rows wait for those of other warps; a chain costs one hop
//! and a shuffle a row. What it needs of earlier rows is a dense panel, whose columns are gathered and indexed once for all its rows.
//! No equation is changed: it is forward substitution row by row. Or the rows of a chain are substituted in each other beforehand, which
//! multiplies the panel by the inverse of the chain's triangle (as solvers of supernodal factors do with its diagonal blocks; rounding is
//! that of rewriting, `slices::rewrite`): then a row waits for no other of its chain.

pub mod chain;
pub mod lower;
pub mod pack;
pub mod prove;
pub mod scheme;
pub mod space;
pub mod text;

pub use lower::ChainsLowerer;
pub use space::{admitted, share, whole};
