//! A plan in words: why it won, what limits it, what it holds for.

use super::super::format::{bytes, correlation, count, digits, micros, percent, times};
use crate::domain::plan::{Bound, RunnerUp};
use crate::domain::{L2Policy, Plan, Problem};
use crate::explain;

/// `SpMM, N = 32, f32, row-major`.
pub fn problem(problem: &Problem) -> String {
    let operation = problem.op().descriptor();
    format!("{}, {}", operation.title, problem.say(operation.full).join(", "))
}

/// The sentences, and the runner-up if there is one.
pub struct Why {
    pub won: String,
    pub runner_up: Option<(String, String)>,
    pub vendor: Option<String>,
    pub chosen_for: String,
    pub stopped: &'static str,
    pub failed: Option<String>,
}

pub fn why(plan: &Plan) -> Why {
    let won = match plan.trials.measured {
        _ if plan.is_predicted() => match plan.passed_over() {
            0 => "The model ranks it first. It is predicted, not measured.".to_owned(),
            n => format!(
                "The model ranks it first of those that can be compiled, after {} that cannot. It is predicted, not measured.",
                count(n.into())
            ),
        },
        0 | 1 => "It was the only candidate that was measured.".to_owned(),
        n if plan.tie => format!("Tied for best of {} measured candidates.", count(n.into())),
        n => format!("It was the best of {} measured candidates.", count(n.into())),
    };
    let runner_up = plan
        .runner_up
        .as_ref()
        .and_then(|second| Some((second.candidate.to_string(), second_place(plan, second)?)));
    let vendor = plan.baseline.as_ref().map(|vendor| {
        let took = format!("{} took {}", vendor, micros(vendor.median_us));
        match plan.speedup {
            _ if plan.candidate.is_baseline() => format!("{took} and is the winner."),
            Some(speedup) => {
                format!(
                    "{took}, {} the winner's time, measured alternately with it.",
                    times(speedup)
                )
            }
            None => format!("{took}."),
        }
    });
    let chosen_for = match plan.expected_calls {
        _ if plan.is_predicted() => String::new(),
        Some(calls) => format!(
            "It was chosen for the least preprocessing and time of {} calls together.",
            count(calls)
        ),
        None => "It was chosen by the time of a call alone; preprocessing time was not considered."
            .to_owned(),
    };
    let failed: Vec<String> = plan
        .trials
        .failed
        .iter()
        .map(|(what, n)| format!("{n} {}", what.replace('_', " ")))
        .collect();
    Why {
        won,
        runner_up,
        vendor,
        chosen_for,
        stopped: explain::ending(plan.provenance.stopped_by),
        failed: (!failed.is_empty()).then(|| failed.join(", ")),
    }
}

/// How the runner-up compares, and why it did not win if it is faster.
fn second_place(plan: &Plan, second: &RunnerUp) -> Option<String> {
    let won = plan.measured.as_ref()?;
    let between = |ends: [f64; 2]| {
        let [low, high] = ends.map(micros);
        format!("95 % between {low} and {high}")
    };
    let more = second.median_us / won.median_us - 1.0;
    let against = match more {
        more if more.abs() < 5e-4 => "the same".to_owned(),
        more if more > 0.0 => format!("{} more", percent(more)),
        less => format!("{} less", percent(-less)),
    };
    let mut text = format!("took {}, {against}", micros(second.median_us));
    match (second.interval_us(won), won.interval_us()) {
        (Some(ends), Some(own)) => {
            text.push_str(&format!(" ({}; the winner {}).", between(ends), between(own)));
        }
        (None, Some(own)) if plan.tie => text.push_str(&format!(
            " (the winner: {}; the runner-up's interval is not in this plan).",
            between(own)
        )),
        _ => text.push('.'),
    }
    // By the total cost of all calls, a candidate with a longer call may be first.
    let outpaid = plan.expected_calls.is_some() && !plan.tie;
    text.push_str(match more < 0.0 {
        true if outpaid => " It needs more preprocessing than its calls save.",
        true if plan.tie => {
            " It did not win: the finalists are timed alternately, and their difference is within the noise from round to \
             round. That is a tie, and in a tie the simpler candidate wins."
        }
        false if plan.tie => {
            " It is a tie: timed alternately, the winner's difference from this or another finalist is within the noise. In \
             a tie the simpler candidate wins."
        }
        _ => "",
    });
    Some(text)
}

