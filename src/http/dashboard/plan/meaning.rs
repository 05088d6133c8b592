//! Parameter values, and what settings mean, in one line each. The catalogue explains families and parameters.

use crate::domain::{L2Policy, Param};

pub fn value(param: &Param) -> String {
    match param {
        Param::Int(value) => value.to_string(),
        Param::Text(text) => text.clone(),
    }
}

pub fn l2_policy(policy: L2Policy) -> &'static str {
    match policy {
        L2Policy::Warm => "calls follow each other on the same buffers",
        L2Policy::Cold => "the cache is swept before each call",
    }
}
