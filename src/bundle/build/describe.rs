//! What a manifest repeats of its plan.

use crate::domain::bundle::{Call, DenseOperand, Element, Promise, Target};
use crate::domain::{DeviceKind, Layout, Plan, Problem};

/// What dense operands on a GPU must be aligned to: the widest load of our kernels.
const ALIGNMENT: u32 = 16;

pub(super) fn target(plan: &Plan) -> Target {
    let device = &plan.device;
    let least_cuda = match device.kind {
        DeviceKind::Cpu => None,
        DeviceKind::Cuda => device.compiler.split_whitespace().last().map(str::to_owned),
    };
    Target {
        kind: device.kind,
        name: device.name.clone(),
        compute_capability: device.compute_capability.clone(),
        multiprocessors: device.multiprocessors,
        least_cuda,
        driver: device.driver.clone(),
        compiler: device.compiler.clone(),
    }
}

/// The dense operands of a plan's call, for a matrix of this shape.
pub(in crate::bundle) fn call(plan: &Plan, rows: u64, cols: u64) -> Call {
    let (dtype, columns) = (plan.problem.dtype(), u64::from(plan.problem.columns()));
    let element = Element::from(dtype);
    let alignment = match plan.device.kind {
        DeviceKind::Cpu => element.bytes() as u32,
        DeviceKind::Cuda => ALIGNMENT,
    };
    let dense = |rows, layout| DenseOperand { rows, cols: columns, element, layout, alignment };
    let (b, c, accumulate) = match &plan.problem {
        Problem::Spmm(spmm) => {
            let (c_rows, b_rows) = if spmm.transpose { (cols, rows) } else { (rows, cols) };
            (dense(b_rows, spmm.layout), dense(c_rows, spmm.layout), spmm.accumulate)
        }
        Problem::Sptrsv(_) => (dense(rows, Layout::Row), dense(rows, Layout::Row), false),
    };
    Call { b, c, accumulate, b_must_be_finite: plan.validity.dense_must_be_finite }
}

pub(super) fn promise(plan: &Plan) -> Promise {
    let measured = plan.measured.as_ref();
    Promise {
        median_us: measured.map(|measured| measured.median_us),
        ci95_us: measured.map(|measured| measured.ci95_us),
        rel_error: measured.map(|measured| measured.rel_error),
        vendor: plan.baseline.clone(),
        speedup: plan.speedup,
        preprocess_ms: plan.preprocess_ms,
        break_even_calls: plan.break_even_calls,
    }
}
