//! Bundles: a plan in one file that runs without the service. Written from a plan and its matrix, verified when read, and
//! run on the caller's own buffers. `docs/bundle.md` is the format; `domain::bundle` its manifest.

mod arguments;
mod build;
mod check;
mod container;
pub mod cpp;
mod directory;
mod extract;
mod host;
mod open;
mod operand;
mod pair;
mod places;
mod run;
mod tensors;
#[cfg(test)]
mod tests;
mod update;

pub use build::{BuildError, Parts, Values, build};
pub use check::{CheckReport, Inputs};
pub use container::ContainerError;
pub use extract::{Extract, Named};
pub use open::{Bundle, BundleError};
pub use pair::{Opened, Pair, PairError};
pub use run::{LoadedPlan, Place, RunError};
