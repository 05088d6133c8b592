//! The figures of a plan as names and values: headline, costs, resources, launches, provenance.

use super::super::bound;
use super::super::format::{bytes, count, digits, micros, percent, seconds, short, times};
use super::meaning;
use crate::domain::plan::{Baseline, Bound, LaunchStep};
use crate::domain::{DeviceKind, Plan, Resources};
use crate::service::catalog;

/// A figure with its name and an optional note.
pub struct Fact {
    pub name: &'static str,
    pub value: String,
    pub note: String,
}

fn fact(name: &'static str, value: impl Into<String>, note: impl Into<String>) -> Fact {
    Fact { name, value: value.into(), note: note.into() }
}

/// Milliseconds; zero is written as a word.
fn millis(ms: f64) -> String {
    if ms > 0.0 { micros(ms * 1e3) } else { "none".to_owned() }
}

/// A figure by the clock that did not decide, of the winner's time and the speed-up by it; empty if it is not known.
fn by_other(plan: &Plan, figure: impl Fn(f64, Option<f64>) -> Option<String>) -> String {
    let measured = plan.measured.as_ref();
    let other = measured.and_then(|measured| measured.by_other(plan.baseline.as_ref()));
    let told = other.and_then(|(clock, us, vendor)| {
        let figure = figure(us, vendor.map(|vendor| vendor / us))?;
        Some(format!("; {figure} for {}", clock.how()))
    });
    told.unwrap_or_default()
}

/// The note names the baseline.
const SPEEDUP: &str = "Speed-up over the baseline";

pub fn figures(plan: &Plan) -> Vec<Fact> {
    let speedup = match (&plan.speedup, &plan.baseline) {
        (Some(speedup), Some(vendor)) => {
            let note = format!(
                "{vendor}, timed alternately{}",
                by_other(plan, |_, speedup| speedup.map(times))
            );
            fact(SPEEDUP, times(*speedup), note)
        }
        _ => {
            let why = plan.no_baseline.as_deref().unwrap_or("no baseline was measured");
            fact(SPEEDUP, "–", why)
        }
    };
    let against = match plan.limit.bound {
        Bound::Bytes => "Relative to copy bandwidth",
        Bound::Latency => "Relative to levels × hop latency",
        Bound::Flops => "Relative to peak arithmetic",
    };
    let reach = bound::reach(&plan.limit);
    let time = match (&plan.measured, &plan.predicted) {
        (Some(m), _) => {
            let within = m.interval_us().map(|ends| ends.map(micros));
            let within = within
                .map_or_else(String::new, |[low, high]| format!("95 % between {low} and {high}, "));
            let by = by_other(plan, |us, _| Some(micros(us)));
            let how = m.clock.how();
            let counted = if m.samples == 1 { "sample" } else { "samples" };
            let samples = format!("{how}; {within}{} {counted}{by}", m.samples);
            fact("Time per call (median)", micros(m.median_us), samples)
        }
        (None, Some(predicted)) => fact(
            "Time per call (predicted)",
            micros(predicted.median_us),
            match plan.provenance.ranked_by() {
                Some(model) => format!(
                    "ranked by {model}; time by the analytic model: predicted, not measured"
                ),
                None => format!("by {}: predicted, not measured", predicted.model),
            },
        ),
        (None, None) => fact("Time per call", "–", "not measured"),
    };
    let error = match &plan.measured {
        Some(m) if plan.candidate.is_approximate() => fact(
            "Largest residual",
            percent(m.rel_error),
            "of the largest element of b: equations hold nearly, as the problem permits",
        ),
        Some(m) => fact(
            "Relative error",
            format!("{:.1e}", m.rel_error),
            "maximum, compared with a float64 reference",
        ),
        None => fact("Relative error", "–", "not measured"),
    };
    vec![
        time,
        speedup,
        fact(against, reach.figure, format!("{}; {}", reach.words, bound::timed(&plan.limit))),
        error,
    ]
}

/// The baseline's own preprocessing, if there is a baseline.
fn against(plan: &Plan) -> String {
    let told = |it: &Baseline| format!("{}: {}", it.name, millis(it.preprocess_ms));
    plan.baseline.as_ref().map_or_else(String::new, told)
}

