//! Schedules of triangular solves: level by level with barriers, or merged groups that wait for the groups they depend
//! on.

use super::schedule::first_where;
use super::solve::Rows;
use super::thread_team::{Barrier, Progress, ThreadTeam};
use crate::sparse::Triangular;
use crate::sparse::levels::Levels;
use std::sync::{Arc, Mutex, PoisonError};

/// The fixed cost of a row, as a number of entries.
const ROW_WEIGHT: usize = 2;

/// The rows by level, ascending within each; computed once per system and shared by all its schedules.
pub struct LevelOrder {
    /// Solve indices.
    pub order: Vec<u32>,
    /// `ends[l]` is the end of level l in `order`.
    pub ends: Vec<usize>,
    /// Prefix sums of the row weights in `order`, with the total at the end.
    weights: Vec<usize>,
}

impl LevelOrder {
    pub fn of(system: &Triangular) -> Self {
        let Levels { level_of_row, widths } = system.levels();
        let mut ends = Vec::with_capacity(widths.len());
        let mut next = Vec::with_capacity(widths.len());
        let mut end = 0;
        for width in widths {
            next.push(end);
            end += width as usize;
            ends.push(end);
        }
        let mut order = vec![0; level_of_row.len()];
        for (s, &level) in level_of_row.iter().enumerate() {
            let place = &mut next[level as usize];
            order[*place] = s as u32;
            *place += 1;
        }
        let mut weights = Vec::with_capacity(order.len() + 1);
        let mut sum = 0;
        weights.push(0);
        for &s in &order {
            sum += system.indptr[s as usize + 1] - system.indptr[s as usize] + ROW_WEIGHT;
            weights.push(sum);
        }
        Self { order, ends, weights }
    }
}

/// Phases separated by barriers: a wide level that is distributed by weight, or a run of narrow levels computed by
/// thread 0.
pub struct LevelSchedule {
    levels: Arc<LevelOrder>,
    /// For each phase, `threads` + 1 positions in the order: thread t computes the rows from position t to t + 1.
    cuts: Vec<u32>,
    team: Arc<ThreadTeam>,
    /// Locked during a call, since its state belongs to one call at a time.
    barrier: Mutex<Barrier>,
}

impl LevelSchedule {
    pub fn of(levels: Arc<LevelOrder>, narrow: usize, team: Arc<ThreadTeam>) -> Self {
        let mut cuts = Vec::new();
        let (mut first, mut level) = (0, 0);
        while level < levels.ends.len() {
            let is_narrow = |level: usize, first: usize| levels.ends[level] - first < narrow;
            if is_narrow(level, first) {
                let start = first;
                while level < levels.ends.len() && is_narrow(level, first) {
                    first = levels.ends[level];
                    level += 1;
                }
                cuts.push(start as u32);
                cuts.extend(std::iter::repeat_n(first as u32, team.threads()));
            } else {
                share(&levels.weights, first, levels.ends[level], team.threads(), &mut cuts);
                first = levels.ends[level];
                level += 1;
            }
        }
        Self { levels, cuts, team, barrier: Mutex::default() }
    }

    fn run(&self, solve: impl Fn(Rows<'_>) + Sync) {
        let threads = self.team.threads();
        let barrier = &*self.barrier.lock().unwrap_or_else(PoisonError::into_inner);
        let sense = barrier.sense();
        self.team.run(|me| {
            let mut sense = sense;
            for (phase, cuts) in self.cuts.chunks_exact(threads + 1).enumerate() {
                if phase > 0 {
                    barrier.wait(threads, &mut sense);
                }
                solve(Rows::Listed(&self.levels.order[cuts[me] as usize..cuts[me + 1] as usize]));
            }
        });
    }
}

/// Divides `first..end` into `threads` runs with about equal weights; appends `threads` + 1 positions.
fn share(weights: &[usize], first: usize, end: usize, threads: usize, cuts: &mut Vec<u32>) {
    let (before, total) = (weights[first], weights[end] - weights[first]);
    let mut place = first;
    cuts.push(first as u32);
    for thread in 1..threads {
        let goal = before + (total as u128 * thread as u128 / threads as u128) as usize;
        place = first_where(place, end, |at| weights[at] >= goal);
        cuts.push(place as u32);
    }
    cuts.push(end as u32);
}

/// Groups of consecutive rows; group g belongs to thread g % threads. Each thread processes its groups in ascending
/// order, and a group depends only on lower ones, so the lowest unfinished group can always proceed: there is progress
/// as long as all threads run.
pub struct MergedSchedule {
    rows: usize,
    /// Rows per group.
    height: usize,
    groups: usize,
    /// `waits[firsts[g]..firsts[g + 1]]` are the conditions that group g waits for.
    firsts: Vec<usize>,
    waits: Vec<Wait>,
    progress: Progress,
    /// The calls so far; locked during a call, since the counters of progress belong to one call at a time.
    calls: Mutex<u64>,
    team: Arc<ThreadTeam>,
}

/// A condition: `thread` has finished `count` of its groups.
#[derive(Clone, Copy)]
struct Wait {
    thread: u32,
    count: u32,
}

impl MergedSchedule {
    /// Computes the conditions in one pass over the entries, omitting those already implied by an earlier group of the
    /// thread.
    pub fn of(system: &Triangular, height: usize, team: Arc<ThreadTeam>) -> Self {
        let (threads, rows) = (team.threads(), system.rows());
        let groups = rows.div_ceil(height);
        let (mut firsts, mut waits) = (Vec::with_capacity(groups + 1), Vec::new());
        // The progress of every thread that each thread already knows of.
        let mut known = vec![0u32; threads * threads];
        let mut needed = vec![0u32; threads];
        firsts.push(0);
        for group in 0..groups {
            let (first, end) = (group * height, rows.min((group + 1) * height));
            for &column in &system.indices[system.indptr[first]..system.indptr[end]] {
                let from = column as usize / height;
                if from != group {
                    let needed = &mut needed[from % threads];
                    *needed = (*needed).max((from / threads) as u32 + 1);
                }
            }
            let me = group % threads;
            for (thread, needed) in needed.iter_mut().enumerate() {
                let known = &mut known[me * threads + thread];
                if thread != me && *needed > *known {
                    waits.push(Wait { thread: thread as u32, count: *needed });
                    *known = *needed;
                }
                *needed = 0;
            }
            firsts.push(waits.len());
        }
        let (progress, calls) = (Progress::of(threads), Mutex::new(0));
        Self { rows, height, groups, firsts, waits, progress, calls, team }
    }

