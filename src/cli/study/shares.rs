//! What families, parameter values and predictions are worth.

use super::record::{Search, Tried, best};
use super::table::{Table, mean, number, percent, times};
use crate::domain::plan::ModelError;
use crate::search::model_error;
use std::collections::{BTreeMap, BTreeSet};

/// A family within this factor of the best is as good as the best.
const NEAR: f64 = 1.05;

/// The best time of each family, over that of all, and over the vendor's.
pub fn families(name: &str, searches: &[&Search]) -> Table {
    let says = "The best of each family: its time over that of the best of all our candidates (geometric mean), how often it is the \
                best or within 5 % of it, and how much faster than the vendor's routine. Only searches in which one of it was \
                measured count.";
    let head = [
        "family",
        "searches",
        "measured",
        "time over best",
        "best",
        "within 5 %",
        "faster than vendor",
    ];
    let mut table = Table::new(name, says, &head);
    let names: BTreeSet<&str> =
        searches.iter().flat_map(|search| search.tried.iter().map(Tried::family)).collect();
    for family in names {
        let mut over = Vec::new();
        let mut speedups = Vec::new();
        let mut measured = 0;
        for search in searches {
            let vendors = search.tried.iter().filter(|tried| tried.is_vendor());
            let of = || search.known().chain(vendors.clone()).filter(|t| t.family() == family);
            let (Some(own), Some(all)) = (best(of()), search.best_us()) else { continue };
            measured += of().filter(|tried| tried.us.is_some()).count();
            over.push(own / all);
            let vendor = best(search.tried.iter().filter(|tried| is_baseline(tried)));
            speedups.extend(vendor.map(|vendor| vendor / own));
        }
        if over.is_empty() {
            continue;
        }
        let count = over.len() as f64;
        let part =
            |most: f64| Some(over.iter().filter(|over| **over <= most).count() as f64 / count);
        table.rows.push(vec![
            family.to_owned(),
            over.len().to_string(),
            measured.to_string(),
            times(mean(over.iter().copied())),
            percent(part(1.0)),
            percent(part(NEAR)),
            times(mean(speedups)),
        ]);
    }
    table
}

/// Whether the vendor's routine solves the problem as it is given, and does not make the matrix dense.
fn is_baseline(tried: &Tried) -> bool {
    crate::domain::candidate::is_baseline(tried.family(), tried.parameter("algorithm"))
}

/// For every matrix and problem the best time of some families, of the vendor's routines, and of all.
pub fn by_matrix(name: &str, searches: &[&Search], families: &[&str]) -> Table {
    let says = "The best time of each, in microseconds.";
    let routines: BTreeSet<&str> = searches
        .iter()
        .flat_map(|search| search.tried.iter().filter(|tried| tried.is_vendor()))
        .filter_map(|tried| tried.parameter("algorithm"))
        .collect();
    let mut head = vec!["matrix", "class", "problem", "best of all"];
    head.extend(families);
    head.extend(&routines);
    let mut table = Table::new(name, says, &head);
    for search in searches {
        let mut row = vec![
            search.matrix.clone(),
            search.class.clone(),
            search.problem.clone(),
            number(search.best_us()),
        ];
        for family in families {
            row.push(number(best(search.known().filter(|tried| tried.family() == *family))));
        }
        for routine in &routines {
            let vendor = search.tried.iter().filter(|tried| tried.is_vendor());
            row.push(number(best(vendor.filter(|t| t.parameter("algorithm") == Some(routine)))));
        }
        table.rows.push(row);
    }
    table
}

/// Family, parameter and value.
type Key = (String, String, Value);