pub fn costs(plan: &Plan) -> Vec<Fact> {
    let pays = match plan.break_even_calls {
        Some(0) => {
            fact("Break-even after", "the first call", "no preprocessing beyond the baseline's")
        }
        Some(1) => fact("Break-even after", "1 call", ""),
        Some(calls) => fact("Break-even after", format!("{} calls", count(calls)), ""),
        None if plan.is_predicted() => fact("Break-even after", "–", "not measured"),
        None => {
            fact("Break-even after", "never", "compared with the baseline, including preprocessing")
        }
    };
    let update = plan.validity.update_values_ms;
    let update_note = match update > 0.0 {
        true if super::words::divides(plan) => {
            "on the host; a bundle takes new values on the device"
        }
        true => "on the host, for new values with the same pattern",
        false => "the kernel reads the matrix's values directly",
    };
    let mut costs = vec![
        match plan.preprocess_ms {
            Some(ms) => fact("Preprocessing", millis(ms), against(plan)),
            None => fact("Preprocessing", "–", "not measured"),
        },
        pays,
        fact("Value update", millis(update), update_note),
    ];
    if let Some(host) = &plan.host {
        let faster = plan.median_us().is_some_and(|us| host.median_us < us);
        let note = if faster { "faster than the device" } else { "the same problem on the CPU" };
        costs.push(fact("On the host", micros(host.median_us), note));
    }
    costs
}

pub fn resources(plan: &Plan) -> Vec<Fact> {
    let Some(resources) = &plan.resources else { return Vec::new() };
    let Resources { registers, local_bytes, shared_bytes, blocks_per_multiprocessor, occupancy } =
        *resources;
    let spilled = if local_bytes == 0 {
        "no spills".to_owned()
    } else {
        format!("{} spilled", bytes(local_bytes.into()))
    };
    vec![
        fact("Registers per thread", registers.to_string(), spilled),
        fact("Shared memory per block", bytes(shared_bytes.into()), ""),
        fact("Occupancy", percent(occupancy), blocks(blocks_per_multiprocessor)),
    ]
}

fn blocks(resident: u32) -> String {
    let s = if resident == 1 { "" } else { "s" };
    format!("{resident} block{s} per multiprocessor")
}

/// One launch of a call.
pub struct StepRow {
    pub entry: String,
    pub grid: String,
    pub block: String,
    pub shared: String,
    pub arguments: Vec<String>,
}

fn extent(of: [u32; 3]) -> String {
    let last = if of[2] > 1 {
        3
    } else if of[1] > 1 {
        2
    } else {
        1
    };
    of[..last].iter().map(|n| count(u64::from(*n))).collect::<Vec<_>>().join(" × ")
}

/// A sentence on how a plan for the host CPU runs; `None` for GPU kernels.
pub fn host_run(plan: &Plan) -> Option<String> {
    if plan.device.kind != DeviceKind::Cpu {
        return None;
    }
    let kernel = catalog().resolve(plan.problem.op(), plan.device.kind, &plan.candidate);
    let single = kernel.is_some_and(|kernel| kernel.flags.single_thread);
    if plan.candidate.is_baseline() {
        let threads = if single { "one thread" } else { "all threads of the host" };
        return Some(format!("The baseline itself was the fastest: it runs on {threads}."));
    }
    let threads = match (single, plan.candidate.int("threads")) {
        (true, _) | (_, Some(1)) => "one thread".to_owned(),
        (_, Some(threads)) => format!("{threads} threads"),
        _ => format!("up to {} threads", plan.device.multiprocessors),
    };
    let entry = plan.launch.as_ref().map_or("It", |launch| launch.entry.as_str());
    Some(format!(
        "{entry} runs inside sparsetune, on {threads} of the host. No kernel is launched."
    ))
}

/// All launches in order.
pub fn steps(plan: &Plan) -> Vec<StepRow> {
    let launch = plan.launch.as_ref().filter(|_| plan.device.kind == DeviceKind::Cuda);
    let Some(launch) = launch else { return Vec::new() };
    let only = LaunchStep {
        entry: launch.entry.clone(),
        grid: launch.grid,
        block: launch.block,
        cluster: 1,
        shared_bytes: launch.shared_bytes,
        overlaps: false,
        arguments: launch.arguments.clone(),
    };
    let steps = if launch.steps.is_empty() { std::slice::from_ref(&only) } else { &launch.steps };
    let row = |step: &LaunchStep| StepRow {
        entry: step.entry.clone(),
        grid: match step.cluster {
            0 | 1 => extent(step.grid),
            cluster => format!("{}, clusters of {cluster}", extent(step.grid)),
        },
        block: extent(step.block),
        shared: bytes(step.shared_bytes.into()),
        arguments: step.arguments.clone(),
    };
    steps.iter().map(row).collect()
}

/// An array that must be uploaded before the first call.
pub struct ArrayRow {
    pub name: String,
    pub element: String,
    pub length: String,
    pub bytes: String,
    pub digest: String,
    pub short: String,
}

pub fn arrays(plan: &Plan) -> Vec<ArrayRow> {
    let arrays = plan.launch.iter().flat_map(|launch| &launch.arrays);
    let size = |element: &str| match element {
        "u16" | "f16" | "bf16" => Some(2),
        "u32" | "f32" => Some(4),
        "f64" => Some(8),
        _ => None,
    };
    arrays
        .map(|array| ArrayRow {
            name: array.name.clone(),
            length: count(array.length),
            bytes: size(&array.element).map_or_else(
                || "–".to_owned(),
                |size: u64| bytes(array.length.saturating_mul(size)),
            ),
            element: array.element.clone(),
            digest: array.blob.to_string(),
            short: short(&array.blob),
        })
        .collect()
}

