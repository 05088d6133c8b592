//! Programs for calls that nothing was measured for: good choices by simple rules.

use super::dispatch::SUPPORTED_ROW_N1;
use super::host;
use super::simd::Isa;
use crate::domain::recipe::{HostProgram, Stores};
use crate::domain::{Spmm, Sptrsv};
use crate::sparse::{Csr, Triangular};

/// Entries times columns per task: well above the cost of handing it to a thread, well below the time of a call.
const TASK_WORK: u64 = 1 << 17;

/// Most tasks per thread; more would not balance better.
const TASKS_PER_THREAD: u64 = 64;

/// Mean work per level (entries times right-hand sides) from which threads that meet at a barrier after each level are
/// faster than one thread alone: a few microseconds.
const LEVEL_WORK: u64 = 1 << 13;

/// Entries from one to that whose row of B is asked for.
const AHEAD: u32 = 16;

/// Levels with fewer rows are solved by one thread.
const NARROW: u32 = 64;

/// A program for `C = A B` on `threads` threads: rows one by one, in panels as wide as B, up to the widest.
pub fn default_product(problem: &Spmm, matrix: &Csr, threads: usize) -> HostProgram {
    // The sums of a row stay in registers.
    let isa = Isa::best();
    let held = u64::from(isa.lanes() * isa.registers()) * 4 / problem.dtype.bytes();
    let mut fitting = SUPPORTED_ROW_N1.into_iter().filter(|&n1| u64::from(n1) * 2 <= held);
    let widest = fitting.clone().next_back().unwrap_or(SUPPORTED_ROW_N1[0]);
    let n1 = fitting.find(|&n1| n1 >= problem.n).unwrap_or(widest);
    // A row costs something of its own, as an entry does.
    let work = (matrix.nnz() + matrix.rows()) as u64 * u64::from(problem.n.max(1));
    let tasks = (work / TASK_WORK).clamp(1, threads.max(1) as u64 * TASKS_PER_THREAD);
    let rows_per_task = (matrix.rows() as u64).div_ceil(tasks).clamp(1, u64::from(u32::MAX)) as u32;
    let c_bytes = matrix.rows() as u64 * u64::from(problem.n) * problem.dtype.bytes();
    // What is larger than the cache would be read from memory before it is written.
    let stores = if c_bytes > host::last_level_cache() { Stores::Streamed } else { Stores::Cached };
    HostProgram::RowSplit { n1, rows_per_task, ahead: AHEAD, stores }
}

/// A program for `T x = b` on `threads` threads: level by level if the levels are wide, and otherwise on one thread.
pub fn default_solve(problem: &Sptrsv, system: &Triangular, threads: usize) -> HostProgram {
    let levels = system.levels().widths.len().max(1) as u64;
    let work = (system.nnz() + system.rows()) as u64 * u64::from(problem.rhs.max(1));
    if threads < 2 || work / levels < LEVEL_WORK {
        return HostProgram::SolveSerial;
    }
    let threads = u32::try_from(threads).unwrap_or(u32::MAX);
    HostProgram::SolveLevels { threads, narrow: NARROW.max(threads) }
}
