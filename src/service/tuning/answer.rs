//! Makes the plan out of a search's outcomes: winner, baseline, limit, break-even, validity, provenance.

use super::recorder::Recorder;
use super::session::{Outcomes, SessionError};
use crate::domain::plan::{
    Baseline, Bound, Launch, Limit, Measured, PLAN_VERSION, Predicted, Provenance, RunnerUp,
    TrialCounts, Validity,
};
use crate::domain::protocol::Exported;
use crate::domain::{Device, Outcome, Plan, PlanId, Timestamp};
use crate::ops;
use crate::search::Contender;
use crate::service::Service;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Builds the plan and stores the winner's source and cubin as blobs.
pub async fn plan(
    service: &Service,
    device: &Device,
    recorder: &Recorder,
    outcomes: Outcomes,
    exported: Exported,
) -> Result<Plan, SessionError> {
    let winner = &outcomes.contenders[outcomes.decision.winner];
    let candidate = winner.candidate.clone();
    let baseline = baseline(device, &outcomes.contenders);
    let median_us = winner.timing.median_us;
    let (rel_error, resources) = match recorder.known(&candidate) {
        Some(Outcome::Measured { rel_error, resources, .. }) => (*rel_error, *resources),
        // Only what was measured is a contender; NaN would not survive being stored.
        _ => return Err(SessionError::Hopeless(format!("{candidate} won without a measurement"))),
    };
    let request = &recorder.job.request;
    Ok(Plan {
        version: PLAN_VERSION,
        id: PlanId::fresh(),
        matrix: outcomes.matrix.digest,
        pattern_digest: outcomes.matrix.pattern_digest,
        problem: request.problem,
        l2_policy: service.settings().l2_policy,
        device: device.clone(),
        measured: Measured {
            median_us,
            ci95_us: winner.timing.ci95_us,
            samples: winner.timing.samples_us.len() as u32,
            rel_error,
        },
        tie: outcomes.decision.tie,
        runner_up: outcomes.decision.runner_up.map(|i| RunnerUp {
            candidate: outcomes.contenders[i].candidate.clone(),
            median_us: outcomes.contenders[i].timing.median_us,
        }),
        speedup: baseline.as_ref().map(|baseline| baseline.median_us / median_us),
        limit: Limit {
            us: outcomes.loaded.limit_us,
            bound: Bound::Bytes,
            fraction: outcomes.loaded.limit_us / median_us,
            bytes: outcomes.loaded.compulsory_bytes,
        },
        predicted: outcomes
            .predicted
            .get(&candidate.id())
            .map(|us| Predicted { model: outcomes.model.to_owned(), median_us: *us }),
        funnel: outcomes.funnel,
        trials: counts(recorder),
        preprocess_ms: winner.preprocess_ms,
        break_even_calls: baseline
            .as_ref()
            .and_then(|baseline| break_even(winner, baseline.median_us)),
        baseline,
        validity: Validity {
            values_may_change: true,
            pattern_may_change: false,
            update_values_ms: exported.update_ms.unwrap_or(0.0),
            dense_must_be_finite: ops::dense_must_be_finite(&candidate, device.kind),
            n_may_change: false,
        },
        launch: launch(service, &exported).await?,
        host: None,
        resources,
        provenance: Provenance {
            job: recorder.job.id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            environment: device.environment(),
            kernel_digest: device.kernels.get(&candidate.family).copied(),
            seed: outcomes.seed,
            stopped_by: outcomes.stopped_by,
            search_seconds: outcomes.search_seconds,
        },
        candidate,
        created_at: Timestamp::now(),
    })
}

/// The fastest of the vendor's routines in the finals.
fn baseline(device: &Device, contenders: &[Contender]) -> Option<Baseline> {
    let vendor = contenders.iter().find(|c| c.candidate.family == "vendor")?;
    let library = device.vendor.as_deref().unwrap_or("vendor");
    let (name, version) = library.split_once(' ').unwrap_or((library, ""));
    Some(Baseline {
        name: name.to_owned(),
        version: version.to_owned(),
        algorithm: vendor.candidate.text("algorithm").unwrap_or_default().to_owned(),
        median_us: vendor.timing.median_us,
    })
}

/// Calls after which preprocessing has paid for itself; `None` where the winner gains nothing a call.
fn break_even(winner: &Contender, baseline_us: f64) -> Option<u64> {
    let gain_us = baseline_us - winner.timing.median_us;
    (gain_us > 0.0).then(|| (winner.preprocess_ms * 1e3 / gain_us).ceil() as u64)
}

fn counts(recorder: &Recorder) -> TrialCounts {
    let mut counts = TrialCounts::default();
    for (_, outcome) in recorder.tried() {
        match outcome {
            Outcome::Measured { .. } => counts.measured += 1,
            failed => *counts.failed.entry(failed.state().to_owned()).or_default() += 1,
        }
    }
    counts
}

async fn launch(service: &Service, exported: &Exported) -> Result<Option<Launch>, SessionError> {
    let source = match &exported.source {
        Some(text) => Some(service.blobs().put_bytes(text.clone().into_bytes().into()).await?),
        None => None,
    };
    let cubin = match &exported.cubin {
        Some(text) => {
            let bytes = STANDARD.decode(text).map_err(|error| {
                SessionError::Hopeless(format!("the evaluator's cubin is garbled: {error}"))
            })?;
            Some(service.blobs().put_bytes(bytes.into()).await?)
        }
        None => None,
    };
    Ok(exported.steps.first().map(|first| Launch {
        entry: first.entry.clone(),
        source,
        cubin,
        grid: first.grid,
        block: first.block,
        shared_bytes: first.shared_bytes,
        arguments: first.arguments.clone(),
        steps: if exported.steps.len() > 1 { exported.steps.clone() } else { Vec::new() },
        arrays: Vec::new(),
        scratch: exported.scratch.clone(),
    }))
}
