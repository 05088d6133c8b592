//! The windows of blocks of rows: which pieces of 16 bytes of a column of B the entries of a block need, and where in them each entry
//! finds its element.

use crate::sparse::Csr;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rows of a block; as in the header.
pub const ROWS: [u32; 4] = [128, 256, 512, 1024];
/// Elements of a piece, by the bytes of an element: 8, 4 and 2; of the largest, elements of 2 bytes in a sector.
const IN_PIECE: [u32; 4] = [2, 4, 8, 16];
/// Blocks of each size that an estimate looks at.
const SAMPLED: usize = 24;
/// Entries of a block from which it is not looked at: no such window fits.
const MOST_ENTRIES: usize = 1 << 17;
/// Banks of shared memory, of 4 bytes each, and lanes of a warp.
const BANKS: usize = 32;
/// Places are 16-bit numbers of elements.
const MOST_ELEMENTS: u64 = 1 << 16;

/// Columns that begin within a piece: the windows of such need one piece more for each run of neighbouring pieces.
pub fn shifts(cols: u64, in_piece: u32) -> bool {
    !cols.is_multiple_of(in_piece.into())
}

/// The windows of all blocks of a matrix.
pub struct Windows {
    /// Block i has the pieces `ptr[i]..ptr[i + 1]`.
    pub ptr: Arc<[u32]>,
    /// Pieces of a column, counted from its beginning, rising within a block.
    pub pieces: Arc<[u32]>,
    /// Of each entry of the matrix, the element in its block's window.
    pub places: Arc<[u16]>,
    /// Pieces of the largest window.
    pub most: u32,
}

impl Windows {
    pub fn bytes(&self) -> u64 {
        4 * (self.ptr.len() + self.pieces.len()) as u64 + 2 * self.places.len() as u64
    }

    /// The windows of blocks of `rows` rows; `None` where a place would not fit 16 bits, or an offset 32.
    pub fn of(matrix: &Csr, rows: u32, in_piece: u32) -> Option<Self> {
        let shifts = shifts(matrix.cols() as u64, in_piece);
        let blocks = matrix.rows().div_ceil(rows as usize);
        let pieces: Vec<Vec<u32>> = (0..blocks)
            .into_par_iter()
            .map(|block| window(entries(matrix, rows, block), in_piece, shifts))
            .collect();
        let most = pieces.iter().map(Vec::len).max().unwrap_or(0);
        if most as u64 * u64::from(in_piece) > MOST_ELEMENTS {
            return None;
        }
        let mut ptr = vec![0u32];
        for window in &pieces {
            ptr.push(ptr[ptr.len() - 1].checked_add(window.len() as u32)?);
        }
        let mut places = vec![0u16; matrix.nnz()];
        let mut rest = &mut places[..];
        let mut own = Vec::with_capacity(blocks);
        for block in 0..blocks {
            let (here, later) = rest.split_at_mut(entries(matrix, rows, block).len());
            own.push(here);
            rest = later;
        }
        own.into_par_iter().zip(&pieces).enumerate().for_each(|(block, (places, window))| {
            for (place, &col) in places.iter_mut().zip(entries(matrix, rows, block)) {
                let piece = window.partition_point(|&piece| piece < col / in_piece) as u32;
                *place = (piece * in_piece + col % in_piece) as u16;
            }
        });
        let pieces: Vec<u32> = pieces.concat();
        Some(Self {
            ptr: ptr.into(),
            pieces: pieces.into(),
            places: places.into(),
            most: most as u32,
        })
    }
}

/// The pieces that hold some columns, rising, and where columns of B begin within a piece also the one after each run.
fn window(cols: &[u32], in_piece: u32, shifts: bool) -> Vec<u32> {
    let mut pieces: Vec<u32> = Vec::with_capacity(cols.len() / 2);
    for col in cols {
        // Neighbours mostly share a piece, so that little is left to sort.
        if pieces.last() != Some(&(col / in_piece)) {
            pieces.push(col / in_piece);
        }
    }
    pieces.sort_unstable();
    pieces.dedup();
    if !shifts {
        return pieces;
    }
    let runs = pieces.chunk_by(|a, b| a + 1 == *b);
    runs.flat_map(|run| run.iter().copied().chain([run[run.len() - 1] + 1])).collect()
}

