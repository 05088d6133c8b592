//! The text of a scheme's program, and the operands of its kernel.

use super::scheme::Scheme;
use crate::domain::recipe::Arg;
use crate::domain::{Dtype, Sptrsv};
use crate::ops::program::{EntryPoint, Setting, aggregate, number, parameter, program, settings};

/// The program of a scheme; the matrix is data, so one text serves all matrices of a problem.
pub fn source(scheme: &Scheme, problem: &Sptrsv) -> String {
    let mut members = vec![
        ("Value", Setting::Type(value(problem))),
        ("kRows", scheme.shape.rows.into()),
        ("kUnroll", scheme.unroll.into()),
    ];
    let file = match scheme.shape.staged {
        true => {
            members.push(("kTerms", scheme.shape.terms.into()));
            "sptrsv/staged.cuh"
        }
        false => {
            members.push(("kSubstituted", scheme.shape.substitute.into()));
            "sptrsv/chains.cuh"
        }
    };
    program(&[file], &settings("Solve", &members), &[kernel(scheme, problem, 0)])
}

fn value(problem: &Sptrsv) -> &'static str {
    if problem.dtype == Dtype::F64 { "double" } else { "float" }
}

/// The kernel for `count` tasks.
pub fn kernel(scheme: &Scheme, problem: &Sptrsv, count: u32) -> EntryPoint {
    let value = value(problem);
    let values = || format!("const {value}*");
    let slots = format!("Sentinel<{value}>::Slot*");
    let system = vec![
        parameter("const uint4*", "tasks", Arg::Array(0)),
        parameter("const u32*", "cols", Arg::Array(1)),
        parameter("const u32*", "partials", Arg::Array(2)),
        parameter(values(), "vals", Arg::Array(3)),
        parameter(values(), "scale", Arg::Array(4)),
        parameter("const u32*", "rows", Arg::Array(5)),
        parameter(values(), "b", Arg::B),
        parameter(format!("{value}*"), "x", Arg::C),
        number("count", count),
    ];
    let operands = vec![
        aggregate(format!("Chains<{value}>"), system),
        parameter(&slots, "work", Arg::Turn { even: 0, odd: 1 }),
        parameter(&slots, "other", Arg::Turn { even: 1, odd: 0 }),
        parameter("u64", "deadline_ns", Arg::DeadlineNs),
        parameter("u32*", "status", Arg::Status),
    ];
    EntryPoint {
        name: "solve",
        // One block a multiprocessor.
        launch_bounds: Some(format!("{}, 1", scheme.warps * 32)),
        cluster: 1,
        function: match scheme.shape.staged {
            true => "staged_chains<StagedConfig<Solve>>".to_owned(),
            false => "chains<ChainsConfig<Solve>>".to_owned(),
        },
        operands,
    }
}
