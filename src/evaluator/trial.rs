//! One trial: compile, verify on poisoned buffers, time. Every possible end is an outcome.

use super::EvaluatorError;
use crate::domain::protocol::{Effort, Reply};
use crate::domain::recipe::{Compiled, Recipe};
use crate::domain::{Outcome, Timing};
use crate::engine::{Check, Engine, EngineError};
use crate::sparse::tolerance::{APPROXIMATE, vendor_slack};
use std::time::Instant;

/// The stages of a trial, by which the pool chooses deadlines.
pub(super) const LOWERING: &str = "lowering";
pub(super) const COMPILING: &str = "compiling";
pub(super) const VERIFYING: &str = "verifying";
pub(super) const TIMING: &str = "timing";

/// The outcome of a trial whose time was used up before a sample, by what took it. The candidate may be good: it is not kept from
/// other jobs, and no model learns from it.
fn out_of_time(what: &str) -> Outcome {
    let beyond = "took longer than what was left of the job's time budget";
    Outcome::out_of_time(format!("{what} {beyond}"))
}

/// Runs one trial of a candidate that was just lowered. The only error is a failure to report a stage, which is not an outcome.
/// A stage that has begun is not ended; no other begins once the time is used up.
pub(super) fn run(
    engine: &mut dyn Engine,
    recipe: &Recipe,
    effort: Effort,
    tolerance: f64,
    mut enter: impl FnMut(&str) -> Result<(), EvaluatorError>,
) -> Result<Reply, EvaluatorError> {
    let began = Instant::now();
    if effort.is_used_up() {
        return Ok(measured(out_of_time("lowering it"), None));
    }
    enter(COMPILING)?;
    let started = Instant::now();
    let compiled = match engine.compile(recipe) {
        Ok(compiled) => compiled,
        Err(error) => return Ok(measured(outcome_of(error), None)),
    };
    let compile_call_ms = started.elapsed().as_secs_f64() * 1e3;
    let preprocess_ms = recipe.lowering_ms + prepare_ms(&compiled, compile_call_ms);

    if effort.after(began.elapsed()).is_used_up() {
        return Ok(measured(out_of_time("compiling it"), Some(compiled)));
    }
    enter(VERIFYING)?;
    let check = match engine.verify(recipe, effort.give_up_us) {
        Ok(check) => check,
        Err(error) => return Ok(measured(outcome_of(error), Some(compiled))),
    };
    let tolerance = match recipe.approximate {
        true => APPROXIMATE,
        false => tolerance * vendor_slack(&recipe.candidate),
    };
    if let Some(wrong) = wrong(&check, tolerance) {
        return Ok(measured(wrong, Some(compiled)));
    }

    let effort = effort.after(began.elapsed());
    if effort.is_used_up() {
        let outcome = out_of_time("making it ready and its first call");
        return Ok(measured(outcome, Some(compiled)));
    }
    enter(TIMING)?;
    let outcome = match engine.time(recipe, &effort) {
        Ok(timing) => finished(timing, check.rel_error, &compiled, preprocess_ms),
        Err(error) => outcome_of(error),
    };
    Ok(measured(outcome, Some(compiled)))
}

/// Work before the first call: uploads, packing, a vendor's preprocessing. Shared arrays count for every candidate, so
/// an engine that uploads them only once reports the time itself. Otherwise it is the time of the call to
/// `Engine::compile` without the kernel compiler and without opening libraries, which happen once for all matrices.
fn prepare_ms(compiled: &Compiled, compile_call_ms: f64) -> f64 {
    compiled.prepare_ms.unwrap_or((compile_call_ms - compiled.compile_ms).max(0.0))
}

fn finished(timing: Timing, rel_error: f64, compiled: &Compiled, preprocess_ms: f64) -> Outcome {
    // JSON has no infinity, so an infinite sample would be garbage on the pipe.
    if timing.samples_us.iter().any(|sample| !sample.is_finite()) {
        return Outcome::Refused {
            detail: "the timer returned a sample that is not a finite number".to_owned(),
        };
    }
    Outcome::Measured { timing, rel_error, resources: compiled.resources, preprocess_ms }
}

/// The outcome if the result does not pass the check; else `None`.
fn wrong(check: &Check, tolerance: f64) -> Option<Outcome> {
    let rel_error = check.rel_error.is_finite().then_some(check.rel_error);
    if check.unwritten > 0 {
        let detail = format!("{} elements of the result were not written", check.unwritten);
        return Some(Outcome::Wrong { rel_error, detail });
    }
    // Written so that NaN does not pass.
    let right = check.rel_error <= tolerance;
    (!right).then(|| Outcome::Wrong {
        rel_error,
        detail: format!(
            "element {} has a relative error of {:.3e}, which exceeds the tolerance {tolerance:.3e}",
            check.worst, check.rel_error
        ),
    })
}

