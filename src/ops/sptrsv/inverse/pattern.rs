//! Which unknowns a line of M is about: those within some hops through entries of the triangle.

use crate::sparse::Triangular;
use std::borrow::Cow;

/// Most entries of a line. Its system is solved by substitution, so that this bounds the host's work, and a line of more hardly pays
/// beside sweeps: 64 entries are 5 hops in a factor of a cube, which needs 3, and 8 and more in one of a square, which needs 4.
pub const MOST_ENTRIES: usize = 64;

/// The triangle by the lines that M has: its rows for a left inverse, its columns for a right one.
pub struct Lines<'a> {
    indptr: Cow<'a, [usize]>,
    indices: Cow<'a, [u32]>,
    values: Cow<'a, [f64]>,
    pub diagonal: &'a [f64],
    /// Lines are columns, whose entries are after their own number; those of rows are before it.
    pub by_columns: bool,
}

impl<'a> Lines<'a> {
    /// Columns where the system is solved against the order of its matrix, so that both solves of a pair make a symmetric map.
    pub fn of(system: &'a Triangular) -> Self {
        let Triangular { indptr, indices, values, diagonal, reversed } = system;
        if !reversed {
            return Self {
                indptr: Cow::Borrowed(indptr),
                indices: Cow::Borrowed(indices),
                values: Cow::Borrowed(values),
                diagonal,
                by_columns: false,
            };
        }
        let (indptr, indices, values) = transposed(indptr, indices, values);
        Self {
            indptr: indptr.into(),
            indices: indices.into(),
            values: values.into(),
            diagonal,
            by_columns: true,
        }
    }

    pub fn count(&self) -> usize {
        self.diagonal.len()
    }

    /// Entries of a line but for the diagonal's.
    pub fn line(&self, s: usize) -> (&[u32], &[f64]) {
        let range = self.indptr[s]..self.indptr[s + 1];
        (&self.indices[range.clone()], &self.values[range])
    }

    /// What line `s` reaches, and how many entries are visited to find that and to solve for it.
    pub fn pattern(&self, s: usize, power: u32) -> (Vec<u32>, u64) {
        let mut visits = 0;
        let reached = self.reached(s, power, &mut visits);
        let entries = |&at: &u32| self.line(at as usize).0.len() as u64 + 1;
        visits += reached.iter().map(entries).sum::<u64>();
        (reached, visits)
    }

    /// The unknowns that line `s` reaches over at most `power` hops, itself included, in increasing order. Adds what it visits to `visits`.
    ///
    /// Cut to whole hops, so that it has at most [`MOST_ENTRIES`]: what is there must not depend on the order in which neighbours are
    /// looked at, or the two patterns of a pair would differ.
    fn reached(&self, s: usize, power: u32, visits: &mut u64) -> Vec<u32> {
        let mut all = vec![s as u32];
        let mut begin = 0;
        'hops: for _ in 0..power {
            let end = all.len();
            for at in begin..end {
                *visits += 1;
                for next in self.line(all[at] as usize).0 {
                    *visits += 1;
                    if all.contains(next) {
                        continue;
                    }
                    if all.len() == MOST_ENTRIES {
                        all.truncate(end);
                        break 'hops;
                    }
                    all.push(*next);
                }
            }
            begin = end;
        }
        all.sort_unstable();
        all
    }
}

/// A square matrix in the other order, its lines sorted.
pub fn transposed(
    indptr: &[usize],
    indices: &[u32],
    values: &[f64],
) -> (Vec<usize>, Vec<u32>, Vec<f64>) {
    let mut starts = vec![0usize; indptr.len()];
    indices.iter().for_each(|&at| starts[at as usize + 1] += 1);
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut next = starts.clone();
    let (mut others, mut moved) = (vec![0u32; indices.len()], vec![0f64; indices.len()]);
    for (line, ends) in indptr.windows(2).enumerate() {
        for at in ends[0]..ends[1] {
            let place = &mut next[indices[at] as usize];
            (others[*place], moved[*place]) = (line as u32, values[at]);
            *place += 1;
        }
    }
    (starts, others, moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Sptrsv;
    use crate::domain::problem::Triangle;
    use crate::sparse::Csr;

    /// Row s is coupled to these rows before it, each by -1; the diagonal is 2.
    fn matrix(rows: usize, before: impl Fn(usize) -> Vec<usize>) -> Csr {
        let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..rows {
            for col in before(row) {
                indices.push(col as u32);
                values.push(-1.0);
            }
            indices.push(row as u32);
            values.push(2.0);
            indptr.push(indices.len());
        }
        Csr::new(rows, rows, indptr, indices, values).unwrap()
    }

    fn reached(system: &Triangular, s: usize, power: u32) -> Vec<u32> {
        Lines::of(system).reached(s, power, &mut 0)
    }

    #[test]
    fn a_line_reaches_what_is_within_its_hops() {
        let matrix = matrix(9, |row| if row >= 2 { vec![row - 2, row - 1] } else { vec![] });
        let system = Triangular::of(&matrix, &Sptrsv::PLAIN).unwrap();
        assert_eq!(reached(&system, 8, 1), [6, 7, 8]);
        assert_eq!(reached(&system, 8, 2), [4, 5, 6, 7, 8]);
        assert_eq!(reached(&system, 1, 8), [1]);
        // By columns, whatever depends on an unknown: a reversed system counts from the other end.
        let problem = Sptrsv { transpose: true, ..Sptrsv::PLAIN };
        let reversed = Triangular::of(&matrix, &problem).unwrap();
        assert!(reversed.reversed);
        assert_eq!(reached(&reversed, 0, 2), [0, 1, 2, 3, 4]);
        let upper = Sptrsv { triangle: Triangle::Upper, ..Sptrsv::PLAIN };
        let diagonal = Triangular::of(&matrix, &upper).unwrap();
        assert_eq!(reached(&diagonal, 3, 8), [3]);
    }

    /// A hop that does not fit is left out as a whole, in whatever order its unknowns would come.
    #[test]
    fn a_long_line_is_cut_to_whole_hops() {
        let fan = |row: usize| match row {
            200 => (100..162).collect(),
            100..162 => vec![row - 100],
            201 => (90..190).collect(),
            202 => vec![200],
            _ => vec![],
        };
        let system = Triangular::of(&matrix(203, fan), &Sptrsv::PLAIN).unwrap();
        let whole: Vec<u32> = (100..162).chain([200]).collect();
        assert_eq!(reached(&system, 200, 1), whole);
        assert_eq!(reached(&system, 200, 8), whole, "the second hop has 62 more");
        assert_eq!(reached(&system, 201, 3), [201]);
        let through: Vec<u32> = (100..162).chain([200, 202]).collect();
        assert_eq!((reached(&system, 202, 2), through.len()), (through, MOST_ENTRIES));
        // What is visited before it is known that a hop does not fit is bounded, too.
        let mut visits = 0;
        Lines::of(&system).reached(201, 3, &mut visits);
        assert_eq!(visits, 1 + MOST_ENTRIES as u64);
    }
}
