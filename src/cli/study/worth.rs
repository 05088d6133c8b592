//! What the constraints and the ranking are worth: how many candidates and seconds a search takes, and which share of the best
//! performance it reaches, with everything, with what the rules leave, and with the first few of these by a model.

use super::record::{Search, Tried, best};
use super::table::{Table, mean, number, percent, times};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of candidates that a ranked search measures.
const K: [usize; 3] = [1, 10, 16];

/// Two searches are of equal quality if the time of one is at most this much above the other's.
const EQUAL: f64 = 1.01;

/// A part of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// Candidates, those that were not drawn included.
    pub candidates: f64,
    /// Seconds that they take, likewise.
    pub seconds: f64,
    /// The best of all searches over this part's best: 1 if it has the winner. Absent if none of it was measured.
    pub share: Option<f64>,
}

/// The parts of one full search.
#[derive(Clone, Debug, PartialEq)]
pub struct Worth<'a> {
    pub search: &'a Search,
    pub best_us: f64,
    pub full: Part,
    pub kept: Part,
    /// By model, then by [`K`].
    pub ranked: BTreeMap<&'static str, Vec<Part>>,
    /// By model: how many of the first must be measured for the quality of this full search, and the seconds that they take.
    /// Absent if what the rules keep does not reach it.
    pub equal: BTreeMap<&'static str, (usize, f64)>,
}

/// `None` if nothing of our own was measured.
pub fn worth(search: &Search) -> Option<Worth<'_>> {
    let best_us = search.best_us()?;
    let all: Vec<&Tried> = search.own().collect();
    let kept: Vec<&Tried> = search.own().filter(|tried| tried.rule.is_none()).collect();
    let part = |tried: &[&Tried], drawn: f64| Part {
        candidates: tried.len() as f64 / drawn,
        // The sum of nothing is a negative zero.
        seconds: tried.iter().filter_map(|tried| tried.seconds).fold(0.0, |sum, s| sum + s) / drawn,
        share: best(tried.iter().copied()).map(|us| best_us / us),
    };
    let drawn = search.drawn();
    // Not what any other search reached: that may be another scheme, or the same one in a better moment.
    let wanted = EQUAL * best(search.own()).unwrap_or(best_us);
    let mut ranked = BTreeMap::new();
    let mut equal = BTreeMap::new();
    for (model, time) in MODELS {
        let mut order: Vec<(f64, &Tried)> =
            kept.iter().filter_map(|tried| Some((time(tried)?, *tried))).collect();
        if order.is_empty() {
            continue;
        }
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.candidate.cmp(&b.1.candidate)));
        let order: Vec<&Tried> = order.into_iter().map(|(_, tried)| tried).collect();
        let first = |k: usize| &order[..k.min(order.len())];
        ranked.insert(model, K.map(|k| part(first(k), 1.0)).to_vec());
        let reached = order.iter().position(|tried| tried.us.is_some_and(|us| us <= wanted));
        if let Some(at) = reached {
            equal.insert(model, (at + 1, part(first(at + 1), 1.0).seconds));
        }
    }
    let (full, kept) = (part(&all, drawn), part(&kept, drawn));
    Some(Worth { search, best_us, full, kept, ranked, equal })
}

/// A search with another strategy, as it ran.
fn run(other: &Search, best_us: f64) -> Part {
    let share = best(other.own()).map(|us| best_us / us);
    Part { candidates: other.own().count() as f64, seconds: other.seconds, share }
}

/// The other searches that were free to try whatever their strategy chooses.
fn as_run(search: &Search) -> impl Iterator<Item = &Search> {
    search.others.iter().filter(|other| !other.asks())
}

type Time = fn(&Tried) -> Option<f64>;

/// The models that rank, with their times.
const MODELS: [(&str, Time); 2] =
    [("analytic", |tried| tried.predicted_us), ("learned", |tried| tried.learned_us)];

