//! Assembles canonical CSR from entries in any order, in parallel: runs are partitioned by rows, consumed, and their
//! memory is released as they are used. This is the first step of a radix sort by row, so that later scattering stays
//! within a core's cache.
//!
//! Memory in addition to the text: 16 bytes per entry while runs are built; then the CSR's 12 bytes grow, one wave of
//! buckets at a time, while the runs' 16 bytes shrink. A wave has about a sixteenth of the entries, so the peak is
//! about 17 bytes per entry and 8 per row, compared with 12 and 8 for the result. If a single bucket is much larger
//! than a wave (a few dense rows), its part of each run is released as soon as it is scattered; its rows are then so
//! long that they fill from the front, page by page, and the total still decreases.

use super::triplets::Entry;
use super::{ReadError, rows};
use crate::sparse::Csr;
use memmap2::{MmapMut, UncheckedAdvice};
use rayon::prelude::*;
use std::ops::Range;

/// Most buckets of rows: few enough that a run's part of each has several cache lines, enough that a bucket fits into a
/// cache.
const MAX_BUCKETS: usize = 1024;
const WAVES: usize = 16;

/// Most bytes per entry at any time: 16 in a run, or 12 in the CSR and 8 for the key of a row that is being sorted.
pub(super) const ENTRY: u64 = 20;

/// The mapping of rows to buckets of 2^shift rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buckets {
    rows: usize,
    shift: u32,
}

impl Buckets {
    pub(super) fn new(rows: usize) -> Self {
        let mut shift = 0;
        while rows.div_ceil(1 << shift) > MAX_BUCKETS {
            shift += 1;
        }
        Self { rows, shift }
    }

    fn count(self) -> usize {
        self.rows.div_ceil(1 << self.shift)
    }

    /// Memory of a run in bytes beside its entries: its list of buckets, and the page that its entries begin.
    pub(super) fn run_bytes(self) -> u64 {
        const PAGE: u64 = 4096;
        4 * (self.count() as u64 + 1) + size_of::<Run>() as u64 + PAGE
    }

    fn of(self, row: u32) -> usize {
        (row >> self.shift) as usize
    }

    fn rows(self, bucket: usize) -> Range<usize> {
        bucket << self.shift..self.rows.min((bucket + 1) << self.shift)
    }
}

/// Row and column in the low words, and the value's bits above: a single load without undefined padding.
type Cell = [u8; 16];

fn pack((row, col, value): Entry) -> Cell {
    (u128::from(value.to_bits()) << 64 | u128::from(col) << 32 | u128::from(row)).to_le_bytes()
}

fn unpack(cell: &Cell) -> Entry {
    let word = u128::from_le_bytes(*cell);
    (word as u32, (word >> 32) as u32, f64::from_bits((word >> 64) as u64))
}

/// Entries of one piece of the file, ordered by bucket and, within a bucket, in stored order.
///
/// The cells are in separately mapped pages, not on the heap, so that they can be released while the rest is in use.
pub(super) struct Run {
    cells: Option<MmapMut>,
    /// Offset of each bucket in cells, and the end.
    starts: Vec<u32>,
    given_back: usize,
}

impl Run {
    /// `entries` must be fewer than 2^32, each within the rows of `buckets`.
    pub(super) fn new(buckets: Buckets, entries: &[Entry]) -> Result<Self, ReadError> {
        let mut starts = vec![0u32; buckets.count() + 1];
        if entries.is_empty() {
            return Ok(Self { cells: None, starts, given_back: 0 });
        }
        for &(row, _, _) in entries {
            starts[buckets.of(row)] += 1;
        }
        let mut start = 0;
        for begin in &mut starts {
            start += std::mem::replace(begin, start);
        }
        let mut map = MmapMut::map_anon(std::mem::size_of_val(entries))
            .map_err(|error| ReadError::io("allocating memory for entries", &error))?;
        let (cells, _) = map.as_chunks_mut::<16>();
        for &entry in entries {
            let place = &mut starts[buckets.of(entry.0)];
            cells[*place as usize] = pack(entry);
            *place += 1;
        }
        // Each start has been advanced to the next one, so shifting right restores the starts.
        starts.rotate_right(1);
        starts[0] = 0;
        Ok(Self { cells: Some(map), starts, given_back: 0 })
    }

    fn range(&self, bucket: usize) -> Range<usize> {
        self.starts[bucket] as usize..self.starts[bucket + 1] as usize
    }

    fn bucket(&self, bucket: usize) -> &[Cell] {
        match &self.cells {
            Some(map) => &map.as_chunks::<16>().0[self.range(bucket)],
            None => &[],
        }
    }

    /// Releases the pages of all buckets up to and including `bucket`; they must not be read again.
    fn give_back(&mut self, bucket: usize) {
        /// A multiple of all common page sizes, so that no page of a later bucket is affected.
        const GRAIN: usize = 64 << 10;
        let Some(map) = &self.cells else { return };
        let end = self.range(bucket).end * size_of::<Cell>() / GRAIN * GRAIN;
        if end > self.given_back {
            // SAFETY: the pages are private and anonymous, so they read as zeros afterwards, which are valid bytes;
            // there is no slice of them, since `self` is borrowed mutably. If the advice is refused, the memory is kept
            // until the run is dropped.
            let _ = unsafe {
                map.unchecked_advise_range(
                    UncheckedAdvice::DontNeed,
                    self.given_back,
                    end - self.given_back,
                )
            };
            self.given_back = end;
        }
    }
}

