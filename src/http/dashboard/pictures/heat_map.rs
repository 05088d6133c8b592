//! The tile space of a family: two parameters, the time of each pair.

mod axes;
mod cells;

use super::scale::Scale;
use crate::domain::candidate::VENDOR;
use crate::domain::{Outcome, Trial, TrialState};
use crate::http::dashboard::format;
use askama::Template;
use axes::{Axis, pair};
use cells::{Content, Space};

/// A square for each pair of values: the best time measured among the candidates with that pair, on a scale of colours by
/// how far it is from the job's best, of any family; where none was measured, what removed most of them.
#[derive(Template)]
#[template(path = "pictures/heat_map.html")]
pub struct HeatMap {
    family: String,
    width: f64,
    height: f64,
    /// Where the cells begin: right of the names of the rows.
    left: f64,
    rows: Label,
    columns: Label,
    cells: Vec<Cell>,
    legend: Vec<Mark>,
    failed: bool,
    measured: usize,
    summary: String,
}

/// The name of an axis and its values, each at its place.
struct Label {
    name: String,
    values: Vec<(String, f64)>,
}

struct Cell {
    x: f64,
    y: f64,
    class: String,
    text: String,
    title: String,
}

/// What a letter stands for.
struct Mark {
    letter: String,
    constraint: String,
    pairs: usize,
}

const CELL: (f64, f64) = (62.0, 30.0);
const LEFT: f64 = 62.0;
const TOP: f64 = 42.0;

/// Which constraint removed a trial's candidate.
pub fn pruned_by(trial: &Trial) -> Option<&str> {
    match &trial.state {
        TrialState::Pruned { pruned_by } => Some(pruned_by),
        TrialState::Tried(_) => None,
    }
}

/// The families with a space to draw, most candidates first, and how many each has.
pub fn families(trials: &[Trial]) -> Vec<(String, usize)> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    let own = trials.iter().map(|trial| &trial.candidate.family).filter(|family| *family != VENDOR);
    for family in own {
        match counts.iter_mut().find(|(name, _)| name == family) {
            Some((_, count)) => *count += 1,
            None => counts.push((family.clone(), 1)),
        }
    }
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts
}

/// The family that was asked for; else the best's, where it has a map; else the panels, whose tiles the literature draws;
/// else the first that has a map.
pub fn choose<'a>(
    families: &'a [(String, usize)],
    trials: &[Trial],
    asked: Option<&str>,
    best: Option<&str>,
) -> Option<&'a str> {
    let named = |name: &str| families.iter().find(|(family, _)| family == name);
    let mapped = |found: &&(String, usize)| {
        let own: Vec<&Trial> = trials.iter().filter(|t| t.candidate.family == found.0).collect();
        pair(&own).is_some()
    };
    let chosen = asked
        .and_then(named)
        .or_else(|| best.and_then(named).filter(mapped))
        .or_else(|| named("row_panel").filter(mapped))
        .or_else(|| families.iter().find(mapped))
        .or_else(|| families.first());
    chosen.map(|(family, _)| family.as_str())
}

/// The fastest trial of the job, whatever its family: what shades are relative to.
fn fastest(trials: &[Trial]) -> Option<(f64, &str)> {
    let time = |trial: &Trial| trial.state.outcome().and_then(Outcome::median_us);
    let timed = trials.iter().filter_map(|t| Some((time(t)?, t.candidate.family.as_str())));
    timed.min_by(|a, b| a.0.total_cmp(&b.0))
}

