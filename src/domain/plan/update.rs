//! The program that a plan brings for new values of the same pattern.

use crate::domain::Digest;
use serde::{Deserialize, Serialize};

/// A kernel `entry(const V* values, const u32* map, V* packed, u64 count)` that sets `packed[i] = values[map[i]]` for the
/// `count` elements of an array, except where `map[i]` is 2^32 - 1; V is an unsigned integer of the dtype's size. Any
/// one-dimensional grid is right, also for `quotients`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UpdateProgram {
    pub entry: String,
    /// A kernel `(const V* values, const u32* map, const u32* divisors, V* packed, u64 count)` for the coefficients of triangular
    /// systems: `packed[i] = -values[map[i]] / values[divisors[i]]`, with 1 for the numerator where `map[i]` is 2^32 - 2, and
    /// without the division where `divisors[i]` is 2^32 - 1; V is the dtype. Absent for other dtypes than f32 and f64, and in
    /// plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotients: Option<String>,
    /// Blobs of its complete source, and of what it was compiled to by the compiler of the launch.
    pub source: Digest,
    pub cubin: Digest,
    pub ptx: Digest,
}
