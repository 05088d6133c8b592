//! A search explained on the terminal, for `tune --explain` and `submit --explain`.

use super::client::Answer;
use crate::domain::Candidate;
use crate::domain::candidate::VENDOR;
use crate::explain::{Chapter, Record, Search, Step, by_family, chapters};
use crate::ops;
use crate::wire::{self, Matrix, Plan, Trial};

/// Columns of text.
const WIDTH: usize = 100;

/// The whole story, a paragraph a sentence.
pub fn told(plan: &Plan, matrix: Option<&Matrix>, trials: &[Answer<Trial>]) -> String {
    let own = trials.iter().filter(|trial| trial.view.candidate.family != VENDOR);
    let plain = |candidate: &wire::Candidate| Candidate {
        family: candidate.family.clone(),
        params: candidate.params.clone(),
    };
    let records = own.map(|trial| Record {
        family: &trial.view.candidate.family,
        count: 1,
        us: trial.view.median_us,
        candidate: Some(plain(&trial.view.candidate)),
    });
    let winner = plain(&plan.candidate);
    let search = Search {
        catalogue: ops::catalog(),
        problem: &plan.problem.0,
        kind: plan.device.kind,
        device: &plan.device.name,
        matrix: matrix.map(|matrix| [matrix.rows, matrix.cols, matrix.nnz]),
        funnel: &plan.funnel,
        judged: &plan.judged,
        winner: &winner,
        measured: plan.measured.as_ref(),
        tie: plan.tie,
        runner_up: plan.runner_up.as_ref().map(|one| (one.candidate.to_string(), one.median_us)),
        baseline: plan.baseline.as_ref(),
        no_baseline: plan.no_baseline.as_deref(),
        speedup: plan.speedup,
        limit: &plan.limit,
        predicted: plan.predicted.as_ref().map(|said| (said.model.as_str(), said.median_us)),
        model_error: plan.model_error.as_ref(),
        learned: plan.provenance.ranked_by(),
        trials: &plan.trials,
        expected_calls: plan.expected_calls,
        stopped_by: plan.provenance.stopped_by,
        seconds: plan.provenance.search_seconds,
        families: by_family(records),
    };
    chapters(&search).iter().map(chapter).collect::<Vec<_>>().join("\n")
}

fn chapter(chapter: &Chapter) -> String {
    let source = match chapter.source {
        "" => String::new(),
        source => format!(" ({source})"),
    };
    let mut text = format!("{}{source}\n", chapter.title);
    for sentence in &chapter.said {
        text.push_str(&wrapped(sentence, "  ", "  "));
    }
    for (name, sentence) in &chapter.points {
        text.push_str(&wrapped(&format!("{name}: {sentence}"), "  - ", "    "));
    }
    for family in &chapter.families {
        let best = match family.best.as_str() {
            "" => String::new(),
            best => format!(", the fastest in {best}"),
        };
        let words = match family.title {
            "" => String::new(),
            title => format!("{title} ({}). {} ", family.origin, family.sentence),
        };
        let line = format!(
            "{}: {words}{} on record, {} measured{best}.",
            family.name, family.candidates, family.measured
        );
        text.push_str(&wrapped(&line, if family.won { "  * " } else { "  - " }, "    "));
    }
    for step in &chapter.steps {
        text.push_str(&rule(step));
    }
    text
}

fn rule(step: &Step) -> String {
    let source = match step.source {
        "" => String::new(),
        source => format!(" ({source}; {})", step.force),
    };
    let mut text = wrapped(&format!("{}: {}{source}", step.name, step.title), "\n  ", "    ");
    let sentence = format!("{} {}", step.sentence, step.counted);
    text.push_str(&wrapped(sentence.trim_start(), "    ", "    "));
    for detail in &step.details {
        text.push_str(&wrapped(detail, "    - ", "      "));
    }
    if !step.formula.is_empty() {
        text.push_str(&wrapped(step.formula, "    formula  ", "             "));
    }
    if let Some(winner) = &step.winner {
        text.push_str(&wrapped(winner, "    winner   ", "             "));
    }
    text
}

/// Lines of at most [`WIDTH`] columns, unless a word is longer; the first begins with `first`, the others with `then`.
fn wrapped(text: &str, first: &str, then: &str) -> String {
    let mut out = first.to_owned();
    let mut column = first.trim_start_matches('\n').chars().count();
    let mut fresh = true;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if !fresh && column + 1 + width > WIDTH {
            out.push('\n');
            out.push_str(then);
            (column, fresh) = (then.chars().count(), true);
        }
        if !fresh {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
        fresh = false;
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_wrapped_under_their_beginning() {
        let text = wrapped(&"word ".repeat(40), "  - ", "    ");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(lines[0].starts_with("  - word") && lines[1].starts_with("    word"), "{text}");
    }

    #[test]
    fn a_plan_is_told_with_its_rules_and_the_winners_values() {
        let stored = include_str!("../../tests/http/plan.json");
        let mut stored: serde_json::Value = serde_json::from_str(stored).unwrap();
        stored["funnel"] = serde_json::json!([
            {"constraint": "load_balance", "removed": 30, "left": 70},
            {"constraint": "rank", "removed": 60, "left": 10},
        ]);
        stored["judged"] = serde_json::json!([
            {"constraint": "load_balance", "value": 0.125, "limit": 0.25, "kept": true},
        ]);
        let plan: crate::domain::Plan = serde_json::from_value(stored).unwrap();
        let text = told(&plan.into(), None, &[]);
        for line in [
            "The space",
            "  load_balance: Balanced tiles (LO-SpMM, section 3.4; a soft rule, which removes no family",
            "    completely)",
            "    winner   0.12, at most 0.25",
            "The finals",
            "The four papers",
        ] {
            assert!(text.lines().any(|told| told == line), "{line}:\n{text}");
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("It removed 30 of 100 candidates (30 %) and left 70."), "{text}");
    }
}
