//! A sentence for each of the two charts, for users without images or scripts. The page's script writes the same sentences.

use super::failures;
use super::tried::{BASELINE, baseline_name, baseline_us, by_time, parameters};
use crate::domain::{Job, Outcome, Trial};
use crate::http::dashboard::format::{digits, family, micros, times};

pub struct Summaries {
    pub progress: String,
    pub agreement: String,
}

impl Summaries {
    pub fn of(job: &Job, trials: &[Trial]) -> Self {
        let tried: Vec<(&Trial, &Outcome)> =
            trials.iter().filter_map(|trial| Some((trial, trial.state.outcome()?))).collect();
        let none = if job.state.is_final() { "No trial was made." } else { "No trial yet." };
        if tried.is_empty() {
            return Self { progress: none.to_owned(), agreement: none.to_owned() };
        }
        Self { progress: progress(trials, &tried), agreement: agreement(&tried) }
    }
}

fn progress(trials: &[Trial], tried: &[(&Trial, &Outcome)]) -> String {
    let timed = by_time(trials);
    let mut text = format!("{} of {} trials measured", timed.len(), tried.len());
    let mut failed: Vec<(String, usize)> = Vec::new();
    for (_, outcome) in tried.iter().filter(|(_, o)| failures::detail(o).is_some()) {
        let name = failures::name(outcome);
        match failed.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => failed.push((name, 1)),
        }
    }
    for (name, count) in failed {
        text.push_str(&format!(", {count} {name}"));
    }
    if let Some((best, us)) = timed.first() {
        let name = format!("{} {}", family(&best.candidate), parameters(&best.candidate));
        text.push_str(&format!("; fastest {}: {}", name.trim_end(), micros(*us)));
        if let Some(baseline) = baseline_us(&timed).filter(|_| !best.candidate.is_baseline()) {
            let ratio = times(baseline / us);
            let name = baseline_name(trials);
            let name = name.as_deref().unwrap_or(BASELINE);
            text.push_str(&format!(", {ratio} over {name} ({})", micros(baseline)));
        }
    }
    text + "."
}

fn agreement(tried: &[(&Trial, &Outcome)]) -> String {
    let measured = tried.iter().filter_map(|(t, o)| Some((t.predicted_us, o.median_us()?)));
    let (mut both, mut without, mut logs) = (0_u32, 0_u32, 0.0);
    for (predicted, us) in measured {
        match predicted.filter(|predicted| *predicted > 0.0) {
            Some(predicted) => {
                both += 1;
                logs += (us / predicted).ln();
            }
            None => without += 1,
        }
    }
    if both == 0 {
        return "No trial has both a prediction and a time.".to_owned();
    }
    let ratio = (logs / f64::from(both)).exp();
    let (off, side) = if ratio >= 1.0 { (ratio, "slower") } else { (1.0 / ratio, "faster") };
    let off = digits(off);
    format!(
        "{both} predicted and measured, in the geometric mean {off}× {side} than predicted; {without} without a \
         prediction."
    )
}