/// An estimate of the windows of blocks of some rows, from a few blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Pieces of a window, in the mean.
    pub mean: f64,
    /// Pieces of the largest.
    pub most: u32,
    /// Both with a piece more for each run.
    pub mean_shifted: f64,
    pub most_shifted: u32,
}

/// What is known of the windows of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimates {
    /// By rows of a block and elements of a piece. A size of blocks one of which has too many entries has none.
    windows: BTreeMap<(u32, u32), Estimate>,
    /// How many times a warp whose lanes read the same entry of 32 neighbouring rows goes to the banks of shared memory, at least 1:
    /// elements of 4 bytes, in the smallest blocks.
    pub conflicts: f64,
}

impl Estimates {
    pub fn of(matrix: &Csr) -> Self {
        let of_size = |rows: u32| -> Option<Vec<((u32, u32), Estimate)>> {
            let looked: Option<Vec<[[usize; 2]; 4]>> = sampled(matrix, rows)
                .into_par_iter()
                .map(|block| look(entries(matrix, rows, block)))
                .collect();
            let looked = looked?;
            let count = looked.len().max(1) as f64;
            let of = |at: usize| {
                let each = |kind: usize| looked.iter().map(move |it| it[at][kind]);
                let mean = |kind| each(kind).sum::<usize>() as f64 / count;
                let most = |kind| each(kind).max().unwrap_or(0) as u32;
                let estimate = Estimate {
                    mean: mean(0),
                    most: most(0),
                    mean_shifted: mean(1),
                    most_shifted: most(1),
                };
                ((rows, IN_PIECE[at]), estimate)
            };
            Some((0..IN_PIECE.len()).map(of).collect())
        };
        let windows = ROWS.into_iter().filter_map(of_size).flatten().collect();
        Self { windows, conflicts: conflicts(matrix) }
    }

    pub fn get(&self, rows: u32, in_piece: u32) -> Option<Estimate> {
        self.windows.get(&(rows, in_piece)).copied()
    }
}

/// Some blocks, spread evenly over all.
fn sampled(matrix: &Csr, rows: u32) -> Vec<usize> {
    let blocks = matrix.rows().div_ceil(rows as usize);
    // The last as well: orders by separators end with the rows that are far from all others.
    let some = (0..blocks).step_by(blocks.div_ceil(SAMPLED).max(1));
    some.filter(|&block| block + 1 < blocks).chain(blocks.checked_sub(1)).collect()
}

/// The columns of a block's entries.
fn entries(matrix: &Csr, rows: u32, block: usize) -> &[u32] {
    let first = block * rows as usize;
    let last = (first + rows as usize).min(matrix.rows());
    &matrix.indices()[matrix.indptr()[first]..matrix.indptr()[last]]
}

/// For each size of a piece the pieces of a block's window, and these with one more for each run; `None` if there is too much to look
/// at.
fn look(cols: &[u32]) -> Option<[[usize; 2]; 4]> {
    if cols.len() > MOST_ENTRIES {
        return None;
    }
    let finest = window(cols, IN_PIECE[0], false);
    Some(IN_PIECE.map(|in_piece| {
        let mut pieces: Vec<u32> =
            finest.iter().map(|piece| piece / (in_piece / IN_PIECE[0])).collect();
        pieces.dedup();
        let runs = pieces.chunk_by(|a, b| a + 1 == *b).count();
        [pieces.len(), pieces.len() + runs]
    }))
}

