//! Windows of narrow levels: found by the pattern of their equations alone, and built at the end, many at once.

use super::{Joined, Refused, Rewriting};
use crate::ops::sptrsv::slices::accumulate::Accumulators;
use crate::ops::sptrsv::slices::equations::Segment;
use rayon::prelude::*;

/// Terms from which a task takes no further window.
const TASK_TERMS: usize = 1 << 17;

impl Rewriting<'_> {
    /// Begins a window of which nothing is built yet; `None` if its first level is too large for that.
    pub(super) fn begin_pattern(&mut self, rows: &[u32]) -> Option<usize> {
        let mut terms = 0;
        for &row in rows {
            let parents = self.system.row(row as usize).0;
            let (known, unknown) = self.pattern.add(row, parents, |_| false);
            terms += known + unknown;
            if self.pattern.is_full() {
                self.pattern.begin();
                return None;
            }
        }
        Some(terms)
    }

    /// Joins a window of which nothing is built yet.
    pub(super) fn join_pattern(&mut self, rows: &[u32], most: usize) -> Result<Joined, Refused> {
        let first = self.pattern.len();
        let (window, known) = (Some(self.window), &self.rows);
        let mut joined = Joined::default();
        for &row in rows {
            let parents = self.system.row(row as usize).0;
            let is_inside = |parent: u32| known[parent as usize].window() == window;
            let lengths = self.pattern.add(row, parents, is_inside);
            joined.terms += lengths.0 + lengths.1;
            let needed = self.limit(lengths, parents.len());
            if needed.is_none() || joined.terms > most {
                self.pattern.truncate(first);
                return Err(if needed.is_none() { Refused::Length } else { Refused::Cost });
            }
            joined.longest = joined.longest.max(needed.unwrap_or_default());
        }
        self.stored += joined.terms;
        Ok(joined)
    }

    /// Leaves the open window for later, if nothing of it was built.
    pub(super) fn close(&mut self) {
        if !self.pattern.is_empty() {
            let terms = self.pattern.end_into(&mut self.later.rows);
            self.later.windows.push(Window { end: self.later.rows.len(), terms });
        }
    }

    /// Builds the open window, which others than patterns go on with.
    pub(super) fn build_open(&mut self) {
        let mut rows = Vec::new();
        let terms = self.pattern.end_into(&mut rows);
        let windows = vec![Window { end: rows.len(), terms }];
        self.build(&Later { rows, windows });
    }

    /// Builds all windows that were left for later.
    pub(super) fn build_later(&mut self) {
        self.close();
        let later = std::mem::take(&mut self.later);
        self.build(&later);
    }

    /// Builds the equations of these windows, each task some of them and a segment.
    fn build(&mut self, later: &Later) {
        let tasks = later.tasks();
        let first = self.segments.len();
        for (at, task) in tasks.iter().enumerate() {
            self.put(task, first + at, 0);
        }
        self.open = false;
        let mut accumulators = std::mem::take(&mut self.accumulators);
        let share = tasks.len().div_ceil(accumulators.len()).max(1);
        let this = &*self;
        let build = |(tasks, sums): (&[&[u32]], &mut Accumulators)| -> Vec<Segment> {
            let build = |rows: &&[u32]| {
                let mut segment = Segment::default();
                for &row in *rows {
                    this.sum(row as usize, sums, Some(&segment));
                    sums.take_into(&mut segment);
                }
                segment
            };
            tasks.iter().map(build).collect()
        };
        let built = tasks.par_chunks(share).zip(accumulators.par_iter_mut()).map(build);
        let built: Vec<Segment> = built.flatten().collect();
        self.segments.extend(built);
        self.accumulators = accumulators;
    }
}

/// Windows whose equations are not built yet.
#[derive(Default)]
pub(super) struct Later {
    /// The rows of all windows, one window after the other.
    rows: Vec<u32>,
    windows: Vec<Window>,
}

struct Window {
    /// Where its rows end in those of all.
    end: usize,
    terms: usize,
}

impl Later {
    /// The rows of each task.
    fn tasks(&self) -> Vec<&[u32]> {
        let (mut tasks, mut first, mut terms) = (Vec::new(), 0, 0);
        for (at, window) in self.windows.iter().enumerate() {
            terms += window.terms;
            if terms >= TASK_TERMS || at + 1 == self.windows.len() {
                tasks.push(&self.rows[first..window.end]);
                (first, terms) = (window.end, 0);
            }
        }
        tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Device, Dtype, Sptrsv};
    use crate::ops::sptrsv::System;
    use crate::ops::sptrsv::slices::equations::{ByLevel, Equations};
    use crate::ops::sptrsv::slices::rewrite::{PARALLEL_ROWS, Rewrite, WindowCost};
    use crate::sparse::generate::Spec;

    /// The equations, how many windows were left for later, and whether anything was built before.
    fn rewritten(
        system: &System,
        how: Rewrite,
        narrow: usize,
        threads: usize,
    ) -> (Equations, usize, bool) {
        let by_level = ByLevel::of(&system.levels);
        let mut work = Rewriting { narrow, ..Rewriting::new(system, how, threads) };
        let mut cost = WindowCost::of(system, how);
        for level in 0..system.levels.widths.len() {
            work.take(by_level.rows(level), &mut cost);
        }
        let (left, built) = (work.later.windows.len(), !work.segments.is_empty());
        (work.into_equations(), left, built)
    }

    /// Narrow levels alone; windows that become too large for a pattern; a level too wide for one after some that are not.
    #[test]
    fn windows_that_are_built_at_the_end_are_those_that_are_built_at_once() {
        for (spec, least, builds) in [
            ("cholesky_banded:n=3000,half=12,seed=1", 5, false),
            ("ilu0_poisson2d:nx=90,ny=90,seed=1", 5, false),
            ("lower_levels:n=30000,levels=200,per_row=2,seed=1", 0, true),
            ("lower:growth=0.7,constraints=400,of=circuit:n=3000,hubs=3", 1, false),
            ("ilu0_poisson2d:nx=270,ny=270,seed=1", 5, true),
        ] {
            let mut has_built = false;
            let matrix = Spec::parse(spec).unwrap().generate().unwrap();
            let problem = Sptrsv { dtype: Dtype::F64, ..Sptrsv::PLAIN };
            let system = System::of(&matrix, &problem, &Device::NONE).unwrap();
            for how in [(250, 64), (1000, 1024), (40_000, 256)] {
                let how = Rewrite::of(how.0, how.1);
                let (later, left, built) = rewritten(&system, how, PARALLEL_ROWS, 2);
                has_built |= built;
                assert!(left >= least, "{spec}: {left} windows were left");
                // Whatever the number of tasks, too. Of several reasons why a level is refused each may tell another one.
                for threads in [1, 2, 16] {
                    let (at_once, none, _) = rewritten(&system, how, 0, threads);
                    assert_eq!((none, later.windows), (0, at_once.windows), "{spec}, {how:?}");
                    assert!(later.window_of == at_once.window_of, "{spec}, {how:?}");
                    for row in 0..later.len() {
                        let known = (later.known(row), at_once.known(row));
                        assert_eq!(known.0, known.1, "{spec}, {how:?}: {row}");
                        let unknown = (later.unknown(row), at_once.unknown(row));
                        assert_eq!(unknown.0, unknown.1, "{spec}, {how:?}: {row}");
                    }
                }
            }
            assert_eq!(has_built, builds, "{spec}");
        }
    }
}
