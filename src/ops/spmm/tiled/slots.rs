//! Rows to threads: the decision chart of Tiled SpMM (section 4.1, Fig. 6, Eq. 5) and the segments it cuts long rows into.

/// Multiprocessors that must have a block each for the device to count as used (section 5.2, Fig. 9).
const LEAST_UTILIZATION: f64 = 0.65;
/// Variation of row lengths (sigma over mean) above which long rows are cut (Fig. 6).
const MOST_VARIATION: f64 = 1.0;
/// Shortest segment at the chart's own length; half of it and twice of it where half and twice that length are taken. The paper
/// cuts at the mean, however small; a segment of very few entries costs its block about as much in the map, the tables and the
/// sum as it saves.
const LEAST_SEGMENT: f64 = 8.0;
const WARP: usize = 32;

/// Key of a slot that has no row.
pub const NO_ROW: u32 = u32::MAX;
/// Bit of a key that names a partial sum; rows are fewer than 2^31.
pub const PARTIAL: u32 = 1 << 31;

/// Eq. 5: scheduled blocks over multiprocessors.
pub fn utilization(blocks: u64, multiprocessors: u32) -> f64 {
    blocks as f64 / f64::from(multiprocessors.max(1))
}

/// The decision chart (Fig. 6): the length at which rows are cut, `None` if no row needs cutting. `mean` and `sigma` are of
/// the row lengths.
pub fn chart(utilization: f64, mean: f64, sigma: f64) -> Option<f64> {
    if utilization < LEAST_UTILIZATION {
        Some(utilization * mean)
    } else if mean > 0.0 && sigma / mean > MOST_VARIATION {
        Some(mean)
    } else {
        None
    }
}

