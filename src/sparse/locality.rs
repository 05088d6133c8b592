//! An order of the rows of a matrix by locality: rows that share columns, directly or through others, come close together. Only
//! the order in which rows are processed changes; the matrix and the result keep theirs.
//!
//! Small groups of rows with columns in common are found by label propagation (Raghavan, Albert and Kumara, 2007) and follow each
//! other in breadth-first order (Cuthill and McKee, 1969), which is also the order within them. Either alone does half: breadth
//! first brings rows within a few thousand of each other that share columns, groups within a few dozen.
//!
//! All of it works on the bipartite graph of rows and columns, so that any shape and pattern will do, takes O(nnz) time and gives
//! the same result on any number of threads. Columns with very many rows are passed over: they join everything and tell nothing.

mod breadth;
mod groups;
mod promise;
mod ties;

pub use promise::{Promise, promise};

use super::Csr;
use rayon::prelude::*;

/// All rows by locality; those without entries come last.
pub fn order(matrix: &Csr) -> Vec<u32> {
    order_by(matrix, &matrix.transposed_pattern())
}

/// The same; `columns` is the transpose, whose values are not read.
fn order_by(matrix: &Csr, columns: &Csr) -> Vec<u32> {
    let (breadth, labels) =
        rayon::join(|| breadth::order(matrix, columns), || groups::labels(matrix, columns));
    // A group stands where breadth first meets its first row.
    let mut place_of_label = vec![u32::MAX; matrix.cols()];
    let mut places: Vec<u64> = Vec::with_capacity(breadth.len());
    for (place, &row) in breadth.iter().enumerate() {
        let place = place as u32;
        let first = match place_of_label.get_mut(labels[row as usize] as usize) {
            Some(first) => {
                *first = place.min(*first);
                *first
            }
            // Without a label, and so without entries that count.
            None => place,
        };
        places.push(u64::from(first) << 32 | u64::from(place));
    }
    places.par_sort_unstable();
    places.into_iter().map(|place| breadth[place as u32 as usize]).collect()
}