/// The means by problem, and by operation.
pub fn summary(name: &str, searches: &[&Search]) -> Table {
    let says = format!(
        "Everything that can run, what the constraints leave, and the first K of these by a model: candidates and seconds are \
         arithmetic means a search, compilation included, and the share is that of the best performance that any search of \
         the problem reached (geometric mean, and the least). Searches with other strategies are shown as they ran, but for those that were asked for some families or values alone. The \
         ratio is that of the seconds of the full search (geometric mean). Where a full search was a draw, its counts and seconds are \
         scaled up to its space, while the shares are those of what was drawn, and K counts only that. The learned model may have been \
         trained on these searches. In the rows \u{201c}until equal\u{201d} a search goes on until it is within {:.0} % of the best of the \
         full search itself; where the rules removed all of that it is not counted.",
        100.0 * (EQUAL - 1.0)
    );
    let head = [
        "problem",
        "search",
        "searches",
        "candidates",
        "seconds",
        "ratio",
        "share of best",
        "least",
    ];
    let mut table = Table::new(name, &says, &head);
    let worths: Vec<Worth<'_>> = searches.iter().filter_map(|search| worth(search)).collect();
    let mut groups: BTreeMap<&str, Vec<&Worth<'_>>> = BTreeMap::new();
    for worth in &worths {
        groups.entry(&worth.search.problem).or_default().push(worth);
    }
    let several = groups.len() > 1;
    let all = several.then(|| ("all", worths.iter().collect::<Vec<_>>()));
    for (problem, group) in groups.into_iter().chain(all) {
        let mut row = |search: String, parts: Vec<(Part, f64)>| {
            if parts.is_empty() {
                return;
            }
            let count = parts.len() as f64;
            let average = |of: fn(&Part) -> f64| {
                Some(parts.iter().map(|(part, _)| of(part)).sum::<f64>() / count)
            };
            let shares = || parts.iter().filter_map(|(part, _)| part.share);
            let faster = parts.iter().filter(|(part, _)| part.seconds > 0.0);
            let ratio = mean(faster.map(|(part, full)| full / part.seconds));
            table.rows.push(vec![
                problem.to_owned(),
                search,
                parts.len().to_string(),
                number(average(|part| part.candidates)),
                number(average(|part| part.seconds)),
                times(ratio),
                percent(mean(shares())),
                percent(shares().min_by(f64::total_cmp)),
            ]);
        };
        let of = |part: fn(&Worth<'_>) -> Part| {
            group.iter().map(|worth| (part(worth), worth.full.seconds)).collect::<Vec<_>>()
        };
        row("full".to_owned(), of(|worth| worth.full));
        let strategies: BTreeSet<&str> = group
            .iter()
            .flat_map(|worth| as_run(worth.search).map(|other| other.strategy.as_str()))
            .collect();
        for strategy in strategies {
            let runs = group.iter().flat_map(|worth| {
                let of = as_run(worth.search).filter(|other| other.strategy == strategy);
                of.map(|other| (run(other, worth.best_us), worth.full.seconds))
            });
            row(format!("{strategy}, as run"), runs.collect());
        }
        row("constraints".to_owned(), of(|worth| worth.kept));
        for (model, _) in MODELS {
            for (at, k) in K.into_iter().enumerate() {
                let parts = group.iter().filter_map(|worth| {
                    Some((*worth.ranked.get(model)?.get(at)?, worth.full.seconds))
                });
                row(format!("{model}, K = {k}"), parts.collect());
            }
            let parts = group.iter().filter_map(|worth| {
                let (tried, seconds) = *worth.equal.get(model)?;
                let part = Part { candidates: tried as f64, seconds, share: None };
                Some((part, worth.full.seconds))
            });
            row(format!("{model}, until equal"), parts.collect());
        }
    }
    table
}