/// For every value of every parameter of a family: the best time with it over the best without it.
pub fn values(name: &str, searches: &[&Search], families: &[&str]) -> Table {
    let says = "Parameter values: the best time of a family without the value over the best with it (geometric mean; above 1 the value \
                is worth having, and the most is its worth where it helps most), and how often the best of the family has it. Only \
                searches in which the family was measured with and without the value count. In a draw a value that few candidates have \
                has fewer chances than the others together.";
    let head = [
        "family",
        "parameter",
        "value",
        "searches",
        "worth",
        "most",
        "most on",
        "in the family's best",
    ];
    let mut table = Table::new(name, says, &head);
    let mut worths: BTreeMap<Key, Vec<(f64, &Search)>> = BTreeMap::new();
    for search in searches {
        for family in families {
            let of: Vec<&Tried> = search
                .own()
                .filter(|tried| tried.family() == *family && tried.us.is_some())
                .collect();
            let mut seen: BTreeMap<(&str, &str), f64> = BTreeMap::new();
            for tried in &of {
                let Some(us) = tried.us else { continue };
                for pair in tried.parameters() {
                    let least = seen.entry(pair).or_insert(us);
                    *least = least.min(us);
                }
            }
            for (&(parameter, value), &with) in &seen {
                // A candidate without the parameter has another value than this.
                let other = of.iter().filter(|tried| tried.parameter(parameter) != Some(value));
                let Some(without) = best(other.copied()) else { continue };
                let key = (search.kernel(family), parameter.to_owned(), Value::of(value));
                worths.entry(key).or_default().push((without / with, search));
            }
        }
    }
    for ((family, parameter, value), worths) in worths {
        let most = worths.iter().max_by(|a, b| a.0.total_cmp(&b.0));
        let wins = worths.iter().filter(|(worth, _)| *worth > 1.0).count() as f64;
        table.rows.push(vec![
            family,
            parameter,
            value.text,
            worths.len().to_string(),
            times(mean(worths.iter().map(|(worth, _)| *worth))),
            times(most.map(|(worth, _)| *worth)),
            most.map_or_else(String::new, |(_, search)| search.matrix.clone()),
            percent(Some(wins / worths.len() as f64)),
        ]);
    }
    table
}

/// For every technique that schemes of the search always have: the time of a scheme without it over that of the same scheme.
pub fn techniques(name: &str, searches: &[&Search]) -> Table {
    let says = "Techniques that every scheme of the search has: the time of a scheme without one over that of the same scheme with it, \
                over the schemes that were measured both ways (geometric mean of a matrix, and then over the matrices; above 1 the \
                technique is worth having), and the matrices where it is worth most and least.";
    let head =
        ["technique", "searches", "schemes", "worth", "most", "most on", "least", "least on"];
    let mut table = Table::new(name, says, &head);
    let mut worths: BTreeMap<&str, Vec<(f64, usize, &Search)>> = BTreeMap::new();
    for search in searches {
        let mut with: BTreeMap<&str, f64> = BTreeMap::new();
        for tried in search.known() {
            if let Some(us) = tried.us {
                let least = with.entry(&tried.candidate).or_insert(us);
                *least = least.min(us);
            }
        }
        let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for tried in search.others.iter().flat_map(Search::own) {
            let Some((technique, us)) = tried.without().zip(tried.us) else { continue };
            if let Some(with) = with.get(tried.whole().as_str()) {
                ratios.entry(technique).or_default().push(us / with);
            }
        }
        for (technique, ratios) in ratios {
            let schemes = ratios.len();
            if let Some(mean) = mean(ratios) {
                worths.entry(technique).or_default().push((mean, schemes, search));
            }
        }
    }
    for (technique, mut worths) in worths {
        worths.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (least, most) = (worths.first(), worths.last());
        let on = |one: Option<&(f64, usize, &Search)>| {
            one.map_or_else(String::new, |(_, _, search)| search.matrix.clone())
        };
        table.rows.push(vec![
            technique.to_owned(),
            worths.len().to_string(),
            worths.iter().map(|(_, schemes, _)| schemes).sum::<usize>().to_string(),
            times(mean(worths.iter().map(|(worth, _, _)| *worth))),
            times(most.map(|(worth, _, _)| *worth)),
            on(most),
            times(least.map(|(worth, _, _)| *worth)),
            on(least),
        ]);
    }
    table
}

/// A value of a parameter, numbers in their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Value {
    number: Option<i64>,
    text: String,
}

impl Value {
    fn of(text: &str) -> Self {
        Self { number: text.parse().ok(), text: text.to_owned() }
    }
}