pub fn scratch(plan: &Plan) -> Vec<String> {
    let scratch = plan.launch.iter().flat_map(|launch| &launch.scratch);
    scratch
        .map(|scratch| format!("{} filled with {:#010x}", bytes(scratch.bytes), scratch.fill))
        .collect()
}

pub fn provenance(plan: &Plan) -> Vec<Fact> {
    let from = &plan.provenance;
    let kernel = match &from.kernel_digest {
        Some(digest) => short(digest),
        None => "–".to_owned(),
    };
    let kernel_note = match &from.kernel_digest {
        Some(_) => "digest of the family's kernel source; a plan with another digest is stale",
        None => "routines of a library have no kernel source here",
    };
    let mut facts = vec![
        fact("sparsetune", from.version.clone(), ""),
        fact("Environment", from.environment.clone(), "in another environment the plan is stale"),
        fact("Kernel source digest", kernel, kernel_note),
        fact("Seed", from.seed.to_string(), "for the random operands"),
        match plan.is_predicted() {
            true => fact("Choice", seconds(from.search_seconds), "nothing was measured"),
            false => fact(
                "Search",
                seconds(from.search_seconds),
                crate::explain::ending(from.stopped_by),
            ),
        },
        fact("L2 policy", plan.l2_policy.to_string(), meaning::l2_policy(plan.l2_policy)),
        fact(
            "Device class",
            plan.device.class().to_string(),
            format!("copies {} GB/s", digits(plan.device.copy_gbps)),
        ),
    ];
    if let (Some(imported), Some(origin)) = (&from.imported, plan.origin()) {
        facts.push(fact("Imported from", format!("store {}", imported.store), origin));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::{extent, figures, host_run, millis, steps};
    use crate::domain::{Candidate, ClockTime, Clocks, DeviceKind, Plan};

    #[test]
    fn a_host_plan_names_its_threads() {
        let text = include_str!("../../../../tests/http/plan.json");
        let mut plan: Plan = serde_json::from_str(text).unwrap();
        assert!(steps(&plan).is_empty());
        assert!(host_run(&plan).unwrap().contains("on up to 2 threads"));
        plan.candidate = Candidate::new("levels").with("threads", 8);
        assert!(host_run(&plan).unwrap().contains("on 8 threads"));
        plan.candidate = Candidate::new("vendor").with_text("algorithm", "sprs");
        assert!(host_run(&plan).unwrap().contains("one thread"));
        plan.device.kind = DeviceKind::Cuda;
        assert_eq!((host_run(&plan), steps(&plan).len()), (None, 2));
    }

    #[test]
    fn what_an_approximate_solve_leaves_is_said_in_words() {
        let text = include_str!("../../../../tests/http/plan.json");
        let mut plan: Plan = serde_json::from_str(text).unwrap();
        let said = |plan: &Plan| figures(plan).into_iter().last().map(|f| (f.name, f.value));
        assert_eq!(said(&plan).unwrap().0, "Relative error");
        plan.candidate = Candidate::new("sweeps").with("sweeps", 4);
        plan.measured.as_mut().unwrap().rel_error = 0.07;
        let (name, value) = said(&plan).unwrap();
        assert_eq!((name, &value[..]), ("Largest residual", "7.0 %"));
    }

    #[test]
    fn figures_say_by_which_clock_they_are() {
        let text = include_str!("../../../../tests/http/plan.json");
        let mut plan: Plan = serde_json::from_str(text).unwrap();
        let notes =
            |plan: &Plan| figures(plan).into_iter().take(2).map(|f| f.note).collect::<Vec<_>>();
        let old = notes(&plan);
        assert!(old[0].starts_with("each call alone; 95 % between") && old[0].ends_with("samples"));
        let time = |us| ClockTime { median_us: us, ci95_us: [us; 2], samples: 9 };
        let row = |us| Clocks { pipelined: Some(time(us)), isolated: None };
        plan.measured.as_mut().unwrap().clocks = row(10.0);
        plan.baseline.as_mut().unwrap().clocks = row(15.0);
        let both = notes(&plan);
        assert!(both[0].ends_with("; 10.0 µs for calls back to back"), "{both:?}");
        assert!(
            both[1].ends_with(&format!("; {} for calls back to back", super::times(1.5))),
            "{both:?}"
        );
    }

    #[test]
    fn extents_omit_trailing_ones() {
        assert_eq!(extent([64, 1, 1]), "64");
        assert_eq!(extent([1024, 1, 2]), "1,024 × 1 × 2");
    }

    #[test]
    fn zero_time_is_written_as_a_word() {
        assert_eq!(millis(0.0), "none");
        assert_eq!(millis(0.5), "500 µs");
    }
}
