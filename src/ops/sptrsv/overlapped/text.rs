//! The text of a scheme's program, and the operands of its kernel.

use super::scheme::Scheme;
use crate::domain::Sptrsv;
use crate::domain::recipe::Arg;
use crate::ops::program::{EntryPoint, aggregate, number, parameter, program, settings};
use crate::ops::sptrsv::operands::{value, waiting};

/// The program of a scheme; the matrix is data, so one text serves all matrices of a problem.
pub fn source(scheme: &Scheme, problem: &Sptrsv) -> String {
    let members = [
        ("Value", crate::ops::program::Setting::Type(value(problem))),
        ("kPasses", scheme.shape.levels.into()),
        ("kLanes", scheme.shape.lanes.into()),
        ("kUnroll", scheme.shape.unroll.into()),
        ("kAwaited", scheme.shape.awaited.into()),
    ];
    let kernel = kernel(scheme, problem, 0);
    program(&["sptrsv/overlapped.cuh"], &settings("Solve", &members), &[kernel])
}

/// The kernel for `count` groups.
pub fn kernel(scheme: &Scheme, problem: &Sptrsv, count: u32) -> EntryPoint {
    let value = value(problem);
    let values = || format!("const {value}*");
    let system = vec![
        parameter("const uint4*", "groups", Arg::Array(0)),
        parameter("const uint2*", "passes", Arg::Array(1)),
        parameter("const u32*", "awaited", Arg::Array(2)),
        parameter("const u16*", "cols", Arg::Array(3)),
        parameter(values(), "vals", Arg::Array(4)),
        parameter(values(), "scale", Arg::Array(5)),
        parameter("const u32*", "rows", Arg::Array(6)),
        parameter(values(), "b", Arg::B),
        parameter(format!("{value}*"), "x", Arg::C),
        number("count", count),
    ];
    let system = aggregate(format!("Overlapped<{value}>"), system);
    let operands = std::iter::once(system).chain(waiting(value)).collect();
    EntryPoint {
        name: "solve",
        // One block a multiprocessor.
        launch_bounds: Some(format!("{}, 1", scheme.warps * 32)),
        cluster: 1,
        function: "overlapped<OverlappedConfig<Solve>>".to_owned(),
        operands,
    }
}
