//! Memory that is taken while something runs, where the program counts it (`main.rs`; `cargo test` does not).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Before a block of this size is used.
#[allow(dead_code, reason = "tests do not count")]
pub fn took(bytes: usize) {
    PEAK.fetch_max(NOW.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

/// After it was freed.
#[allow(dead_code, reason = "tests do not count")]
pub fn gave(bytes: usize) {
    NOW.fetch_sub(bytes, Relaxed);
}

/// The result, and the most bytes that were taken at once on the way to it, by all threads.
pub(crate) fn peak_of<T>(act: impl FnOnce() -> T) -> (T, u64) {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = act();
    (result, PEAK.load(Relaxed).saturating_sub(before) as u64)
}
