//! Compares a run of a suite with an earlier one: how close a ranked search came to the best of an exhaustive search,
//! and with what share of its trials.

use super::predicted::Looked;
use super::report::{geometric_mean, percent};
use super::run::{Run, Time, Tried};
use crate::cli::show;
use crate::domain::{Clock, StoppedBy};
use anyhow::Context;
use comfy_table::Table;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The parts of an earlier `--out` document that are compared.
#[derive(Debug, Deserialize)]
pub struct Earlier {
    runs: Vec<Record>,
}

#[derive(Debug, Deserialize)]
struct Record {
    matrix: String,
    task: String,
    figures: Option<Best>,
    #[serde(default)]
    plan: Option<Made>,
    trials: Vec<Tried>,
}

#[derive(Debug, Deserialize)]
struct Made {
    provenance: Provenance,
}

#[derive(Debug, Deserialize)]
struct Provenance {
    stopped_by: StoppedBy,
}

#[derive(Debug, Deserialize)]
struct Best {
    #[serde(flatten)]
    time: Time,
    winner: Option<String>,
}

/// Runs of one problem, or of all, for which both documents have a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    pub task: String,
    pub runs: usize,
    /// Earlier time divided by this run's by the same clock, from the plans: geometric mean, minimum, and the matrix of the minimum.
    pub of_best: Option<f64>,
    pub worst: Option<f64>,
    pub worst_matrix: Option<String>,
    /// The same only from the earlier run's trials, to avoid the noise of two sessions: its fastest time divided by its
    /// fastest among the candidates that this run also tried.
    pub of_best_same_session: Option<f64>,
    /// Earlier time divided by that of what lookups predicted before all jobs: geometric mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup_of_best: Option<f64>,
    /// Number of trials, without vendor routines.
    pub trials: usize,
    pub earlier_trials: usize,
}

/// A run beside the earlier one of its matrix and problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    pub matrix: String,
    pub task: String,
    /// This run's time and the earlier one's, by one clock.
    pub us: f64,
    pub earlier_us: f64,
    pub clock: Clock,
    pub winner: String,
    pub earlier_winner: Option<String>,
    /// As in [`Share`], for this run alone.
    pub of_best: f64,
    pub of_best_same_session: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup_of_best: Option<f64>,
    pub trials: usize,
    pub earlier_trials: usize,
}

impl Earlier {
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a document written by --out", file.display()))
    }

    fn record(&self, run: &Run) -> Option<&Record> {
        self.runs.iter().find(|record| record.matrix == run.matrix && record.task == run.task)
    }

    /// Runs whose earlier search ended before all its candidates were tried, so that its best may not be the best; they
    /// are skipped.
    pub fn cut_short(&self, runs: &[Run]) -> Vec<String> {
        let short = |run: &&Run| self.record(run).is_some_and(|record| !record.is_whole());
        runs.iter().filter(short).map(|run| format!("{} {}", run.matrix, run.task)).collect()
    }

    fn pair(&self, run: &Run) -> Option<Beside> {
        let earlier = self.record(run).filter(|record| record.is_whole())?;
        let (best, own) = (earlier.figures.as_ref()?, run.figures.as_ref()?);
        let (earlier_us, us, clock) = best.time.with(&own.time())?;
        let looked = run.lookup.as_ref().and_then(Looked::time);
        let looked = looked.and_then(|looked| best.time.with(looked));
        // The vendor's routine is timed beside a prediction, and was not its choice.
        let tried = |candidate: &str| match run.predicted {
            Some(_) => candidate == own.winner,
            None => run.trials.iter().any(|tried| tried.candidate == candidate),
        };
        let fastest = |among: &dyn Fn(&Tried) -> bool| {
            let times = earlier.trials.iter().filter(|trial| among(trial)).filter_map(|t| t.us);
            times.min_by(f64::total_cmp)
        };
        let fastest_us = fastest(&|_| true);
        let found = fastest(&|trial| tried(&trial.candidate));
        Some(Beside {
            matrix: run.matrix.clone(),
            task: run.task.clone(),
            us,
            earlier_us,
            clock,
            winner: own.winner.clone(),
            earlier_winner: best.winner.clone(),
            of_best: earlier_us / us,
            of_best_same_session: fastest_us.zip(found).map(|(best, found)| best / found),
            lookup_of_best: looked.map(|(earlier_us, us, _)| earlier_us / us),
            trials: ours(&run.trials),
            earlier_trials: ours(&earlier.trials),
        })
    }

    /// The runs for which both documents have a time.
    pub fn beside(&self, runs: &[Run]) -> Vec<Beside> {
        runs.iter().filter_map(|run| self.pair(run)).collect()
    }
}

