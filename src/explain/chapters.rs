//! The story of a search in chapters.

use super::numbers::{candidates, correlation, count, micros, percent, seconds, times};
use super::steps::{Step, steps};
use super::{Search, ending, papers, stages};
use crate::domain::catalog::rules::{Force, rule};
use crate::domain::plan::Bound;
use crate::domain::{FunnelStep, Param, funnel};

/// One part of the story.
#[derive(Default)]
pub struct Chapter {
    /// For anchors.
    pub id: &'static str,
    pub title: &'static str,
    /// Paper and sections that the part follows; empty if none.
    pub source: &'static str,
    /// Whole sentences.
    pub said: Vec<String>,
    /// Names with a sentence each.
    pub points: Vec<(String, String)>,
    pub families: Vec<FamilyTold>,
    pub steps: Vec<Step>,
}

/// A family with its place in the search.
pub struct FamilyTold {
    pub name: String,
    pub title: &'static str,
    /// The paper it follows, or that it is our own.
    pub origin: &'static str,
    pub sentence: &'static str,
    /// `12 candidates`.
    pub candidates: String,
    pub measured: String,
    /// The time of the fastest trial; empty if none was timed.
    pub best: String,
    pub won: bool,
}

/// The whole story in order.
pub fn chapters(search: &Search<'_>) -> Vec<Chapter> {
    let mut told = vec![space(search)];
    if search.problem.op().descriptor().has_levels {
        told.extend(stages::chapters(search));
        told.extend(rules(search));
        told.push(choice(search, "Select", "AG-SpTRSV, section 4.5"));
    } else {
        told.extend(rules(search));
        told.push(choice(search, "The ranking", "LO-SpMM, section 3.5"));
    }
    if search.measured.is_some() {
        told.push(measuring(search));
        told.push(finals(search));
    }
    told.push(papers::chapter(search));
    told
}

fn space(search: &Search<'_>) -> Chapter {
    let operation = search.problem.op().descriptor();
    let mut said = vec![format!(
        "{} ({}): {}",
        operation.formula,
        search.problem.say(operation.full).join(", "),
        operation.sentence
    )];
    if let Some([rows, cols, entries]) = search.matrix {
        said.push(format!(
            "The matrix has {} rows, {} columns and {} entries, {:.1} in a row on average.",
            count(rows),
            count(cols),
            count(entries),
            entries as f64 / rows.max(1) as f64
        ));
    }
    let own = || search.catalogue.of(search.problem.op()).filter(|f| f.device == search.kind);
    let mut names: Vec<&str> = own().filter(|f| f.is_own()).map(|f| f.family()).collect();
    names.dedup();
    let listed = match operation.has_levels {
        true => "They are counted, but only those that a rule lets through are listed.",
        false => "Each is a kernel of a family with a value for each of its parameters.",
    };
    said.push(match search.all() {
        0 => format!("The candidates for {} were not counted.", search.device),
        all => format!(
            "For {} there are {}; {} families of kernels are known. {listed}",
            search.device,
            candidates(all),
            names.len()
        ),
    });
    let families = search.families.iter().map(|of| {
        let known = search.family(&of.family);
        FamilyTold {
            title: known.map_or("", |family| family.title),
            origin: known.map_or("", |family| family.origin()),
            sentence: known.map_or("", |family| family.summary),
            candidates: candidates(of.candidates),
            measured: count(of.measured),
            best: of.best_us.map(micros).unwrap_or_default(),
            won: of.family == search.winner.family,
            name: of.family.clone(),
        }
    });
    let families = families.collect();
    let never = search.funnel.iter().filter(|step| step.constraint == funnel::COMBINATIONS);
    let never: Vec<FunnelStep> = never.cloned().collect();
    let steps = steps(&never, search.judged, search.kind);
    Chapter { id: "space", title: "The space", said, families, steps, ..Chapter::default() }
}

fn is_choice(step: &FunnelStep) -> bool {
    rule(&step.constraint).is_some_and(|rule| rule.force == Force::Choice)
}

