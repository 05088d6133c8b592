//! Threads that wait for one another: they all run at once, meet at a spinning barrier, or count what they have done.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Polls before a waiting thread offers its core to others: a few microseconds, many hops. Where threads outnumber the
/// cores that are free, all that is polled beyond is taken from those who are waited for.
const POLLS: u32 = 1 << 7;

/// Offers of its core that an idle thread makes before it sleeps.
const OFFERS: u32 = 100;

/// The calling thread and as many others as make up the number, each with a thread of its own. A task that waits for
/// another in a work-stealing pool may wait for ever, for one that nobody took up; here nobody takes up two. Nor does
/// anybody sleep between calls that follow each other closely: a wake-up takes longer than a small solve.
pub struct ThreadTeam {
    shared: Arc<Shared>,
    others: Vec<JoinHandle<()>>,
    /// Held during a run: there is one job at a time.
    running: Mutex<()>,
}

struct Shared {
    /// Counts the runs; rises when a job is there.
    run: CachePadded<AtomicU64>,
    /// Threads, but for the caller's, that have not ended the run.
    working: CachePadded<AtomicUsize>,
    ends: AtomicBool,
    job: Mutex<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What a run does, lent for as long as it lasts.
type Job = &'static (dyn Fn(usize) + Sync);

impl ThreadTeam {
    /// `threads` is at least 2, the caller's among them.
    pub fn of(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            run: CachePadded::default(),
            working: CachePadded::default(),
            ends: AtomicBool::new(false),
            job: Mutex::new(None),
            panic: Mutex::new(None),
        });
        // From here on, dropping it ends the threads that did start.
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

    /// Runs `work` once on each thread, with its number from 0, the caller's. Returns when all have ended.
    pub fn run(&self, work: impl Fn(usize) + Sync) {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let job: &(dyn Fn(usize) + Sync) = &work;
        // SAFETY: the others use the job between the start of the run and the fall of `working`, for which `Wait` waits
        // before `work` goes, even where the caller's own part panics.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        let shared = &*self.shared;
        *shared.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        shared.working.0.store(self.others.len(), Ordering::Relaxed);
        shared.run.0.fetch_add(1, Ordering::Release);
        let wait = Wait(shared);
        // A flag where they are awake.
        self.others.iter().for_each(|other| other.thread().unpark());
        work(0);
        drop(wait);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// Waits, when dropped, until the others have ended the run.
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
            // Its panics were handed on by the run they came up in.
            let _ = other.join();
        }
    }
}

impl Shared {
    /// The life of thread `me`: run after run, until the end.
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
            // One run at a time: no other begins before this thread has ended its part.
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
pub struct CachePadded<T>(pub T);

/// A sense-reversing barrier (Mellor-Crummey and Scott, TOCS 1991, algorithm 7): it needs no reset between uses.
#[derive(Default)]
pub struct Barrier {
    arrived: CachePadded<AtomicUsize>,
    sense: CachePadded<AtomicBool>,
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
pub struct Progress(Vec<CachePadded<AtomicU64>>);

impl Progress {
    pub fn of(threads: usize) -> Self {
        Self((0..threads).map(|_| CachePadded::default()).collect())
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
    use super::{Barrier, Progress, ThreadTeam};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn nobody_passes_the_barrier_alone() {
        // More threads than cores on most machines that run tests.
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
                // Not atomic as a whole: the waiting alone keeps it right.
                sum.store(sum.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                progress.finished(me, step);
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 400);
    }
}
