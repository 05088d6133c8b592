//! Grows one regression tree on histograms: best leaf first, the larger child's histogram by subtraction (Ke et al., LightGBM,
//! NIPS 2017). Sums run in row order and each feature is processed by one thread, so the tree does not depend on the number of
//! threads.

use super::bins::Cuts;
use super::data::Group;
use super::forest::Tree;
use rayon::prelude::*;
use std::ops::{AddAssign, Range, Sub};

/// First and second derivatives of the loss with respect to one row's score.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slope {
    pub gradient: f64,
    pub hessian: f64,
}

/// Limits of a tree; see `lambdamart::Params`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub leaves: usize,
    pub min_rows: usize,
    pub min_hessian: f64,
    pub l2: f64,
    pub rate: f64,
}

/// Training rows in binned form; rows of a group are contiguous.
pub struct Table {
    cuts: Vec<Cuts>,
    /// For each feature: one bin per group if the group shares the feature, else one per row; empty if there is no cut.
    columns: Vec<Vec<u8>>,
    shared: usize,
    group_of: Vec<u32>,
}

impl Table {
    /// The second argument is the numbers of shared and own features.
    pub fn of(groups: &[&Group], (shared, own): (usize, usize), bins: usize) -> Self {
        let mut group_of = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            group_of.extend(group.rows.iter().map(|_| at as u32));
        }
        let column = |feature: usize| {
            let missing = f32::NAN;
            let values: Vec<f32> = match feature.checked_sub(shared) {
                None => {
                    let of = |group: &&Group| group.shared.get(feature).copied();
                    groups.iter().map(|group| of(group).unwrap_or(missing)).collect()
                }
                Some(own) => {
                    let rows = groups.iter().flat_map(|group| &group.rows);
                    rows.map(|row| row.own.get(own).copied().unwrap_or(missing)).collect()
                }
            };
            let cuts = Cuts::of(values.iter().copied(), bins);
            let constant = cuts.0.is_empty();
            let column =
                if constant { Vec::new() } else { values.iter().map(|&x| cuts.bin(x)).collect() };
            (cuts, column)
        };
        let features = (shared + own).min(usize::from(u16::MAX));
        let (cuts, columns) = (0..features).into_par_iter().map(column).unzip();
        Self { cuts, columns, shared, group_of }
    }

    /// The features that are not constant.
    pub fn features(&self) -> Vec<u16> {
        let vary = |feature: &usize| !self.columns[*feature].is_empty();
        (0..self.columns.len()).filter(vary).map(|feature| feature as u16).collect()
    }

    fn bin(&self, feature: u16, row: u32) -> u8 {
        let (feature, row) = (usize::from(feature), row as usize);
        let at = if feature < self.shared { self.group_of[row] as usize } else { row };
        self.columns[feature][at]
    }
}

/// Sums over some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    gradient: f64,
    hessian: f64,
    rows: u32,
}

impl Sum {
    /// Twice the reduction of the loss by the optimal value for these rows.
    fn score(self, l2: f64) -> f64 {
        let curvature = self.hessian + l2;
        if curvature > 0.0 { self.gradient * self.gradient / curvature } else { 0.0 }
    }

    fn value(self, limits: &Limits) -> f32 {
        let curvature = self.hessian + limits.l2;
        let value = -limits.rate * self.gradient / curvature;
        if curvature > 0.0 && value.is_finite() { value as f32 } else { 0.0 }
    }

    fn suffices(self, limits: &Limits) -> bool {
        self.rows as usize >= limits.min_rows.max(1) && self.hessian >= limits.min_hessian
    }
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.gradient += other.gradient;
        self.hessian += other.hessian;
        self.rows += other.rows;
    }
}

