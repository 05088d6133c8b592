//! What each pruning rule costs: how much faster the best would be, had the rule not removed what it removes.

use super::record::{Search, Tried, best};
use super::table::{Table, mean, percent, times};
use std::collections::BTreeMap;

/// What one rule removed of one search.
#[derive(Clone, Debug, PartialEq)]
pub struct Removed<'a> {
    pub search: &'a Search,
    /// Candidates that it would have removed, and how many of them could not be measured.
    pub candidates: usize,
    pub failed: usize,
    /// The best of what all rules keep, and of what this one removed, microseconds.
    pub kept_us: f64,
    pub removed_us: Option<f64>,
}

impl Removed<'_> {
    /// How much faster the best would be without the rule, as a share: 0 if it removed no winner.
    pub fn regret(&self) -> f64 {
        self.removed_us.map_or(0.0, |us| (self.kept_us / us - 1.0).max(0.0))
    }
}

/// By rule, each search of which it removed something. All rules together are `all`.
pub fn by_rule<'a>(searches: &[&'a Search]) -> BTreeMap<String, Vec<Removed<'a>>> {
    let mut rules: BTreeMap<String, Vec<Removed<'a>>> = BTreeMap::new();
    for &search in searches {
        let Some(kept_us) = best(search.passing()) else { continue };
        let mut removed: BTreeMap<&str, Vec<&Tried>> = BTreeMap::new();
        for tried in search.own() {
            if let Some(rule) = &tried.rule {
                removed.entry(rule).or_default().push(tried);
                removed.entry(ALL).or_default().push(tried);
            }
        }
        for (rule, tried) in removed {
            let failed = tried.iter().filter(|tried| tried.us.is_none()).count();
            let removed_us = best(tried.iter().copied());
            let candidates = tried.len();
            let removed = Removed { search, candidates, failed, kept_us, removed_us };
            rules.entry(rule.to_owned()).or_default().push(removed);
        }
    }
    rules
}

/// The row of all rules together.
const ALL: &str = "all rules";

/// A line for each rule.
pub fn summary(name: &str, searches: &[&Search]) -> Table {
    let says = "Regret by rule: how much faster the best candidate would be, had the rule not removed what it removes, over the \
                searches in which it removed anything that was drawn. What other searches of the same problem measured is kept by all \
                rules, unless they were asked for some families or values alone. A draw sees a part of what a rule removes, so that \
                its regret may be higher. The mean is over these, geometric; the last columns compare \
                the best that it removed with the best that all rules keep.";
    let head = [
        "rule",
        "searches",
        "candidates removed",
        "of which failed",
        "regret > 1 %",
        "regret > 5 %",
        "mean regret",
        "worst",
        "worst on",
        "best removed over best kept",
    ];
    let mut table = Table::new(name, says, &head);
    for (rule, removed) in by_rule(searches) {
        let count = removed.len() as f64;
        let above = |least: f64| {
            Some(removed.iter().filter(|one| one.regret() > least).count() as f64 / count)
        };
        let worst = removed.iter().max_by(|a, b| a.regret().total_cmp(&b.regret()));
        let worst = worst.filter(|worst| worst.regret() > 0.0);
        let total =
            |of: fn(&Removed<'_>) -> usize| removed.iter().map(of).sum::<usize>().to_string();
        table.rows.push(vec![
            rule,
            removed.len().to_string(),
            total(|one| one.candidates),
            total(|one| one.failed),
            percent(above(0.01)),
            percent(above(0.05)),
            percent(mean(removed.iter().map(|one| 1.0 + one.regret())).map(|mean| mean - 1.0)),
            percent(worst.map(Removed::regret)),
            worst.map_or_else(
                || "–".to_owned(),
                |worst| format!("{} ({})", worst.search.matrix, worst.search.problem),
            ),
            times(mean(removed.iter().filter_map(|one| Some(one.removed_us? / one.kept_us)))),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(matrix: &str, tried: &[(f64, Option<&str>)]) -> Search {
        let tried = tried.iter().enumerate().map(|(at, (us, rule))| Tried {
            candidate: format!("a{{x={at}}}"),
            us: (*us > 0.0).then_some(*us),
            rule: rule.map(str::to_owned),
            ..Tried::default()
        });
        Search { matrix: matrix.to_owned(), tried: tried.collect(), ..Search::default() }
    }

    #[test]
    fn a_rule_costs_what_the_best_loses_by_it() {
        let costly = search("p", &[(10.0, None), (20.0, None), (8.0, Some("r")), (9.0, Some("s"))]);
        let free = search("q", &[(10.0, None), (30.0, Some("r")), (0.0, Some("r"))]);
        let nothing = search("z", &[(0.0, None), (1.0, Some("r"))]);
        let vendor = Tried { candidate: "vendor{}".to_owned(), us: Some(1.0), ..Tried::default() };
        let with_vendor = Search { tried: [free.tried.clone(), vec![vendor]].concat(), ..free };
        let rules = by_rule(&[&costly, &with_vendor, &nothing]);
        let regrets = |rule: &str| rules[rule].iter().map(Removed::regret).collect::<Vec<_>>();
        assert_eq!((regrets("r"), regrets("s")), (vec![0.25, 0.0], vec![10.0 / 9.0 - 1.0]));
        assert_eq!(regrets(ALL), [0.25, 0.0]);
        let table = summary("regret", &[&costly, &with_vendor, &nothing]);
        let row = table.rows.iter().find(|row| row[0] == "r").unwrap();
        assert_eq!(row[1..6], ["2", "3", "1", "50.0 %", "50.0 %"]);
        assert_eq!(row[6..8], ["11.8 %", "25.0 %"]);
        assert!(row[8].starts_with("p ") && row[9] == "1.55x", "{row:?}");
    }
}
