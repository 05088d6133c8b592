//! The text of a scheme's program, and the operands of its kernel.

use super::scheme::{Scheme, WARPS_A_BLOCK};
use crate::domain::recipe::Arg;
use crate::domain::{Dtype, Sptrsv};
use crate::ops::program::{EntryPoint, Setting, aggregate, number, parameter, program, settings};

/// The program of a scheme; the matrix is data, so one text serves all matrices of a problem.
pub fn source(scheme: &Scheme, problem: &Sptrsv) -> String {
    let members = [("Value", Setting::Type(value(problem))), ("kEntries", scheme.entries.into())];
    let kernel = kernel(scheme, problem, 0);
    program(&["sptrsv/streamed.cuh"], &settings("Solve", &members), &[kernel])
}

fn value(problem: &Sptrsv) -> &'static str {
    if problem.dtype == Dtype::F64 { "double" } else { "float" }
}

/// The kernel for `count` runs.
pub fn kernel(scheme: &Scheme, problem: &Sptrsv, count: u32) -> EntryPoint {
    let value = value(problem);
    let values = || format!("const {value}*");
    let slots = format!("Sentinel<{value}>::Slot*");
    let system = vec![
        parameter("const uint4*", "runs", Arg::Array(0)),
        parameter("const u16*", "ends", Arg::Array(1)),
        parameter("const u32*", "cols", Arg::Array(2)),
        parameter(values(), "vals", Arg::Array(3)),
        parameter("const int*", "rows", Arg::Array(4)),
        parameter(values(), "b", Arg::B),
        parameter(format!("{value}*"), "x", Arg::C),
        number("count", count),
    ];
    let operands = vec![
        aggregate(format!("Streamed<{value}>"), system),
        parameter(&slots, "work", Arg::Turn { even: 0, odd: 1 }),
        parameter(&slots, "other", Arg::Turn { even: 1, odd: 0 }),
        parameter("u64", "deadline_ns", Arg::DeadlineNs),
        parameter("u32*", "status", Arg::Status),
    ];
    EntryPoint {
        name: "solve",
        launch_bounds: Some(format!("{}, {}", WARPS_A_BLOCK * 32, scheme.blocks())),
        cluster: 1,
        function: "streamed<StreamedConfig<Solve>>".to_owned(),
        operands,
    }
}