/// Every search on a line.
pub fn each(name: &str, searches: &[&Search]) -> Table {
    let says = "Every full search. The ratio is that of the full search's seconds to those of the first K.";
    let mut head = vec![
        "matrix",
        "class",
        "problem",
        "device",
        "space",
        "tried",
        "full best us",
        "vendor us",
        "full s",
        "kept",
        "constraints s",
        "constraints share",
    ];
    head.extend([
        "analytic 1",
        "analytic 10",
        "analytic 16",
        "analytic ratio at 10",
        "analytic equal after",
        "analytic equal ratio",
        "learned 1",
        "learned 10",
        "learned 16",
        "learned ratio at 10",
        "learned equal after",
        "learned equal ratio",
    ]);
    let mut table = Table { long: true, ..Table::new(name, says, &head) };
    for worth in searches.iter().filter_map(|search| worth(search)) {
        let search = worth.search;
        let mut row = vec![
            search.matrix.clone(),
            search.class.clone(),
            search.problem.clone(),
            search.device.clone(),
            number(Some(worth.full.candidates)),
            search.own().count().to_string(),
            number(Some(worth.best_us)),
            number(search.vendor_us),
            number(Some(worth.full.seconds)),
            number(Some(worth.kept.candidates)),
            number(Some(worth.kept.seconds)),
            percent(worth.kept.share),
        ];
        for (model, _) in MODELS {
            let parts = worth.ranked.get(model);
            let share = |at: usize| percent(parts.and_then(|parts| parts.get(at)?.share));
            let ratio = |seconds: f64| (seconds > 0.0).then(|| worth.full.seconds / seconds);
            row.extend([share(0), share(1), share(2)]);
            row.push(times(parts.and_then(|parts| ratio(parts.get(1)?.seconds))));
            let equal = worth.equal.get(model).copied();
            row.push(equal.map_or_else(|| "–".to_owned(), |(tried, _)| tried.to_string()));
            row.push(times(equal.and_then(|(_, seconds)| ratio(seconds))));
        }
        table.rows.push(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::FunnelStep;

    fn tried(x: u32, us: f64, predicted: f64, rule: Option<&str>) -> Tried {
        Tried {
            candidate: format!("a{{x={x}}}"),
            state: "measured".to_owned(),
            us: Some(us),
            predicted_us: Some(predicted),
            seconds: Some(2.0),
            rule: rule.map(str::to_owned),
            ..Tried::default()
        }
    }

    fn search() -> Search {
        let vendor = Tried {
            candidate: "vendor{algorithm=x}".to_owned(),
            us: Some(1.0),
            ..tried(0, 1.0, 0.0, None)
        };
        Search {
            problem: "spmm;n=8".to_owned(),
            strategy: "full".to_owned(),
            space: Some(12),
            tried: vec![
                vendor,
                tried(1, 10.0, 9.0, Some("load_balance")),
                tried(2, 16.0, 5.0, None),
                tried(3, 12.5, 6.0, None),
                Tried { us: None, state: "refused".to_owned(), ..tried(4, 0.0, 7.0, None) },
            ],
            ..Search::default()
        }
    }

    #[test]
    fn shares_seconds_and_counts_are_those_of_the_parts() {
        let search = search();
        let worth = worth(&search).unwrap();
        assert_eq!((worth.best_us, worth.full.candidates, worth.full.seconds), (10.0, 12.0, 24.0));
        assert_eq!((worth.full.share, worth.kept.share), (Some(1.0), Some(0.8)));
        assert_eq!((worth.kept.candidates, worth.kept.seconds), (9.0, 18.0));
        let first = &worth.ranked["analytic"];
        assert_eq!((first[0].share, first[0].seconds), (Some(0.625), 2.0));
        assert_eq!((first[1].share, first[1].candidates), (Some(0.8), 3.0));
        assert!(worth.equal.is_empty() && !worth.ranked.contains_key("learned"));
        let table = summary("w", &[&search]);
        assert_eq!(table.rows[1][3..], ["9.00", "18.0", "1.33x", "80.0 %", "80.0 %"]);
        assert_eq!(table.rows.len(), 5);
        let other = Search {
            strategy: "ranked".to_owned(),
            seconds: 3.0,
            tried: vec![tried(5, 8.0, 1.0, None)],
            ..Search::default()
        };
        let with = Search { others: vec![other], ..search.clone() };
        let table = summary("w", &[&with]);
        assert_eq!(table.rows[0][3..], ["12.0", "24.0", "1.00x", "80.0 %", "80.0 %"]);
        assert_eq!(
            table.rows[1][1..],
            ["ranked, as run", "1", "1.00", "3.00", "8.00x", "100.0 %", "100.0 %"]
        );
        // A search of one family alone is none that chose.
        let step = |constraint: &str| FunnelStep {
            constraint: constraint.to_owned(),
            removed: 1,
            left: 1,
            detail: None,
        };
        let mut asked = with.clone();
        asked.others[0].funnel = vec![step("requested")];
        let table = summary("w", &[&asked]);
        assert!(table.rows.iter().all(|row| row[1] != "ranked, as run"));
        assert_eq!((table.rows[0][6].as_str(), asked.passing().count()), ("80.0 %", 3));
        assert_eq!(with.passing().count(), 4);
        assert_eq!(each("e", &[&search]).rows[0].len(), each("e", &[]).head.len());
    }

    #[test]
    fn a_search_goes_on_until_it_is_as_good_as_the_full_one() {
        let mut search = search();
        search.tried[3].us = Some(10.05);
        assert_eq!(worth(&search).unwrap().equal["analytic"], (2, 4.0));
        // Whatever another search reached.
        search.others = vec![Search { tried: vec![tried(5, 8.0, 1.0, None)], ..Search::default() }];
        assert_eq!(worth(&search).unwrap().equal["analytic"], (2, 4.0));
    }
}
