//! Evaluates the split conditions of a forest (feature <= threshold) for many rows, each distinct condition once, as one bit
//! per row.

use std::ops::Range;

/// Number of 64-row words processed together; they stay in registers.
const WORDS: usize = 4;
/// Rows per block of bits.
pub(super) const ROWS: usize = 64 * WORDS;

/// One bit per row for `ROWS` rows.
pub(super) type Bits = [u64; WORDS];

/// One column of bits for each distinct condition; splits share many of them.
pub(super) struct Answers {
    /// All columns of the first `ROWS` rows, then all columns of the next block, and so on.
    bits: Vec<Bits>,
    columns: usize,
}

impl Answers {
    /// Evaluates the conditions (feature, threshold) for all rows, and returns the column of each condition. `own` holds the
    /// features from index `shared` on; a condition on a missing feature is false.
    pub(super) fn of(shared: usize, own: &[Vec<f32>], asked: &[(u16, f32)]) -> (Self, Vec<u32>) {
        let (questions, thresholds, column_of) = Question::distinct(asked);
        let columns = thresholds.len();
        let mut bits = vec![[0; WORDS]; own.len().div_ceil(ROWS) * columns];
        if columns > 0 {
            for (block, rows) in bits.chunks_mut(columns).zip(own.chunks(ROWS)) {
                for question in &questions {
                    let columns = question.columns.clone();
                    question.answer(
                        shared,
                        rows,
                        &thresholds[columns.clone()],
                        &mut block[columns],
                    );
                }
            }
        }
        (Self { bits, columns }, column_of)
    }

    /// The columns of the block that begins at row `at * ROWS`.
    pub(super) fn of_block(&self, at: usize) -> &[Bits] {
        &self.bits[at * self.columns..][..self.columns]
    }
}

/// A feature with its columns, one per threshold in ascending order.
struct Question {
    feature: usize,
    columns: Range<usize>,
}

impl Question {
    /// The distinct conditions by feature, the threshold of each column, and the column of each given condition.
    fn distinct(asked: &[(u16, f32)]) -> (Vec<Self>, Vec<f32>, Vec<u32>) {
        let features = asked.iter().map(|(feature, _)| usize::from(*feature) + 1).max();
        let mut of_feature = vec![Vec::new(); features.unwrap_or(0)];
        for (at, (feature, threshold)) in asked.iter().enumerate() {
            of_feature[usize::from(*feature)].push((*threshold, at));
        }
        let (mut questions, mut thresholds, mut column_of) =
            (Vec::new(), Vec::new(), vec![0; asked.len()]);
        for (feature, mut asking) in of_feature.into_iter().enumerate() {
            asking.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            let first = thresholds.len();
            for (threshold, at) in asking {
                if thresholds.len() == first || thresholds.last() != Some(&threshold) {
                    thresholds.push(threshold);
                }
                column_of[at] = (thresholds.len() - 1) as u32;
            }
            if thresholds.len() > first {
                questions.push(Self { feature, columns: first..thresholds.len() });
            }
        }
        (questions, thresholds, column_of)
    }

    /// Fills the columns of this feature.
    fn answer(&self, shared: usize, rows: &[Vec<f32>], thresholds: &[f32], columns: &mut [Bits]) {
        let feature = self.feature.wrapping_sub(shared);
        for (row, own) in rows.iter().enumerate() {
            let value = own.get(feature).copied().unwrap_or(f32::NAN);
            let below = thresholds.partition_point(|&threshold| {
                // Not `value > threshold`: every comparison with NaN must be false.
                let at_most = value <= threshold;
                !at_most
            });
            if let Some(bits) = columns.get_mut(below) {
                bits[row / 64] |= 1 << (row % 64);
            }
        }
        // A value that is at most a threshold is also at most every higher one.
        let mut all = [0; WORDS];
        for bits in columns {
            for (all, bits) in all.iter_mut().zip(bits) {
                *all |= *bits;
                *bits = *all;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Answers, ROWS};

    #[test]
    fn each_condition_maps_to_the_column_with_its_results() {
        let hard = [0.0, -0.0, 1.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 2.0];
        for count in [1, 63, 65, ROWS, ROWS + 1] {
            let own: Vec<Vec<f32>> = (0..count)
                .map(|row| [row as f32, hard[row % 8]][..2 - row % 3 / 2].to_vec())
                .collect();
            let mut asked = Vec::new();
            for threshold in [1.5, 0.0, -3.0, f32::MAX, -0.0, 70.0, 1.5] {
                asked.extend([(4, threshold), (3, threshold)]);
            }
            let (answers, column_of) = Answers::of(3, &own, &asked);
            for (&(feature, threshold), column) in asked.iter().zip(column_of) {
                for (row, own) in own.iter().enumerate() {
                    let value = own.get(usize::from(feature) - 3).copied().unwrap_or(f32::NAN);
                    let bits = answers.of_block(row / ROWS)[column as usize];
                    let answer = (bits[row % ROWS / 64] >> (row % 64)) & 1 == 1;
                    assert_eq!(answer, value <= threshold, "{value} <= {threshold}");
                }
            }
        }
    }

    #[test]
    fn repeated_conditions_are_evaluated_once() {
        let asked = [(1, 2.0), (0, 2.0), (1, 1.0), (1, 2.0), (0, 0.0), (0, -0.0)];
        let (answers, column_of) = Answers::of(0, &[vec![0.0, 0.0]], &asked);
        assert_eq!(column_of, [3, 1, 2, 3, 0, 0]);
        assert_eq!(answers.of_block(0).len(), 4);
        assert!(Answers::of(0, &[], &asked).0.bits.is_empty());
        assert!(Answers::of(0, &[vec![]], &[]).0.of_block(0).is_empty());
    }
}
