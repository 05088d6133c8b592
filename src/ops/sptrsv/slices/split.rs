//! Splitting: an equation far longer than a warp's stride becomes partial sums, each an unknown of its own.
//!
//! Terms are taken in the order in which they come to be known, so the partial sums of early terms are done long before
//! the last term is, by other warps.

use super::equations::{ByLevel, Equations, Terms};
use std::time::Instant;

/// Terms of a partial sum. A warp takes 32 at a time: 16 steps.
const CHUNK: usize = 512;

/// Equations of at most this many terms stay whole.
const LONGEST: usize = 2 * CHUNK;

/// Terms that stay in the equation itself, the last to be known.
const KEPT: usize = CHUNK / 2;

/// Splits every equation above `LONGEST` terms; windows are counted anew.
pub fn split(equations: Equations) -> Equations {
    let long = |at: usize| equations.unknown.len_of(at) > LONGEST;
    if !(0..equations.len()).any(long) {
        return equations;
    }
    let started = Instant::now();
    let rows = equations.len();
    let order = ByLevel::sorted(&equations.window_of, equations.windows as usize).order;
    let mut windows = vec![0u32; rows];
    let mut rewritten: Vec<(u32, Terms)> = Vec::new();
    let mut partials = Terms { ptr: vec![0], ..Terms::default() };
    for &row in &order {
        let row = row as usize;
        let (cols, vals) = equations.unknown.row(row);
        let after = |cols: &[u32], windows: &[u32]| {
            cols.iter().map(|&col| windows[col as usize] + 1).max().unwrap_or(0)
        };
        if cols.len() <= LONGEST {
            windows[row] = after(cols, &windows);
            continue;
        }
        let mut terms: Vec<(u32, f64)> = cols.iter().copied().zip(vals.iter().copied()).collect();
        terms.sort_by_key(|&(col, _)| windows[col as usize]);
        let (early, late) = terms.split_at(terms.len() - KEPT);
        let mut own = Terms::default();
        for chunk in early.chunks(CHUNK) {
            let id = windows.len() as u32;
            partials.cols.extend(chunk.iter().map(|&(col, _)| col));
            partials.vals.extend(chunk.iter().map(|&(_, value)| value));
            partials.ptr.push(partials.cols.len());
            let known = chunk.iter().map(|&(col, _)| windows[col as usize] + 1).max();
            windows.push(known.unwrap_or(0));
            own.cols.push(id);
            own.vals.push(1.0);
        }
        own.cols.extend(late.iter().map(|&(col, _)| col));
        own.vals.extend(late.iter().map(|&(_, value)| value));
        windows[row] = after(&own.cols, &windows);
        rewritten.push((row as u32, own));
    }
    let mut split = assembled(equations, rewritten, partials, windows);
    split.ms += started.elapsed().as_secs_f64() * 1e3;
    split
}

/// The old equations with some replaced, and the partial sums behind them.
fn assembled(
    old: Equations,
    mut replaced: Vec<(u32, Terms)>,
    partials: Terms,
    window_of: Vec<u32>,
) -> Equations {
    replaced.sort_by_key(|&(row, _)| row);
    let mut replaced = replaced.into_iter().peekable();
    let mut unknown = Terms { ptr: vec![0], ..Terms::default() };
    for row in 0..old.len() {
        match replaced.next_if(|&(at, _)| at as usize == row) {
            Some((_, own)) => {
                unknown.cols.extend_from_slice(&own.cols);
                unknown.vals.extend_from_slice(&own.vals);
            }
            None => {
                let (cols, vals) = old.unknown.row(row);
                unknown.cols.extend_from_slice(cols);
                unknown.vals.extend_from_slice(vals);
            }
        }
        unknown.ptr.push(unknown.cols.len());
    }
    let base = unknown.cols.len();
    unknown.ptr.extend(partials.ptr[1..].iter().map(|end| base + end));
    unknown.cols.extend_from_slice(&partials.cols);
    unknown.vals.extend_from_slice(&partials.vals);
    let (mut known, mut rows) = (old.known, old.rows);
    rows.resize(window_of.len(), None);
    known.ptr.resize(window_of.len() + 1, known.cols.len());
    let windows = window_of.iter().max().map_or(0, |last| last + 1);
    Equations { known, unknown, rows, window_of, windows, ms: old.ms }
}
