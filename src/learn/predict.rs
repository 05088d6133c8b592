//! Scores a whole search space at once. Splits on features that are the same for all candidates are resolved once per tree. The
//! remaining splits have few distinct conditions: each is evaluated once for all rows, one bit per row (`answers`), and a tree
//! then sends sets of rows down to its leaves. QuickScorer (Lucchese et al., SIGIR 2015) keeps a bit set of leaves per row; here
//! it is a bit set of rows per leaf, so no time is spent on a row before its leaf is known.

use super::answers::{Answers, Bits, ROWS};
use super::forest::{Child, Forest, Tree, read};
use std::ops::Range;

/// Bits of a leaf's index.
const PLANES: usize = 8;
/// Most leaves of a tree in this form. Larger trees are evaluated row by row.
const LEAVES: usize = 1 << PLANES;

impl Forest {
    /// Scores of candidates with the common features `shared`; `own` holds the features of each candidate.
    pub fn scores(&self, shared: &[f32], own: &[Vec<f32>]) -> Vec<f64> {
        let mut scores: Vec<f64> =
            own.iter().map(|own| self.start(|feature| read(shared, own, feature))).collect();
        let rests = Rests::of(self, shared, own);
        let (answers, column_of) = Answers::of(shared.len(), own, &rests.asked);
        let mut descent = Descent::new();
        for (tree, rest) in self.trees.iter().zip(&rests.trees) {
            match rest {
                Rest::Same(value) => scores.iter_mut().for_each(|score| *score += value),
                Rest::Asked { splits, leaves } => {
                    let (children, columns) =
                        (&rests.children[splits.clone()], &column_of[splits.clone()]);
                    let values = &rests.values[leaves.clone()];
                    descent.enter(values);
                    for (at, scores) in scores.chunks_mut(ROWS).enumerate() {
                        descent.send(children, columns, answers.of_block(at));
                        descent.add(values.len(), scores);
                    }
                }
                Rest::Whole => {
                    for (score, own) in scores.iter_mut().zip(own) {
                        *score += f64::from(tree.value(|feature| read(shared, own, feature)));
                    }
                }
            }
        }
        scores
    }
}

/// A reduced tree.
enum Rest {
    /// One leaf.
    Same(f64),
    /// The ranges of its splits and of its leaf values, which are one more.
    Asked {
        splits: Range<usize>,
        leaves: Range<usize>,
    },
    Whole,
}

/// All reduced trees. Splits of a tree come after their parents; leaves are ordered from left to right.
#[derive(Default)]
struct Rests {
    trees: Vec<Rest>,
    /// The feature and the threshold of each split.
    asked: Vec<(u16, f32)>,
    /// The left and right child of each split: the index of a split within its tree, or the number of splits plus the index of
    /// a leaf.
    children: Vec<[u16; 2]>,
    values: Vec<f32>,
}

impl Rests {
    fn of(forest: &Forest, shared: &[f32], own: &[Vec<f32>]) -> Self {
        let ranges = Ranges::of(forest, shared, own);
        let mut rests = Self::default();
        for tree in &forest.trees {
            let rest = rests.cut(tree, &ranges);
            rests.trees.push(rest);
        }
        rests
    }

    fn cut(&mut self, tree: &Tree, ranges: &Ranges) -> Rest {
        let top = match ranges.reached(tree, tree.top()) {
            Child::Leaf(leaf) => return Rest::Same(f64::from(tree.value[leaf])),
            Child::Inner(top) => top,
        };
        let (split, leaf) = (self.asked.len(), self.values.len());
        self.collect(tree, top, ranges, (split, leaf));
        let (splits, leaves) = (split..self.asked.len(), leaf..self.values.len());
        if leaves.len() > LEAVES {
            self.asked.truncate(split);
            self.children.truncate(split);
            self.values.truncate(leaf);
            return Rest::Whole;
        }
        for child in self.children[splits.clone()].iter_mut().flatten() {
            if let Some(leaf) = child.checked_sub(LEAF) {
                *child = leaf + splits.len() as u16;
            }
        }
        Rest::Asked { splits, leaves }
    }

