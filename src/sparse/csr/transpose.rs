//! The transpose of a matrix, in parallel and in linear time, with the entry that each of its entries comes from.

use super::Csr;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Fewest entries per task: below, counting columns takes longer than moving entries.
const MIN_ENTRIES: usize = 1 << 16;

impl Csr {
    /// The transpose: cols x rows.
    pub fn transposed(&self) -> Self {
        let (rows, values) =
            (atomics(self.nnz(), AtomicU32::new), atomics(self.nnz(), AtomicU64::new));
        let indptr = self.distribute(|place, entry, row| {
            rows[place].store(row, Ordering::Relaxed);
            values[place].store(self.values[entry].to_bits(), Ordering::Relaxed);
        });
        let values = values.into_iter().map(|bits| f64::from_bits(bits.into_inner())).collect();
        self.turned(indptr, rows, values)
    }

    /// The pattern of the transpose: all values are 0.
    pub fn transposed_pattern(&self) -> Self {
        let rows = atomics(self.nnz(), AtomicU32::new);
        let indptr = self.distribute(|place, _, row| rows[place].store(row, Ordering::Relaxed));
        self.turned(indptr, rows, vec![0.0; self.nnz()])
    }

    /// The transpose, and for each of its entries the place of the same entry in this matrix: new values of this matrix
    /// become those of the transpose by `transposed[i] = values[map[i]]`. Places are counted in 32 bits, which is enough for
    /// every matrix that can be tuned.
    pub fn transposed_with_map(&self) -> (Self, Vec<u32>) {
        debug_assert!(u32::try_from(self.nnz()).is_ok(), "places are counted in 32 bits");
        let [rows, map] = [(); 2].map(|()| atomics(self.nnz(), AtomicU32::new));
        let indptr = self.distribute(|place, entry, row| {
            rows[place].store(row, Ordering::Relaxed);
            map[place].store(entry as u32, Ordering::Relaxed);
        });
        let map: Vec<u32> = map.into_iter().map(AtomicU32::into_inner).collect();
        let values = map.par_iter().map(|&entry| self.values[entry as usize]).collect();
        (self.turned(indptr, rows, values), map)
    }

    /// The transpose of these parts, which are canonical: entries of a column are distributed in the order of their rows.
    fn turned(&self, indptr: Vec<usize>, rows: Vec<AtomicU32>, values: Vec<f64>) -> Self {
        let indices = rows.into_iter().map(AtomicU32::into_inner).collect();
        Self { rows: self.cols, cols: self.rows, indptr, indices, values }
    }

    /// Calls `put(place, entry, row)` once for each entry, where `place` is its place in the transpose, and returns the row
    /// pointers of the transpose. Each task counts the columns of its entries first, so that it knows where to put them.
    fn distribute(&self, put: impl Fn(usize, usize, u32) + Sync) -> Vec<usize> {
        let tasks = self.tasks();
        let mut before: Vec<Vec<u32>> = tasks
            .par_iter()
            .map(|task| {
                let mut counts = vec![0u32; self.cols];
                self.indices[task.clone()].iter().for_each(|&col| counts[col as usize] += 1);
                counts
            })
            .collect();
        // What a task found in a column becomes what the tasks before it found there.
        let mut totals = vec![0u32; self.cols];
        for counts in &mut before {
            let columns = counts.par_iter_mut().zip(&mut totals).with_min_len(MIN_ENTRIES);
            columns.for_each(|(count, total)| {
                let found = *count;
                *count = *total;
                *total += found;
            });
        }
        let mut indptr = Vec::with_capacity(self.cols + 1);
        indptr.push(0);
        let ends = totals.iter().scan(0, |end, &total| {
            *end += total as usize;
            Some(*end)
        });
        indptr.extend(ends);
        tasks.into_par_iter().zip(before).for_each(|(task, mut next)| {
            // The last row that begins at or before the task's first entry.
            let mut row = self.indptr.partition_point(|&start| start <= task.start).max(1) - 1;
            for entry in task {
                while entry >= self.indptr[row + 1] {
                    row += 1;
                }
                let col = self.indices[entry] as usize;
                put(indptr[col] + next[col] as usize, entry, row as u32);
                next[col] += 1;
            }
        });
        indptr
    }

