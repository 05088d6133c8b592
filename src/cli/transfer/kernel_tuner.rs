//! Kernel Tuner's cache files, which its simulation mode tunes on.

use super::foreign::{FAMILY, Group, Row, ms, value};
use crate::domain::Outcome;
use serde_json::{Map, Value, json};

/// The content of a cache file.
pub fn cache(group: &Group) -> Value {
    let subject = &group.subject;
    let columns = u64::from(subject.problem.columns());
    let size = match subject.shape {
        Some([rows, cols, _]) => vec![rows, cols, columns],
        None => vec![columns],
    };
    let entries: Map<String, Value> = group.rows.iter().map(|row| entry(group, row)).collect();
    json!({
        "device_name": subject.device_class,
        "kernel_name": format!("{} of matrix {}", subject.problem, subject.matrix),
        "problem_size": size,
        "tune_params_keys": group.names(),
        "tune_params": group.params,
        "objective": "time",
        "cache": entries,
    })
}

/// The key is what Python prints of the values, between commas.
fn entry(group: &Group, row: &Row) -> (String, Value) {
    let values: Vec<String> =
        group.names().into_iter().map(|name| value(row, name).to_string()).collect();
    let mut entry = group.configuration(row);
    // A failure stands in place of the time.
    match &row.outcome {
        Outcome::Measured { timing, .. } => {
            entry.insert("time".to_owned(), json!(ms(timing.median_us)));
            let times: Vec<f64> = timing.samples_us.iter().map(|us| ms(*us)).collect();
            entry.insert("times".to_owned(), json!(times));
        }
        failed => {
            entry.insert("time".to_owned(), json!(failure(failed)));
        }
    }
    entry.insert("timestamp".to_owned(), json!(row.at.to_rfc3339()));
    debug_assert_eq!(values.first(), Some(&value(row, FAMILY).to_string()));
    (values.join(","), Value::Object(entry))
}

const fn failure(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::CompileFailed { .. } => "CompilationFailedConfig",
        Outcome::Refused { .. } => "InvalidConfig",
        Outcome::Measured { .. }
        | Outcome::Wrong { .. }
        | Outcome::TimedOut { .. }
        | Outcome::Crashed { .. } => "RuntimeFailedConfig",
    }
}