impl Sub for Sum {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let rows = self.rows - other.rows;
        // Without rows only rounding errors would remain.
        if rows == 0 {
            return Self::default();
        }
        let hessian = (self.hessian - other.hessian).max(0.0);
        Self { gradient: self.gradient - other.gradient, hessian, rows }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Split {
    gain: f64,
    feature: u16,
    bin: u8,
}

/// A leaf that may still be split, with a histogram of each sampled feature.
struct Leaf {
    rows: Range<usize>,
    sum: Sum,
    histograms: Vec<Vec<Sum>>,
    split: Option<Split>,
    /// The parent node, and whether this is its left child.
    parent: Option<(usize, bool)>,
}

/// The rows of one leaf, gathered for histograms: slopes in contiguous order, and their sums for each group.
struct Gathered<'a> {
    table: &'a Table,
    rows: &'a [u32],
    slopes: Vec<Sum>,
    groups: Vec<(u32, Sum)>,
    sum: Sum,
}

impl<'a> Gathered<'a> {
    fn of(table: &'a Table, rows: &'a [u32], slopes: &[Slope]) -> Self {
        let one = |&row: &u32| {
            let Slope { gradient, hessian } = slopes[row as usize];
            Sum { gradient, hessian, rows: 1 }
        };
        let slopes: Vec<Sum> = rows.iter().map(one).collect();
        let mut groups: Vec<(u32, Sum)> = Vec::new();
        for (&row, &slope) in rows.iter().zip(&slopes) {
            let group = table.group_of[row as usize];
            match groups.last_mut() {
                Some((last, sum)) if *last == group => *sum += slope,
                _ => groups.push((group, slope)),
            }
        }
        let mut sum = Sum::default();
        groups.iter().for_each(|(_, of_group)| sum += *of_group);
        Self { table, rows, slopes, groups, sum }
    }

    fn histogram(&self, feature: u16) -> Vec<Sum> {
        let at = usize::from(feature);
        let column = &self.table.columns[at];
        let mut bins = vec![Sum::default(); self.table.cuts[at].bins()];
        if at < self.table.shared {
            for &(group, sum) in &self.groups {
                bins[usize::from(column[group as usize])] += sum;
            }
        } else {
            for (&row, &slope) in self.rows.iter().zip(&self.slopes) {
                bins[usize::from(column[row as usize])] += slope;
            }
        }
        bins
    }
}

/// The best cut of one feature; the lowest among equals.
fn best_cut(feature: u16, bins: &[Sum], all: Sum, limits: &Limits) -> Option<Split> {
    let whole = all.score(limits.l2);
    let mut left = Sum::default();
    let mut best: Option<Split> = None;
    for (bin, sum) in bins.iter().enumerate().take(bins.len().saturating_sub(1)) {
        if sum.rows == 0 {
            continue;
        }
        left += *sum;
        if left.rows as usize + limits.min_rows.max(1) > all.rows as usize {
            break;
        }
        let right = all - left;
        if !left.suffices(limits) || !right.suffices(limits) {
            continue;
        }
        let gain = left.score(limits.l2) + right.score(limits.l2) - whole;
        if gain > best.map_or(0.0, |best| best.gain) {
            best = Some(Split { gain, feature, bin: bin as u8 });
        }
    }
    best
}

/// The better one; the earlier among equals.
fn better(best: Option<Split>, next: Option<Split>) -> Option<Split> {
    match (best, next) {
        (Some(best), Some(next)) if next.gain > best.gain => Some(next),
        (None, next) => next,
        (best, _) => best,
    }
}