/// One line per problem, then one for all; empty if no run is in both.
pub fn shares(pairs: &[Beside]) -> Vec<Share> {
    let mut tasks: Vec<&str> = Vec::new();
    for pair in pairs {
        if !tasks.contains(&&pair.task[..]) {
            tasks.push(&pair.task);
        }
    }
    let of_task = |task: &&str| {
        let own: Vec<&Beside> = pairs.iter().filter(|pair| pair.task == **task).collect();
        Share::of(task, &own)
    };
    let mut shares: Vec<Share> = tasks.iter().map(of_task).collect();
    if tasks.len() > 1 {
        shares.push(Share::of("all", &pairs.iter().collect::<Vec<_>>()));
    }
    shares
}

impl Time {
    /// This time and another, both by one clock: by that of the other, else by that of this one.
    fn with(&self, other: &Self) -> Option<(f64, f64, Clock)> {
        let us = |time: &Self, clock| match time.clock == clock {
            true => Some(time.us),
            false => time.clocks.get(&clock).map(|timed| timed.us),
        };
        let both = |clock| Some((us(self, clock)?, us(other, clock)?, clock));
        both(other.clock).or_else(|| both(self.clock))
    }
}

impl Record {
    /// Whether its search was completed.
    fn is_whole(&self) -> bool {
        let ended = |plan: &Made| plan.provenance.stopped_by == StoppedBy::Completed;
        self.plan.as_ref().is_none_or(ended)
    }
}

impl Share {
    fn of(task: &str, pairs: &[&Beside]) -> Self {
        let worst = pairs.iter().min_by(|a, b| a.of_best.total_cmp(&b.of_best));
        Self {
            task: task.to_owned(),
            runs: pairs.len(),
            of_best: geometric_mean(pairs.iter().map(|pair| pair.of_best)),
            worst: worst.map(|pair| pair.of_best),
            worst_matrix: worst.map(|pair| pair.matrix.clone()),
            of_best_same_session: geometric_mean(
                pairs.iter().filter_map(|pair| pair.of_best_same_session),
            ),
            lookup_of_best: geometric_mean(pairs.iter().filter_map(|pair| pair.lookup_of_best)),
            trials: pairs.iter().map(|pair| pair.trials).sum(),
            earlier_trials: pairs.iter().map(|pair| pair.earlier_trials).sum(),
        }
    }
}

fn ours(trials: &[Tried]) -> usize {
    trials.iter().filter(|trial| trial.ours()).count()
}

