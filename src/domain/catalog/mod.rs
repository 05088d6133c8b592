//! The catalogue: what can be tuned and by which kernels, as plain data without behaviour.

pub mod family;
pub mod operation;
pub mod rules;
pub mod vendor;
