//! Heat map of a family's tile space: the best time for each pair of values of two parameters.

mod axes;
mod cells;

use crate::charts::Scale;
use crate::domain::candidate::VENDOR;
use crate::domain::{Outcome, Trial, TrialCount, TrialState};
use crate::http::dashboard::format;
use askama::Template;
use axes::{Axis, pair};
use cells::{Content, Space};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A cell for each pair of values shows the best time measured among the candidates with that pair, coloured by its ratio to
/// the job's best time of any family; if none was measured, the constraint that removed most of them.
#[derive(Template)]
#[template(path = "pictures/heat_map.html")]
pub struct HeatMap {
    family: String,
    width: f64,
    height: f64,
    /// Left edge of the cells, right of the row labels.
    left: f64,
    rows: Label,
    columns: Label,
    cells: Vec<Cell>,
    legend: Vec<Mark>,
    failed: bool,
    measured: usize,
    summary: String,
}

/// The name of an axis and its values with their positions.
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

/// A legend entry: the constraint that a letter stands for.
struct Mark {
    letter: String,
    constraint: String,
    pairs: usize,
}

const CELL: (f64, f64) = (62.0, 30.0);
const LEFT: f64 = 62.0;
const TOP: f64 = 42.0;

/// The constraint that removed a trial's candidate.
fn pruned_by(trial: &Trial) -> Option<&str> {
    match &trial.state {
        TrialState::Pruned(removal) => Some(&removal.pruned_by),
        TrialState::Tried(_) => None,
    }
}

/// The families with a tile space and their numbers of candidates, in descending order.
pub fn families(counts: &[TrialCount]) -> Vec<(String, u64)> {
    let mut families: BTreeMap<&str, u64> = BTreeMap::new();
    for count in counts.iter().filter(|count| count.family != VENDOR) {
        *families.entry(&count.family).or_default() += count.count;
    }
    let mut families: Vec<_> = families.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
    // A stable sort keeps families with equal counts in alphabetical order.
    families.sort_by_key(|(_, count)| Reverse(*count));
    families
}

/// The families in order of preference, of which the first that has a map is drawn: the requested one, that of the best
/// candidate, `row_panel` (the one drawn in the literature), then the largest.
pub fn preferred<'a>(
    families: &'a [(String, u64)],
    asked: Option<&str>,
    best: Option<&str>,
) -> Vec<&'a str> {
    let known = |name: &&str| families.iter().any(|(family, _)| family == name);
    let first = [asked, best, Some("row_panel")].into_iter().flatten().filter(known);
    let rest = families.iter().map(|(family, _)| family.as_str());
    let mut order: Vec<&str> = Vec::new();
    for name in first.chain(rest) {
        if let Some((own, _)) = families.iter().find(|(own, _)| own == name)
            && !order.contains(&own.as_str())
        {
            order.push(own);
        }
    }
    order
}

/// Whether these trials of one family vary in two parameters.
pub fn has_map(trials: &[&Trial]) -> bool {
    pair(trials).is_some()
}

/// The fastest trial of the job, of any family; shades are relative to it.
fn fastest<'a>(trials: &[&'a Trial]) -> Option<(f64, &'a str)> {
    let time = |trial: &Trial| trial.state.outcome().and_then(Outcome::median_us);
    let timed = trials.iter().filter_map(|t| Some((time(t)?, t.candidate.family.as_str())));
    timed.min_by(|a, b| a.0.total_cmp(&b.0))
}

impl HeatMap {
    /// `None` if the family's candidates do not vary in two parameters.
    pub fn new<'a>(trials: impl IntoIterator<Item = &'a Trial>, family: &str) -> Option<Self> {
        let trials: Vec<&Trial> = trials.into_iter().collect();
        let own: Vec<&Trial> =
            trials.iter().copied().filter(|t| t.candidate.family == family).collect();
        let (rows, columns) = pair(&own)?;
        let space = Space::of(&own, &rows, &columns);
        let fastest = fastest(&trials);
        // Approximately as wide as its letters, but not narrower than its values.
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
            let title = format!("{count} pruned by {}", by.replace('_', " "));
            ("heat-pruned".to_owned(), space.letter(by), title)
        }
    };
    Cell { x, y, class, text, title: format!("{pair}: {title}") }
}

/// Shades from 0 (the best time) to 5 (five times the best or slower), on a logarithmic scale.
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
    use crate::domain::{Candidate, JobId, Outcome, Removal, Timestamp, Timing};

    pub fn trial(ordinal: u32, candidate: Candidate, state: TrialState) -> Trial {
        Trial {
            job: JobId("j".to_owned()),
            ordinal,
            candidate,
            state,
            predicted_us: None,
            despite: None,
            features: None,
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
        TrialState::Pruned(Removal::by(by))
    }

    fn panel(m1: i64, n1: i64, unroll: i64) -> Candidate {
        Candidate::new("row_panel").with("m1", m1).with("n1", n1).with("unroll", unroll)
    }

    #[test]
    fn a_cell_shows_its_best_time_or_the_constraint_that_removed_most() {
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
        assert!(map.cells[2].title.contains("2 pruned by panel fill"), "{}", map.cells[2].title);
        assert!(map.cells.iter().all(|cell| cell.x + CELL.0 < map.width + 1.0));
    }

    #[test]
    fn the_best_candidates_family_is_preferred_and_the_vendor_is_never_drawn() {
        let of = |family: &str, state: &str, count| TrialCount {
            family: family.to_owned(),
            state: state.to_owned(),
            pruned_by: None,
            count,
        };
        let counts = [
            of("vendor", "measured", 9),
            of("row_panel", "measured", 1),
            of("row_split", "measured", 1),
            of("row_split", "pruned", 1),
        ];
        let families = families(&counts);
        assert_eq!(families, [("row_split".to_owned(), 2), ("row_panel".to_owned(), 1)]);
        assert_eq!(preferred(&families, None, None), ["row_panel", "row_split"]);
        assert_eq!(preferred(&families, None, Some("row_split"))[0], "row_split");
        assert_eq!(preferred(&families, Some("row_split"), Some("row_panel"))[0], "row_split");
        assert_eq!(preferred(&families, Some("<b>"), Some("vendor"))[0], "row_panel");
        assert_eq!(preferred(&families[..1], None, None), ["row_split"]);
        let lone = [trial(0, Candidate::new("row_split").with("n1", 1), pruned("rank"))];
        assert!(!has_map(&lone.each_ref()), "one parameter is no map");
        assert!(HeatMap::new(&lone, "row_split").is_none());
    }

    #[test]
    fn shades_and_summary_are_relative_to_the_best_of_all_families() {
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
    fn shades_saturate_at_five_times_the_best() {
        assert_eq!([1.0, 1.01, 1.37, 1.39, 4.9, 5.0, 99.0].map(shade), [0, 1, 1, 2, 5, 5, 5]);
    }
}
