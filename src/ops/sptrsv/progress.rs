//! Proof of forward progress: before a launch, in O(nnz), that no variable can wait for one that no worker will compute.
//!
//! A schedule is deadlock-free if there is an order of its tasks in which every parent comes before its children, every
//! worker takes its tasks in that order, and the worker of the first unfinished task is always running. Then that task waits
//! only for finished tasks, and the rest follows by induction.

use crate::ops::Refusal;
use crate::sparse::Triangular;
use std::ops::Range;

/// Why the worker of the first unfinished task of a launch is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Supply<'a> {
    /// All workers are on the device at once (`Step.resident`). Worker w takes `tasks[pointers[w]..pointers[w + 1]]` in
    /// turn, positions of the global order.
    Resident { pointers: &'a [u32], tasks: &'a [u32] },
    /// Running workers take positions from an atomic counter, in rising order and without gaps.
    Ticket,
    /// Any worker, at any time: no task may wait for another task of the same launch. Queues as for `Resident`.
    Independent { pointers: &'a [u32], tasks: &'a [u32] },
}

/// One launch: a range of the global order. Launches follow one another, each after all of the one before.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    pub positions: Range<u32>,
    pub supply: Supply<'a>,
}

/// Where each variable is computed.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// Position of each variable's task in the global order, by solve index.
    pub position: &'a [u32],
    /// The part of its task that computes each variable. A part takes its variables in solve order, so a variable may need an
    /// earlier one of the same part; parts of one task run concurrently, and may not need each other. Absent if tasks resolve
    /// no dependencies inside.
    pub part: Option<&'a [u32]>,
    pub launches: &'a [Launch<'a>],
}

/// Refuses an order that could wait for ever, and names a row (of the matrix, counted from 0) that would.
pub fn prove(system: &Triangular, order: &Order) -> Result<(), Refusal> {
    let rows = system.rows();
    if order.position.len() != rows || order.part.is_some_and(|part| part.len() != rows) {
        return Err(Refusal(format!("the order does not place each of the {rows} rows once")));
    }
    let end = launches(order)?;
    for (s, &position) in order.position.iter().enumerate() {
        if position >= end {
            return Err(unplaced(system, s));
        }
    }
    parents(system, order)
}

/// The launches cover the order without gaps, and each launch's workers take each of its tasks once, in rising order.
fn launches(order: &Order) -> Result<u32, Refusal> {
    let mut end = 0;
    for (index, launch) in order.launches.iter().enumerate() {
        let Range { start, end: stop } = launch.positions;
        if start != end || stop < start {
            return Err(Refusal(format!(
                "launch {index} begins at task {start} of the order, not at {end}"
            )));
        }
        end = stop;
        match launch.supply {
            Supply::Ticket => {}
            Supply::Resident { pointers, tasks } | Supply::Independent { pointers, tasks } => {
                queues(index, &launch.positions, pointers, tasks)?;
            }
        }
    }
    Ok(end)
}

fn queues(
    launch: usize,
    positions: &Range<u32>,
    pointers: &[u32],
    tasks: &[u32],
) -> Result<(), Refusal> {
    let mut taken = vec![false; positions.len()];
    for (worker, ends) in pointers.windows(2).enumerate() {
        let queue = tasks.get(ends[0] as usize..ends[1] as usize);
        let queue = queue.ok_or_else(|| {
            Refusal(format!("launch {launch}: the queue of worker {worker} is not in the list"))
        })?;
        if let Some(pair) = queue.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(Refusal(format!(
                "launch {launch}: worker {worker} takes task {} before task {}",
                pair[0], pair[1]
            )));
        }
        for &task in queue {
            let place = task.checked_sub(positions.start).map(|at| at as usize);
            let free = place.and_then(|at| taken.get_mut(at)).filter(|taken| !**taken);
            let free = free.ok_or_else(|| {
                Refusal(format!(
                    "launch {launch}: task {task} of worker {worker} also belongs to another worker, or is no task of this launch"
                ))
            })?;
            *free = true;
        }
    }
    match taken.iter().position(|taken| !taken) {
        None => Ok(()),
        Some(task) => Err(Refusal(format!(
            "launch {launch}: no worker takes task {}",
            task as u32 + positions.start
        ))),
    }
}

