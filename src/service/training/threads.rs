//! The threads that train: few, and nicer than those that serve.

use super::Halt;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::Arc;

pub(super) struct Threads {
    pool: Arc<ThreadPool>,
}

impl Threads {
    pub fn start(threads: usize) -> Result<Self, Halt> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|number| format!("training-{number}"))
            .start_handler(|_| step_aside())
            .build()
            .map_err(|error| {
                Halt::Failed(format!("the training's threads did not start: {error}"))
            })?;
        Ok(Self { pool: Arc::new(pool) })
    }

    /// Runs the work here and waits for it without holding a thread of the runtime. Parallel parts of it stay here, too.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Halt> {
        let pool = Arc::clone(&self.pool);
        let done = tokio::task::spawn_blocking(move || pool.install(work)).await;
        done.map_err(|error| Halt::Failed(format!("the training broke off: {error}")))
    }
}

/// Requests and measuring come first wherever they want the same core.
fn step_aside() {
    #[cfg(target_os = "linux")]
    {
        const NICE: libc::c_int = 10;
        // SAFETY: plain numbers in, a number out. On Linux 0 names the calling thread, and it alone gets nicer.
        let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0;
        if refused {
            tracing::debug!(error = %std::io::Error::last_os_error(), "a training's thread is as important as others");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_runs_on_so_many_threads_and_a_panic_is_told() {
        let threads = Threads::start(3).unwrap();
        assert_eq!(threads.run(rayon::current_num_threads).await.unwrap(), 3);
        let broken = threads.run(|| panic!("on purpose")).await;
        assert!(matches!(broken, Err(Halt::Failed(why)) if why.contains("broke off")));
        assert_eq!(threads.run(|| 7).await.unwrap(), 7);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_threads_are_nicer_than_the_others() {
        // SAFETY: plain numbers.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        let there = Threads::start(1).unwrap().run(nice).await.unwrap();
        assert!(there >= 10.max(before), "{there}");
        assert_eq!(nice(), before);
    }
}
