//! New values of the same pattern: how they get into the arrays, and where these hold values.

use super::{BundleArray, CudaModule};
use serde::{Deserialize, Serialize};

/// An entry of a map from the places of an array to the matrix's entries: the place holds no value of the matrix.
pub const NO_ENTRY: u32 = u32::MAX;

/// An entry of a map of quotients: the numerator is 1.
pub const ONE: u32 = u32::MAX - 1;

/// How new values of the same pattern get into the arrays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum UpdateValues {
    /// Every place that holds a value of the matrix holds it as it is, or a quotient of two: by the maps of the arrays' `values`.
    Gather(GatherValues),
    /// The arrays are other functions of the values, so sparsetune's library makes them again, on the host. The arrays
    /// `matrix.row_ptr` and `matrix.col_idx` hold the matrix's pattern for it.
    Host(HostUpdate),
    /// The arrays cannot be updated; the matrix has to be tuned again.
    Impossible {
        /// A sentence.
        reason: String,
    },
}

/// Values are put in place one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GatherValues {
    /// A kernel `(const V* values, const u32* map, V* packed, u64 count)` that does it on a GPU, a thread for each place, V
    /// being an unsigned integer as wide as the problem's element type. Absent in plans of earlier versions and in those of
    /// CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<GatherKernel>,
}

/// The kernel that puts values in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GatherKernel {
    pub module: CudaModule,
    pub symbol: String,
    /// A kernel `(const V* values, const u32* map, const u32* divisors, V* packed, u64 count)` of the same module for arrays with
    /// `divisors`, V being the problem's element type. Since version 3; absent where no array needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quotients: Option<String>,
    /// Threads per block; the grid has enough blocks for `count`.
    pub block: u32,
}

/// The host computes the arrays again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HostUpdate {
    /// Milliseconds that it took when the plan was made.
    pub milliseconds: f64,
}

impl BundleArray {
    /// The map of divisors, if the array holds quotients.
    pub fn divisors(&self) -> Option<&str> {
        self.values.as_ref()?.divisors.as_deref()
    }
}

/// Where an array holds the matrix's values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PlacedValues {
    /// The u32 tensor of the array's length that names the matrix's entry of each place, or 4294967295 where the
    /// array holds none.
    /// Absent if place i holds entry i.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<String>,
    /// Set if places hold quotients, as the coefficients of triangular systems are: the u32 tensor of the array's length that names
    /// the entry by which each place is divided, or 4294967295 where it is not. A place holds minus the value that `map` names over
    /// that value; 4294967294 in `map` means 1 instead of minus a value. Such an array has a map. Since version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divisors: Option<String>,
}
