//! What the texts of SpMM kernels have in common: the name of the kernel, C++ types, and the operands alpha and beta.

use crate::domain::recipe::Arg;
use crate::domain::{Dtype, Spmm};
use crate::ops::program::{self, EntryPoint, Operand, Setting, aggregate, parameter};

/// Name of the kernel that computes C; it is the only one in programs of one step.
pub const ENTRY: &str = "spmm";

/// The kernel that computes C: an instance of a template with the program's `Settings`, without launch bounds.
pub fn kernel(template: &str, config: &str, operands: Vec<Operand>) -> EntryPoint {
    let function = format!("{template}<{config}<Settings>>");
    EntryPoint { name: ENTRY, launch_bounds: None, cluster: 1, function, operands }
}

/// A program with these settings, and with those that all problems have: the types of elements, and whether C is accumulated.
pub fn program(
    headers: &[&str],
    problem: &Spmm,
    own: &[(&str, Setting)],
    kernels: &[EntryPoint],
) -> String {
    let mut members = vec![
        ("Value", Setting::Type(element(problem.dtype))),
        ("Result", Setting::Type(element(problem.result()))),
    ];
    members.extend(own);
    members.push(("kAccumulate", problem.accumulate.into()));
    program::program(headers, &program::settings("Settings", &members), kernels)
}

/// The C++ type of elements.
pub fn element(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "Half",
        Dtype::Bf16 => "Brain",
        Dtype::F32 => "float",
        Dtype::F64 => "double",
    }
}

/// The C++ type of a pointer to elements that are read.
pub fn elements(dtype: Dtype) -> String {
    format!("const {}*", element(dtype))
}

/// The dense output.
pub fn output(problem: &Spmm) -> Operand {
    parameter(format!("{}*", element(problem.result())), "c", Arg::C)
}

/// How a kernel scales its sums: by the parameters alpha and beta where the problem has them.
pub fn scale(problem: &Spmm) -> Operand {
    let element = element(problem.result());
    let members = if problem.accumulate {
        let factor = |name, argument| parameter(format!("Sum<{element}>"), name, argument);
        vec![factor("alpha", Arg::Alpha), factor("beta", Arg::Beta)]
    } else {
        Vec::new()
    };
    aggregate(format!("Scale<{element}, {}>", problem.accumulate), members)
}