/// How the bound is computed, and what a time below it means.
pub fn limit(plan: &Plan) -> String {
    let (limit, device) = (&plan.limit, &plan.device);
    let us = micros(limit.us);
    let beyond = limit.fraction > 1.0;
    let mut text = match limit.bound {
        Bound::Bytes => format!(
            "A call moves at least {}: each input read once, each output written once. At the measured copy bandwidth of {} \
             GB/s that takes {us}.",
            bytes(limit.bytes),
            digits(device.copy_gbps)
        ),
        Bound::Latency if device.hop_ns > 0.0 => format!(
            "The system has {} levels, and a value takes {} ns from one multiprocessor to the next: together {us}. Moving \
             the {} would take less.",
            count((limit.us * 1e3 / device.hop_ns).round() as u64),
            digits(device.hop_ns),
            bytes(limit.bytes)
        ),
        Bound::Latency => format!("The levels of the system take {us} one after the other."),
        Bound::Flops => format!("The arithmetic takes {us}."),
    };
    match limit.bound {
        Bound::Latency if beyond => text.push_str(
            " The winner is faster: it rewrites equations so that there are fewer levels to go through.",
        ),
        Bound::Bytes if beyond && plan.l2_policy == L2Policy::Warm => text.push_str(
            " The winner is faster: calls follow each other on the same buffers, and what the cache keeps is not read from \
             memory again.",
        ),
        _ => {}
    }
    text
}

/// A property that may or may not change.
pub struct Check {
    pub holds: bool,
    /// `may change` or `must not change`.
    pub verdict: &'static str,
    pub text: String,
}

/// Whether a bundle of the plan divides new values on the device.
pub fn divides(plan: &Plan) -> bool {
    let update = plan.launch.as_ref().and_then(|launch| launch.update.as_ref());
    update.is_some_and(|it| it.divides(&plan.candidate.family, &plan.candidate.params))
}

pub fn checks(plan: &Plan) -> Vec<Check> {
    let valid = &plan.validity;
    let operation = plan.problem.op().descriptor();
    let (dense, width) = (operation.dense, operation.columns_words);
    let may = |holds: bool, what: &str, note: &str| Check {
        holds,
        verdict: if holds { "may change" } else { "must not change" },
        text: format!("{what}{note}"),
    };
    let values = match valid.values_may_change {
        true if divides(plan) => ", on the device where a bundle runs".to_owned(),
        true if valid.update_values_ms > 0.0 => {
            format!(", at {} of host time for each new set", micros(valid.update_values_ms * 1e3))
        }
        true => ", at no cost".to_owned(),
        false => ": the error was measured with these".to_owned(),
    };
    let (verdict, finite) = match valid.dense_must_be_finite {
        true => ("must be finite", ": padding zeros are multiplied by them"),
        false => ("may be any", ", including infinities and NaN"),
    };
    vec![
        may(valid.values_may_change, "The matrix's values", &values),
        may(valid.pattern_may_change, "The matrix's pattern", ""),
        may(
            valid.n_may_change,
            width,
            if valid.n_may_change { "; the speed was measured for this one" } else { "" },
        ),
        Check {
            holds: !valid.dense_must_be_finite,
            verdict,
            text: format!("The values of {dense}{finite}"),
        },
    ]
}

/// What a rank correlation says about a model.
pub const fn ranking(rank: f64) -> &'static str {
    match rank {
        r if r < -0.1 => "worse than chance",
        r if r < 0.1 => "no better than chance",
        r if r < 0.7 => "better than chance",
        _ => "close to the measured order",
    }
}