    fn run(&self, solve: impl Fn(Rows<'_>) + Sync) {
        let threads = self.team.threads();
        let a_call = self.groups.div_ceil(threads) as u64;
        // Within one call no counter exceeds the start value of the next call.
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *calls * a_call;
        *calls += 1;
        self.team.run(|me| {
            for (done, group) in (me..self.groups).step_by(threads).enumerate() {
                for wait in &self.waits[self.firsts[group]..self.firsts[group + 1]] {
                    self.progress.wait_for(wait.thread as usize, before + u64::from(wait.count));
                }
                let first = group * self.height;
                solve(Rows::Run(first..self.rows.min(first + self.height)));
                self.progress.finished(me, before + done as u64 + 1);
            }
        });
    }
}

/// A schedule for the rows of a system.
pub enum Schedule {
    /// All rows in solve order on the calling thread.
    Serial {
        rows: usize,
    },
    Levels(Box<LevelSchedule>),
    Merged(Box<MergedSchedule>),
}

impl Schedule {
    /// Calls `solve` exactly once for every row, after all rows that it depends on are solved and visible.
    pub fn run(&self, solve: impl Fn(Rows<'_>) + Sync) {
        match self {
            Self::Serial { rows } => solve(Rows::Run(0..*rows)),
            Self::Levels(levels) => levels.run(solve),
            Self::Merged(merged) => merged.run(solve),
        }
    }

    pub fn threads(&self) -> usize {
        match self {
            Self::Serial { .. } => 1,
            Self::Levels(levels) => levels.team.threads(),
            Self::Merged(merged) => merged.team.threads(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row s depends on rows s - 1 (if s is odd) and s / 2.
    fn system(rows: usize) -> Triangular {
        let (mut indptr, mut indices) = (vec![0], Vec::new());
        for s in 0..rows as u32 {
            let mut columns: Vec<u32> = vec![s / 2];
            columns.extend((s % 2 == 1).then(|| s - 1));
            columns.retain(|&column| column < s);
            columns.dedup();
            indices.extend(columns);
            indptr.push(indices.len());
        }
        let values = vec![1.0; indices.len()];
        Triangular { indptr, indices, values, diagonal: vec![1.0; rows], reversed: false }
    }

    #[test]
    fn every_row_is_solved_once_after_its_dependencies() {
        let team = Arc::new(ThreadTeam::of(3).unwrap());
        for rows in [0, 1, 2, 7, 100] {
            let system = system(rows);
            let levels = Arc::new(LevelOrder::of(&system));
            let mut schedules = vec![Schedule::Serial { rows }];
            for size in [1, 4, 16, 1000] {
                let by_level = LevelSchedule::of(levels.clone(), size, team.clone());
                let merged = MergedSchedule::of(&system, size, team.clone());
                schedules.push(Schedule::Levels(Box::new(by_level)));
                schedules.push(Schedule::Merged(Box::new(merged)));
            }
            for schedule in &schedules {
                for _ in 0..3 {
                    let solved = Mutex::new(vec![0; rows]);
                    schedule.run(|part| {
                        let part: Vec<usize> = match part {
                            Rows::Run(range) => range.collect(),
                            Rows::Listed(list) => list.iter().map(|&s| s as usize).collect(),
                        };
                        for s in part {
                            let mut solved = solved.lock().unwrap();
                            let ready = system.row(s).0.iter().all(|&c| solved[c as usize] == 1);
                            // Not an assertion here, since a panicking thread would leave the others waiting.
                            solved[s] += if ready { 1 } else { 100 };
                        }
                    });
                    assert_eq!(solved.into_inner().unwrap(), vec![1; rows]);
                }
            }
        }
    }

    #[test]
    fn narrow_levels_are_merged_and_wide_ones_distributed_by_weight() {
        let wide = system(64);
        let levels = Arc::new(LevelOrder::of(&wide));
        let team = Arc::new(ThreadTeam::of(2).unwrap());
        let phases =
            |narrow| LevelSchedule::of(levels.clone(), narrow, team.clone()).cuts.len() / 3;
        assert_eq!(phases(1), levels.ends.len());
        assert_eq!(phases(1000), 1);
        let mut cuts = Vec::new();
        share(&[0, 10, 11, 12, 20], 0, 4, 2, &mut cuts);
        assert_eq!(cuts, [0, 1, 4]);
    }
}
