//! Content of each heat map cell: a best time, a failure, or the constraint that pruned it.

use super::axes::Axis;
use super::pruned_by;
use crate::domain::{Outcome, Trial};
use std::collections::BTreeMap;

/// The cells that have candidates, row by row.
pub struct Space {
    pub cells: Vec<Known>,
    pub best: Option<Best>,
    /// Constraints that are shown in cells, and in how many.
    pub constraints: Vec<(String, usize)>,
}

pub struct Known {
    pub row: usize,
    pub column: usize,
    pub content: Content,
}

pub enum Content {
    /// The best time and the number of candidates measured.
    Measured { us: f64, count: usize },
    /// Tried but not timed; the outcome of the first.
    Failed { state: &'static str },
    /// The constraint that removed most candidates, and how many.
    Pruned { by: String, count: usize },
}

pub struct Best {
    pub us: f64,
    pub row: usize,
    pub column: usize,
}

impl Space {
    pub fn of(trials: &[&Trial], rows: &Axis, columns: &Axis) -> Self {
        let mut pairs: BTreeMap<(usize, usize), Vec<&Trial>> = BTreeMap::new();
        for trial in trials {
            if let (Some(row), Some(column)) = (rows.place(trial), columns.place(trial)) {
                pairs.entry((row, column)).or_default().push(trial);
            }
        }
        let cells: Vec<Known> = pairs
            .into_iter()
            .filter_map(|((row, column), trials)| {
                Some(Known { row, column, content: content(&trials)? })
            })
            .collect();
        let times = cells.iter().filter_map(|cell| match cell.content {
            Content::Measured { us, .. } => Some(Best { us, row: cell.row, column: cell.column }),
            _ => None,
        });
        let best = times.min_by(|a, b| a.us.total_cmp(&b.us));
        let mut constraints: BTreeMap<String, usize> = BTreeMap::new();
        for cell in &cells {
            if let Content::Pruned { by, .. } = &cell.content {
                *constraints.entry(by.clone()).or_default() += 1;
            }
        }
        Self { cells, best, constraints: constraints.into_iter().collect() }
    }

    /// The number of pairs with a time.
    pub fn measured(&self) -> usize {
        self.cells.iter().filter(|cell| matches!(cell.content, Content::Measured { .. })).count()
    }

    /// A constraint's abbreviation in a cell: the shortest prefix that distinguishes it from the others.
    pub fn letter(&self, constraint: &str) -> String {
        let others = || self.constraints.iter().map(|(name, _)| name).filter(|n| *n != constraint);
        let ends = constraint.char_indices().map(|(at, letter)| at + letter.len_utf8());
        let enough = |end: &usize| others().all(|other| !other.starts_with(&constraint[..*end]));
        let short = ends.into_iter().find(enough).map_or(constraint, |end| &constraint[..end]);
        let mut letters = short.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters).collect()
    }
}

fn content(trials: &[&Trial]) -> Option<Content> {
    let outcomes = || trials.iter().filter_map(|trial| trial.state.outcome());
    let times: Vec<f64> = outcomes().filter_map(Outcome::median_us).collect();
    if let Some(us) = times.iter().copied().min_by(f64::total_cmp) {
        return Some(Content::Measured { us, count: times.len() });
    }
    if let Some(outcome) = outcomes().next() {
        return Some(Content::Failed { state: outcome.counted_as() });
    }
    let mut removed: BTreeMap<&str, usize> = BTreeMap::new();
    for by in trials.iter().filter_map(|trial| pruned_by(trial)) {
        *removed.entry(by).or_default() += 1;
    }
    let (by, count) = removed.into_iter().max_by_key(|(_, count)| *count)?;
    Some(Content::Pruned { by: by.to_owned(), count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abbreviations_are_unambiguous() {
        let names = ["rank", "register_resource", "panel_fill"];
        let constraints = names.map(|name| (name.to_owned(), 1)).to_vec();
        let space = Space { cells: Vec::new(), best: None, constraints };
        assert_eq!(names.map(|name| space.letter(name)), ["Ra", "Re", "P"]);
    }
}
