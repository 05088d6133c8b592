//! A team of threads that run at the same time and may wait for one another, at a spinning barrier or by progress
//! counters.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Polls before a waiting thread yields its core: a few microseconds, or many hops. With more threads than free cores,
/// longer polling would take time from the threads that are being waited for.
const POLLS: u32 = 1 << 7;

/// Number of yields of an idle thread before it sleeps.
const OFFERS: u32 = 100;

/// Number of yields of a thread that waits for another of its run, and how long it then naps at a time. Threads that yield keep every core
/// busy, so that the one they wait for may have to wait itself, behind a thread of somebody else's that spins as well (a BLAS library's, between
/// two calls); a core whose thread naps is idle, and takes it over. A wait of that many yields is long beside a nap.
const PATIENCE: u32 = 8;
const NAP: Duration = Duration::from_micros(20);

/// The calling thread and additional threads of its own. In a work-stealing pool, a task that waits for another may
/// wait forever for one that was never started; here every thread runs exactly one task. Threads do not sleep between
/// calls in quick succession, because a wake-up takes longer than a small solve.
pub struct ThreadTeam {
    shared: Arc<Shared>,
    others: Vec<JoinHandle<()>>,
    /// Held during a run, so that there is only one at a time.
    running: Mutex<()>,
}

struct Shared {
    /// Counts the runs; incremented when a job is available.
    run: CachePadded<AtomicU64>,
    /// Number of threads, without the caller, that have not finished the run.
    working: CachePadded<AtomicUsize>,
    ends: AtomicBool,
    job: Mutex<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The work of a run, borrowed for its duration.
type Job = &'static (dyn Fn(usize) + Sync);

impl ThreadTeam {
    /// Starts a team of `threads` threads, at least 2, including the caller.
    pub fn of(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            run: CachePadded::default(),
            working: CachePadded::default(),
            ends: AtomicBool::new(false),
            job: Mutex::new(None),
            panic: Mutex::new(None),
        });
        // From here on, dropping the team ends the threads that were started.
        let mut team = Self { shared, others: Vec::new(), running: Mutex::new(()) };
        for me in 1..threads.max(2) {
            let shared = team.shared.clone();
            let builder = thread::Builder::new().name(format!("cpu-team-{threads}-{me}"));
            team.others.push(builder.spawn(move || shared.serve(me))?);
        }
        Ok(team)
    }

    pub fn threads(&self) -> usize {
        self.others.len() + 1
    }

    /// Runs `work` once on each thread, with the thread's number (0 is the caller). Returns when all have finished.
    pub fn run(&self, work: impl Fn(usize) + Sync) {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let job: &(dyn Fn(usize) + Sync) = &work;
        // SAFETY: other threads use the job only until `working` reaches zero, for which `Wait` waits before `work` is
        // dropped, even if the caller's part panics.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        let shared = &*self.shared;
        *shared.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        shared.working.0.store(self.others.len(), Ordering::Relaxed);
        shared.run.0.fetch_add(1, Ordering::Release);
        let wait = Wait(shared);
        // Only sets a flag if they are awake.
        self.others.iter().for_each(|other| other.thread().unpark());
        work(0);
        drop(wait);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// Waits on drop until the other threads have finished the run.
struct Wait<'a>(&'a Shared);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        wait_until(|| self.0.working.0.load(Ordering::Acquire) == 0);
    }
}

impl Drop for ThreadTeam {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        for other in self.others.drain(..) {
            other.thread().unpark();
            // Panics were propagated by the run in which they occurred.
            let _ = other.join();
        }
    }
}

impl Shared {
    /// The main loop of thread `me`.
    fn serve(&self, me: usize) {
        let mut seen = 0;
        loop {
            let called =
                || self.run.0.load(Ordering::Acquire) != seen || self.ends.load(Ordering::Acquire);
            let mut offers = 0;
            while !spin_for(called) {
                offers += 1;
                if offers < OFFERS { thread::yield_now() } else { thread::park() }
            }
            if self.ends.load(Ordering::Acquire) {
                return;
            }
            // No other run begins before this thread has finished its part.
            seen = self.run.0.load(Ordering::Acquire);
            let job = *self.job.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(job) = job
                && let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(me)))
            {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.working.0.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Spins until `holds` is true; yields after a while, since there may be fewer cores than threads, and then naps.
pub fn wait_until(holds: impl Fn() -> bool) {
    let mut offers = 0;
    while !spin_for(&holds) {
        offers += 1;
        if offers < PATIENCE { thread::yield_now() } else { thread::sleep(NAP) }
    }
}

/// Spins for a bounded time; returns whether `holds` became true.
fn spin_for(holds: impl Fn() -> bool) -> bool {
    for _ in 0..POLLS {
        if holds() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// A value on its own pair of cache lines (a pair, since adjacent lines are prefetched together).
#[derive(Default)]
#[repr(align(128))]
pub struct CachePadded<T>(pub T);

/// A sense-reversing barrier (Mellor-Crummey and Scott, TOCS 1991, algorithm 7): it needs no reset between uses.
#[derive(Default)]
pub struct Barrier {
    arrived: CachePadded<AtomicUsize>,
    sense: CachePadded<AtomicBool>,
}

impl Barrier {
    /// Returns when all `threads` have arrived. `sense` belongs to the thread, and its initial value is `Self::sense`
    /// before the run.
    pub fn wait(&self, threads: usize, sense: &mut bool) {
        *sense = !*sense;
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            // Before the release below, so that no thread arrives at the next barrier too early.
            self.arrived.0.store(0, Ordering::Relaxed);
            self.sense.0.store(*sense, Ordering::Release);
        } else {
            wait_until(|| self.sense.0.load(Ordering::Acquire) == *sense);
        }
    }

    /// The current sense; must be read while no thread is using the barrier.
    pub fn sense(&self) -> bool {
        self.sense.0.load(Ordering::Acquire)
    }
}

/// The number of groups that each thread has finished. It keeps counting over all calls, so it needs no reset.
pub struct Progress(Vec<CachePadded<AtomicU64>>);

impl Progress {
    pub fn of(threads: usize) -> Self {
        Self((0..threads).map(|_| CachePadded::default()).collect())
    }

    /// Publishes the progress of `thread`; its earlier writes are visible to threads that observe the count.
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
    use super::{Barrier, Progress, ThreadTeam};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_thread_passes_the_barrier_alone() {
        // More threads than cores on most test machines.
        let team = ThreadTeam::of(5).unwrap();
        let (barrier, came) = (Barrier::default(), AtomicUsize::new(0));
        for call in 0..3 {
            let sense = barrier.sense();
            team.run(|_| {
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
        let team = ThreadTeam::of(4).unwrap();
        let progress = Progress::of(4);
        let sum = AtomicUsize::new(0);
        team.run(|me| {
            for step in 1..=100 {
                let (before, count) = if me == 0 { (3, step - 1) } else { (me - 1, step) };
                progress.wait_for(before, count);
                // Not atomic as a whole, so only the waiting makes it correct.
                sum.store(sum.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                progress.finished(me, step);
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 400);
    }
}