    /// Runs of entries of about equal length, whatever the rows are: one for each thread, but so few that their counts are
    /// no more than the entries.
    fn tasks(&self) -> Vec<Range<usize>> {
        let most = self.nnz() / self.cols.max(MIN_ENTRIES);
        let count = most.clamp(1, rayon::current_num_threads());
        let share = self.nnz().div_ceil(count).max(1);
        let starts = (0..self.nnz()).step_by(share);
        starts.map(|start| start..(start + share).min(self.nnz())).collect()
    }
}

fn atomics<Word: Default + Copy + Send, Atomic: Send>(
    length: usize,
    new: impl Fn(Word) -> Atomic + Sync,
) -> Vec<Atomic> {
    (0..length).into_par_iter().map(|_| new(Word::default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::generate::Spec;

    /// The transpose by its definition.
    fn by_definition(matrix: &Csr) -> (Csr, Vec<u32>) {
        let mut entries = Vec::new();
        for row in 0..matrix.rows() {
            for at in matrix.indptr()[row]..matrix.indptr()[row + 1] {
                entries.push((matrix.indices()[at], row as u32, at as u32));
            }
        }
        entries.sort_unstable();
        let ends = (0..=matrix.cols()).map(|col| entries.partition_point(|e| (e.0 as usize) < col));
        let indices = entries.iter().map(|entry| entry.1).collect();
        let map: Vec<u32> = entries.iter().map(|entry| entry.2).collect();
        let values = map.iter().map(|&at| matrix.values()[at as usize]).collect();
        let (rows, cols) = (matrix.cols(), matrix.rows());
        (Csr::new(rows, cols, ends.collect(), indices, values).unwrap(), map)
    }

    fn check(matrix: &Csr) {
        let (transposed, map) = matrix.transposed_with_map();
        assert_eq!((&transposed, &map), (&by_definition(matrix).0, &by_definition(matrix).1));
        assert_eq!(matrix.transposed(), transposed);
        let pattern = matrix.transposed_pattern();
        assert_eq!(
            (pattern.indptr(), pattern.indices(), pattern.nnz()),
            (transposed.indptr(), transposed.indices(), pattern.values().len())
        );
        assert_eq!(transposed.transposed(), *matrix);
    }

    #[test]
    fn odd_shapes_are_transposed() {
        check(&Csr::empty());
        check(&Csr::new(0, 5, vec![0], vec![], vec![]).unwrap());
        check(&Csr::new(5, 0, vec![0; 6], vec![], vec![]).unwrap());
        // Empty rows and columns at both ends and between.
        let (indptr, indices) = (vec![0, 0, 2, 2, 5, 5], vec![1, 4, 1, 2, 4]);
        check(&Csr::new(5, 6, indptr, indices, vec![1.0, -0.0, 3.0, 4.0, 5.0]).unwrap());
        let wide = (0..1000).step_by(3);
        let values = vec![2.0; wide.len()];
        check(&Csr::new(1, 1000, vec![0, wide.len()], wide.collect(), values).unwrap());
    }

    #[test]
    fn several_tasks_share_the_rows_and_a_huge_one() {
        let matrix =
            Spec::parse("rmat:scale=14,edge_factor=20,seed=5").unwrap().generate().unwrap();
        let (mut indptr, mut indices, mut values) = matrix.into_parts();
        // A full row in front.
        indptr = std::iter::once(0).chain(indptr.iter().map(|at| at + (1 << 14))).collect();
        indices = (0..1 << 14).chain(indices).collect();
        values = (0..1 << 14).map(f64::from).chain(values).collect();
        let matrix = Csr::new((1 << 14) + 1, 1 << 14, indptr, indices, values).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        pool.install(|| {
            assert!(matrix.tasks().len() > 1);
            check(&matrix);
        });
    }
}