impl HeatMap {
    /// `None` where the family's candidates do not differ in any two parameters.
    pub fn new(trials: &[Trial], family: &str) -> Option<Self> {
        let own: Vec<&Trial> = trials.iter().filter(|t| t.candidate.family == family).collect();
        let (rows, columns) = pair(&own)?;
        let space = Space::of(&own, &rows, &columns);
        let fastest = fastest(trials);
        // About as wide as its letters; not narrower than its values.
        let left = LEFT.max(rows.name.len() as f64 * 6.5 + 24.0);
        let at =
            |row: usize, column: usize| (left + column as f64 * CELL.0, TOP + row as f64 * CELL.1);
        let cells = space.cells.iter().map(|cell| {
            let (x, y) = at(cell.row, cell.column);
            let pair = format!(
                "{} {}, {} {}",
                rows.name, rows.values[cell.row], columns.name, columns.values[cell.column]
            );
            draw(&cell.content, &space, fastest, (x, y), &pair)
        });
        let label = |axis: &Axis, start: f64, step: f64| Label {
            name: axis.name.clone(),
            values: (0..)
                .zip(&axis.values)
                .map(|(n, value)| (value.to_string(), start + (f64::from(n) + 0.5) * step))
                .collect(),
        };
        Some(Self {
            family: family.to_owned(),
            left,
            width: left + columns.values.len() as f64 * CELL.0 + 1.0,
            height: TOP + rows.values.len() as f64 * CELL.1 + 1.0,
            cells: cells.collect(),
            legend: legend(&space),
            failed: space.cells.iter().any(|cell| matches!(cell.content, Content::Failed { .. })),
            measured: space.measured(),
            summary: summary(&space, family, fastest, &rows, &columns),
            rows: label(&rows, TOP, CELL.1),
            columns: label(&columns, left, CELL.0),
        })
    }
}

fn summary(
    space: &Space,
    family: &str,
    fastest: Option<(f64, &str)>,
    rows: &Axis,
    columns: &Axis,
) -> String {
    let measured = space.measured();
    let of = format!("{measured} of {} pairs measured", rows.values.len() * columns.values.len());
    match &space.best {
        Some(best) => format!(
            "{of}; best of this family {} at {} {}, {} {}{}.",
            format::micros(best.us),
            rows.name,
            rows.values[best.row],
            columns.name,
            columns.values[best.column],
            match fastest {
                Some((us, other)) if other != family => {
                    format!("; the job's fastest trial took {} ({other})", format::micros(us))
                }
                _ => ", the job's fastest trial".to_owned(),
            }
        ),
        None => format!("{of}."),
    }
}

fn draw(
    content: &Content,
    space: &Space,
    fastest: Option<(f64, &str)>,
    (x, y): (f64, f64),
    pair: &str,
) -> Cell {
    let (class, text, title) = match content {
        Content::Measured { us, count } => {
            let best = fastest.map_or(*us, |(us, _)| us);
            let title = format!(
                "{}, {} the job's best; {count} measured",
                format::micros(*us),
                format::times(us / best)
            );
            (format!("heat-{}", shade(us / best)), format::micros(*us), title)
        }
        Content::Failed { state } => {
            ("heat-failed".to_owned(), "×".to_owned(), state.replace('_', " "))
        }
        Content::Pruned { by, count } => {
            let title = format!("{count} removed by {}", by.replace('_', " "));
            ("heat-pruned".to_owned(), space.letter(by), title)
        }
    };
    Cell { x, y, class, text, title: format!("{pair}: {title}") }
}

/// Shades from 0, the best, to 5: logarithmic up to five times the best.
fn shade(ratio: f64) -> u32 {
    Scale::logarithmic(1.0, 5.0, 0.0, 5.0).at(ratio).ceil() as u32
}