/// Predicted against measured times by family.
pub fn predictions(name: &str, searches: &[&Search], families: &[&str]) -> Table {
    let says = "The analytic model's times against the measured ones: measured over predicted (geometric mean over all trials), the \
                geometric standard deviation of that ratio within a search, and the rank correlation within a search (means over \
                the searches).";
    let head =
        ["family", "searches", "trials", "measured over predicted", "spread", "rank correlation"];
    let mut table = Table::new(name, says, &head);
    let mut kernels: BTreeMap<(usize, String), Vec<ModelError>> = BTreeMap::new();
    for (place, family) in families.iter().enumerate() {
        for search in searches {
            let of = search.own().filter(|tried| tried.family() == *family);
            let pairs: Vec<(f64, f64)> =
                of.filter_map(|tried| Some((tried.predicted_us?, tried.us?))).collect();
            if let Some(error) = model_error(family, &pairs) {
                kernels.entry((place, search.kernel(family))).or_default().push(error);
            }
        }
    }
    for ((_, kernel), errors) in kernels {
        let ranks: Vec<f64> = errors.iter().filter_map(|error| error.rank_correlation).collect();
        let rank = (!ranks.is_empty()).then(|| ranks.iter().sum::<f64>() / ranks.len() as f64);
        let trials: u32 = errors.iter().map(|error| error.trials).sum();
        let log: f64 =
            errors.iter().map(|error| f64::from(error.trials) * error.median_ratio.ln()).sum();
        table.rows.push(vec![
            kernel,
            errors.len().to_string(),
            trials.to_string(),
            times(Some((log / f64::from(trials.max(1))).exp())),
            times(mean(errors.iter().map(|error| error.spread))),
            number(rank),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::record::joined;
    use super::*;

    fn search() -> Search {
        let of = |candidate: &str, us: f64, predicted: f64| Tried {
            candidate: candidate.to_owned(),
            us: Some(us),
            predicted_us: Some(predicted),
            ..Tried::default()
        };
        Search {
            matrix: "m".to_owned(),
            tried: vec![
                of("vendor{algorithm=csr_alg2}", 30.0, 1.0),
                of("a{order=length,x=1}", 10.0, 5.0),
                of("a{order=natural,x=2}", 15.0, 7.5),
                of("a{order=natural,x=10}", 40.0, 20.0),
                of("b{x=1}", 20.0, 40.0),
                Tried { us: None, ..of("b{x=2}", 1.0, 1.0) },
            ],
            ..Search::default()
        }
    }

    #[test]
    fn families_are_compared_with_the_best_and_the_vendor() {
        let table = families("f", &[&search()]);
        assert_eq!(table.rows[0], ["a", "1", "3", "1.00x", "100.0 %", "100.0 %", "3.00x"]);
        assert_eq!(table.rows[1], ["b", "1", "1", "2.00x", "0.0 %", "0.0 %", "1.50x"]);
        assert_eq!(table.rows[2][0], "vendor");
        let table = by_matrix("m", &[&search()], &["b"]);
        assert_eq!(table.head[4..], ["b", "csr_alg2"]);
        assert_eq!(table.rows[0][3..], ["10.0", "20.0", "30.0"]);
    }

    #[test]
    fn a_value_is_worth_what_the_family_loses_without_it() {
        let table = values("v", &[&search()], &["a", "b"]);
        let rows: Vec<Vec<&str>> = table
            .rows
            .iter()
            .map(|row| [&row[1], &row[2], &row[4], &row[7]].map(String::as_str).to_vec())
            .collect();
        assert_eq!(rows[0], ["order", "length", "1.50x", "100.0 %"]);
        assert_eq!(rows[1], ["order", "natural", "0.67x", "0.0 %"]);
        assert_eq!(rows.iter().map(|row| row[1]).collect::<Vec<_>>()[2..], ["1", "2", "10"]);
        assert_eq!(rows.len(), 5, "b was measured with one value alone");
    }

    #[test]
    fn a_technique_is_worth_what_the_same_scheme_loses_without_it() {
        let of = |candidate: &str, us: f64| Tried {
            candidate: candidate.to_owned(),
            us: Some(us),
            ..Tried::default()
        };
        let full = |matrix: &str, tried: Vec<Tried>| Search {
            matrix: matrix.to_owned(),
            strategy: "full".to_owned(),
            tried,
            ..Search::default()
        };
        let with =
            |matrix, us| full(matrix, vec![of("ag{nw=1,ws=rr}", us), of("ag{nw=2,ws=rr}", us)]);
        let none = |matrix, us| {
            let schemes = ["ag{nw=1,without=exclusive,ws=rr}", "ag{nw=4,without=exclusive,ws=rr}"];
            full(matrix, schemes.map(|scheme| of(scheme, us)).to_vec())
        };
        let searches = vec![with("m", 10.0), none("m", 9.0), with("n", 10.0), none("n", 40.0)];
        let searches = joined(searches);
        let full: Vec<&Search> = searches.iter().collect();
        assert_eq!((full.len(), full[0].best_us()), (2, Some(10.0)));
        let table = techniques("t", &full);
        assert_eq!(table.rows, [["exclusive", "2", "2", "1.90x", "4.00x", "n", "0.90x", "m"]]);
    }

    #[test]
    fn predictions_are_judged_by_family() {
        let table = predictions("p", &[&search()], &["a", "b", "c"]);
        assert_eq!(table.rows[0], ["a", "1", "3", "2.00x", "1.00x", "1.00"]);
        assert_eq!(table.rows[1][3..], ["0.50x", "1.00x", "–"]);
        assert_eq!(table.rows.len(), 2);
    }
}
