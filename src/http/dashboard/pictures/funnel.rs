//! How many candidates each constraint removed, as a picture.

use crate::domain::FunnelStep;
use crate::http::dashboard::format;
use askama::Template;

/// One row a constraint: a bar of what is left, and beside it what went. Names, numbers and reasons are text of the page,
/// so that they keep their size on a narrow screen; only bars are drawn.
#[derive(Template)]
#[template(path = "pictures/funnel.html")]
pub struct Funnel {
    rows: Vec<Row>,
}

struct Row {
    name: String,
    /// Ends of the two bars, in hundredths of the full width: what is left, and what the step found.
    left_width: String,
    found_width: String,
    left: String,
    removed: Option<String>,
    detail: Option<String>,
}

/// The thinnest bar that is still seen, in hundredths.
const THIN: f64 = 0.5;

impl Funnel {
    /// `None` where nothing has been removed and nothing is left.
    pub fn new(steps: &[FunnelStep]) -> Option<Self> {
        let first = steps.first()?;
        let all = first.left + first.removed;
        let width = |count: u64| match count {
            0 => 0.0,
            count => (count as f64 / all.max(1) as f64 * 100.0).max(THIN),
        };
        let start = Row {
            name: "all candidates".to_owned(),
            left_width: format!("{:.2}", width(all)),
            found_width: "0".to_owned(),
            left: format::count(all),
            removed: None,
            detail: None,
        };
        let rows = steps.iter().map(|step| Row {
            name: step.constraint.replace('_', " "),
            left_width: format!("{:.2}", width(step.left)),
            found_width: format!("{:.2}", width(step.left + step.removed)),
            left: format::count(step.left),
            removed: (step.removed > 0).then(|| format::count(step.removed)),
            detail: step.detail.clone(),
        });
        Some(Self { rows: std::iter::once(start).chain(rows).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(constraint: &str, removed: u64, left: u64) -> FunnelStep {
        FunnelStep { constraint: constraint.to_owned(), removed, left, detail: None }
    }

    #[test]
    fn bars_are_shares_of_all_and_never_vanish_while_something_is_left() {
        let steps = [step("load_balance", 60, 40), step("rank", 39, 1), step("own", 1, 0)];
        let funnel = Funnel::new(&steps).unwrap();
        let widths: Vec<_> =
            funnel.rows.iter().map(|r| (r.left_width.as_str(), r.found_width.as_str())).collect();
        assert_eq!(
            widths,
            [("100.00", "0"), ("40.00", "100.00"), ("1.00", "40.00"), ("0.00", "1.00")]
        );
        let large = Funnel::new(&[step("reduction", 586_657, 64)]).unwrap();
        assert_eq!(large.rows[1].left_width, "0.50");
        assert!(Funnel::new(&[]).is_none());
    }
}
