//! Processes that were forked from one that had used this module. The threads that compute do not exist there, so what
//! would wait for them is refused.

use crate::errors::Error;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether this process has computed anything.
static USED: AtomicBool = AtomicBool::new(false);
/// Whether this process was forked from one that had.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Has every later fork of this process noticed. Called once, when the module is made.
pub fn watch() -> PyResult<()> {
    // SAFETY: the handler only reads and writes atomic numbers, which is allowed between a fork and what follows it.
    match unsafe { libc::pthread_atfork(None, None, Some(forked)) } {
        0 => Ok(()),
        _ => Err(Error::new_err("There is no memory for noticing forks.")),
    }
}

extern "C" fn forked() {
    if USED.load(Relaxed) {
        FORKED.store(true, Relaxed);
    }
}

/// Called before anything that computes, waits or uses a device.
pub fn check() -> PyResult<()> {
    if FORKED.load(Relaxed) {
        return Err(Error::new_err(
            "This process was forked from one that had used sparsetune, and has none of the threads that it computes \
             with: start processes by the method `spawn`, or use sparsetune in the forked processes only.",
        ));
    }
    if !USED.load(Relaxed) {
        USED.store(true, Relaxed);
    }
    Ok(())
}

/// Raises `Error` in a process that was forked from one that had used this module.
#[pyfunction]
pub fn check_process() -> PyResult<()> {
    check()
}