/// One bucket of the result: its slices of the CSR arrays, which are filled in three steps.
struct Bucket<'a> {
    number: usize,
    first_row: usize,
    base: usize,
    ends: &'a mut [usize],
    indices: &'a mut [u32],
    values: &'a mut [f64],
}

impl Bucket<'_> {
    /// Counts the entries of each row; afterwards `ends` contains the start of each row.
    fn count(&mut self, runs: &[Run]) {
        for cell in runs.iter().flat_map(|run| run.bucket(self.number)) {
            self.ends[unpack(cell).0 as usize - self.first_row] += 1;
        }
        let mut start = 0;
        for end in self.ends.iter_mut() {
            start += std::mem::replace(end, start);
        }
    }

    /// Appends a run's entries to those of earlier runs; after the last run, `ends` contains the end of each row.
    fn scatter(&mut self, run: &Run) {
        for cell in run.bucket(self.number) {
            let (row, col, value) = unpack(cell);
            let place = &mut self.ends[row as usize - self.first_row];
            self.indices[*place] = col;
            self.values[*place] = value;
            *place += 1;
        }
    }

    /// Sorts the rows and sums duplicates; returns the number of entries at the front of the slices.
    fn finish(self) -> usize {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let longest = self.ends.iter().zip(starts).map(|(end, start)| end - start).max();
        let kept =
            rows::canonicalise(self.ends, self.indices, self.values, longest.unwrap_or_default());
        for end in self.ends {
            *end += self.base;
        }
        kept
    }
}

/// Builds the matrix and consumes the runs. The result does not depend on the number of threads.
pub(super) fn assemble(
    cols: usize,
    buckets: Buckets,
    mut runs: Vec<Run>,
) -> Result<Csr, ReadError> {
    let sizes: Vec<usize> = (0..buckets.count())
        .map(|bucket| runs.iter().map(|run| run.range(bucket).len()).sum())
        .collect();
    let nnz: usize = sizes.iter().sum();
    let mut indptr = vec![0usize; buckets.rows + 1];
    // Zeroed memory consists of untouched pages, which take memory only when a bucket is scattered into them.
    let mut indices = vec![0u32; nnz];
    let mut values = vec![0f64; nnz];

    let mut kept = Vec::with_capacity(sizes.len());
    let mut rest = (&mut indptr[1..], &mut indices[..], &mut values[..]);
    let mut base = 0;
    for wave in waves(&sizes, nnz / WAVES) {
        let last = wave.end - 1;
        let mut parts = Vec::with_capacity(wave.len());
        for number in wave {
            let rows = buckets.rows(number);
            let (ends, more_ends) = rest.0.split_at_mut(rows.len());
            let (indices, more_indices) = rest.1.split_at_mut(sizes[number]);
            let (values, more_values) = rest.2.split_at_mut(sizes[number]);
            rest = (more_ends, more_indices, more_values);
            parts.push(Bucket { number, first_row: rows.start, base, ends, indices, values });
            base += sizes[number];
        }
        kept.extend(fill(parts, &mut runs, nnz / WAVES));
        runs.par_iter_mut().for_each(|run| run.give_back(last));
    }
    drop(runs);

    let total = close_gaps(buckets, &sizes, &kept, (&mut indptr[1..], &mut indices, &mut values));
    if total < nnz {
        indices.truncate(total);
        indices.shrink_to_fit();
        values.truncate(total);
        values.shrink_to_fit();
    }
    Ok(Csr::new(buckets.rows, cols, indptr, indices, values)?)
}

/// Groups adjacent buckets so that each group has about `size` entries; a larger bucket is its own group.
fn waves(sizes: &[usize], size: usize) -> Vec<Range<usize>> {
    let mut waves = Vec::new();
    let (mut begin, mut held) = (0, 0);
    for (bucket, &entries) in sizes.iter().enumerate() {
        if begin < bucket && held + entries > size {
            waves.push(begin..bucket);
            (begin, held) = (bucket, 0);
        }
        held += entries;
    }
    if begin < sizes.len() {
        waves.push(begin..sizes.len());
    }
    waves
}

fn fill(mut parts: Vec<Bucket<'_>>, runs: &mut [Run], wave: usize) -> Vec<usize> {
    if let [only] = &mut parts[..]
        && only.indices.len() > wave
    {
        only.count(runs);
        for run in runs {
            only.scatter(run);
            run.give_back(only.number);
        }
        return parts.into_iter().map(Bucket::finish).collect();
    }
    let runs = &*runs;
    parts
        .into_par_iter()
        .map(|mut bucket| {
            bucket.count(runs);
            runs.iter().for_each(|run| bucket.scatter(run));
            bucket.finish()
        })
        .collect()
}

/// Closes the gaps that summed duplicates left after buckets; returns the number of entries.
fn close_gaps(
    buckets: Buckets,
    sizes: &[usize],
    kept: &[usize],
    (ends, indices, values): (&mut [usize], &mut [u32], &mut [f64]),
) -> usize {
    let (mut from, mut to) = (0, 0);
    for (number, (&size, &kept)) in sizes.iter().zip(kept).enumerate() {
        if from > to {
            indices.copy_within(from..from + kept, to);
            values.copy_within(from..from + kept, to);
            for end in &mut ends[buckets.rows(number)] {
                *end -= from - to;
            }
        }
        from += size;
        to += kept;
    }
    to
}
