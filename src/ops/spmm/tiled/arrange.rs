//! The order in which rows, or the segments that they are cut into, become slots (Tiled SpMM, sections 4.1, 4.2 and 5.3).

use super::super::family::RowOrder;
use super::super::{radix, similarity};
use super::slots::{self, LongRows, Slot};
use std::cmp::Reverse;

/// Whether segments of one row part under an order, so that they are summed by a second step.
pub fn scatters(order: RowOrder) -> bool {
    match order {
        RowOrder::Natural | RowOrder::Length | RowOrder::Locality => false,
        RowOrder::Similarity | RowOrder::Radix => true,
    }
}

/// Slots of the `rows`, which stand in the order already, or of the segments of at most `segment` entries that they are cut
/// into, which are ordered after that. `cols` gives the columns of a row, rising.
pub fn arrange<'a>(
    mut rows: Vec<u32>,
    cols: &(impl Fn(u32) -> &'a [u32] + Sync),
    order: RowOrder,
    segment: Option<u32>,
) -> (Vec<Slot>, LongRows) {
    let length = |row: u32| cols(row).len() as u32;
    let Some(segment) = segment else {
        let whole = slots::whole(rows.into_iter().map(|row| (row, length(row))));
        return (whole, LongRows::default());
    };
    let sort = match order {
        // By locality rows are ordered whole: its groups are of rows.
        RowOrder::Natural | RowOrder::Locality => None,
        RowOrder::Length => {
            // The segments of a row are of one length, up to an entry: they stay together.
            let longest = |row: u32| length(row).div_ceil(length(row).div_ceil(segment).max(1));
            rows.sort_by_cached_key(|&row| Reverse(longest(row)));
            None
        }
        RowOrder::Similarity => Some(true),
        RowOrder::Radix => Some(false),
    };
    let Some(similar) = sort else {
        return slots::cut(rows.into_iter().map(|row| (row, length(row))), segment);
    };
    let segments: Vec<Slot> =
        rows.into_iter().flat_map(|row| slots::parts(row, length(row), segment)).collect();
    let of_segment = |at: u32| {
        let slot = &segments[at as usize];
        &cols(slot.row)[slot.begin as usize..slot.end as usize]
    };
    let all = (0..segments.len() as u32).collect();
    let sorted = match similar {
        true => similarity::order(&of_segment, all),
        false => radix::order(&of_segment, all),
    };
    slots::scattered(sorted.into_iter().map(|at| segments[at as usize]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_ordered_not_rows() {
        // Two long rows whose halves match crosswise: the halves meet, whatever rows they are of.
        let first: Vec<u32> = (0..8).chain(100..108).collect();
        let second: Vec<u32> = (0..8).chain(200..208).collect();
        let rows = [&first[..], &second[..], &[300]];
        let cols = |row: u32| rows[row as usize];
        let of = |order, segment| arrange(vec![0, 1, 2], &cols, order, segment).0;
        let begins = |slots: Vec<Slot>| -> Vec<(u32, u32)> {
            slots.iter().map(|slot| (slot.row, slot.begin)).collect()
        };
        let cut = begins(of(RowOrder::Radix, Some(8)));
        assert_eq!(cut, [(0, 0), (1, 0), (0, 8), (1, 8), (2, 0)]);
        let cut = begins(of(RowOrder::Similarity, Some(8)));
        let at = |segment| cut.iter().position(|it| *it == segment).unwrap();
        assert_eq!(at((0, 0)).abs_diff(at((1, 0))), 1);
        // By length they stay together, and are as long as their segments: of 9 entries 5, which are fewer than 7.
        let lengths = [vec![0; 9], vec![0; 7], vec![0; 16]];
        let cols = |row: u32| &lengths[row as usize][..];
        let by_length = arrange(vec![0, 1, 2], &cols, RowOrder::Length, Some(8)).0;
        assert_eq!(begins(by_length), [(2, 0), (2, 8), (1, 0), (0, 0), (0, 4)]);
        assert_eq!(begins(of(RowOrder::Radix, None)), [(0, 0), (1, 0), (2, 0)]);
    }
}
