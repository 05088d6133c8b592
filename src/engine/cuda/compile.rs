//! Compiling ahead: a few threads compile queued programs to cubins while the device measures others.

use super::cache::Cache;
use super::nvrtc::{Binary, Nvrtc};
use super::source::{self, Unit};
use crate::domain::Digest;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A program ready to be compiled.
#[derive(Clone, Debug)]
pub struct Job {
    pub digest: Digest,
    pub unit: Unit,
    pub options: Vec<String>,
}

/// A finished program: its binary, and whether the binary came from the cache.
#[derive(Clone, Debug)]
pub struct Done {
    pub binary: Arc<Binary>,
    pub cached: bool,
}

/// Options for one architecture (`sm_90` or `sm_90a`, or `compute_90` for PTX), with a register cap where the family asks for one.
pub fn options(architecture: &str, max_registers: Option<u32>) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_owned(),
        "-default-device".to_owned(),
        "--ptxas-options=-v".to_owned(),
    ];
    options.extend(max_registers.map(|most| format!("--maxrregcount={most}")));
    options
}

/// Compiles in the background, each program once.
pub struct Compiler {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    architecture: String,
}

struct Shared {
    nvrtc: Nvrtc,
    cache: Cache,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Digests wait here in the order of the requests; a digest without a job was taken by a waiter.
    queue: VecDeque<Digest>,
    entries: HashMap<Digest, Entry>,
    closing: bool,
}

enum Entry {
    Waiting(Job),
    Running,
    Finished(Result<Done, String>),
}

impl Compiler {
    /// Starts `threads` threads that compile for `architecture`. With none, `wait` compiles on its own thread.
    pub fn start(
        nvrtc: Nvrtc,
        cache: Cache,
        architecture: String,
        threads: usize,
    ) -> std::io::Result<Self> {
        let shared =
            Arc::new(Shared { nvrtc, cache, state: Mutex::default(), changed: Condvar::new() });
        // Built first, so that an error below drops it and ends the threads already started.
        let mut compiler = Self { shared, threads: Vec::new(), architecture };
        for index in 0..threads {
            let shared = compiler.shared.clone();
            // The front end recurses with the depth of templates.
            let thread =
                std::thread::Builder::new().name(format!("compile-{index}")).stack_size(16 << 20);
            compiler.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(compiler)
    }

    pub fn nvrtc(&self) -> &Nvrtc {
        &self.shared.nvrtc
    }

    /// The job for a program text.
    pub fn job(&self, text: &str, max_registers: Option<u32>) -> Result<Job, source::SourceError> {
        let unit = source::unit(text)?;
        let options = options(&source::architecture(&unit, &self.architecture)?, max_registers);
        let digest = source::program_digest(&unit, &options, self.shared.nvrtc.version());
        Ok(Job { digest, unit, options })
    }

    /// A job's program as PTX: the same text and options for the virtual architecture. Made on this thread each time, since
    /// only the program of a plan needs it. The error is the compiler's log.
    pub fn ptx(&self, job: &Job) -> Result<String, String> {
        let options: Vec<String> = job
            .options
            .iter()
            .map(|option| {
                option.replacen("--gpu-architecture=sm_", "--gpu-architecture=compute_", 1)
            })
            .collect();
        self.shared.nvrtc.ptx(&job.unit, &options).map_err(|error| error.log)
    }

    /// Name and version of the compiler, as plans store it.
    pub fn name(&self) -> String {
        let (major, minor) = self.shared.nvrtc.version();
        format!("NVRTC {major}.{minor}")
    }

    /// Queues jobs that are not yet known.
    pub fn prepare(&self, jobs: Vec<Job>) {
        let mut state = self.shared.lock();
        for job in jobs {
            if !state.entries.contains_key(&job.digest) {
                state.queue.push_back(job.digest);
                state.entries.insert(job.digest, Entry::Waiting(job));
            }
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Removes queued jobs that have not begun.
    pub fn clear_queue(&self) {
        let mut state = self.shared.lock();
        state.queue.clear();
        state.entries.retain(|_, entry| !matches!(entry, Entry::Waiting(_)));
    }

    /// The binary of a job, compiled on this thread if no other has begun it. The error is the compiler's log.
    pub fn wait(&self, job: &Job) -> Result<Done, String> {
        let mut state = self.shared.lock();
        loop {
            match state.entries.get(&job.digest) {
                Some(Entry::Finished(result)) => return result.clone(),
                Some(Entry::Running) => {
                    state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Some(Entry::Waiting(_)) | None => {
                    state.entries.insert(job.digest, Entry::Running);
                    drop(state);
                    self.shared.run(job);
                    state = self.shared.lock();
                }
            }
        }
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a compile thread panicked");
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock, and each change of the state is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.closing {
            let Some(digest) = state.queue.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            match state.entries.insert(digest, Entry::Running) {
                Some(Entry::Waiting(job)) => {
                    drop(state);
                    self.run(&job);
                    state = self.lock();
                }
                Some(taken) => {
                    state.entries.insert(digest, taken);
                }
                None => {
                    state.entries.remove(&digest);
                }
            }
        }
    }

    fn run(&self, job: &Job) {
        // A panic here must not block waiters for ever: it becomes the program's error.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.build(job)))
            .unwrap_or_else(|_| Err("the compiler thread panicked".to_owned()));
        self.lock().entries.insert(job.digest, Entry::Finished(result));
        self.changed.notify_all();
    }

    fn build(&self, job: &Job) -> Result<Done, String> {
        if let Some(binary) = self.cache.get(&job.digest) {
            return Ok(Done { binary: Arc::new(binary), cached: true });
        }
        let binary = self.nvrtc.compile(&job.unit, &job.options).map_err(|error| error.log)?;
        if let Err(error) = self.cache.put(&job.digest, &binary) {
            tracing::warn!(program = %job.digest, %error, "cubin not cached");
        }
        Ok(Done { binary: Arc::new(binary), cached: false })
    }
}
