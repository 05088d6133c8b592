//! A chart of how many candidates each constraint removed.

use crate::domain::funnel::COMBINATIONS;
use crate::explain::Step;
use crate::http::dashboard::format;
use askama::Template;

/// One row per constraint: a bar of the candidates left, and beside it those removed. Only the bars are drawn; names,
/// numbers and reasons are page text, so that they keep their size on a narrow screen.
#[derive(Template)]
#[template(path = "pictures/funnel.html")]
pub struct Funnel {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    /// Ends of the two bars in per cent of the full width: candidates after and before the step.
    left_width: String,
    found_width: String,
    left: String,
    removed: Option<String>,
    told: Option<Told>,
}

/// A rule in words.
struct Told {
    sentence: &'static str,
    formula: &'static str,
    /// Paper and section, and what the rule may do.
    source: String,
    /// What it computed for the winner.
    winner: Option<String>,
    details: Vec<String>,
}

/// The narrowest bar that is still visible, in per cent.
const THIN: f64 = 0.5;

impl Funnel {
    /// `None` if there were no candidates at all.
    pub fn new(steps: &[Step]) -> Option<Self> {
        // What never was a candidate may be many times as much: it stands before the candidates, without a share of theirs.
        let never = |step: &&Step| step.name == COMBINATIONS;
        let all = match steps.iter().find(|step| !never(step)) {
            Some(first) => first.left + first.removed,
            None => steps.first()?.left,
        };
        let width = |count: u64| match count {
            0 => 0.0,
            count => (count as f64 / all.max(1) as f64 * 100.0).clamp(THIN, 100.0),
        };
        let start = Row {
            name: "All candidates".to_owned(),
            left_width: format!("{:.2}", width(all)),
            found_width: "0".to_owned(),
            left: format::count(all),
            removed: None,
            told: None,
        };
        let row = |step: &Step| Row {
            name: step.title.clone(),
            left_width: format!("{:.2}", width(step.left)),
            found_width: format!("{:.2}", width(step.left + step.removed)),
            left: format::count(step.left),
            removed: (step.removed > 0).then(|| format::count(step.removed)),
            told: told(step),
        };
        let before = steps.iter().filter(never).map(row);
        let after = steps.iter().filter(|step| !never(step)).map(row);
        Some(Self { rows: before.chain([start]).chain(after).collect() })
    }
}

/// `None` for a rule of another version without a remark.
fn told(step: &Step) -> Option<Told> {
    let known = !step.sentence.is_empty();
    (known || !step.details.is_empty()).then(|| Told {
        sentence: step.sentence,
        formula: step.formula,
        source: if known { format!("{}; {}", step.source, step.force) } else { String::new() },
        winner: step.winner.clone(),
        details: step.details.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{DeviceKind, FunnelStep};
    use crate::explain;

    fn step(constraint: &str, removed: u64, left: u64) -> FunnelStep {
        FunnelStep { constraint: constraint.to_owned(), removed, left, detail: None }
    }

    fn drawn(steps: &[FunnelStep]) -> Option<Funnel> {
        Funnel::new(&explain::steps(steps, &[], DeviceKind::Cuda))
    }

    #[test]
    fn bars_are_shares_of_all_candidates_and_stay_visible_while_any_are_left() {
        let steps = [step("load_balance", 60, 40), step("rank", 39, 1), step("own", 1, 0)];
        let funnel = drawn(&steps).unwrap();
        let widths: Vec<_> =
            funnel.rows.iter().map(|r| (r.left_width.as_str(), r.found_width.as_str())).collect();
        assert_eq!(
            widths,
            [("100.00", "0"), ("40.00", "100.00"), ("1.00", "40.00"), ("0.00", "1.00")]
        );
        assert!(funnel.rows[1].told.is_some() && funnel.rows[3].told.is_none());
        let large = drawn(&[step("reduction", 586_657, 64)]).unwrap();
        assert_eq!(large.rows[1].left_width, "0.50");
        assert!(drawn(&[]).is_none());
        let never = step("combinations", 90_000, 100);
        let whole = drawn(&[vec![never], steps.to_vec()].concat()).unwrap();
        let names: Vec<&str> = whole.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names[..2], ["Combinations with a kernel", "All candidates"]);
        assert_eq!(whole.rows[0].removed.as_deref(), Some("90,000"));
        let widths = whole.rows[1..].iter().zip(&funnel.rows);
        assert!(widths.clone().all(|(with, without)| with.left_width == without.left_width));
        assert_eq!(widths.count(), funnel.rows.len());
    }
}
