//! The text of a scheme's program, and the operands of its kernel.

use super::scheme::{Scheme, WARPS_A_BLOCK};
use crate::domain::Sptrsv;
use crate::domain::recipe::Arg;
use crate::ops::program::{EntryPoint, Setting, aggregate, number, parameter, program, settings};
use crate::ops::sptrsv::operands::{value, waiting};

/// The program of a scheme; the matrix is data, so one text serves all matrices of a problem.
pub fn source(scheme: &Scheme, problem: &Sptrsv) -> String {
    let members = [("Value", Setting::Type(value(problem))), ("kEntries", scheme.entries.into())];
    let kernel = kernel(scheme, problem, 0);
    program(&["sptrsv/streamed.cuh"], &settings("Solve", &members), &[kernel])
}

/// The kernel for `count` runs.
pub fn kernel(scheme: &Scheme, problem: &Sptrsv, count: u32) -> EntryPoint {
    let value = value(problem);
    let values = || format!("const {value}*");
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
    let system = aggregate(format!("Streamed<{value}>"), system);
    let operands = std::iter::once(system).chain(waiting(value)).collect();
    EntryPoint {
        name: "solve",
        launch_bounds: Some(format!("{}, {}", WARPS_A_BLOCK * 32, scheme.blocks())),
        cluster: 1,
        function: "streamed<StreamedConfig<Solve>>".to_owned(),
        operands,
    }
}
