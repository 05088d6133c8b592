//! Distributes rows to parallel tasks, balanced by nonzeros, and manages the threads that run them.

use super::thread_team::ThreadTeam;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Row tiles are grouped into this many rows, so that only the last tile of the matrix can be incomplete.
const GROUP: usize = 16;

/// Tasks per thread, for load balancing.
const TASKS_PER_THREAD: usize = 16;

/// Minimum of entries times columns per task: a few microseconds, well above the cost of scheduling it.
const LEAST_WORK: usize = 1 << 16;

/// `count` runs of consecutive rows with about equal weights; the weight of a row is its number of entries plus one.
pub fn by_nonzeros(indptr: &[usize], count: usize) -> Vec<Range<usize>> {
    let rows = indptr.len() - 1;
    let total = indptr[rows] + rows;
    let weights = |row: usize| indptr[row] + row;
    let mut tasks = Vec::with_capacity(count);
    let mut first = 0;
    for task in 1..=count {
        let goal = (total as u128 * task as u128 / count as u128) as usize;
        let end =
            if task == count { rows } else { first_where(first, rows, |row| weights(row) >= goal) };
        if end > first {
            tasks.push(first..end);
        }
        first = end;
    }
    tasks
}

/// The first of `low..high` for which the monotonic predicate `holds` is true, or `high`.
pub fn first_where(mut low: usize, mut high: usize, holds: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// Runs of `order`, each of complete groups, with about equal weights for panels of `n1` columns.
pub fn by_tiles(indptr: &[usize], order: &[u32], n1: usize, threads: usize) -> Vec<Range<usize>> {
    let weight = |row: u32| indptr[row as usize + 1] - indptr[row as usize] + 1;
    let total = indptr[indptr.len() - 1] + order.len();
    let goal = (total / (threads * TASKS_PER_THREAD)).max(LEAST_WORK / n1);
    let (mut tasks, mut first, mut sum) = (Vec::new(), 0, 0);
    for (i, group) in order.chunks(GROUP).enumerate() {
        sum += group.iter().map(|&row| weight(row)).sum::<usize>();
        let end = i * GROUP + group.len();
        if sum >= goal || end == order.len() {
            tasks.push(first..end);
            (first, sum) = (end, 0);
        }
    }
    tasks
}

/// The engine's threads, as many as the host provides.
pub struct Threads {
    pool: rayon::ThreadPool,
    /// Teams by number of threads, started on first use. There is one of each size, since waking all threads of the
    /// pool to use a few would take longer than a small solve.
    teams: Mutex<BTreeMap<usize, Arc<ThreadTeam>>>,
    /// The process that they were started in.
    process: u32,
}

impl Threads {
    pub fn start() -> Result<Self, rayon::ThreadPoolBuildError> {
        Self::of(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Starts the given number of threads, regardless of the number of cores.
    pub fn of(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let name = |i| format!("cpu-engine-{i}");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(name).build()?;
        Ok(Self { pool, teams: Mutex::default(), process: std::process::id() })
    }

    /// The threads that all plans of this process share. They are started on first use, and once more in a process that
    /// was forked, and never end.
    pub fn shared() -> Result<&'static Self, rayon::ThreadPoolBuildError> {
        static SHARED: Mutex<Option<&'static Threads>> = Mutex::new(None);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(threads) = shared.filter(|threads| threads.are_of_this_process()) {
            return Ok(threads);
        }
        // The old ones of a forked process cannot be ended, since they are not there.
        let threads: &'static Self = Box::leak(Box::new(Self::start()?));
        *shared = Some(threads);
        Ok(threads)
    }

    /// Whether the threads are there: a forked process has only the thread that forked it.
    pub fn are_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    pub fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// A team of `threads` threads (at least 2, including the caller) that may wait for one another.
    pub fn team(&self, threads: usize) -> std::io::Result<Arc<ThreadTeam>> {
        let mut teams = self.teams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(team) = teams.get(&threads) {
            return Ok(team.clone());
        }
        let team = Arc::new(ThreadTeam::of(threads)?);
        teams.insert(threads, team.clone());
        Ok(team)
    }

    /// Runs rayon's parallel iterators on these threads.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    /// Runs jobs 0..jobs, each once and started in order, so that adjacent jobs run at about the same time and share
    /// the cache.
    pub fn run(&self, jobs: usize, job: impl Fn(usize) + Sync) {
        if jobs <= 1 {
            // Waking threads costs more than a small product.
            return (0..jobs).for_each(job);
        }
        let next = AtomicUsize::new(0);
        let take = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= jobs {
                    return;
                }
                job(i);
            }
        };
        self.pool.scope(|scope| {
            for _ in 1..jobs.min(self.count()) {
                scope.spawn(|_| take());
            }
            take();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{by_nonzeros, by_tiles};

    #[test]
    fn tasks_cover_all_rows_once_and_are_balanced() {
        // One row of 90 entries among nine of 1 and nine empty ones.
        let lengths = [vec![0; 9], vec![90], vec![1; 9]].concat();
        let mut indptr = vec![0];
        lengths.iter().for_each(|length| indptr.push(indptr[indptr.len() - 1] + length));
        for count in [1, 2, 3, 7, 40] {
            let tasks = by_nonzeros(&indptr, count);
            assert!(tasks.len() <= count);
            let rows: Vec<usize> = tasks.into_iter().flatten().collect();
            assert_eq!(rows, (0..19).collect::<Vec<_>>());
        }
        let halves = by_nonzeros(&[0, 2, 4, 6, 8], 2);
        assert_eq!(halves, [0..2, 2..4]);
        assert!(by_nonzeros(&[0], 4).is_empty());
    }

    #[test]
    fn tiles_are_split_between_groups() {
        let indptr: Vec<usize> = (0..=1000).map(|row| row * 300).collect();
        let order: Vec<u32> = (0..1000).rev().collect();
        let tasks = by_tiles(&indptr, &order, 64, 2);
        assert!(tasks.len() > 10 && tasks.iter().all(|task| task.start % 16 == 0));
        assert_eq!(tasks.into_iter().flatten().collect::<Vec<_>>(), (0..1000).collect::<Vec<_>>());
        assert!(by_tiles(&[0], &[], 8, 2).is_empty());
    }
}
