//! Chains: runs of rows of which each needs the one before it, and all of which may wait for the same earlier rows at once.
//!
//! A row joins the chain that its latest parent ends if all that the row needs besides the chain's rows is known a level before the
//! chain's first row could be. So nothing outside can need a row of the chain and be needed by a later one, and to wait for everything
//! before the first row costs no level.

use crate::ops::sptrsv::System;
use crate::ops::sptrsv::slices::equations::{ByLevel, coefficient};
use crate::ops::sptrsv::slices::rewrite::GROWTH;
use crate::sparse::Triangular;
use rayon::prelude::*;

/// A chain may store this many values for each one that it has, where rows need different columns.
const STORED_PER_TERM: usize = 2;

/// Values that any row may have stored beyond that: short rows are chained whatever they need.
const SPARE: usize = 32;

/// Rows that one task looks at.
const ROWS_A_TASK: usize = 4096;

/// The chains of a system, in the order of their first rows' levels.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    /// Solve indices, chain by chain.
    pub rows: Vec<u32>,
    /// Where each chain begins in `rows`, and the end.
    pub start: Vec<usize>,
    /// The chain of each row, and the row's place in it.
    pub of: Vec<u32>,
    pub place: Vec<u32>,
    /// What the chains need of earlier ones, in rising order of rows, and where that of each begins.
    pub needs: Vec<u32>,
    pub needs_start: Vec<usize>,
}

/// What all divisions of a system into chains have in common: what a row tells by itself, found on all cores.
pub struct Ground<'a> {
    system: &'a System,
    by_level: ByLevel,
    latest: Vec<u32>,
    /// None where nothing is substituted.
    magnitudes: Option<Vec<f64>>,
}

impl<'a> Ground<'a> {
    /// For chains whose rows are not substituted in each other.
    pub fn of(system: &'a System) -> Self {
        let by_level = ByLevel::of(&system.levels);
        Self { system, by_level, latest: latest_parents(system), magnitudes: None }
    }

    /// For substituted ones, too.
    pub fn with_magnitudes(self) -> Self {
        Self { magnitudes: Some(magnitudes(self.system)), ..self }
    }
}

