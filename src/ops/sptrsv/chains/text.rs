//! The text of a scheme's program, and the operands of its kernel.

use super::scheme::Scheme;
use crate::domain::Sptrsv;
use crate::domain::recipe::Arg;
use crate::ops::program::{EntryPoint, Setting, aggregate, number, parameter, program, settings};
use crate::ops::sptrsv::operands::{value, waiting};

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

/// The kernel for `count` tasks.
pub fn kernel(scheme: &Scheme, problem: &Sptrsv, count: u32) -> EntryPoint {
    let value = value(problem);
    let values = || format!("const {value}*");
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
    let system = aggregate(format!("Chains<{value}>"), system);
    let operands = std::iter::once(system).chain(waiting(value)).collect();
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
