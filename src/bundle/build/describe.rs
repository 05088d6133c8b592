//! What a manifest repeats of its plan.

use crate::domain::bundle::{Promise, Target};
use crate::domain::{DeviceKind, Plan};

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

pub(super) fn promise(plan: &Plan) -> Promise {
    let measured = plan.measured.as_ref();
    Promise {
        median_us: measured.map(|measured| measured.median_us),
        ci95_us: measured.and_then(crate::domain::plan::Measured::interval_us),
        rel_error: measured.map(|measured| measured.rel_error),
        vendor: plan.baseline.clone(),
        speedup: plan.speedup,
        preprocess_ms: plan.preprocess_ms,
        break_even_calls: plan.break_even_calls,
        clock: plan.clock(),
        clocks: measured.map(|measured| measured.clocks.clone()).unwrap_or_default(),
    }
}
