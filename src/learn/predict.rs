//! Scores of a whole space at once. What is the same for all its candidates is decided once for each tree, and what is left of
//! the tree is asked of blocks of rows without a branch, as in QuickScorer (Lucchese et al., SIGIR 2015): a row carries a bit for
//! each leaf, a split that sends it right clears the leaves on its left, and the lowest bit that is left is the row's leaf.

use super::forest::{Child, Forest, Tree, read};

/// Rows that are walked side by side; their bits stay in registers.
const BLOCK: usize = 32;
/// Leaves that a row has bits for. Trees that keep more are walked one row at a time.
const LEAVES: usize = 32;

impl Forest {
    /// Scores of candidates that have `shared` in common; `own` holds one slice of features a candidate.
    pub fn scores(&self, shared: &[f32], own: &[Vec<f32>]) -> Vec<f64> {
        let space = Space::of(self, shared, own);
        let trees: Vec<Rest<'_>> = self.trees.iter().map(|tree| space.rest(tree)).collect();
        let mut scores: Vec<f64> =
            own.iter().map(|own| self.start(|feature| read(shared, own, feature))).collect();
        for (at, block) in scores.chunks_mut(BLOCK).enumerate() {
            let columns = space.block(at);
            for tree in &trees {
                match tree {
                    Rest::Same(value) => block.iter_mut().for_each(|score| *score += value),
                    Rest::Bits(bits) => bits.add(columns, block),
                    Rest::Whole(tree) => {
                        for (score, own) in block.iter_mut().zip(&own[at * BLOCK..]) {
                            *score += f64::from(tree.value(|feature| read(shared, own, feature)));
                        }
                    }
                }
            }
        }
        scores
    }
}

/// What the features are over all candidates of a query.
struct Space {
    shared: usize,
    /// Lowest and highest of each feature that the forest reads; no numbers where a row has none.
    ranges: Vec<(f32, f32)>,
    /// Where a feature that varies stands in a block.
    places: Vec<usize>,
    /// Features that vary, block by block, `BLOCK` rows of one feature side by side.
    columns: Vec<[f32; BLOCK]>,
    /// Features of a block.
    width: usize,
}

impl Space {
    fn of(forest: &Forest, shared: &[f32], own: &[Vec<f32>]) -> Self {
        let features = forest.trees.iter().flat_map(|tree| &tree.feature);
        let features = features.max().map_or(0, |&last| usize::from(last) + 1);
        let mut ranges = vec![(f32::INFINITY, f32::NEG_INFINITY); features];
        for (feature, range) in ranges.iter_mut().enumerate().take(shared.len()) {
            *range = (shared[feature], shared[feature]);
        }
        let own_ranges = ranges.get_mut(shared.len()..).unwrap_or_default();
        for row in own {
            for (feature, range) in own_ranges.iter_mut().enumerate() {
                let value = row.get(feature).copied().unwrap_or(f32::NAN);
                // Nothing is below or above NaN: it stays, and decides nothing.
                range.0 = if value < range.0 || value.is_nan() { value } else { range.0 };
                range.1 = if value > range.1 || value.is_nan() { value } else { range.1 };
            }
        }
        let mut used = vec![false; features];
        for tree in &forest.trees {
            tree.feature.iter().for_each(|&feature| used[usize::from(feature)] = true);
        }
        let varies = |&feature: &usize| {
            used[feature] && feature >= shared.len() && ranges[feature].0 != ranges[feature].1
        };
        let varying: Vec<usize> = (0..features).filter(varies).collect();
        let mut places = vec![0; features];
        varying.iter().enumerate().for_each(|(place, &feature)| places[feature] = place);
        let width = varying.len();
        let mut columns = vec![[0.0; BLOCK]; own.len().div_ceil(BLOCK) * width];
        for (row, own) in own.iter().enumerate() {
            let block = &mut columns[row / BLOCK * width..][..width];
            for (column, feature) in block.iter_mut().zip(&varying) {
                column[row % BLOCK] = own.get(feature - shared.len()).copied().unwrap_or(f32::NAN);
            }
        }
        Self { shared: shared.len(), ranges, places, columns, width }
    }

    fn block(&self, at: usize) -> &[[f32; BLOCK]] {
        &self.columns[at * self.width..][..self.width]
    }

    /// The child that all rows go to, where all go to the same.
    fn decided(&self, tree: &Tree, node: usize) -> Option<i16> {
        let (low, high) = self.ranges[usize::from(tree.feature[node])];
        let threshold = tree.threshold[node];
        if high <= threshold {
            Some(tree.left[node])
        } else if low > threshold || usize::from(tree.feature[node]) < self.shared {
            Some(tree.right[node])
        } else {
            None
        }
    }

    /// The node or leaf that all rows get to from a child, passing what is decided.
    fn reached(&self, tree: &Tree, mut child: Child) -> Child {
        while let Child::Inner(node) = child
            && let Some(next) = self.decided(tree, node)
        {
            child = Child::of(next);
        }
        child
    }