pub fn table(shares: &[Share]) -> Table {
    let mut table = show::table(&[
        "against the earlier run",
        "runs",
        "of its best",
        "worst",
        "by its times",
        "trials",
        "its trials",
        "share",
        "worst matrix",
    ]);
    for share in shares {
        let part = share.trials as f64 / share.earlier_trials as f64;
        table.add_row([
            share.task.clone(),
            share.runs.to_string(),
            percent(share.of_best),
            percent(share.worst),
            percent(share.of_best_same_session),
            share.trials.to_string(),
            share.earlier_trials.to_string(),
            percent(Some(part).filter(|part| part.is_finite())),
            share.worst_matrix.clone().unwrap_or_default(),
        ]);
    }
    show::right(&mut table, 1..8);
    table
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::run;
    use super::{Earlier, Time, Tried, shares, table};
    use crate::domain::Clock;

    fn tried(candidate: &str, us: f64) -> Tried {
        let (candidate, state) = (candidate.to_owned(), "measured".to_owned());
        Tried { candidate, state, us: Some(us), predicted_us: None, detail: None }
    }

    #[test]
    fn shares_are_of_runs_that_both_have() {
        // Synthetic runs take 10 us by the clock of the earlier document, which has one alone.
        let mut ranked = run("f32", "c", "a", Some(2.0));
        if let Some(figures) = &mut ranked.figures {
            figures.clock = Clock::Isolated;
        }
        ranked.trials = vec![tried("slices x=1", 10.5), tried("vendor alg=1", 20.0)];
        let runs = [ranked, run("f32", "c", "b", Some(1.0)), run("f32", "c", "d", None)];
        let earlier = r#"{"more": 1, "runs": [
            {"matrix": "a", "task": "f32", "figures": {"us": 8.0}, "trials": [
                {"candidate": "vendor alg=1", "state": "measured", "us": 20.0},
                {"candidate": "slices x=1", "state": "measured", "us": 10.0},
                {"candidate": "slices x=2", "state": "crashed"},
                {"candidate": "slices x=3", "state": "measured", "us": 9.0}
            ]},
            {"matrix": "b", "task": "f64", "figures": {"us": 1.0}, "trials": []},
            {"matrix": "b", "task": "f32", "figures": {"us": 1.0}, "trials": [],
                "plan": {"provenance": {"stopped_by": "seconds"}}},
            {"matrix": "d", "task": "f32", "figures": {"us": 1.0}, "trials": []}
        ]}"#;
        let earlier: Earlier = serde_json::from_str(earlier).unwrap();
        let beside = earlier.beside(&runs);
        let told = shares(&beside);
        let [share] = &told[..] else { panic!("{told:?}") };
        assert_eq!((share.runs, share.trials, share.earlier_trials), (1, 1, 3));
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-12;
        assert!(near(share.of_best, 0.8) && near(share.of_best_same_session, 0.9), "{share:?}");
        assert_eq!(share.worst_matrix.as_deref(), Some("a"));
        let [pair] = &beside[..] else { panic!("{beside:?}") };
        assert_eq!((pair.us, pair.earlier_us, pair.clock), (10.0, 8.0, Clock::Isolated));
        assert_eq!(pair.earlier_winner, None, "an earlier document need not name it");
        let text = table(&told).to_string();
        assert!(text.contains("80.0 %") && text.contains("33.3 %"), "{text}");
        assert_eq!(earlier.cut_short(&runs), ["b f32"]);
        assert!(earlier.beside(&[]).is_empty() && shares(&[]).is_empty());
    }

    #[test]
    fn times_are_compared_by_one_clock() {
        // By the clock that chose, pipelined, 10 us; isolated 12.5 us.
        let own = run("f32", "c", "a", Some(2.0)).figures.unwrap().time();
        let read = |text: &str| serde_json::from_str::<Time>(text).unwrap();
        let over = |text: &str| read(text).with(&own).map(|(earlier, us, _)| earlier / us);
        assert_eq!(
            over(r#"{"us": 5.0}"#),
            Some(0.4),
            "a document of before the clocks is isolated"
        );
        let both = r#"{"us": 5.0, "clock": "isolated",
            "clocks": {"isolated": {"us": 5.0}, "pipelined": {"us": 4.0, "speedup": 2.0}}}"#;
        assert_eq!(over(both), Some(0.4));
        assert_eq!(over(r#"{"us": 5.0, "clock": "pipelined"}"#), Some(0.5));
        let alone = Time { clocks: [].into(), ..own.clone() };
        assert_eq!(read(r#"{"us": 5.0}"#).with(&alone), None);
    }
}