/// The mean, over entries, of the rounds in which a warp reads them.
fn conflicts(matrix: &Csr) -> f64 {
    let (rows, in_piece) = (ROWS[0], IN_PIECE[1]);
    let of_block = |block: usize| -> (u64, u64) {
        let cols = entries(matrix, rows, block);
        if cols.len() > MOST_ENTRIES {
            return (0, 0);
        }
        let window = window(cols, in_piece, false);
        let place = |col: u32| {
            let piece = window.partition_point(|&piece| piece < col / in_piece) as u32;
            piece * in_piece + col % in_piece
        };
        let first = block * rows as usize;
        let warp = first..(first + BANKS).min(matrix.rows());
        let longest = warp.clone().map(|row| matrix.row_nnz(row)).max().unwrap_or(0);
        let (mut rounds, mut reads) = (0, 0);
        for entry in 0..longest {
            let cols = warp.clone().filter_map(|row| matrix.row(row).0.get(entry));
            let mut places: Vec<u32> = cols.map(|&col| place(col)).collect();
            places.sort_unstable();
            places.dedup();
            let mut banks = [0u64; BANKS];
            places.iter().for_each(|&place| banks[place as usize % BANKS] += 1);
            rounds += banks.into_iter().max().unwrap_or(0);
            reads += 1;
        }
        (rounds, reads)
    };
    let (rounds, reads) = sampled(matrix, rows)
        .into_par_iter()
        .map(of_block)
        .reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    if reads == 0 { 1.0 } else { rounds as f64 / reads as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::generate::Spec;

    fn generated(spec: &str) -> Csr {
        Spec::parse(spec).unwrap().generate().unwrap()
    }

    #[test]
    fn every_entry_finds_its_column() {
        for spec in
            ["mesh:nx=31,ny=29,seed=1", "rmat:scale=9,edge_factor=4,seed=2", "banded:n=1001,half=3"]
        {
            let matrix = generated(spec);
            for rows in [128, 1024] {
                for in_piece in [2, 4, 8] {
                    let shifts = shifts(matrix.cols() as u64, in_piece);
                    let windows = Windows::of(&matrix, rows, in_piece).unwrap();
                    for row in 0..matrix.rows() {
                        let block = row / rows as usize;
                        let own = &windows.pieces
                            [windows.ptr[block] as usize..windows.ptr[block + 1] as usize];
                        assert!(
                            own.is_sorted_by(|a, b| a < b) && own.len() <= windows.most as usize
                        );
                        for at in matrix.indptr()[row]..matrix.indptr()[row + 1] {
                            let (col, place) =
                                (matrix.indices()[at], u32::from(windows.places[at]));
                            // Wherever within a piece a column of B begins, the element lies so many later in the window.
                            for before in 0..if shifts { in_piece } else { 1 } {
                                let found = own[((place + before) / in_piece) as usize] * in_piece
                                    + (place + before) % in_piece;
                                assert_eq!(
                                    found,
                                    col + before,
                                    "{spec}: {rows} rows, {in_piece} a piece"
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn places_beyond_16_bits_are_refused() {
        // A block whose entries are a piece apart, in more pieces than 16 bits count elements of.
        let cols: Vec<u32> = (0..20_000).map(|i| 8 * i).collect();
        let matrix = Csr::new(1, 160_000, vec![0, 20_000], cols, vec![1.0; 20_000]).unwrap();
        assert!(Windows::of(&matrix, 128, 4).is_none());
        assert!(Windows::of(&matrix, 128, 2).is_some());
    }

    #[test]
    fn an_estimate_of_all_blocks_is_exact() {
        for spec in ["mesh:nx=31,ny=29,seed=1", "banded:n=1001,half=3"] {
            let matrix = generated(spec);
            let estimates = Estimates::of(&matrix);
            for rows in ROWS {
                let windows = Windows::of(&matrix, rows, 4).unwrap();
                let estimate = estimates.get(rows, 4).unwrap();
                let blocks = windows.ptr.len() - 1;
                let mean = windows.pieces.len() as f64 / blocks as f64;
                let (of_mean, of_most) = match shifts(matrix.cols() as u64, 4) {
                    true => (estimate.mean_shifted, estimate.most_shifted),
                    false => (estimate.mean, estimate.most),
                };
                assert!((of_mean - mean).abs() < 1e-9 && of_most == windows.most, "{spec}, {rows}");
            }
        }
    }

    #[test]
    fn blocks_with_too_many_entries_have_no_estimate() {
        let matrix = generated("uniform:rows=1024,cols=4096,nnz=1e6,seed=1");
        let estimates = Estimates::of(&matrix);
        assert!(estimates.get(256, 4).is_none() && estimates.get(128, 4).is_some());
        let nothing = Estimates::of(&Csr::empty());
        assert_eq!((nothing.get(128, 4).unwrap().most, nothing.conflicts), (0, 1.0));
    }

    #[test]
    fn neighbours_that_read_neighbours_do_not_meet_in_a_bank() {
        let of = |spec| Estimates::of(&generated(spec)).conflicts;
        assert!(of("banded:n=4096,half=8") < 1.1);
        // 32 lanes at random in 32 banks: the fullest has three or four.
        let random = of("uniform:rows=4096,cols=1e5,nnz=4e4,seed=1");
        assert!((2.0..4.5).contains(&random), "{random}");
    }
}