fn outcome_of(error: EngineError) -> Outcome {
    match error {
        EngineError::Compile(detail) => Outcome::CompileFailed { detail },
        EngineError::Refused(detail)
        | EngineError::OtherDevice(detail)
        | EngineError::OutOfMemory(detail) => Outcome::Refused { detail },
        EngineError::Watchdog(detail) => {
            Outcome::TimedOut { detail, stopped: true, out_of_time: false }
        }
        EngineError::Lost(detail) => Outcome::Crashed { detail },
    }
}

/// A trial's reply.
pub(super) fn measured(outcome: Outcome, compiled: Option<Compiled>) -> Reply {
    Reply::Measured { outcome, compiled }
}

/// The reason, if the reply means that this process cannot continue.
pub(super) fn lost(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Measured { outcome: Outcome::Crashed { detail }, .. } => Some(detail.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::recipe::Program;
    use crate::domain::{Candidate, Clock};
    use crate::engine::replay::ReplayEngine;
    use std::time::Duration;

    /// The stages that were entered, one of which takes a while, and the outcome.
    fn slow(within: &'static str, left_ms: f64, needed: bool) -> (Vec<String>, Outcome) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        std::fs::write(&path, include_str!("../../tests/pool/recording.jsonl")).unwrap();
        let mut engine = ReplayEngine::open(&path).unwrap();
        let program = Program::Vendor { algorithm: String::new() };
        let recipe = Recipe::bare(&Candidate::new("other"), program);
        let effort = Effort {
            warmups: 0,
            min_samples: 1,
            max_samples: 2,
            budget_ms: 1.0,
            give_up_us: None,
            clock: Clock::Isolated,
            left_ms: Some(left_ms),
            needed,
        };
        let mut entered = Vec::new();
        let reply = run(&mut engine, &recipe, effort, 1e-3, |stage| {
            entered.push(stage.to_owned());
            if stage == within {
                std::thread::sleep(Duration::from_millis(300));
            }
            Ok(())
        });
        match reply {
            Ok(Reply::Measured { outcome, .. }) => (entered, outcome),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_stage_begins_once_the_time_is_used_up() {
        let all = [COMPILING, VERIFYING, TIMING];
        for (within, stages) in [("lowering", 0), (COMPILING, 1), (VERIFYING, 2)] {
            let left_ms = if stages == 0 { 0.0 } else { 200.0 };
            let (entered, outcome) = slow(within, left_ms, false);
            assert_eq!(entered, all[..stages], "{within}");
            let out_of_time = matches!(outcome, Outcome::TimedOut { out_of_time: true, .. });
            assert!(out_of_time && outcome.counted_as() == "stopped", "{within}: {outcome:?}");
            // What there is no plan without is timed all the same.
            let (entered, outcome) = slow(within, left_ms, true);
            assert_eq!(
                (&entered[..], outcome.counted_as()),
                (&all.map(str::to_owned)[..], "measured")
            );
        }
        assert_eq!(slow(COMPILING, 60_000.0, false).1.counted_as(), "measured");
    }

    #[test]
    fn a_shared_upload_counts_for_every_candidate() {
        let reported = Compiled { compile_ms: 40.0, prepare_ms: Some(7.5), ..Compiled::default() };
        assert_eq!(prepare_ms(&reported, 41.0), 7.5);
        let unreported = Compiled { prepare_ms: None, ..reported.clone() };
        assert_eq!(prepare_ms(&unreported, 41.0), 1.0);
        assert_eq!(prepare_ms(&Compiled::default(), 3.0), 3.0);
    }

    #[test]
    fn only_a_complete_and_accurate_result_passes() {
        let check = |rel_error, unwritten| wrong(&Check { rel_error, unwritten, worst: 3 }, 1e-6);
        assert_eq!(check(1e-6, 0), None);
        assert!(matches!(check(2e-6, 0), Some(Outcome::Wrong { rel_error: Some(_), .. })));
        assert!(matches!(check(f64::NAN, 0), Some(Outcome::Wrong { rel_error: None, .. })));
        assert!(matches!(check(f64::INFINITY, 0), Some(Outcome::Wrong { rel_error: None, .. })));
        assert!(matches!(check(0.0, 1), Some(Outcome::Wrong { .. })));
    }
}
