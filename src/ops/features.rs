//! Features: the named numbers that learned models read about a matrix, a problem, a device and a candidate.
//!
//! Features that all candidates of a job share are computed and stored once; each candidate adds its own.

use super::operation;
use crate::domain::{Candidate, Device, Op, Param};

/// Version of an operation's features; see [`operation::TunableOperation::features_version`].
pub fn version(op: Op) -> u32 {
    operation(op).features_version()
}

/// Position of the analytic prediction among a candidate's own features: the base-2 logarithm of one plus its microseconds.
pub const PREDICTED: usize = 0;

/// The features of several candidates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Described {
    pub shared: Vec<f32>,
    /// One row per candidate, in their order.
    pub own: Vec<Vec<f32>>,
}

/// Names of the shared features, then of a candidate's own features, in order.
pub fn names(op: Op) -> (Vec<String>, Vec<String>) {
    operation(op).feature_names()
}

/// Numbers with names, in the order in which they were added.
#[derive(Default)]
pub(super) struct Numbers {
    pub names: Vec<String>,
    pub values: Vec<f32>,
    /// Whether names are kept: writing them for each candidate takes longer than computing its numbers.
    named: bool,
}

impl Numbers {
    pub fn named() -> Self {
        Self { named: true, ..Self::default() }
    }

    /// Without names.
    pub fn unnamed() -> Self {
        // About as many as a candidate has.
        Self { values: Vec::with_capacity(64), ..Self::default() }
    }

    /// Stores 0 for a value that is not a number: trees and perceptrons cannot handle NaN.
    pub fn put(&mut self, name: &str, value: f64) {
        self.put_under("", name, value);
    }

    /// Adds a number whose name begins with a prefix that other names share.
    fn put_under(&mut self, prefix: &str, name: &str, value: f64) {
        if self.named {
            self.names.push(format!("{prefix}{name}"));
        }
        let value = value.clamp(-1e9, 1e9) as f32;
        self.values.push(if value.is_finite() { value } else { 0.0 });
    }

    /// Adds a size as its logarithm: sizes are compared by their ratio.
    pub fn log(&mut self, name: &str, value: f64) {
        self.put(name, (value.max(0.0) + 1.0).log2());
    }

    /// Adds a share of a size, or a ratio between sizes, as its logarithm; 0 counts as 2^-30.
    pub fn ratio(&mut self, name: &str, of: f64, over: f64) {
        let floor = 2f64.powi(-30);
        self.put(name, (of / over.max(f64::MIN_POSITIVE)).clamp(floor, 1.0 / floor).log2());
    }

    pub fn flag(&mut self, name: &str, value: bool) {
        self.put(name, f64::from(u8::from(value)));
    }

    /// Adds a parameter of a candidate: a number as its logarithm, a text as its index among the possible values; -1 if the
    /// candidate does not have the parameter.
    pub fn parameter(&mut self, name: &str, texts: &[&str], candidate: &Candidate) {
        let value = match candidate.params.get(name) {
            None => -1.0,
            Some(Param::Int(value)) => ((value.max(&0) + 1) as f64).log2(),
            Some(Param::Text(text)) => {
                texts.iter().position(|known| known == text).map_or(-0.5, |at| at as f64)
            }
        };
        self.put_under("parameter_", name, value);
    }

    /// Adds which of some families a candidate belongs to.
    pub fn family(&mut self, families: &[&str], candidate: &Candidate) {
        for family in families {
            self.put_under("is_", family, f64::from(u8::from(candidate.family == *family)));
        }
    }

    /// Adds the device's facts.
    pub fn device(&mut self, device: &Device) {
        self.log("device_multiprocessors", device.multiprocessors.into());
        self.log("device_copy_gbps", device.copy_gbps);
        self.log("device_l2_bytes", device.l2_bytes as f64);
        self.log("device_registers", device.registers_per_multiprocessor.into());
        self.log("device_shared_bytes", device.shared_bytes_per_multiprocessor as f64);
        self.log("device_hop_ns", device.hop_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_a_version_of_its_own() {
        // Raise the version together with these numbers: models and rows of the previous version are then left alone.
        let counts = |op| (version(op), names(op).0.len(), names(op).1.len());
        assert_eq!(counts(Op::Spmm), (6, 51, 84));
        assert_eq!(counts(Op::Sptrsv), (4, 50, 56));
    }
}
