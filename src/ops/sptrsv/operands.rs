//! Operands that the kernels of several families have in common.

use crate::domain::recipe::Arg;
use crate::domain::{Dtype, Sptrsv};
use crate::ops::program::{Operand, parameter};

/// The type of values in a kernel's text; families that have no half types are asked for none.
pub fn value(problem: &Sptrsv) -> &'static str {
    if problem.dtype == Dtype::F64 { "double" } else { "float" }
}

/// What follows the system in a kernel that waits for values by sentinels: its work arrays, this call's and the next one's, and what
/// ends a wait.
pub fn waiting(value: &str) -> [Operand; 4] {
    let slots = format!("Sentinel<{value}>::Slot*");
    [
        parameter(&slots, "work", Arg::Turn { even: 0, odd: 1 }),
        parameter(&slots, "other", Arg::Turn { even: 1, odd: 0 }),
        parameter("u64", "deadline_ns", Arg::DeadlineNs),
        parameter("u32*", "status", Arg::Status),
    ]
}