/// Entries after which a row is cut, at `factor` times the chart's length. Factors of 2 and more apart never give the same.
pub fn segment_length(length: f64, factor: f64) -> u32 {
    (factor * length).ceil().max(factor * LEAST_SEGMENT) as u32
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

/// The parts of a row of `length` entries that none of them exceeds `segment`: as equal as they can be, one for an empty row.
pub fn parts(row: u32, length: u32, segment: u32) -> impl ExactSizeIterator<Item = Slot> {
    let parts = length.div_ceil(segment).max(1);
    let bound = move |part: u32| (u64::from(length) * u64::from(part) / u64::from(parts)) as u32;
    (0..parts).map(move |part| Slot { key: row, row, begin: bound(part), end: bound(part + 1) })
}

/// Rows of more than `segment` entries cut into parts that stay together, in the order given. Segments of a row are
/// neighbours within a warp, which sums them without leaving registers; rows of more than a warp of segments start a warp
/// and leave one partial sum a warp.
pub fn cut(rows: impl Iterator<Item = (u32, u32)>, segment: u32) -> (Vec<Slot>, LongRows) {
    let (mut slots, mut long) = (Vec::new(), LongRows { rows: Vec::new(), ptr: vec![0] });
    let mut partials = 0u32;
    for (row, length) in rows {
        let of_row = parts(row, length, segment);
        let parts = of_row.len();
        if slots.len() % WARP + parts > WARP {
            slots.resize(slots.len().next_multiple_of(WARP), Slot::EMPTY);
        }
        for (part, slot) in of_row.enumerate() {
            let key = if parts > WARP { PARTIAL | (partials + (part / WARP) as u32) } else { row };
            slots.push(Slot { key, ..slot });
        }
        if parts > WARP {
            partials += parts.div_ceil(WARP) as u32;
            long.rows.push(row);
            long.ptr.push(partials);
        }
    }
    (slots, long)
}

/// Keys for segments that stand in any order (section 5.3: segments are ordered, not rows). Those of a row that are neighbours
/// within a warp are summed there; a row whose segments do not all stand together leaves a partial sum where each group of
/// them stands.
pub fn scattered(mut slots: Vec<Slot>) -> (Vec<Slot>, LongRows) {
    let rows = slots.iter().map(|slot| slot.row as usize + 1).max().unwrap_or(0);
    let starts =
        |slots: &[Slot], at: usize| at.is_multiple_of(WARP) || slots[at - 1].row != slots[at].row;
    let mut groups = vec![0u32; rows];
    for at in 0..slots.len() {
        groups[slots[at].row as usize] += u32::from(starts(&slots, at));
    }
    let mut long = LongRows { rows: Vec::new(), ptr: vec![0] };
    // From now on, of rows with several groups, where the next one's sum goes.
    let mut partials = 0;
    for (row, groups) in groups.iter_mut().enumerate() {
        if *groups > 1 {
            long.rows.push(row as u32);
            partials += std::mem::replace(groups, PARTIAL | partials);
            long.ptr.push(partials);
        }
    }
    for at in 0..slots.len() {
        let row = slots[at].row;
        let next = &mut groups[row as usize];
        if *next & PARTIAL != 0 {
            let begins = starts(&slots, at);
            slots[at].key = if begins { *next } else { slots[at - 1].key };
            *next += u32::from(begins);
        }
    }
    (slots, long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_decides_as_in_figure_6() {
        assert_eq!(utilization(66, 132), 0.5);
        assert_eq!(chart(0.5, 100.0, 0.0), Some(50.0));
        assert_eq!(chart(0.65, 100.0, 100.0), None);
        assert_eq!(chart(0.65, 100.0, 101.0), Some(100.0));
        assert_eq!(chart(9.0, 0.0, 0.0), None);
    }

    #[test]
    fn lengths_stay_apart_however_short_the_rows() {
        let lengths = |length| [0.5, 1.0, 2.0].map(|factor| segment_length(length, factor));
        assert_eq!(lengths(100.3), [51, 101, 201]);
        assert_eq!(lengths(2.5), [4, 8, 16]);
        assert_eq!(lengths(7.9), [4, 8, 16]);
    }

    #[test]
    fn segments_in_any_order_leave_partial_sums_where_they_part() {
        let slot = |row, part: u32| Slot { key: row, row, begin: part, end: part + 1 };
        // Row 2 stands together, row 5 in two places, row 0 in one.
        let order = [slot(5, 1), slot(2, 0), slot(2, 1), slot(5, 0), slot(5, 2), slot(0, 0)];
        let (slots, long) = scattered(order.to_vec());
        let keys: Vec<u32> = slots.iter().map(|slot| slot.key).collect();
        assert_eq!(keys, [PARTIAL, 2, 2, PARTIAL | 1, PARTIAL | 1, 0]);
        assert_eq!((long.rows, long.ptr), (vec![5], vec![0, 2]));
        // A warp's end parts what stands together.
        let (slots, long) = scattered((0..33).map(|part| slot(1, part)).collect());
        assert_eq!((slots[31].key, slots[32].key), (PARTIAL, PARTIAL | 1));
        assert_eq!((long.rows, long.ptr), (vec![1], vec![0, 2]));
    }

    #[test]
    fn rows_are_cut_into_equal_parts_that_share_a_warp() {
        let (slots, long) = cut([(0, 20), (1, 0), (2, 480), (3, 5)].into_iter(), 16);
        assert_eq!(slots[0], Slot { key: 0, row: 0, begin: 0, end: 10 });
        assert_eq!(slots[1], Slot { key: 0, row: 0, begin: 10, end: 20 });
        assert_eq!(slots[2], Slot { key: 1, row: 1, begin: 0, end: 0 });
        // 30 parts would cross the warp's end: they start the next.
        assert_eq!((slots[3], slots[32].begin, slots[61].end), (Slot::EMPTY, 0, 480));
        assert_eq!((slots[62].row, slots[62].end, slots.len()), (3, 5, 63));
        assert!(long.rows.is_empty());
    }

    #[test]
    fn a_row_of_many_warps_leaves_a_partial_sum_a_warp() {
        let (slots, long) = cut([(0, 1), (7, 16 * 70), (8, 1)].into_iter(), 16);
        assert_eq!((slots[32].key, slots[63].key), (PARTIAL, PARTIAL));
        assert_eq!((slots[64].key, slots[101].key), (PARTIAL | 1, PARTIAL | 2));
        assert_eq!((slots[102].key, slots.len()), (8, 103));
        assert_eq!((long.rows, long.ptr), (vec![7], vec![0, 3]));
    }
}
