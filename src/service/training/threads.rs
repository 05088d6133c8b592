//! The training threads: few, and with a lower priority than those that serve requests.

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
                Halt::Failed(format!("the training threads could not be started: {error}"))
            })?;
        Ok(Self { pool: Arc::new(pool) })
    }

    /// Runs the work on these threads, including its parallel parts, and waits without blocking a runtime thread.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Halt> {
        let pool = Arc::clone(&self.pool);
        let done = tokio::task::spawn_blocking(move || pool.install(work)).await;
        done.map_err(|error| Halt::Failed(format!("the training was aborted: {error}")))
    }
}

/// Lowers the priority of the calling thread, so that requests and measurements take precedence.
fn step_aside() {
    #[cfg(target_os = "linux")]
    {
        const NICE: libc::c_int = 10;
        // SAFETY: only integers are passed. On Linux 0 means the calling thread, and only its priority changes.
        let refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0;
        if refused {
            tracing::debug!(error = %std::io::Error::last_os_error(), "the priority of a training thread could not be lowered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_runs_on_the_given_number_of_threads_and_a_panic_is_reported() {
        let threads = Threads::start(3).unwrap();
        assert_eq!(threads.run(rayon::current_num_threads).await.unwrap(), 3);
        let broken = threads.run(|| panic!("on purpose")).await;
        assert!(matches!(broken, Err(Halt::Failed(why)) if why.contains("aborted")));
        assert_eq!(threads.run(|| 7).await.unwrap(), 7);
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_threads_have_a_lower_priority() {
        // SAFETY: only integers are passed.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        let there = Threads::start(1).unwrap().run(nice).await.unwrap();
        assert!(there >= 10.max(before), "{there}");
        assert_eq!(nice(), before);
    }
}
