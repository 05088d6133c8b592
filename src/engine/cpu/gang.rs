//! Threads that wait for one another: they all run at once, meet at a spinning barrier, or count what they have done.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Polls before a waiting thread yields its core: tens of microseconds, longer than any neighbour should take.
const POLLS: u32 = 1 << 10;

/// The calling thread and as many others as make up the number, each with a thread of its own. A task that waits for
/// another in a work-stealing pool may wait for ever, for one that nobody took up; here nobody takes up two.
pub struct Gang {
    others: ThreadPool,
    threads: usize,
}

impl Gang {
    /// `threads` is at least 2, the caller's among them.
    pub fn of(threads: usize) -> Result<Self, ThreadPoolBuildError> {
        let threads = threads.max(2);
        let name = move |i| format!("cpu-gang-{threads}-{}", i + 1);
        let others = ThreadPoolBuilder::new().num_threads(threads - 1).thread_name(name).build()?;
        Ok(Self { others, threads })
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` once on each thread, with its number from 0, the caller's. Returns when all have ended.
    pub fn run(&self, work: impl Fn(usize) + Sync) {
        let working = AtomicUsize::new(self.threads - 1);
        let (work, working) = (&work, &working);
        self.others.in_place_scope(|scope| {
            scope.spawn_broadcast(move |_, context| {
                work(context.index() + 1);
                working.fetch_sub(1, Ordering::Release);
            });
            work(0);
            // They end at about the same time: sleeping until then would cost more than the wait.
            spin_for(|| working.load(Ordering::Acquire) == 0);
        });
    }
}

/// Spins until it holds; yields after a while, since there may be fewer cores than threads.
pub fn wait_until(holds: impl Fn() -> bool) {
    while !spin_for(&holds) {
        std::thread::yield_now();
    }
}

/// Spins a bounded time; whether it came to hold.
fn spin_for(holds: impl Fn() -> bool) -> bool {
    for _ in 0..POLLS {
        if holds() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// A word alone on its cache lines (two, since neighbours are fetched in pairs).
#[derive(Default)]
#[repr(align(128))]
pub struct Alone<T>(pub T);

/// A sense-reversing barrier (Mellor-Crummey and Scott, TOCS 1991, algorithm 7): it needs no reset between uses.
#[derive(Default)]
pub struct Barrier {
    arrived: Alone<AtomicUsize>,
    sense: Alone<AtomicBool>,
}

impl Barrier {
    /// Returns when all `threads` have come. `sense` is the thread's own, and starts as `Self::sense` was before the run.
    pub fn wait(&self, threads: usize, sense: &mut bool) {
        *sense = !*sense;
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            // Before the release below, so nobody arrives at the next one too early.
            self.arrived.0.store(0, Ordering::Relaxed);
            self.sense.0.store(*sense, Ordering::Release);
        } else {
            wait_until(|| self.sense.0.load(Ordering::Acquire) == *sense);
        }
    }

    /// The sense of the last meeting; read where nobody is between two of them.
    pub fn sense(&self) -> bool {
        self.sense.0.load(Ordering::Acquire)
    }
}

/// How many groups each thread has finished since the first call. Counting on over all calls, it needs no reset either.
pub struct Progress(Vec<Alone<AtomicU64>>);

impl Progress {
    pub fn of(threads: usize) -> Self {
        Self((0..threads).map(|_| Alone::default()).collect())
    }

    /// Everything that `thread` wrote before is visible to whoever sees the count.
    pub fn finished(&self, thread: usize, count: u64) {
        self.0[thread].0.store(count, Ordering::Release);
    }

    pub fn wait_for(&self, thread: usize, count: u64) {
        let word = &self.0[thread].0;
        wait_until(|| word.load(Ordering::Acquire) >= count);
    }
}

#[cfg(test)]
mod tests {
    use super::{Barrier, Gang, Progress};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn nobody_passes_the_barrier_alone() {
        // More threads than cores on most machines that run tests.
        let gang = Gang::of(5).unwrap();
        let (barrier, came) = (Barrier::default(), AtomicUsize::new(0));
        for call in 0..3 {
            let sense = barrier.sense();
            gang.run(|_| {
                let mut sense = sense;
                for round in 1..=50 {
                    came.fetch_add(1, Ordering::Relaxed);
                    barrier.wait(5, &mut sense);
                    assert!(came.load(Ordering::Relaxed) >= (call * 50 + round) * 5);
                    barrier.wait(5, &mut sense);
                }
            });
        }
        assert_eq!(came.load(Ordering::Relaxed), 750);
    }

    #[test]
    fn a_chain_through_all_threads_makes_progress() {
        let gang = Gang::of(4).unwrap();
        let progress = Progress::of(4);
        let sum = AtomicUsize::new(0);
        gang.run(|me| {
            for step in 1..=100 {
                let (before, count) = if me == 0 { (3, step - 1) } else { (me - 1, step) };
                progress.wait_for(before, count);
                // Not atomic as a whole: the waiting alone keeps it right.
                sum.store(sum.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                progress.finished(me, step);
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 400);
    }
}