/// The rules that judge candidates one by one, if there are any.
fn rules(search: &Search<'_>) -> Option<Chapter> {
    let judging: Vec<FunnelStep> =
        funnel::of_candidates(search.funnel).filter(|step| !is_choice(step)).cloned().collect();
    let first = judging.first()?;
    let all = first.left.saturating_add(first.removed);
    // Choices may come between them, whose removals are not theirs.
    let removed = judging.iter().fold(0u64, |sum, step| sum.saturating_add(step.removed));
    let (rules, they) = match judging.len() {
        1 => ("One rule judges".to_owned(), "it"),
        several => (format!("{several} rules judge"), "they"),
    };
    let mut said = vec![format!(
        "{rules} candidates by this matrix and this device, without compiling or running them. Of {} candidates {they} \
         removed {} ({}); {} were left.",
        count(all),
        count(removed),
        percent(removed as f64 / all.max(1) as f64),
        count(all.saturating_sub(removed))
    )];
    let busiest = judging.iter().max_by_key(|step| step.removed).filter(|step| step.removed > 0);
    if let Some((step, rule)) = busiest.and_then(|step| Some((step, rule(&step.constraint)?))) {
        said.push(format!(
            "Most went by the rule \u{201c}{}\u{201d}: {}.",
            rule.title,
            count(step.removed)
        ));
    }
    Some(Chapter {
        id: "rules",
        title: "Rules that remove candidates without running them",
        source: "LO-SpMM, sections 3.2 to 3.4, and Tiled SpMM, section 4.1",
        said,
        steps: steps(&judging, search.judged, search.kind),
        ..Chapter::default()
    })
}

/// What a model or a strategy chose to try.
fn choice(search: &Search<'_>, title: &'static str, source: &'static str) -> Chapter {
    let choosing: Vec<FunnelStep> =
        search.funnel.iter().filter(|step| is_choice(step)).cloned().collect();
    let mut said = Vec::new();
    let time = search.measured.map(|measured| measured.median_us);
    match (&search.learned, search.predicted) {
        (Some(model), predicted) => {
            said.push(format!(
                "The learned model {model} put the candidates in order. It is trained on earlier measurements to tell which of \
                 two candidates is faster, not how long one takes."
            ));
            if let Some((_, us)) = predicted {
                said.push(format!("The analytic model said {} for the winner.", micros(us)));
            }
        }
        (None, Some((model, us))) => said.push(format!(
            "The analytic model {model} predicted a time for each candidate: for the winner {}{}.",
            micros(us),
            time.map_or_else(String::new, |time| format!(
                ", which took {}, {} that",
                micros(time),
                times(time / us)
            ))
        )),
        (None, None) => said.push(match search.winner.is_baseline() {
            true => {
                "The winner is the baseline, for which nothing is predicted: it is always tried."
                    .to_owned()
            }
            false => "Nothing was predicted for the winner.".to_owned(),
        }),
    }
    if let Some(error) = search.model_error {
        let trials = count(error.trials.into());
        said.push(match (&search.learned, error.rank_correlation) {
            (Some(_), Some(rank)) => format!(
                "Over {trials} trials its order and the measured one agree with a rank correlation of {}, where 1 is the same \
                 order and 0 is chance.",
                correlation(rank)
            ),
            (Some(_), None) => format!("{trials} trials were both ranked and measured."),
            (None, rank) => format!(
                "Over {trials} trials, measured times are {} the predicted ones in the geometric mean{}.",
                times(error.median_ratio),
                rank.map_or_else(String::new, |rank| format!(
                    "; the rank correlation is {}, where 1 is the measured order and 0 is chance",
                    correlation(rank)
                ))
            ),
        });
    }
    let steps = steps(&choosing, search.judged, search.kind);
    Chapter { id: "choice", title, source, said, steps, ..Chapter::default() }
}

fn measuring(search: &Search<'_>) -> Chapter {
    let failed: Vec<String> = search
        .trials
        .failed
        .iter()
        .map(|(what, n)| format!("{n} {}", what.replace('_', " ")))
        .collect();
    let check = match search.problem.op().descriptor().has_levels {
        true => "verified by its backward error on two right-hand sides",
        false => "compared with a float64 reference element by element",
    };
    let mut said = vec![
        format!(
            "{} candidates, the baseline's routines among them, ran on this matrix. Each wrote to a poisoned output first, which was \
             {check}, and only a correct one was timed.",
            count(search.trials.measured.into())
        ),
        match failed.is_empty() {
            true => "None failed.".to_owned(),
            false => format!("Not timed: {}.", failed.join(", ")),
        },
    ];
    said.push(format!(
        "The search took {}. {}",
        seconds(search.seconds),
        ending(search.stopped_by)
    ));
    Chapter { id: "measured", title: "The measurements", said, ..Chapter::default() }
}