impl Chains {
    /// Number of chains.
    pub fn len(&self) -> usize {
        self.start.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn rows_of(&self, chain: usize) -> &[u32] {
        &self.rows[self.start[chain]..self.start[chain + 1]]
    }

    pub fn needs_of(&self, chain: usize) -> &[u32] {
        &self.needs[self.needs_start[chain]..self.needs_start[chain + 1]]
    }

    /// Values of the panel of a chain: of all its rows for each unknown that any of them needs.
    pub fn panel(&self, chain: usize) -> usize {
        self.rows_of(chain).len() * self.needs_of(chain).len()
    }

    /// [`Self::over`] on the system's own ground.
    pub fn of(system: &System, most: usize, substitute: bool) -> Self {
        let ground = Ground::of(system);
        let ground = if substitute { ground.with_magnitudes() } else { ground };
        Self::over(&ground, most, substitute)
    }

    /// Divides the rows of a system into chains of at most `most` rows. If these are to be substituted in each other, a row also begins
    /// a chain where its equation would grow by more than [`GROWTH`].
    pub fn over(ground: &Ground, most: usize, substitute: bool) -> Self {
        let Ground { system, by_level, latest, magnitudes } = ground;
        let (triangular, level_of) = (&system.triangular, &system.levels.level_of_row);
        // Of rows that have been divided: with what was substituted in them.
        let plain = || magnitudes.clone().unwrap_or_else(|| self::magnitudes(system));
        let mut growth = substitute.then(plain);
        let mut of = vec![u32::MAX; triangular.rows()];
        let mut open: Vec<Open> = Vec::new();
        let (mut union, mut inside) = (Vec::new(), Vec::new());
        for &row in &by_level.order {
            let latest = latest[row as usize];
            let parents = triangular.row(row as usize).0;
            let chain = (latest != u32::MAX).then(|| of[latest as usize]).filter(|&chain| {
                let Open { last, rows, first_level, .. } = open[chain as usize];
                if last != latest || rows as usize >= most {
                    return false;
                }
                let known_late = |it: &u32| level_of[*it as usize] >= first_level;
                inside.clear();
                inside.extend(parents.iter().copied().filter(known_late));
                inside.iter().all(|&it| of[it as usize] == chain)
            });
            let grown =
                growth.as_ref().zip(chain).map(|(growth, _)| grown(system, row, &inside, growth));
            let may_join = match (&growth, grown) {
                // This row's is still the plain one. Coefficients that overflow cannot be compared, and join nothing.
                (Some(growth), Some(it)) => it <= GROWTH * growth[row as usize] && it.is_finite(),
                _ => true,
            };
            if let Some(chain) = chain.filter(|_| may_join) {
                let into = &mut open[chain as usize];
                let terms = into.terms
                    + merge(into.needs(triangular), without(parents, &inside), &mut union);
                let rows = into.rows as usize + 1;
                if union.len() * rows <= STORED_PER_TERM * terms + SPARE * rows {
                    (into.rows, into.last, into.terms) = (rows as u32, row, terms);
                    std::mem::swap(&mut into.needs, &mut union);
                    of[row as usize] = chain;
                    if let Some((growth, grown)) = growth.as_mut().zip(grown) {
                        growth[row as usize] = grown;
                    }
                    continue;
                }
            }
            of[row as usize] = open.len() as u32;
            open.push(Open {
                rows: 1,
                last: row,
                first_level: level_of[row as usize],
                needs: Vec::new(),
                terms: parents.len(),
            });
        }
        Self::joined(&open, of, triangular, by_level)
    }

    fn joined(open: &[Open], of: Vec<u32>, triangular: &Triangular, by_level: &ByLevel) -> Self {
        let (mut start, mut needs_start) = (vec![0], vec![0]);
        let mut needs = Vec::with_capacity(open.iter().map(|it| it.needs(triangular).len()).sum());
        let mut end = 0;
        for chain in open {
            end += chain.rows as usize;
            needs.extend_from_slice(chain.needs(triangular));
            start.push(end);
            needs_start.push(needs.len());
        }
        // Rows joined in the order of their levels.
        let mut next = start.clone();
        let (mut rows, mut place) = (vec![0; of.len()], vec![0; of.len()]);
        for &row in &by_level.order {
            let chain = of[row as usize] as usize;
            place[row as usize] = (next[chain] - start[chain]) as u32;
            rows[next[chain]] = row;
            next[chain] += 1;
        }
        Self { rows, start, of, place, needs, needs_start }
    }
}

/// The parent of each row that is known last, if it is the only one of its level, else `u32::MAX`: the rows of a chain are of
/// different levels, so a row with two such parents joins none.
fn latest_parents(system: &System) -> Vec<u32> {
    let (triangular, level_of) = (&system.triangular, &system.levels.level_of_row);
    let latest = |row: usize| {
        // A row's level is the one after its latest parent's.
        let before = level_of[row].wrapping_sub(1);
        let is_last = |it: &&u32| level_of[**it as usize] == before;
        let mut last = triangular.row(row).0.iter().filter(is_last);
        last.next().filter(|_| last.next().is_none()).copied().unwrap_or(u32::MAX)
    };
    (0..triangular.rows()).into_par_iter().with_min_len(ROWS_A_TASK).map(latest).collect()
}

/// The magnitude of each row's equation with nothing substituted, as [`GROWTH`] has it.
fn magnitudes(system: &System) -> Vec<f64> {
    let triangular = &system.triangular;
    let magnitude = |row: usize| {
        let factors =
            triangular.row(row).1.iter().map(|&value| coefficient(triangular, row, value).abs());
        factors.fold(1.0, |sum, factor| sum + factor)
    };
    (0..triangular.rows()).into_par_iter().with_min_len(ROWS_A_TASK).map(magnitude).collect()
}

/// The magnitude of a row's equation with the parents `inside` substituted, which are in rising order.
fn grown(system: &System, row: u32, inside: &[u32], growth: &[f64]) -> f64 {
    let (parents, values) = system.triangular.row(row as usize);
    let (mut sum, mut inside) = (1.0, inside.iter().peekable());
    for (parent, &value) in parents.iter().zip(values) {
        let factor = coefficient(&system.triangular, row as usize, value).abs();
        let substituted = inside.next_if_eq(&parent).is_some();
        sum += factor * if substituted { growth[*parent as usize] } else { 1.0 };
    }
    sum
}

/// Those of `all` that are not among `some`, both in rising order.
fn without<'a>(all: &'a [u32], some: &'a [u32]) -> impl Iterator<Item = u32> + 'a {
    let mut some = some.iter().peekable();
    all.iter().copied().filter(move |it| some.next_if_eq(&it).is_none())
}

/// A chain that rows may still join.
struct Open {
    rows: u32,
    last: u32,
    /// The level of its first row.
    first_level: u32,
    /// What its rows need besides each other; empty for one row, which needs its parents.
    needs: Vec<u32>,
    /// Terms of its rows in what they need.
    terms: usize,
}

impl Open {
    fn needs<'a>(&'a self, triangular: &'a Triangular) -> &'a [u32] {
        match self.rows {
            1 => triangular.row(self.last as usize).0,
            _ => &self.needs,
        }
    }
}

/// Writes the union of two lists in rising order to `union`, and returns how many the others are.
fn merge(list: &[u32], others: impl Iterator<Item = u32>, union: &mut Vec<u32>) -> usize {
    union.clear();
    let (mut at, mut count) = (0, 0);
    for other in others {
        count += 1;
        while list.get(at).is_some_and(|&it| it < other) {
            union.push(list[at]);
            at += 1;
        }
        at += usize::from(list.get(at) == Some(&other));
        union.push(other);
    }
    union.extend_from_slice(&list[at..]);
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Device, Dtype, Sptrsv};
    use crate::sparse::{Csr, generate::Spec};
    use std::collections::BTreeSet;