    fn rest<'a>(&self, tree: &'a Tree) -> Rest<'a> {
        match self.reached(tree, tree.top()) {
            Child::Leaf(leaf) => Rest::Same(f64::from(tree.value[leaf])),
            Child::Inner(top) => {
                let mut bits = Bits { splits: Vec::new(), values: [0.0; LEAVES], leaves: 0 };
                self.collect(tree, Child::Inner(top), &mut bits);
                if bits.leaves <= LEAVES { Rest::Bits(bits) } else { Rest::Whole(tree) }
            }
        }
    }

    /// Numbers the leaves below a child from left to right, and lists the splits.
    fn collect(&self, tree: &Tree, child: Child, bits: &mut Bits) {
        // More leaves than bits: whatever else would be listed is not asked.
        if bits.leaves > LEAVES {
            return;
        }
        match child {
            Child::Leaf(leaf) => {
                if let Some(value) = bits.values.get_mut(bits.leaves) {
                    *value = tree.value[leaf];
                }
                bits.leaves += 1;
            }
            Child::Inner(node) => {
                let first = bits.leaves;
                self.collect(tree, self.reached(tree, Child::of(tree.left[node])), bits);
                let left = below(bits.leaves) & !below(first);
                let place = self.places[usize::from(tree.feature[node])];
                bits.splits.push(Split { threshold: tree.threshold[node], place, right: !left });
                self.collect(tree, self.reached(tree, Child::of(tree.right[node])), bits);
            }
        }
    }
}

/// The bits of so many first leaves.
fn below(leaves: usize) -> u32 {
    1u32.checked_shl(leaves as u32).map_or(u32::MAX, |bit| bit - 1)
}

/// What is left of a tree.
enum Rest<'a> {
    /// One leaf.
    Same(f64),
    Bits(Bits),
    Whole(&'a Tree),
}

struct Bits {
    splits: Vec<Split>,
    values: [f32; LEAVES],
    leaves: usize,
}

struct Split {
    threshold: f32,
    place: usize,
    /// All leaves but those on the left.
    right: u32,
}

impl Bits {
    fn add(&self, columns: &[[f32; BLOCK]], scores: &mut [f64]) {
        let mut open = [u32::MAX; BLOCK];
        for split in &self.splits {
            let column = &columns[split.place];
            for (open, &value) in open.iter_mut().zip(column) {
                *open &= if value <= split.threshold { u32::MAX } else { split.right };
            }
        }
        for (score, open) in scores.iter_mut().zip(open) {
            *score += f64::from(self.values[open.trailing_zeros() as usize % LEAVES]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::learn::forest::{Forest, Prior, Tree, read};
    use crate::sparse::random::Stream;

    /// One row and one tree at a time.
    fn walked(forest: &Forest, shared: &[f32], own: &[Vec<f32>]) -> Vec<f64> {
        let score = |own: &Vec<f32>| {
            let at = |feature: usize| read(shared, own, feature);
            let start = forest.start(at);
            forest.trees.iter().fold(start, |sum, tree| sum + f64::from(tree.value(at)))
        };
        own.iter().map(score).collect()
    }

    /// A tree that splits a leaf drawn by chance, again and again.
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

    /// Few levels, so that values meet thresholds, and now and then what is hard to compare.
    fn level(random: &mut Stream) -> f32 {
        const HARD: [f32; 4] = [0.0, -0.0, f32::MAX, f32::MIN];
        match random.below(24) as usize {
            hard if hard < HARD.len() => HARD[hard],
            level => level as f32 / 4.0 - 3.0,
        }
    }

    #[test]
    fn a_space_scores_as_its_rows_do_one_by_one() {
        for case in 0..60 {
            let random = &mut Stream::new(11, case);
            let (shared, own) = (random.below(6) as usize, 1 + random.below(6) as usize);
            let features = (shared + own) as u64;
            // Bits end at 32 leaves: below, at and above.
            let leaves = [1, 2, 5, 31, 32, 33, 90];
            let trees = (0..20)
                .map(|_| {
                    let leaves = leaves[random.below(7) as usize];
                    tree(random, leaves, features)
                })
                .collect();
            let prior = Prior { feature: random.below(features) as u16, weight: 0.7 };
            let prior = (case % 2 == 0).then_some(prior);
            let forest = Forest { prior, trees, scale: 1.0 };
            assert_eq!(forest.check(shared + own), Ok(()));
            let common: Vec<f32> = (0..shared).map(|_| level(random)).collect();
            let mut rows: Vec<Vec<f32>> =
                (0..random.below(150)).map(|_| (0..own).map(|_| level(random)).collect()).collect();
            if case % 5 == 0 && rows.len() > 2 {
                rows[0][own - 1] = f32::NAN;
                rows[1].clear();
                rows[2][0] = f32::INFINITY;
            }
            let (fast, slow) = (forest.scores(&common, &rows), walked(&forest, &common, &rows));
            let bits = |scores: &[f64]| scores.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&fast), bits(&slow), "case {case}");
        }
    }

    #[test]
    fn a_forest_of_nothing_scores_nothing() {
        let rows = vec![vec![1.0], vec![]];
        assert_eq!(Forest::default().scores(&[], &rows), [0.0, 0.0]);
        assert_eq!(Forest::default().scores(&[1.0], &[]), [0.0; 0]);
    }
}
