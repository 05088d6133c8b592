//! The family `overlapped`: windows of levels in which a warp computes again what it would otherwise wait for.
//!
//! Beyond the paper. A level costs a hop through L2 because its rows wait for rows of other warps. A group of rows of several levels
//! needs few rows of the same levels that belong to other groups, mostly at its rim; if the warp computes those again, it waits once
//! a window. This is the redundant computation of communication-avoiding sparse methods (Demmel, Hoemmen, Mohiyuddin and Yelick,
//! IPDPS 2008) and of overlapped tiling of stencils, applied to the graph of a triangular system. Unlike rewriting (`slices`) it
//! changes no equation: a row is summed from its own terms, in one order in all groups, so the solution is that of forward
//! substitution row by row, whatever the values are.

pub mod group;
pub mod lower;
pub mod pack;
pub mod prove;
pub mod scheme;
pub mod space;
pub mod text;

pub use lower::OverlappedLowerer;
pub use space::{admitted, share, whole};