    /// The rule as the head of this module has it, row after row, with every parent looked at each time.
    fn by_the_rule(system: &System, most: usize, substitute: bool) -> Vec<u32> {
        let (triangular, level_of) = (&system.triangular, &system.levels.level_of_row);
        let mut of = vec![u32::MAX; triangular.rows()];
        let mut chains: Vec<Vec<u32>> = Vec::new();
        let mut growth = vec![1.0; triangular.rows()];
        for &row in &ByLevel::of(&system.levels).order {
            let (parents, values) = triangular.row(row as usize);
            let factors = values.iter().map(|&it| coefficient(triangular, row as usize, it).abs());
            let factors: Vec<f64> = factors.collect();
            let plain = factors.iter().fold(1.0, |sum, it| sum + it);
            let latest = parents.iter().copied().max_by_key(|&it| level_of[it as usize]);
            let joins = latest.and_then(|latest| {
                let chain = of[latest as usize];
                let rows = &chains[chain as usize];
                let first = level_of[rows[0] as usize];
                let inside = |it: u32| of[it as usize] == chain;
                let fits = rows.last() == Some(&latest)
                    && rows.len() < most
                    && parents.iter().all(|&it| inside(it) || level_of[it as usize] < first);
                let by = |&parent: &u32| if inside(parent) { growth[parent as usize] } else { 1.0 };
                let grown =
                    parents.iter().zip(&factors).fold(1.0, |sum, (it, by_it)| sum + by_it * by(it));
                let tame = !substitute || (grown <= GROWTH * plain && grown.is_finite());
                let all = rows.iter().chain([&row]);
                let outside = all.flat_map(|&it| triangular.row(it as usize).0);
                let mut needs: Vec<u32> = outside.copied().filter(|&it| !inside(it)).collect();
                let terms = needs.len();
                needs.sort_unstable();
                needs.dedup();
                let many = rows.len() + 1;
                let dense = needs.len() * many <= STORED_PER_TERM * terms + SPARE * many;
                (fits && tame && dense).then_some((chain, grown))
            });
            (of[row as usize], growth[row as usize]) =
                joins.unwrap_or((chains.len() as u32, plain));
            match joins {
                Some((chain, _)) => chains[chain as usize].push(row),
                None => chains.push(vec![row]),
            }
        }
        of
    }

    /// Each row needs all before it, with coefficients of this size: what is substituted doubles from row to row.
    fn growing(coefficient: f64) -> Csr {
        let indptr = (0..=60usize).map(|row| row * (row + 1) / 2).collect();
        let indices: Vec<u32> = (0..60u32).flat_map(|row| 0..=row).collect();
        let values = (0..60)
            .flat_map(|row| (0..=row).map(move |col| if col == row { 1.0 } else { coefficient }));
        Csr::new(60, 60, indptr, indices, values.collect()).unwrap()
    }

    #[test]
    fn rows_join_by_the_rule() {
        let specs = [
            "cholesky_poisson2d:nx=30,ny=28,seed=1",
            "cholesky_poisson3d:nx=9,ny=8,nz=7,seed=1",
            "ilu0_elasticity:nx=5,ny=6,nz=4,seed=1",
            "ilu0_random:n=3000,per_row=6,seed=1",
            "cholesky_banded:n=700,half=12",
            "lower_levels:n=4000,levels=90,per_row=4,seed=1",
        ];
        let generated = specs.map(|spec| Spec::parse(spec).unwrap().generate().unwrap());
        let plain = Sptrsv { dtype: Dtype::F64, ..Sptrsv::PLAIN };
        let transposed = Sptrsv { transpose: true, ..plain };
        let (mut longest, mut refused) = (0, 0);
        for matrix in generated.into_iter().chain([0.9, 1e300].map(growing)) {
            for problem in [plain, transposed] {
                let system = System::of(&matrix, &problem, &Device::NONE).unwrap();
                let ground = Ground::of(&system).with_magnitudes();
                let of = |most, substitute| {
                    let chains = Chains::over(&ground, most, substitute);
                    assert_eq!(
                        chains.of,
                        by_the_rule(&system, most, substitute),
                        "{most} {substitute}"
                    );
                    for chain in 0..chains.len() {
                        let needs = chains.needs_of(chain);
                        let own = chains
                            .rows_of(chain)
                            .iter()
                            .flat_map(|&row| system.triangular.row(row as usize).0);
                        let outside =
                            own.copied().filter(|&it| chains.of[it as usize] != chain as u32);
                        assert_eq!(
                            needs.iter().copied().collect::<BTreeSet<u32>>(),
                            outside.collect()
                        );
                        assert!(needs.is_sorted());
                    }
                    chains
                };
                let whole = of(32, false);
                refused += usize::from(of(32, true).len() > whole.len());
                longest =
                    longest.max((0..whole.len()).map(|it| whole.rows_of(it).len()).max().unwrap());
                of(4, false);
                of(16, true);
            }
        }
        assert!(longest == 32 && refused > 1, "{longest} {refused}");
    }
}
