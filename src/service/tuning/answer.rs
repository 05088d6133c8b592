//! Builds the plan from the outcomes of a search: winner, baseline, bound, break-even point, validity, provenance.

use super::recorder::Recorder;
use super::session::{Outcomes, SessionError};
use crate::domain::candidate::{ALGORITHM, VENDOR};
use crate::domain::plan::{
    Baseline, HostTime, Launch, Limit, MEASURED_VERSION, Measured, Predicted, Provenance, RunnerUp,
    TrialCounts, Validity,
};
use crate::domain::{
    Clock, Clocks, Device, DeviceClass, DeviceKind, Digest, Finalist, Outcome, Plan, PlanId,
    Problem, Timestamp,
};
use crate::ops::Kernels;
use crate::search::{self, Contender};
use crate::service::Service;
use crate::store::StoreError;

/// The parts of the winner's program that are stored in the plan.
pub struct Program {
    pub launch: Option<Launch>,
    /// Host time in milliseconds to update to new values with the same pattern; see `Exported::update_ms`.
    pub update_ms: Option<f64>,
}

/// Builds the plan.
pub async fn plan(
    service: &Service,
    device: &Device,
    recorder: &Recorder,
    outcomes: Outcomes,
    program: Program,
) -> Result<Plan, SessionError> {
    let winner = &outcomes.contenders[outcomes.decision.winner];
    let clocks = |at: usize| {
        let timing = &outcomes.contenders[at].timing;
        Clocks::of([timing].into_iter().chain(outcomes.other.get(at).into_iter().flatten()))
    };
    let candidate = winner.candidate.clone();
    let baseline = baseline(device, &outcomes.contenders, winner.timing.clock, clocks);
    let median_us = winner.timing.median_us;
    let (rel_error, resources) = match recorder.known(&candidate) {
        Some(Outcome::Measured { rel_error, resources, .. }) => (*rel_error, *resources),
        // Cannot happen, since contenders have been measured; NaN could not be stored.
        _ => return Err(SessionError::Hopeless(format!("{candidate} won without a measurement"))),
    };
    let request = &recorder.job.request;
    let pattern = outcomes.matrix.pattern_digest;
    let host = match device.kind {
        DeviceKind::Cpu => None,
        DeviceKind::Cuda => host(service, &pattern, &request.problem, winner.timing.clock).await?,
    };
    Ok(Plan {
        version: MEASURED_VERSION,
        id: PlanId::fresh(),
        matrix: outcomes.matrix.digest,
        pattern_digest: pattern,
        problem: request.problem,
        l2_policy: service.settings().l2_policy,
        device: device.clone(),
        measured: Some(Measured {
            median_us,
            ci95_us: winner.timing.ci95_us,
            samples: winner.timing.samples_us.len() as u32,
            rel_error,
            clock: winner.timing.clock,
            clocks: clocks(outcomes.decision.winner),
        }),
        tie: outcomes.decision.tie,
        runner_up: outcomes.decision.runner_up.map(|i| RunnerUp {
            candidate: outcomes.contenders[i].candidate.clone(),
            median_us: outcomes.contenders[i].timing.median_us,
            ci95_us: outcomes.contenders[i].timing.interval_us(),
            clocks: clocks(i),
        }),
        finals: match outcomes.paired {
            true => finalists(&outcomes.contenders),
            false => Vec::new(),
        },
        speedup: baseline.as_ref().map(|baseline| baseline.median_us / median_us),
        limit: Limit {
            us: outcomes.loaded.limit_us,
            bound: outcomes.loaded.bound,
            fraction: outcomes.loaded.limit_us / median_us,
            bytes: outcomes.loaded.compulsory_bytes,
        },
        predicted: outcomes.predicted.get(&candidate.id()).map(|us| Predicted {
            model: outcomes.model.clone(),
            median_us: *us,
            passed_over: 0,
        }),
        model_error: search::model_error(&outcomes.model, &recorder.predictions()),
        funnel: outcomes.funnel,
        judged: outcomes.judged,
        intensity: outcomes.intensity,
        trials: counts(recorder),
        alternatives: Vec::new(),
        preprocess_ms: Some(winner.preprocess_ms),
        expected_calls: request.expected_calls,
        no_baseline: baseline.is_none().then(|| no_baseline(recorder, winner.timing.clock)),
        break_even_calls: baseline.as_ref().and_then(|baseline| break_even(winner, baseline)),
        baseline,
        validity: Validity {
            values_may_change: !candidate.is_approximate(),
            pattern_may_change: false,
            update_values_ms: program.update_ms.unwrap_or(0.0),
            dense_must_be_finite: Kernels::of(&request.problem, device.kind)
                .needs_finite_dense(&candidate),
            n_may_change: false,
        },
        launch: program.launch,
        host,
        resources,
        provenance: Provenance {
            job: Some(recorder.job.id.clone()),
            model: outcomes.learned.as_ref().map(|learned| learned.id.clone()),
            model_of: outcomes.learned.and_then(|learned| learned.of),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            environment: device.environment(),
            kernel_digest: device.kernels.get(&candidate.family).copied(),
            seed: outcomes.seed,
            stopped_by: outcomes.stopped_by,
            search_seconds: outcomes.search_seconds,
            narrowed: request.search.narrowed(outcomes.stopped_by, counts(recorder).measured),
            imported: None,
        },
        candidate,
        created_at: Timestamp::now(),
    })
}