    /// Collects a split and its subtree; `first` are the indices of the tree's first split and first leaf.
    fn collect(&mut self, tree: &Tree, node: usize, ranges: &Ranges, first: (usize, usize)) -> u16 {
        let at = self.asked.len();
        self.asked.push((tree.feature[node], tree.threshold[node]));
        self.children.push([0; 2]);
        for (side, child) in [tree.left[node], tree.right[node]].into_iter().enumerate() {
            self.children[at][side] = match ranges.reached(tree, Child::of(child)) {
                Child::Inner(node) => self.collect(tree, node, ranges, first),
                Child::Leaf(leaf) => {
                    self.values.push(tree.value[leaf]);
                    LEAF + (self.values.len() - 1 - first.1) as u16
                }
            };
        }
        (at - first.0) as u16
    }
}

/// Marks a leaf among children until the number of splits is known.
const LEAF: u16 = 1 << 15;

/// Minimum and maximum of each feature over all candidates; NaN if any row lacks it.
struct Ranges {
    lowest: Vec<f32>,
    highest: Vec<f32>,
    shared: usize,
}

impl Ranges {
    fn of(forest: &Forest, shared: &[f32], own: &[Vec<f32>]) -> Self {
        let features = forest.trees.iter().flat_map(|tree| &tree.feature);
        let features = features.max().map_or(0, |&last| usize::from(last) + 1);
        let mut lowest: Vec<f32> = shared.iter().copied().take(features).collect();
        let mut highest = lowest.clone();
        lowest.resize(features, f32::INFINITY);
        highest.resize(features, f32::NEG_INFINITY);
        let of_own = shared.len().min(features)..features;
        for row in own {
            let (lowest, highest) = (&mut lowest[of_own.clone()], &mut highest[of_own.clone()]);
            let there = row.len().min(lowest.len());
            for ((low, high), &value) in lowest.iter_mut().zip(highest.iter_mut()).zip(row) {
                // Comparisons with NaN are false, so NaN is kept and no split on this feature is resolved.
                *low = if (value < *low) | value.is_nan() { value } else { *low };
                *high = if (value > *high) | value.is_nan() { value } else { *high };
            }
            lowest[there..].fill(f32::NAN);
            highest[there..].fill(f32::NAN);
        }
        Self { lowest, highest, shared: shared.len() }
    }

    /// The child that all rows go to, if it is the same for all.
    fn decided(&self, tree: &Tree, node: usize) -> Option<i16> {
        let (feature, threshold) = (usize::from(tree.feature[node]), tree.threshold[node]);
        if self.highest[feature] <= threshold {
            Some(tree.left[node])
        } else if self.lowest[feature] > threshold || feature < self.shared {
            Some(tree.right[node])
        } else {
            None
        }
    }

    /// The node or leaf reached from a child after skipping resolved splits.
    fn reached(&self, tree: &Tree, mut child: Child) -> Child {
        while let Child::Inner(node) = child
            && let Some(next) = self.decided(tree, node)
        {
            child = Child::of(next);
        }
        child
    }
}

/// The descent of `ROWS` rows through a tree.
struct Descent {
    values: [f64; LEAVES],
    /// The rows that reach each split and, after the splits, each leaf.
    rows: Vec<Bits>,
}

impl Descent {
    fn new() -> Self {
        Self { values: [0.0; LEAVES], rows: vec![Bits::default(); 2 * LEAVES] }
    }

    /// Starts with another tree.
    fn enter(&mut self, values: &[f32]) {
        for (value, of) in self.values.iter_mut().zip(values) {
            *value = f64::from(*of);
        }
    }

    fn send(&mut self, children: &[[u16; 2]], columns: &[u32], answers: &[Bits]) {
        self.rows[0] = [u64::MAX; _];
        for (at, (&[left, right], &column)) in children.iter().zip(columns).enumerate() {
            let (rows, answer) = (self.rows[at], answers[column as usize]);
            let side =
                |of: fn(u64, u64) -> u64| std::array::from_fn(|word| of(rows[word], answer[word]));
            self.rows[usize::from(left)] = side(|rows, answer| rows & answer);
            self.rows[usize::from(right)] = side(|rows, answer| rows & !answer);
        }
    }

