//! Rows to threads: the decision chart of Tiled SpMM (section 4.1, Fig. 6, Eq. 5) and the segments it cuts long rows into.

/// Multiprocessors that must have a block each for the device to count as used (section 5.2, Fig. 9).
const LEAST_UTILIZATION: f64 = 0.65;
/// Variation of row lengths (sigma over mean) above which long rows are cut (Fig. 6).
const MOST_VARIATION: f64 = 1.0;
/// Shortest segment. The paper cuts at the mean, however small; a segment of fewer entries would cost its block about as much
/// in the map, the tables and the sum as it saves.
const LEAST_SEGMENT: u32 = 16;
const WARP: usize = 32;

/// Key of a slot that has no row.
pub const NO_ROW: u32 = u32::MAX;
/// Bit of a key that names a partial sum; rows are fewer than 2^31.
pub const PARTIAL: u32 = 1 << 31;

/// Eq. 5: scheduled blocks over multiprocessors.
pub fn utilization(blocks: u64, multiprocessors: u32) -> f64 {
    blocks as f64 / f64::from(multiprocessors.max(1))
}

/// The decision chart (Fig. 6): entries after which a row is cut, `None` if no row needs cutting. `mean` and `sigma` are of
/// the row lengths.
pub fn segment_length(utilization: f64, mean: f64, sigma: f64) -> Option<u32> {
    let length = if utilization < LEAST_UTILIZATION {
        utilization * mean
    } else if mean > 0.0 && sigma / mean > MOST_VARIATION {
        mean
    } else {
        return None;
    };
    Some((length.ceil() as u32).max(LEAST_SEGMENT))
}

/// What one thread computes: entries `begin .. end` of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where the sum goes: the row, `PARTIAL` and the index of a partial sum, or `NO_ROW`.
    pub key: u32,
    /// Meaningless where `begin == end`.
    pub row: u32,
    pub begin: u32,
    pub end: u32,
}

impl Slot {
    pub const EMPTY: Self = Self { key: NO_ROW, row: 0, begin: 0, end: 0 };
}

/// Rows that take more than a warp of segments: what `tiled_combine` sums.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LongRows {
    pub rows: Vec<u32>,
    /// Row i has the partial sums `ptr[i] .. ptr[i + 1]`.
    pub ptr: Vec<u32>,
}

/// One slot per row, in the order given, as (row, entries).
pub fn whole(rows: impl Iterator<Item = (u32, u32)>) -> Vec<Slot> {
    rows.map(|(row, end)| Slot { key: row, row, begin: 0, end }).collect()
}

/// Rows of more than `segment` entries cut into equal parts, padded to whole panels of `panel` slots. Segments of a row are
/// neighbours within a warp, which sums them without leaving registers; rows of more than a warp of segments start a warp
/// and leave one partial sum a warp.
pub fn cut(
    rows: impl Iterator<Item = (u32, u32)>,
    segment: u32,
    panel: usize,
) -> (Vec<Slot>, LongRows) {
    let (mut slots, mut long) = (Vec::new(), LongRows { rows: Vec::new(), ptr: vec![0] });
    let mut partials = 0u32;
    for (row, length) in rows {
        let parts = length.div_ceil(segment).max(1) as usize;
        if slots.len() % WARP + parts > WARP {
            slots.resize(slots.len().next_multiple_of(WARP), Slot::EMPTY);
        }
        let bound = |part: usize| (u64::from(length) * part as u64 / parts as u64) as u32;
        for part in 0..parts {
            let key = if parts > WARP { PARTIAL | (partials + (part / WARP) as u32) } else { row };
            slots.push(Slot { key, row, begin: bound(part), end: bound(part + 1) });
        }
        if parts > WARP {
            partials += parts.div_ceil(WARP) as u32;
            long.rows.push(row);
            long.ptr.push(partials);
        }
    }
    slots.resize(slots.len().next_multiple_of(panel), Slot::EMPTY);
    (slots, long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_decides_as_in_figure_6() {
        assert_eq!(utilization(66, 132), 0.5);
        assert_eq!(segment_length(0.5, 100.0, 0.0), Some(50));
        assert_eq!(segment_length(0.65, 100.0, 100.0), None);
        assert_eq!(segment_length(0.65, 100.0, 101.0), Some(100));
        assert_eq!(segment_length(9.0, 2.5, 10.0), Some(LEAST_SEGMENT));
        assert_eq!(segment_length(9.0, 0.0, 0.0), None);
    }

    #[test]
    fn rows_are_cut_into_equal_parts_that_share_a_warp() {
        let (slots, long) = cut([(0, 20), (1, 0), (2, 480), (3, 5)].into_iter(), 16, 64);
        assert_eq!(slots[0], Slot { key: 0, row: 0, begin: 0, end: 10 });
        assert_eq!(slots[1], Slot { key: 0, row: 0, begin: 10, end: 20 });
        assert_eq!(slots[2], Slot { key: 1, row: 1, begin: 0, end: 0 });
        // 30 parts would cross the warp's end: they start the next.
        assert_eq!((slots[3], slots[32].begin, slots[61].end), (Slot::EMPTY, 0, 480));
        assert_eq!((slots[62].row, slots[62].end, slots.len()), (3, 5, 64));
        assert!(long.rows.is_empty());
    }

    #[test]
    fn a_row_of_many_warps_leaves_a_partial_sum_a_warp() {
        let (slots, long) = cut([(0, 1), (7, 16 * 70), (8, 1)].into_iter(), 16, 128);
        assert_eq!((slots[32].key, slots[63].key), (PARTIAL, PARTIAL));
        assert_eq!((slots[64].key, slots[101].key), (PARTIAL | 1, PARTIAL | 2));
        assert_eq!((slots[102].key, slots.len()), (8, 128));
        assert_eq!((long.rows, long.ptr), (vec![7], vec![0, 3]));
    }
}