/// A column of more rows than this is passed over: sixteen times the mean, and at least 64.
fn common(nnz: usize, cols: usize) -> usize {
    const TIMES: usize = 16;
    const AT_LEAST: usize = 64;
    (TIMES * (nnz / cols.max(1))).max(AT_LEAST)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::sparse::generate::Spec;
    use crate::sparse::random::Stream;

    fn generated(text: &str) -> Csr {
        Spec::parse(text).unwrap().generate().unwrap()
    }

    /// A matrix of these rows.
    fn of_rows(cols: usize, rows: &[Vec<u32>]) -> Csr {
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for row in rows {
            let mut row = row.clone();
            row.sort_unstable();
            row.dedup();
            indices.extend(row);
            indptr.push(indices.len());
        }
        let values = vec![1.0; indices.len()];
        Csr::new(rows.len(), cols, indptr, indices, values).unwrap()
    }

    /// The matrix with its rows, and its columns alike, in random order.
    pub(crate) fn shuffled(matrix: &Csr) -> Csr {
        let n = matrix.rows();
        let mut to: Vec<u32> = (0..n as u32).collect();
        let mut stream = Stream::new(7, 0);
        for last in (1..n).rev() {
            to.swap(last, stream.below(last as u64 + 1) as usize);
        }
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); n];
        for row in 0..n {
            let cols = matrix.row(row).0.iter().map(|&col| to[col as usize]);
            rows[to[row] as usize].extend(cols);
        }
        of_rows(matrix.cols(), &rows)
    }

    /// Groups of `size` rows with `inside` entries among the group's own columns and `outside` anywhere.
    fn grouped(n: usize, size: usize, inside: usize, outside: usize) -> Csr {
        let mut stream = Stream::new(3, 1);
        let mut below = |bound: usize| stream.below(bound as u64) as u32;
        let rows: Vec<Vec<u32>> = (0..n)
            .map(|row| {
                let base = (row / size * size) as u32;
                let near: Vec<u32> =
                    (0..inside).map(|_| base + below(size.min(n - base as usize))).collect();
                near.into_iter().chain((0..outside).map(|_| below(n)).collect::<Vec<_>>()).collect()
            })
            .collect();
        of_rows(n, &rows)
    }

    /// Entries over distinct columns in windows of consecutive rows of an order.
    fn reuse(matrix: &Csr, order: &[u32], size: usize) -> f64 {
        let mut distinct = 0;
        for window in order.chunks(size) {
            let mut cols: Vec<u32> =
                window.iter().flat_map(|&row| matrix.row(row as usize).0).copied().collect();
            cols.sort_unstable();
            cols.dedup();
            distinct += cols.len();
        }
        matrix.nnz() as f64 / distinct.max(1) as f64
    }

    /// What the sampled rows share among 64, over what windows of the matrix share as they stand.
    fn near_gain(matrix: &Csr, promise: &Promise) -> f64 {
        let mut sorted = promise.rows.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), promise.rows.len(), "no row twice");
        let natural: Vec<u32> = (0..matrix.rows() as u32).collect();
        let entries = promise.rows.iter().map(|&row| matrix.row_nnz(row as usize)).sum::<usize>();
        let sampled = reuse(matrix, &promise.rows, 64) * entries as f64 / matrix.nnz() as f64;
        sampled / reuse(matrix, &natural, 64)
    }

    /// Reuse among 64 and 4096 rows, as they stand and in order, and the promise.
    fn gain(matrix: &Csr) -> ([f64; 2], [f64; 2], Promise) {
        let natural: Vec<u32> = (0..matrix.rows() as u32).collect();
        let order = order(matrix);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, natural, "every row once");
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(one.install(|| super::order(matrix)), order);
        let of = |order: &[u32]| [64, 4096].map(|size| reuse(matrix, order, size));
        (of(&natural), of(&order), promise(matrix))
    }

    #[test]
    fn shuffled_meshes_and_groups_find_their_neighbours_again() {
        let cube = shuffled(&generated("poisson3d:nx=24,ny=24,nz=24,seed=1"));
        let mesh = shuffled(&generated("mesh:nx=120,ny=120,seed=1"));
        let groups = shuffled(&grouped(20_000, 250, 14, 3));
        for (matrix, near, far) in [(&cube, 1.9, 3.4), (&mesh, 2.4, 4.5), (&groups, 1.9, 2.5)] {
            let (before, after, promise) = gain(matrix);
            assert!(before[0] < 1.3, "{before:?}");
            assert!(after[0] > near && after[1] > far, "{before:?} {after:?}");
            let estimated = near_gain(matrix, &promise);
            // Through the few entries outside of its group a ball of a thousand rows leaks into all: groups are seen near.
            assert!(promise.far > 1.15 && estimated > 1.9, "{} {estimated}", promise.far);
        }
    }

    #[test]
    fn a_good_order_promises_nothing() {
        let random = "uniform:rows=2e4,cols=2e4,nnz=3e5,seed=1";
        assert!((ties::ties(&generated(random)) - 1.0).abs() < 0.01);
        for text in ["banded:n=2e4,half=8,seed=1", "circuit:n=2e4,hubs=3,seed=1", random] {
            let (_, _, promise) = gain(&generated(text));
            assert!(promise.far < 1.2, "{text}: {}", promise.far);
        }
    }

    #[test]
    fn rows_without_entries_and_columns_of_all_rows_do_no_harm() {
        // A column that all rows have, every third row empty but for it.
        let rows: Vec<Vec<u32>> = (0..3000u32)
            .map(|row| if row % 3 == 0 { vec![0] } else { vec![0, 1 + row / 6] })
            .collect();
        let (_, after, _) = gain(&of_rows(600, &rows));
        assert!(after[0] > 1.9, "{after:?}");
        let (_, _, promise) = gain(&of_rows(5, &[vec![], vec![3], vec![]]));
        assert_eq!(promise, Promise::NONE);
        assert!(order(&of_rows(0, &[])).is_empty());
        // More rows than columns, and fewer.
        gain(&generated("uniform:rows=5000,cols=40,nnz=2e4,seed=1"));
        gain(&generated("uniform:rows=40,cols=5000,nnz=2e4,seed=1"));
    }

    /// Times of the test beforehand, of what it leads to, and of the order:
    /// `cargo test --release -p sparsetune-core --lib -- --ignored --nocapture millions_of_entries_are_ordered`.
    #[test]
    #[ignore = "times an optimised build"]
    fn millions_of_entries_are_ordered_in_time() {
        let texts = [
            "poisson3d:nx=90,ny=90,nz=90,seed=1",
            "mesh:nx=850,ny=850,seed=1",
            "uniform:rows=3e5,cols=3e5,nnz=5e6,seed=1",
            "rmat:scale=18,edge_factor=20,seed=1",
        ];
        for text in texts {
            let natural = generated(text);
            for (what, matrix) in [("natural", &natural), ("shuffled", &shuffled(&natural))] {
                let time = |of: &dyn Fn() -> f64| {
                    of();
                    let started = std::time::Instant::now();
                    let value = of();
                    (value, started.elapsed().as_secs_f64() * 1e3)
                };
                let ties = time(&|| ties::ties(matrix));
                let turned = time(&|| matrix.transposed_pattern().nnz() as f64).1;
                let promise = time(&|| promise(matrix).far);
                let columns = matrix.transposed_pattern();
                let breadth = time(&|| breadth::order(matrix, &columns).len() as f64).1;
                let labels = time(&|| groups::labels(matrix, &columns).len() as f64).1;
                let ordered = time(&|| f64::from(order(matrix)[0])).1;
                let after = reuse(matrix, &order(matrix), 64);
                let all: Vec<u32> = (0..matrix.rows() as u32).collect();
                println!(
                    "{text} {what}, {} entries: ties {:.3} in {:.1} ms; transposed in {turned:.0} ms; \
                     promise {:.2} in {:.0} ms; order in {ordered:.0} ms (breadth {breadth:.0}, \
                     labels {labels:.0}): {after:.2} from {:.2}",
                    matrix.nnz(),
                    ties.0,
                    ties.1,
                    promise.0,
                    promise.1,
                    reuse(matrix, &all, 64),
                );
            }
        }
    }
}