/// Every parent's task comes earlier, or the child's own part computes the parent.
fn parents(system: &Triangular, order: &Order) -> Result<(), Refusal> {
    // First position of the launch before which parents must have been computed, if tasks of the launch may not wait.
    let independent: Vec<Range<u32>> = order
        .launches
        .iter()
        .filter(|launch| matches!(launch.supply, Supply::Independent { .. }))
        .map(|launch| launch.positions.clone())
        .collect();
    for (s, &mine) in order.position.iter().enumerate() {
        let after = independent.partition_point(|range| range.end <= mine);
        let limit = independent.get(after).filter(|range| range.contains(&mine));
        let limit = limit.map_or(mine, |range| range.start);
        for &parent in system.row(s).0 {
            let parent = parent as usize;
            if order.position[parent] < limit {
                continue;
            }
            let inside = order.position[parent] == mine
                && order.part.is_some_and(|part| part[parent] == part[s]);
            if !inside {
                return Err(Refusal(format!(
                    "row {} needs row {}, whose task does not come before its own: it could wait for ever",
                    system.original(s),
                    system.original(parent)
                )));
            }
        }
    }
    Ok(())
}

fn unplaced(system: &Triangular, s: usize) -> Refusal {
    Refusal(format!("row {} is in no launch, so it would never be computed", system.original(s)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 1 needs 0, row 2 needs 1; row 3 needs nothing.
    fn chain() -> Triangular {
        Triangular {
            indptr: vec![0, 0, 1, 2, 2],
            indices: vec![0, 1],
            values: vec![1.0; 2],
            diagonal: vec![1.0; 4],
            reversed: false,
        }
    }

    fn resident<'a>(pointers: &'a [u32], tasks: &'a [u32]) -> Vec<Launch<'a>> {
        let last = tasks.len() as u32;
        vec![Launch { positions: 0..last, supply: Supply::Resident { pointers, tasks } }]
    }

    fn refusal(position: &[u32], part: Option<&[u32]>, launches: &[Launch]) -> String {
        match prove(&chain(), &Order { position, part, launches }) {
            Ok(()) => "proved".to_owned(),
            Err(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn an_order_in_which_parents_come_first_is_proved() {
        let launches = resident(&[0, 2, 4], &[0, 2, 1, 3]);
        assert_eq!(refusal(&[0, 1, 2, 3], None, &launches), "proved");
        let ticket = [Launch { positions: 0..4, supply: Supply::Ticket }];
        assert_eq!(refusal(&[0, 1, 2, 3], None, &ticket), "proved");
        // Rows 0 and 1 in one part of task 0, row 3 in another.
        let one = resident(&[0, 2], &[0, 1]);
        assert_eq!(refusal(&[0, 0, 1, 0], Some(&[0, 0, 0, 1]), &one), "proved");
    }

    #[test]
    fn each_way_to_wait_for_ever_is_refused_by_name() {
        let launches = resident(&[0, 4], &[0, 1, 2, 3]);
        let later = refusal(&[1, 0, 2, 3], None, &launches);
        assert!(later.starts_with("row 1 needs row 0"), "{later}");
        let side_by_side =
            refusal(&[0, 0, 1, 2], Some(&[0, 1, 0, 0]), &resident(&[0, 3], &[0, 1, 2]));
        assert!(side_by_side.starts_with("row 1 needs row 0"), "{side_by_side}");
        let falling = refusal(&[0, 1, 2, 3], None, &resident(&[0, 4], &[0, 2, 1, 3]));
        assert!(falling.contains("worker 0 takes task 2 before task 1"), "{falling}");
        let missing = [Launch {
            positions: 0..4,
            supply: Supply::Resident { pointers: &[0, 3], tasks: &[0, 1, 2] },
        }];
        let missing = refusal(&[0, 1, 2, 3], None, &missing);
        assert!(missing.contains("no worker takes task 3"), "{missing}");
        let twice = [Launch {
            positions: 0..4,
            supply: Supply::Resident { pointers: &[0, 2, 5], tasks: &[0, 1, 1, 2, 3] },
        }];
        let twice = refusal(&[0, 1, 2, 3], None, &twice);
        assert!(twice.contains("task 1 of worker 1"), "{twice}");
        let waiting = [Launch {
            positions: 0..4,
            supply: Supply::Independent { pointers: &[0, 4], tasks: &[0, 1, 2, 3] },
        }];
        let waiting = refusal(&[0, 1, 2, 3], None, &waiting);
        assert!(waiting.starts_with("row 1 needs row 0"), "{waiting}");
        let unplaced = refusal(&[0, 1, 2, 4], None, &launches);
        assert!(unplaced.starts_with("row 3 is in no launch"), "{unplaced}");
    }
}
