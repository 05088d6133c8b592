//! The trials with a time, fastest first, as a table.

use crate::domain::job::Best;
use crate::domain::{Candidate, Outcome, Param, Trial};
use crate::http::dashboard::format;

/// Maximum number of rows; the API has all.
const MOST: usize = 20;

/// One measured trial.
pub struct Row {
    pub place: usize,
    pub family: String,
    pub params: String,
    pub time: String,
    pub interval: String,
    /// The baseline's best time divided by this one's.
    pub speedup: String,
    pub predicted: String,
    pub registers: String,
    pub preprocessing: String,
    /// For the plan's candidate: its time in the finals.
    pub won: Option<String>,
}

/// The parameters as read aloud: `m1=4 n1=64 order=length`. The page's script writes them in the same way.
pub fn parameters(candidate: &Candidate) -> String {
    let text = |(name, value): (&String, &Param)| match value {
        Param::Int(value) => format!("{name}={value}"),
        Param::Text(value) => format!("{name}={value}"),
    };
    candidate.params.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// Measured trials with their times, fastest first.
pub fn by_time(trials: &[Trial]) -> Vec<(&Trial, f64)> {
    let time = |trial: &Trial| trial.state.outcome().and_then(Outcome::median_us);
    let mut timed: Vec<(&Trial, f64)> =
        trials.iter().filter_map(|trial| Some((trial, time(trial)?))).collect();
    timed.sort_by(|a, b| a.1.total_cmp(&b.1));
    timed
}

/// The fastest routine of the baseline.
fn baseline<'t>(timed: &[(&'t Trial, f64)]) -> Option<(&'t Trial, f64)> {
    timed.iter().find(|(trial, _)| trial.candidate.is_baseline()).copied()
}

/// Its time.
pub fn baseline_us(timed: &[(&Trial, f64)]) -> Option<f64> {
    baseline(timed).map(|(_, us)| us)
}

/// What a baseline is called where it is not known which it is.
pub const BASELINE: &str = "the baseline";

/// What speed-ups of these trials are over, if it has been timed.
pub fn baseline_name(trials: &[Trial]) -> Option<String> {
    baseline(&by_time(trials)).map(|(trial, _)| format::family(&trial.candidate))
}

/// The fastest trials, and the winner at any position.
pub fn rows(trials: &[Trial], winner: Option<&Best>) -> Vec<Row> {
    let timed = by_time(trials);
    let baseline = baseline_us(&timed);
    let won = |trial: &Trial| winner.filter(|best| best.candidate == trial.candidate);
    let shown =
        timed.iter().zip(1..).filter(|((trial, _), place)| *place <= MOST || won(trial).is_some());
    shown
        .filter_map(|((trial, us), place)| {
            let row = row(trial, *us, place, baseline)?;
            Some(Row { won: won(trial).map(|best| format::micros(best.median_us)), ..row })
        })
        .collect()
}

fn row(trial: &Trial, us: f64, place: usize, baseline: Option<f64>) -> Option<Row> {
    let Outcome::Measured { timing, resources, preprocess_ms, .. } = trial.state.outcome()? else {
        return None;
    };
    let absent = || "–".to_owned();
    let interval = timing.interval_us().map(|ends| ends.map(format::micros));
    Some(Row {
        place,
        family: format::family(&trial.candidate),
        params: parameters(&trial.candidate),
        time: format::micros(us),
        interval: interval.map_or_else(absent, |[low, high]| format!("{low} to {high}")),
        speedup: baseline.map_or_else(absent, |baseline| format::times(baseline / us)),
        predicted: trial.predicted_us.map_or_else(absent, format::micros),
        registers: resources.map_or_else(absent, |resources| resources.registers.to_string()),
        preprocessing: format::micros(preprocess_ms * 1e3),
        won: None,
    })
}
