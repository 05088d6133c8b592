//! A matrix across devices: one row per problem, one column per device class.

use super::common;
use crate::domain::{DeviceClass, Digest, Op, Plan};
use crate::http::dashboard::bound;
use crate::http::dashboard::matrix::plan_row::{PlanRow, question};
use crate::http::dashboard::pictures::comparison::{self, Comparison, Group, Timed};

/// A device class that has plans.
pub struct Column {
    pub words: String,
    pub class: DeviceClass,
}

pub struct Cell {
    pub plan: PlanRow,
    /// Whether it is the shortest of several times in its row.
    pub best: bool,
}

pub struct Row {
    pub problem: String,
    /// One cell for each column.
    pub cells: Vec<Option<Cell>>,
}

/// The classes of the plans, by name.
pub fn columns(plans: &[Plan]) -> Vec<Column> {
    let mut columns: Vec<Column> = plans
        .iter()
        .map(|plan| Column { words: plan.device.class().words(), class: plan.device.class() })
        .collect();
    columns.sort_by(|a, b| a.class.cmp(&b.class));
    columns.dedup_by(|a, b| a.class == b.class);
    columns
}

/// Plans by problem, in the order of the problems' labels.
fn questions(plans: &[Plan]) -> Vec<(String, Vec<&Plan>)> {
    let mut asked: Vec<(String, Vec<&Plan>)> = Vec::new();
    for plan in plans {
        let words = question(plan);
        match asked.iter_mut().find(|(known, _)| *known == words) {
            Some((_, answers)) => answers.push(plan),
            None => asked.push((words, vec![plan])),
        }
    }
    asked.sort_by_cached_key(|(words, answers)| (size(answers), words.clone()));
    asked
}

/// By operation, then by number of columns.
fn size(answers: &[&Plan]) -> Option<(Op, u32)> {
    let problem = answers.first()?.problem;
    Some((problem.op(), problem.columns()))
}

pub fn rows(plans: &[Plan], columns: &[Column], matrix: &Digest) -> Vec<Row> {
    let row = |(problem, answers): (String, Vec<&Plan>)| {
        let clock = common(&answers);
        let us = |plan: &Plan| plan.median_by(clock?);
        let shortest = answers.iter().filter_map(|plan| us(plan)).reduce(f64::min);
        let several = answers.len() > 1;
        let cell = |column: &Column| {
            let plan = answers.iter().find(|plan| plan.device.class() == column.class)?;
            let best = several && us(plan).is_some() && us(plan) == shortest;
            Some(Cell { plan: PlanRow::of(plan, matrix), best })
        };
        Row { problem, cells: columns.iter().map(cell).collect() }
    };
    questions(plans).into_iter().map(row).collect()
}

/// Bars grouped by problem; within a group in the order of the columns.
pub fn picture(plans: &[Plan], name: &str) -> Option<Comparison> {
    let group = |(name, mut answers): (String, Vec<&Plan>)| {
        answers.sort_by_key(|plan| plan.device.class());
        let clock = common(&answers);
        let timed = answers.into_iter().filter_map(|plan| {
            Some(Timed {
                label: plan.device.class().words(),
                us: plan.median_by(clock?)?,
                vendor_us: plan.baseline_by(clock?),
                bound_us: plan.limit.us,
                bound: bound::time_name(plan.limit.bound),
            })
        });
        Group { name, timed: timed.collect() }
    };
    let mut groups: Vec<Group> = questions(plans).into_iter().map(group).collect();
    if columns(plans).len() == 1 {
        // All bars have the same device, so they are labelled with their problems.
        let named = groups.into_iter().flat_map(|group| {
            let label = move |timed| Timed { label: group.name.clone(), ..timed };
            group.timed.into_iter().map(label)
        });
        groups = vec![Group { name: String::new(), timed: named.collect() }];
    }
    comparison::of(format!("Times of {name} by problem and device, as in the table"), &groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(n: u32, threads: u32, us: f64) -> Plan {
        let mut plan: Plan =
            serde_json::from_str(include_str!("../../../../tests/http/plan.json")).unwrap();
        plan.problem = serde_json::from_value(serde_json::json!({"op": "spmm", "n": n})).unwrap();
        plan.device.multiprocessors = threads;
        plan.measured.as_mut().unwrap().median_us = us;
        plan
    }

    #[test]
    fn the_shortest_of_a_row_is_marked_and_gaps_stay() {
        let plans = [plan(128, 2, 9.0), plan(32, 2, 5.0), plan(32, 4, 3.0)];
        let columns = columns(&plans);
        assert_eq!(
            columns.iter().map(|c| c.words.as_str()).collect::<Vec<_>>(),
            ["a processor, 2 threads", "a processor, 4 threads"]
        );
        let rows = rows(&plans, &columns, &plans[0].matrix);
        assert_eq!(rows[0].problem, "SpMM N=32 f32 row", "few columns first");
        let best = |row: &Row| -> Vec<Option<bool>> {
            row.cells.iter().map(|cell| cell.as_ref().map(|cell| cell.best)).collect()
        };
        assert_eq!(best(&rows[0]), [Some(false), Some(true)]);
        assert_eq!(best(&rows[1]), [Some(false), None], "alone is not the best of anything");
    }
}