    /// Adds the value of the leaf that a row reached to its score.
    fn add(&mut self, leaves: usize, scores: &mut [f64]) {
        // Trees usually have no more than 31 leaves, whose indices need fewer bits.
        if leaves <= 32 {
            self.add_by::<5>(leaves, scores);
        } else {
            self.add_by::<PLANES>(leaves, scores);
        }
    }

    fn add_by<const USED: usize>(&mut self, leaves: usize, scores: &mut [f64]) {
        let planes: [Bits; USED] = self.planes(leaves);
        for (at, scores) in scores.chunks_mut(8).enumerate() {
            // The leaf indices of eight rows, one byte each.
            let mut numbers = 0;
            for (plane, bits) in planes.iter().enumerate() {
                numbers |= SPREAD[usize::from((bits[at / 8] >> (at % 8 * 8)) as u8)] << plane;
            }
            for (score, number) in scores.iter_mut().zip(numbers.to_le_bytes()) {
                *score += self.values[usize::from(number)];
            }
        }
    }

    /// Bit planes of each row's leaf index, from the lowest bit.
    fn planes<const USED: usize>(&mut self, leaves: usize) -> [Bits; USED] {
        let rows = &mut self.rows[leaves - 1..];
        let mut planes = [Bits::default(); USED];
        let mut left = leaves;
        for plane in &mut planes {
            if left < 2 {
                break;
            }
            rows[left] = Bits::default();
            for pair in 0..left.div_ceil(2) {
                let (even, odd) = (rows[2 * pair], rows[2 * pair + 1]);
                for word in 0..odd.len() {
                    plane[word] |= odd[word];
                    rows[pair][word] = even[word] | odd[word];
                }
            }
            left = left.div_ceil(2);
        }
        planes
    }
}

/// The bits of a byte, each spread to a byte of its own.
static SPREAD: [u64; 256] = {
    let mut spread = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut bit = 0;
        while bit < 8 {
            spread[byte] |= ((byte as u64 >> bit) & 1) << (8 * bit);
            bit += 1;
        }
        byte += 1;
    }
    spread
};

#[cfg(test)]
mod tests {
    use crate::learn::forest::{Forest, Prior, Tree, read};
    use crate::sparse::random::Stream;

    /// The reference: one row and one tree at a time.
    fn walked(forest: &Forest, shared: &[f32], own: &[Vec<f32>]) -> Vec<f64> {
        let score = |own: &Vec<f32>| {
            let at = |feature: usize| read(shared, own, feature);
            let start = forest.start(at);
            forest.trees.iter().fold(start, |sum, tree| sum + f64::from(tree.value(at)))
        };
        own.iter().map(score).collect()
    }

    /// A random tree: a randomly chosen leaf is split repeatedly.
    fn tree(random: &mut Stream, leaves: usize, features: u64) -> Tree {
        let mut tree = Tree::default();
        let mut parents: Vec<Option<(usize, bool)>> = vec![None];
        while parents.len() < leaves {
            let at = random.below(parents.len() as u64) as usize;
            let node = tree.feature.len();
            match parents[at] {
                Some((parent, true)) => tree.left[parent] = node as i16,
                Some((parent, false)) => tree.right[parent] = node as i16,
                None => {}
            }
            tree.feature.push(random.below(features) as u16);
            tree.threshold.push(level(random));
            tree.left.push(!(at as i16));
            tree.right.push(!(parents.len() as i16));
            parents[at] = Some((node, true));
            parents.push(Some((node, false)));
        }
        tree.value = (0..leaves).map(|_| random.normal() as f32).collect();
        tree
    }

    /// Few distinct values, so that values often equal thresholds, and sometimes special values.
    fn level(random: &mut Stream) -> f32 {
        const HARD: [f32; 4] = [0.0, -0.0, f32::MAX, f32::MIN];
        match random.below(24) as usize {
            hard if hard < HARD.len() => HARD[hard],
            level => level as f32 / 4.0 - 3.0,
        }
    }

