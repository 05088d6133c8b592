//! The program of all targets: `FUZZ_TARGET` names the one that runs; any other name lists them (`run.sh`).
#![no_main]

use sparsetune_fuzz::memory::{gave, took};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::OnceLock;

/// The system's allocator, which is counted.
struct Counting;

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        gave(layout.size());
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    // As if what grows were always copied.
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        gave(layout.size());
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        let target = sparsetune_fuzz::TARGETS.iter().find(|(known, _)| *known == name);
        let Some((_, run)) = target else {
            println!("{}", sparsetune_fuzz::TARGETS.map(|(known, _)| known).join("\n"));
            std::process::exit(0);
        };
        RUN.get_or_init(|| *run);
    },
    |data: &[u8]| RUN.get().expect("set above")(data)
);