fn finals(search: &Search<'_>) -> Chapter {
    let mut said = vec![
        "The best few and the fastest routine of the baseline were timed a second time, in turn, so that a clock or a temperature that \
         drifts during the search favours none of them."
            .to_owned(),
    ];
    if let Some(measured) = search.measured {
        said.push(format!("Times are of {}.", measured.clock.how()));
    }
    let values: Vec<String> = search.winner.params.iter().map(parameter).collect();
    let with = match values.is_empty() {
        true => String::new(),
        false => format!(" with {}", values.join(", ")),
    };
    if let Some(measured) = search.measured {
        let within = measured.interval_us().map(|ends| ends.map(micros));
        let within = within.map_or_else(
            || format!("by {} samples", measured.samples),
            |[low, high]| format!("95 % between {low} and {high}"),
        );
        let title = search.won().map_or(search.winner.family.as_str(), |family| family.title);
        said.push(format!(
            "{title} ({}){with} won with {} a call, {within}.",
            search.winner.family,
            micros(measured.median_us)
        ));
        if let Some(family) = search.won() {
            said.push(format!("{} ({}).", family.summary.trim_end_matches('.'), family.origin()));
        }
        if let Some((name, us)) = &search.runner_up {
            let verdict = match search.tie {
                true => "a tie within the noise, in which the simpler one wins",
                false if *us < measured.median_us => "which would pay only without its preparation",
                false => "outside the noise",
            };
            said.push(format!("The runner-up, {name}, took {}: {verdict}.", micros(*us)));
        }
    }
    match (search.baseline, search.speedup) {
        _ if search.winner.is_baseline() => {
            said.push(match search.baseline {
                Some(it) => {
                    format!("No other kernel was faster than {} here, beyond the noise.", it.name)
                }
                None => "No other kernel was faster than the baseline here, beyond the noise."
                    .to_owned(),
            });
        }
        (Some(vendor), Some(speedup)) => said.push(format!(
            "{vendor} took {}, {} the winner's time.",
            micros(vendor.median_us),
            times(speedup)
        )),
        _ => said.push(match search.no_baseline {
            Some(why) => format!("There is no baseline: {why}."),
            None => "No baseline ran here.".to_owned(),
        }),
    }
    said.extend(by_other_clock(search));
    let bound = match search.limit.bound {
        Bound::Bytes => "moving each operand once at the measured copy bandwidth",
        Bound::Latency => "going through the levels at the measured hop latency",
        Bound::Flops => "the arithmetic alone",
    };
    said.push(format!(
        "The bound, {bound}, is {}: the winner reaches {} of it.",
        micros(search.limit.us),
        percent(search.limit.fraction)
    ));
    if let Some(calls) = search.expected_calls {
        said.push(format!(
            "The choice counts the preparation: it is the least for {} calls together.",
            count(calls)
        ));
    }
    Chapter { id: "finals", title: "The finals", said, ..Chapter::default() }
}

/// `m1 = 4`.
/// The times by the clock that did not decide.
fn by_other_clock(search: &Search<'_>) -> Option<String> {
    let (clock, us, vendor) = search.measured?.by_other(search.baseline)?;
    let vendor = vendor.filter(|_| !search.winner.is_baseline());
    let vendor = vendor.map_or_else(String::new, |vendor| {
        let name = search.baseline.map_or("baseline", |it| it.name.as_str());
        format!(", and {name} {}, {} that", micros(vendor), times(vendor / us))
    });
    Some(format!("With {} the winner took {}{vendor}.", clock.how(), micros(us)))
}

pub(super) fn parameter((name, value): (&String, &Param)) -> String {
    match value {
        Param::Int(value) => format!("{name} = {value}"),
        Param::Text(value) => format!("{name} = {value}"),
    }
}
