//! T4 results, version 1.0.0: the output schema of the auto-tuning community, as Kernel Tuner has it in `kernel_tuner/schema/T4`.

use super::foreign::{Group, Row, ms};
use crate::domain::Outcome;
use serde_json::{Value, json};

const VERSION: &str = "1.0.0";

/// The content of a results file.
pub fn results(group: &Group) -> Value {
    let subject = &group.subject;
    json!({
        "schema_version": VERSION,
        "metadata": {
            "timeunit": "milliseconds",
            "program": concat!("sparsetune ", env!("CARGO_PKG_VERSION")),
            "operation": subject.problem.op().name(),
            "problem": subject.problem,
            "matrix": { "digest": subject.matrix, "name": subject.matrix_name, "shape": subject.shape },
            "device_class": subject.device_class,
            "environment": subject.environment,
        },
        "results": group.rows.iter().map(|row| result(group, row)).collect::<Vec<_>>(),
    })
}

/// The content of the metadata file. What hardware it was, the results say: this host may be another.
pub fn metadata() -> Value {
    json!({
        "schema_version": VERSION,
        "metadata": { "environment": { "requirements": [concat!("sparsetune==", env!("CARGO_PKG_VERSION"))] } },
    })
}

fn result(group: &Group, row: &Row) -> Value {
    let mut measurements = Vec::new();
    let mut measured = |name: &str, value: f64, unit: &str| {
        measurements.push(json!({ "name": name, "value": value, "unit": unit }));
    };
    let mut runtimes = Vec::new();
    if let Outcome::Measured { timing, rel_error, preprocess_ms, .. } = &row.outcome {
        runtimes.extend(timing.samples_us.iter().map(|us| ms(*us)));
        measured("time", ms(timing.median_us), "ms");
        measured("preprocess", *preprocess_ms, "ms");
        measured("rel_error", *rel_error, "");
    }
    if let Some(us) = row.predicted_us {
        measured("predicted", ms(us), "ms");
    }
    json!({
        "timestamp": row.at.to_rfc3339(),
        "configuration": group.configuration(row),
        "objectives": ["time"],
        "times": { "runtimes": runtimes },
        "invalidity": invalidity(&row.outcome),
        // Every result that was timed had been compared with the reference.
        "correctness": if matches!(row.outcome, Outcome::Measured { .. }) { 1 } else { 0 },
        "measurements": measurements,
    })
}

const fn invalidity(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Measured { .. } => "correct",
        Outcome::CompileFailed { .. } => "compile",
        Outcome::Refused { .. } => "constraints",
        Outcome::Wrong { .. } => "correctness",
        Outcome::TimedOut { .. } => "timeout",
        Outcome::Crashed { .. } => "runtime",
    }
}