/// The accuracy of the prediction, for this candidate and over the job.
pub fn model(plan: &Plan) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(learned) = plan.provenance.ranked_by() {
        said.push(format!(
            "{learned} ranked the candidates. It predicts an order, not times; the time shown is the analytic model's for its \
             first choice."
        ));
    } else if let Some(predicted) = &plan.predicted {
        let ratio = plan.median_us().map(|us| us / predicted.median_us);
        let off = match ratio {
            None => "nothing was measured".to_owned(),
            Some(r) if (r - 1.0).abs() < 0.005 => "as measured".to_owned(),
            Some(r) if r > 1.0 => {
                format!("the measured time is {} that: it was too optimistic", times(r))
            }
            Some(r) => format!("the measured time is {} that: it was too pessimistic", times(r)),
        };
        said.push(format!(
            "{} predicted {} for the winner; {off}.",
            predicted.model,
            micros(predicted.median_us)
        ));
    } else {
        said.push("Nothing was predicted for the winner.".to_owned());
    }
    if let Some(error) = &plan.model_error {
        let trials = count(error.trials.into());
        said.push(match plan.provenance.model {
            Some(_) => format!("{trials} of the job's trials were both ranked and measured."),
            None => format!(
                "Over the job's {} predicted and measured trials, measured times are {} the predicted ones in the mean, with a \
             spread of {}.",
                trials,
                times(error.median_ratio),
                times(error.spread)
            ),
        });
        if let Some(rank) = error.rank_correlation {
            said.push(format!(
                "It ranks them with a correlation of {}, {}; 1 is the measured order, 0 is chance.",
                correlation(rank),
                ranking(rank)
            ));
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        serde_json::from_str(include_str!("../../../../tests/http/plan.json")).unwrap()
    }

    #[test]
    fn the_runner_up_is_said_by_how_much() {
        let mut plan = plan();
        assert_eq!(why(&plan).runner_up.unwrap().1, "took 13.5 µs, 8.0 % more.");
        plan.measured.as_mut().unwrap().median_us = 18.0;
        let said = why(&plan).runner_up.unwrap().1;
        assert_eq!(
            said,
            "took 13.5 µs, 25 % less. It needs more preprocessing than its calls save."
        );
    }

    #[test]
    fn a_faster_runner_up_is_explained_by_the_tie_and_both_intervals() {
        let mut plan = plan();
        let measured = plan.measured.as_mut().unwrap();
        (plan.tie, measured.median_us, measured.ci95_us) = (true, 50.0, [9.0, 80.0]);
        let said = why(&plan).runner_up.unwrap().1;
        assert!(said.starts_with("took 13.5 µs, 73 % less (the winner: 95 % between 9.00 µs and"));
        assert!(said.contains("in a tie the simpler candidate wins"), "{said}");
        plan.runner_up.as_mut().unwrap().ci95_us = Some([8.0, 60.0]);
        let said = why(&plan).runner_up.unwrap().1;
        let both = "95 % between 8.00 µs and 60.0 µs; the winner 95 % between 9.00 µs and 80.0 µs";
        assert!(said.contains(both), "{said}");
    }

    #[test]
    fn fewer_than_six_samples_have_no_interval() {
        let mut plan = plan();
        plan.runner_up.as_mut().unwrap().ci95_us = Some([8.0, 60.0]);
        let said = |plan: &Plan| why(plan).runner_up.unwrap().1;
        assert!(said(&plan).contains("95 % between"), "{}", said(&plan));
        plan.measured.as_mut().unwrap().samples = 5;
        for tie in [false, true] {
            plan.tie = tie;
            assert!(!said(&plan).contains("95 %"), "{}", said(&plan));
        }
    }

    #[test]
    fn a_bad_ranking_is_called_so() {
        let mut plan = plan();
        plan.model_error.as_mut().unwrap().rank_correlation = Some(-0.43);
        let said = model(&plan).join(" ");
        assert!(said.contains("\u{2212}0.43, worse than chance"), "{said}");
    }

    #[test]
    fn a_learned_model_is_said_to_rank_and_not_to_time() {
        let mut plan = plan();
        plan.provenance.model = Some(crate::domain::ModelId("nightly".to_owned()));
        let said = model(&plan).join(" ");
        assert!(said.starts_with("nightly ranked the candidates."), "{said}");
        let mut borrowed = plan.clone();
        borrowed.provenance.model_of = Some(crate::domain::DeviceClass("another".to_owned()));
        let of = "nightly (of another, the nearest class of device with a model) ranked";
        assert!(model(&borrowed).join(" ").starts_with(of));
        assert!(!said.contains("optimistic") && !said.contains("spread"), "{said}");
        assert!(said.contains("15 of the job's trials") && said.contains("0.75"), "{said}");
        plan.measured = None;
        assert!(why(&plan).chosen_for.is_empty(), "calls count for nothing in a prediction");
        plan.predicted.as_mut().unwrap().passed_over = 2;
        assert!(why(&plan).won.contains("after 2 that cannot"), "{}", why(&plan).won);
    }

    #[test]
    fn a_latency_bound_names_its_levels() {
        let mut plan = plan();
        plan.limit.bound = Bound::Latency;
        plan.limit.us = 26.3;
        assert!(limit(&plan).starts_with("The system has 100 levels"), "{}", limit(&plan));
        plan.limit.fraction = 2.0;
        assert!(limit(&plan).contains("rewrites"));
    }

    #[test]
    fn what_holds_is_said_either_way() {
        let checks = checks(&plan());
        assert!(checks[0].holds && checks[0].text.contains("125 µs"), "{}", checks[0].text);
        assert!(!checks[1].holds && checks[1].verdict == "must not change");
        assert!(!checks[3].holds && checks[3].verdict == "must be finite");
        let mut near = plan();
        near.validity.values_may_change = false;
        let checks = super::checks(&near);
        assert_eq!(checks[0].verdict, "must not change");
        assert!(
            checks[0].text.ends_with("the error was measured with these"),
            "{}",
            checks[0].text
        );
    }
}
