//! The program that a plan brings for new values of the same pattern.

use crate::domain::{Digest, Param};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

impl UpdateProgram {
    /// Whether a bundle of a plan of a triangular solve divides new values on the device: the program can, and the plan's scheme, of
    /// this family and with these parameters, rewrites no equation. What the host would take is `update_values_ms` all the same.
    pub fn divides(&self, family: &str, params: &BTreeMap<String, Param>) -> bool {
        let as_they_are = match family {
            "overlapped" | "streamed" => true,
            "chains" => !params.contains_key("substitute"),
            "slices" => params.get("window_ns") == Some(&Param::Int(0)),
            _ => false,
        };
        as_they_are && self.quotients.is_some()
    }
}