fn legend(space: &Space) -> Vec<Mark> {
    let mark = |(name, pairs): &(String, usize)| Mark {
        letter: space.letter(name),
        constraint: name.replace('_', " "),
        pairs: *pairs,
    };
    space.constraints.iter().map(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Candidate, JobId, Outcome, Timestamp, Timing};

    pub fn trial(ordinal: u32, candidate: Candidate, state: TrialState) -> Trial {
        Trial {
            job: JobId("j".to_owned()),
            ordinal,
            candidate,
            state,
            predicted_us: None,
            created_at: Timestamp(0),
        }
    }

    fn measured(us: f64) -> TrialState {
        TrialState::Tried(Outcome::Measured {
            timing: Timing::of(vec![us], 0).unwrap(),
            rel_error: 0.0,
            resources: None,
            preprocess_ms: 0.0,
        })
    }

    fn pruned(by: &str) -> TrialState {
        TrialState::Pruned { pruned_by: by.to_owned() }
    }

    fn panel(m1: i64, n1: i64, unroll: i64) -> Candidate {
        Candidate::new("row_panel").with("m1", m1).with("n1", n1).with("unroll", unroll)
    }

    #[test]
    fn a_pair_shows_its_best_time_or_what_removed_most_of_it() {
        let trials = [
            trial(0, panel(2, 32, 1), measured(30.0)),
            trial(1, panel(2, 32, 2), measured(10.0)),
            trial(2, panel(2, 64, 1), measured(60.0)),
            trial(3, panel(4, 32, 1), pruned("rank")),
            trial(4, panel(4, 32, 2), pruned("panel_fill")),
            trial(5, panel(4, 32, 4), pruned("panel_fill")),
            trial(6, panel(4, 64, 4), pruned("rank")),
        ];
        let map = HeatMap::new(&trials, "row_panel").unwrap();
        assert_eq!((map.rows.name.as_str(), map.columns.name.as_str()), ("m1", "n1"));
        let cells: Vec<_> = map.cells.iter().map(|c| (c.class.as_str(), c.text.as_str())).collect();
        let expected = [
            ("heat-0", "10.0 µs"),
            ("heat-5", "60.0 µs"),
            ("heat-pruned", "P"),
            ("heat-pruned", "R"),
        ];
        assert_eq!(cells, expected);
        assert_eq!(
            map.summary,
            "2 of 4 pairs measured; best of this family 10.0 µs at m1 2, n1 32, the job's fastest trial."
        );
        assert!(map.cells[2].title.contains("2 removed by panel fill"), "{}", map.cells[2].title);
        assert!(map.cells.iter().all(|cell| cell.x + CELL.0 < map.width + 1.0));
    }

    #[test]
    fn shades_and_words_are_relative_to_the_best_of_all_families() {
        let split = Candidate::new("row_split").with("lanes", 8);
        let trials = [
            trial(0, panel(2, 32, 1), measured(10.0)),
            trial(1, panel(4, 64, 1), measured(60.0)),
            trial(2, split, measured(4.0)),
        ];
        let map = HeatMap::new(&trials, "row_panel").unwrap();
        assert_eq!(map.cells[0].class, format!("heat-{}", shade(2.5)));
        assert!(map.summary.ends_with("; the job's fastest trial took 4.00 µs (row_split)."));
    }

    #[test]
    fn the_best_ones_family_is_shown_where_it_has_a_map_and_the_vendor_never() {
        let of = |family: &str, n, other: i64| {
            trial(n, Candidate::new(family).with("n1", n.into()).with("o", other), pruned("rank"))
        };
        let trials = [
            of("vendor", 0, 0),
            of("vendor", 1, 1),
            of("row_split", 2, 2),
            of("row_split", 3, 3),
            of("row_panel", 4, 4),
            of("row_panel", 5, 5),
            of("single", 6, 6),
        ];
        let families = families(&trials);
        assert_eq!(families.len(), 3);
        let choose = |asked, best| choose(&families, &trials, asked, best);
        assert_eq!(choose(None, Some("row_split")), Some("row_split"));
        assert_eq!(choose(None, Some("single")), Some("row_panel"), "one candidate is no map");
        assert_eq!(choose(None, None), Some("row_panel"));
        assert_eq!(choose(Some("row_split"), Some("row_panel")), Some("row_split"));
        assert_eq!(choose(Some("<b>"), Some("vendor")), Some("row_panel"));
        assert!(HeatMap::new(&trials, "single").is_none());
    }

    #[test]
    fn shades_end_at_five_times_the_best() {
        assert_eq!([1.0, 1.01, 1.37, 1.39, 4.9, 5.0, 99.0].map(shade), [0, 1, 1, 2, 5, 5, 5]);
    }
}