    fn same(forest: &Forest, shared: &[f32], own: &[Vec<f32>]) -> bool {
        let bits = |scores: &[f64]| scores.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        bits(&forest.scores(shared, own)) == bits(&walked(forest, shared, own))
    }

    /// Some trees of each given number of leaves.
    fn forest(random: &mut Stream, leaves: &[usize], features: usize) -> Forest {
        let prior = Prior { feature: random.below(features as u64) as u16, weight: 0.7 };
        let prior = (random.below(2) == 0).then_some(prior);
        let leaves = leaves.iter().cycle().take(3 * leaves.len());
        let trees = leaves.map(|&leaves| tree(random, leaves, features as u64)).collect();
        let forest = Forest { prior, trees, scale: 1.0 };
        assert_eq!(forest.check(features), Ok(()));
        forest
    }

    fn rows(random: &mut Stream, rows: usize, features: usize) -> Vec<Vec<f32>> {
        (0..rows).map(|_| (0..features).map(|_| level(random)).collect()).collect()
    }

    #[test]
    fn scoring_a_space_equals_scoring_its_rows_one_by_one() {
        // The number of planes grows at 33 leaves, and indices end at 256.
        const LEAVES: [usize; 12] = [1, 2, 5, 31, 32, 33, 64, 65, 255, 256, 257, 400];
        // Bytes end at 8 rows, words at 64, blocks at 256.
        const ROWS: [usize; 15] = [0, 1, 7, 8, 31, 33, 63, 64, 65, 255, 256, 257, 511, 513, 1500];
        for (case, count) in ROWS.into_iter().enumerate() {
            for (shared, own) in [(3, 4), (0, 5), (5, 0), (1, 1)] {
                let random = &mut Stream::new(11, (10 * case + own) as u64);
                let forest = forest(random, &LEAVES, shared + own);
                let common: Vec<f32> = (0..shared).map(|_| level(random)).collect();
                let mut rows = rows(random, count, own);
                assert!(same(&forest, &common, &rows), "{count} rows, {shared} + {own}");
                if own > 0 && count > 2 {
                    rows[0][own - 1] = f32::NAN;
                    rows[1].clear();
                    rows[2][0] = f32::INFINITY;
                    rows[count - 1].truncate(own - 1);
                    assert!(same(&forest, &common, &rows), "{count} rows, {shared} + {own}, odd");
                    rows.iter_mut().for_each(|row| row[..].fill(f32::NAN));
                    assert!(same(&forest, &common, &rows), "{count} rows, {shared} + {own}, NaN");
                }
            }
        }
    }

    #[test]
    fn missing_features_are_read_as_nan() {
        let random = &mut Stream::new(12, 0);
        let forest = forest(random, &[2, 31, 90], 9);
        let rows = rows(random, 70, 3);
        let common = [1.0, f32::NAN, -0.0, 0.5, f32::NEG_INFINITY, 2.0, 0.0, 1.0, -1.0, 3.0];
        // More, fewer and exactly as many shared features as the forest reads.
        for shared in [0, 2, 6, 9, 10] {
            assert!(same(&forest, &common[..shared], &rows), "{shared} shared features");
        }
        let empty = vec![Vec::new(); 3];
        assert!(same(&forest, &[], &empty));
    }

    #[test]
    fn trees_are_added_in_order() {
        // Added in order these sum to 0, in another order to 1.
        let of = |value| Tree { value: vec![value], ..Tree::default() };
        let split = |low, high| Tree {
            feature: vec![0],
            threshold: vec![0.0],
            left: vec![!0],
            right: vec![!1],
            gain: vec![],
            value: vec![low, high],
        };
        let trees = vec![of(1.0), split(3e30, -3e30), split(-3e30, 3e30), split(0.0, 2.0)];
        let forest = Forest { trees, ..Forest::default() };
        assert_eq!(forest.scores(&[], &[vec![-1.0], vec![1.0]]), [0.0, 2.0]);
    }

    #[test]
    fn an_empty_forest_scores_zero() {
        let rows = vec![vec![1.0], vec![]];
        assert_eq!(Forest::default().scores(&[], &rows), [0.0, 0.0]);
        assert_eq!(Forest::default().scores(&[1.0], &[]), [0.0; 0]);
    }
}