/// Grows a tree on `rows` (of the table, in ascending order) and some of the non-constant features. It has one leaf if no
/// split reduces the loss.
pub fn grow(
    table: &Table,
    slopes: &[Slope],
    mut rows: Vec<u32>,
    features: &[u16],
    limits: &Limits,
) -> Tree {
    let mut tree = Tree::default();
    let mut leaves = vec![root(table, slopes, &rows, features, limits)];
    while leaves.len() < limits.leaves.min(i16::MAX as usize) {
        let Some((at, split)) = next(&leaves) else { break };
        let node = tree.feature.len();
        tree.feature.push(split.feature);
        tree.threshold.push(table.cuts[usize::from(split.feature)].0[usize::from(split.bin)]);
        tree.gain.push(split.gain as f32);
        tree.left.push(!(at as i16));
        tree.right.push(!(leaves.len() as i16));
        let leaf = &mut leaves[at];
        match leaf.parent {
            Some((parent, true)) => tree.left[parent] = node as i16,
            Some((parent, false)) => tree.right[parent] = node as i16,
            None => {}
        }
        let range = leaf.rows.clone();
        let (left, right): (Vec<u32>, Vec<u32>) = rows[range.clone()]
            .iter()
            .partition(|&&row| table.bin(split.feature, row) <= split.bin);
        let middle = range.start + left.len();
        rows[range.start..middle].copy_from_slice(&left);
        rows[middle..range.end].copy_from_slice(&right);
        let parent = std::mem::take(&mut leaf.histograms);
        let whole = leaf.sum;
        let small = if left.len() <= right.len() { &left } else { &right };
        let gathered = Gathered::of(table, small, slopes);
        let (few, many) = (gathered.sum, whole - gathered.sum);
        let (few_found, many_found) = halves(&gathered, features, parent, many, limits);
        let child = |found: Found, sum, rows, is_left| Leaf {
            rows,
            sum,
            histograms: found.histograms,
            split: found.split,
            parent: Some((node, is_left)),
        };
        let few_left = left.len() <= right.len();
        let ((left, left_sum), (right, right_sum)) = if few_left {
            ((few_found, few), (many_found, many))
        } else {
            ((many_found, many), (few_found, few))
        };
        leaves[at] = child(left, left_sum, range.start..middle, true);
        leaves.push(child(right, right_sum, middle..range.end, false));
    }
    tree.value = leaves.iter().map(|leaf| leaf.sum.value(limits)).collect();
    tree
}

/// The leaf with the largest gain; the earlier among equals.
fn next(leaves: &[Leaf]) -> Option<(usize, Split)> {
    let mut best: Option<(usize, Split)> = None;
    for (at, leaf) in leaves.iter().enumerate() {
        if let Some(split) = leaf.split
            && best.is_none_or(|(_, best)| split.gain > best.gain)
        {
            best = Some((at, split));
        }
    }
    best
}

struct Found {
    histograms: Vec<Vec<Sum>>,
    split: Option<Split>,
}

fn root(table: &Table, slopes: &[Slope], rows: &[u32], features: &[u16], limits: &Limits) -> Leaf {
    let gathered = Gathered::of(table, rows, slopes);
    let of = |&feature: &u16| {
        let bins = gathered.histogram(feature);
        let split = best_cut(feature, &bins, gathered.sum, limits);
        (bins, split)
    };
    let (histograms, splits): (Vec<_>, Vec<_>) = features.par_iter().map(of).unzip();
    let split = splits.into_iter().fold(None, better);
    Leaf { rows: 0..rows.len(), sum: gathered.sum, histograms, split, parent: None }
}

/// Histograms and best splits of both children: the histograms of the smaller child are computed, those of the larger are
/// obtained by subtraction from the parent's.
fn halves(
    few: &Gathered<'_>,
    features: &[u16],
    parent: Vec<Vec<Sum>>,
    many: Sum,
    limits: &Limits,
) -> (Found, Found) {
    let of = |(&feature, mut whole): (&u16, Vec<Sum>)| {
        let bins = few.histogram(feature);
        whole.iter_mut().zip(&bins).for_each(|(whole, &part)| *whole = *whole - part);
        let splits =
            (best_cut(feature, &bins, few.sum, limits), best_cut(feature, &whole, many, limits));
        ((bins, whole), splits)
    };
    let (histograms, splits): (Vec<_>, Vec<_>) =
        features.par_iter().zip(parent).with_min_len(8).map(of).unzip();
    let (few_bins, many_bins) = histograms.into_iter().unzip();
    let (few_split, many_split) = splits
        .into_iter()
        .fold((None, None), |best, next| (better(best.0, next.0), better(best.1, next.1)));
    (
        Found { histograms: few_bins, split: few_split },
        Found { histograms: many_bins, split: many_split },
    )
}
