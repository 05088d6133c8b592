//! Splitting: an equation far longer than a warp's stride becomes partial sums, each a separate unknown.
//!
//! Terms are taken in the order in which they become known, so other warps finish the partial sums of early terms long before
//! the last term is known.

use super::equations::{ByLevel, Equations, Place, Segment};
use rayon::prelude::*;
use std::time::Instant;

/// Which equations are split, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Terms of a partial sum.
    chunk: usize,
    /// Equations of at most this many terms stay whole.
    longest: usize,
    /// Terms that stay in the equation itself: the last to become known.
    kept: usize,
}

impl Parts {
    /// For slices whose warps take `width` terms at a time (32, or fewer where lanes also spread over right-hand sides): 16 steps
    /// for a partial sum, 32 at most for any other equation. Where a warp has one lane for terms it may take twice as many: otherwise
    /// every row of an elasticity factor would be split.
    pub const fn of_slices(width: u32) -> Self {
        let width = if width < 2 { 2 } else { width as usize };
        Self { chunk: 16 * width, longest: 32 * width, kept: 8 * width }
    }

    /// No equation is left with more than `longest` terms, which are 2 at least.
    pub fn of_rows(longest: usize) -> Self {
        let longest = longest.max(2);
        Self { chunk: longest, longest, kept: longest / 2 }
    }
}

/// Splits every equation that is longer than `parts` allow; windows are counted anew.
pub fn split(mut equations: Equations, parts: Parts) -> Equations {
    // A row of millions of terms has thousands of partial sums, which are themselves summed in parts.
    let is_long = |equations: &Equations, at| equations.unknown(at).0.len() > parts.longest;
    while (0..equations.len()).into_par_iter().any(|at| is_long(&equations, at)) {
        equations = once(equations, parts);
    }
    equations
}

fn once(mut equations: Equations, parts: Parts) -> Equations {
    let started = Instant::now();
    let order = ByLevel::sorted(&equations.window_of, equations.windows as usize).order;
    let mut splitting = Splitting {
        parts,
        windows: vec![0; equations.len()],
        made: Segment::default(),
        replaced: Vec::new(),
        partials: Vec::new(),
    };
    order.iter().for_each(|&row| splitting.row(&equations, row as usize));
    let Splitting { windows, made, replaced, partials, .. } = splitting;
    let segment = equations.segments.len() as u32;
    equations.segments.push(made);
    for (unknown, row) in replaced {
        equations.places[unknown] = Place { segment, row };
    }
    equations.places.extend(partials.into_iter().map(|row| Place { segment, row }));
    equations.rows.resize(windows.len(), None);
    equations.windows = windows.iter().max().map_or(0, |last| last + 1);
    equations.window_of = windows;
    equations.ms += started.elapsed().as_secs_f64() * 1e3;
    equations
}

struct Splitting {
    parts: Parts,
    windows: Vec<u32>,
    /// Equations that replace others, and partial sums.
    made: Segment,
    /// Unknowns with new equations, and where those are in `made`.
    replaced: Vec<(usize, u32)>,
    /// Where each partial sum is in `made`.
    partials: Vec<u32>,
}

impl Splitting {
    /// The first window after those of all these unknowns.
    fn after(&self, unknowns: impl Iterator<Item = u32>) -> u32 {
        unknowns.map(|unknown| self.windows[unknown as usize] + 1).max().unwrap_or(0)
    }

    fn row(&mut self, equations: &Equations, row: usize) {
        let (cols, vals) = equations.unknown(row);
        if cols.len() <= self.parts.longest {
            self.windows[row] = self.after(cols.iter().copied());
            return;
        }
        let mut terms: Vec<(u32, f64)> = cols.iter().copied().zip(vals.iter().copied()).collect();
        terms.sort_by_key(|&(col, _)| self.windows[col as usize]);
        let (early, late) = terms.split_at(terms.len() - self.parts.kept);
        let mut own = Vec::new();
        for chunk in early.chunks(self.parts.chunk) {
            own.push((self.windows.len() as u32, 1.0));
            self.partials.push(self.made.len() as u32);
            self.windows.push(self.after(chunk.iter().map(|&(col, _)| col)));
            self.made.known.push(std::iter::empty());
            self.made.unknown.push(chunk.iter().copied());
        }
        own.extend_from_slice(late);
        self.windows[row] = self.after(own.iter().map(|&(col, _)| col));
        self.replaced.push((row, self.made.len() as u32));
        let (cols, vals) = equations.known(row);
        self.made.known.push(cols.iter().copied().zip(vals.iter().copied()));
        self.made.unknown.push(own.into_iter());
    }
}