/// All that were timed alternately, fastest first.
fn finalists(contenders: &[Contender]) -> Vec<Finalist> {
    let mut finals: Vec<Finalist> = contenders
        .iter()
        .map(|contender| Finalist {
            candidate: contender.candidate.clone(),
            median_us: contender.timing.median_us,
            ci95_us: contender.timing.ci95_us,
            samples: contender.timing.samples_us.len() as u32,
        })
        .collect();
    finals.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
    finals
}

/// The fastest vendor routine of the finals that has a time by the winner's clock: without finals, one that was cut may have another.
fn baseline(
    device: &Device,
    contenders: &[Contender],
    clock: Clock,
    clocks: impl Fn(usize) -> Clocks,
) -> Option<Baseline> {
    let at = contenders.iter().position(|c| c.candidate.is_baseline() && c.timing.tells(clock))?;
    let vendor = &contenders[at];
    let algorithm = vendor.candidate.text(ALGORITHM).unwrap_or_default();
    let (name, version) = device.library_of(algorithm);
    Some(Baseline {
        name: name.to_owned(),
        version: version.to_owned(),
        algorithm: algorithm.to_owned(),
        median_us: vendor.timing.median_us,
        clocks: clocks(at),
        preprocess_ms: vendor.preprocess_ms,
    })
}

/// Most characters of what became of one routine, in the reason for a missing baseline.
const MOST_SAID: usize = 200;

/// What became of the vendor's routines, for a plan that could not be compared with any.
fn no_baseline(recorder: &Recorder, clock: Clock) -> String {
    let tried = recorder.tried().into_iter().filter(|(candidate, _)| candidate.is_baseline());
    let told: Vec<String> = tried
        .map(|(candidate, outcome)| {
            let name = candidate.text(ALGORITHM).unwrap_or(VENDOR);
            let said: String =
                outcome.detail().unwrap_or_default().chars().take(MOST_SAID).collect();
            match outcome {
                Outcome::Measured { timing, .. } if !timing.tells(clock) => format!(
                    "{name} was cut by the job's time: {:.1} us for {}, which does not compare with {}",
                    timing.median_us,
                    timing.clock.how(),
                    clock.how()
                ),
                Outcome::Measured { .. } => format!("{name} ran alone, but not in the finals"),
                failed => format!("{name} {}: {said}", failed.counted_as()),
            }
        })
        .collect();
    match told.is_empty() {
        true => {
            "no routine of the vendor's library applies to this problem on this device".to_owned()
        }
        false => told.join("; "),
    }
}

/// Calls after which the winner breaks even with the vendor routine, preprocessing included; `None` if it is not faster
/// per call.
fn break_even(winner: &Contender, baseline: &Baseline) -> Option<u64> {
    let gain_us = baseline.median_us - winner.timing.median_us;
    let more_us = (winner.preprocess_ms - baseline.preprocess_ms).max(0.0) * 1e3;
    (gain_us > 0.0).then(|| (more_us / gain_us).ceil() as u64)
}

/// The best known time of the same problem on a CPU, by pattern: on the CPU that this process serves, if any, since
/// another host's time is no reason to stay on this host; otherwise on any known CPU, which the plan names. By the clock that decides
/// here, if that plan has its time.
async fn host(
    service: &Service,
    pattern: &Digest,
    problem: &Problem,
    clock: Clock,
) -> Result<Option<HostTime>, StoreError> {
    let mut best: Option<HostTime> = None;
    let cpus: Vec<DeviceClass> = service.local_cpus();
    let l2_policy = service.settings().l2_policy;
    for key in service.store().plan_keys(pattern).await? {
        let here = cpus.is_empty() || cpus.contains(&key.device_class);
        if key.problem != *problem || key.l2_policy != l2_policy || !here {
            continue;
        }
        let Some(plan) = service.measured_plan(&key).await? else { continue };
        let Some(median_us) = plan.median_by(clock).or_else(|| plan.median_us()) else { continue };
        let better = best.as_ref().is_none_or(|best| median_us < best.median_us);
        if plan.device.kind == DeviceKind::Cpu && better {
            best = Some(HostTime { plan: plan.id, device: key.device_class, median_us });
        }
    }
    Ok(best)
}

fn counts(recorder: &Recorder) -> TrialCounts {
    let mut counts = TrialCounts::default();
    for (_, outcome) in recorder.tried() {
        match outcome {
            Outcome::Measured { .. } => counts.measured += 1,
            failed => *counts.failed.entry(failed.counted_as().to_owned()).or_default() += 1,
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Candidate, Timing};

    #[test]
    fn the_vendors_analysis_counts_towards_break_even() {
        let timing = Timing::of(vec![10.0], 0).unwrap();
        let candidate = Candidate::new("slices");
        let winner = Contender { candidate, timing, preprocess_ms: 3.0, complexity: 3 };
        let calls = |median_us, preprocess_ms| {
            let (name, version, algorithm) = (String::new(), String::new(), String::new());
            let clocks = Clocks::default();
            let baseline = Baseline { name, version, algorithm, median_us, clocks, preprocess_ms };
            break_even(&winner, &baseline)
        };
        assert_eq!(calls(30.0, 0.0), Some(150));
        assert_eq!(calls(30.0, 2.5), Some(25));
        assert_eq!(calls(30.0, 9.0), Some(0));
        assert_eq!(calls(10.0, 9.0), None);
    }
}
