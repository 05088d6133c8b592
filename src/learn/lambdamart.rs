//! LambdaMART: boosted regression trees on listwise gradients of NDCG (LO-SpMM, section 3.5; Burges, MSR-TR-2010-82).

use super::curve::Curve;
use super::data::{Dataset, Group};
use super::forest::{Forest, Prior, Tree, read};
use super::grow::{Limits, Slope, Table, grow};
use super::lambdas::Pull;
use super::ndcg::ndcg;
use crate::domain::learned::Importance;
use crate::sparse::random::Stream;
use rayon::prelude::*;

/// The feature that the prior reads.
pub const PRIOR_FEATURE: &str = "predicted_over_best";
/// Training stops when NDCG at this cutoff no longer improves on the held-out groups.
const JUDGED_AT: usize = 10;

/// Hyperparameters of a forest.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    pub trees: usize,
    pub leaves: usize,
    /// Shrinkage.
    pub rate: f64,
    /// Minimum number of rows per leaf, and minimum sum of second derivatives.
    pub min_rows: usize,
    pub min_hessian: f64,
    /// L2 regularisation of leaf values.
    pub l2: f64,
    /// Share of groups, and of features, that each tree is grown on.
    pub group_share: f64,
    pub feature_share: f64,
    /// Bins per feature, at most 255.
    pub bins: usize,
    /// Only pairs with at least one row ranked among the first `truncation` count.
    pub truncation: usize,
    /// Reduce gradients of pairs whose scores already differ much, and of lists with many pairs (LightGBM's `lambdarank_norm`).
    pub normalise: bool,
    pub gain: Gain,
    /// Weight of the analytic ranking in the initial scores (see [`Prior`]); with 0 there is no prior.
    pub prior: f64,
    /// Rounds without improvement on the held-out groups after which training stops.
    pub patience: usize,
    pub seed: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            trees: 300,
            leaves: 31,
            rate: 0.08,
            min_rows: 40,
            min_hessian: 1e-3,
            l2: 1.0,
            group_share: 0.8,
            feature_share: 0.8,
            bins: 255,
            truncation: 20,
            normalise: true,
            gain: Gain::Power(4.0),
            prior: 0.0,
            patience: 100,
            seed: 1,
        }
    }
}

/// Rows from which trees are larger.
const MANY_ROWS: usize = 20_000;

impl Params {
    /// Those for a number of rows. On 36,208 rows of 443 searches of solves, trees of 63 leaves, grown on pairs of twice as many ranks, choose
    /// within 85 % of the best at once on 86.2 % of the searches held out, trees of 31 on 84.7 %; on 8,042 rows of 181 searches of products,
    /// without a model to begin from, on 84.4 and 88.8 %.
    pub fn of_rows(rows: usize) -> Self {
        let usual = Self::default();
        if rows < MANY_ROWS {
            return usual;
        }
        Self { leaves: 63, truncation: 40, ..usual }
    }
}

/// Gain of a candidate by r, the best time divided by its own: 1 for the best, 0 for one without a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gain {
    /// r to a power: with 4, a candidate that takes twice the best time has a gain of 1/16.
    Power(f64),
    /// (2^(b r) - 1) / (2^b - 1), as if r were a relevance grade up to b; flatter for slow candidates.
    Grade(f64),
}

impl Gain {
    pub fn of(self, ratio: f64) -> f64 {
        let gain = match self {
            Self::Power(power) => ratio.powf(power),
            Self::Grade(grades) => ((grades * ratio).exp2() - 1.0) / (grades.exp2() - 1.0),
        };
        gain.clamp(0.0, 1.0)
    }

    fn of_data(self, data: &Dataset) -> Vec<Vec<f64>> {
        data.groups.iter().map(|group| self.of_group(group)).collect()
    }

    /// The gains of all rows of a group. A time that is not positive and finite counts as missing.
    pub fn of_group(self, group: &Group) -> Vec<f64> {
        let times = group.rows.iter().map(|row| row.us).filter(|us| is_time(*us));
        let best = times.fold(f64::INFINITY, f64::min);
        let gain = |us: f64| if is_time(us) { self.of(best / us) } else { 0.0 };
        group.rows.iter().map(|row| gain(row.us)).collect()
    }
}

fn is_time(us: f64) -> bool {
    us.is_finite() && us > 0.0
}

/// Trains on the groups `train`; those in `held_out` (indices into `data.groups`) are used for early stopping only, and
/// without any all trees are grown. `progress` receives the share done after each tree; if it returns `false` training is
/// cancelled and the result is `None`. The forest does not depend on the number of threads.
pub fn train(
    data: &Dataset,
    train: &[usize],
    held_out: &[usize],
    params: &Params,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Option<Forest> {
    train_on(data, &params.gain.of_data(data), train, held_out, params, progress)
}

/// The same, continued from a forest that reads the same features: training starts from its scores, and the result is its
/// trees with the new ones after them. The prior is the base's. With early stopping the result may be the base alone, with
/// its scale fitted to these groups.
pub fn continue_from(
    base: &Forest,
    data: &Dataset,
    train: &[usize],
    held_out: &[usize],
    params: &Params,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Option<Forest> {
    let gains = params.gain.of_data(data);
    extend(base.clone(), data, &gains, (train, held_out), params, progress)
}

/// The same with custom gains: one for each row of each group, none negative.
pub fn train_on(
    data: &Dataset,
    gains: &[Vec<f64>],
    train: &[usize],
    held_out: &[usize],
    params: &Params,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Option<Forest> {
    let start = Forest { prior: prior(data, params), ..Forest::default() };
    extend(start, data, gains, (train, held_out), params, progress)
}

/// Grows trees onto a forest, which may be empty.
fn extend(
    mut forest: Forest,
    data: &Dataset,
    gains: &[Vec<f64>],
    (train, held_out): (&[usize], &[usize]),
    params: &Params,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Option<Forest> {
    let start = forest.trees.len();
    let lists = |indices: &[usize]| -> Vec<List<'_>> {
        let known = indices.iter().filter_map(|&at| Some((data.groups.get(at)?, gains.get(at)?)));
        let known = known.filter(|(group, gains)| group.rows.len() == gains.len());
        known.map(|(group, gains)| List::of(group, gains, params, &forest)).collect()
    };
    let (mut seen, mut unseen) = (lists(train), lists(held_out));
    let groups: Vec<&Group> = seen.iter().map(|list| list.group).collect();
    let table = Table::of(&groups, (data.shared.len(), data.own.len()), params.bins);
    let mut curve = Curve::default();
    // A prior alone already ranks, and so do earlier trees; an empty forest does not.
    if forest.prior.is_some() || start > 0 {
        curve.push(0, quality(&unseen));
    }
    for round in 0..params.trees {
        if let Some(tree) = boost(&table, &seen, round, params) {
            [&mut seen, &mut unseen].into_iter().for_each(|lists| add(lists, &tree));
            forest.trees.push(tree);
        }
        if !unseen.is_empty() {
            curve.push(forest.trees.len() - start, quality(&unseen));
        }
        if !progress((round + 1) as f64 / params.trees as f64) {
            return None;
        }
        if !unseen.is_empty() && curve.since_top() >= params.patience {
            break;
        }
    }
    if !unseen.is_empty() {
        forest.trees.truncate(start + curve.top());
    }
    forest.scale = scale(&forest, &groups);
    Some(forest)
}

/// Features by their share of the total gain, largest first, without those that no tree reads.
pub fn importance(forest: &Forest, names: &[String]) -> Vec<Importance> {
    let mut gains = vec![0.0; names.len()];
    for tree in &forest.trees {
        for (&feature, &gain) in tree.feature.iter().zip(&tree.gain) {
            if let Some(sum) = gains.get_mut(usize::from(feature)) {
                *sum += f64::from(gain.max(0.0));
            }
        }
    }
    let total: f64 = gains.iter().sum();
    let share =
        |(name, gain): (&String, f64)| Importance { feature: name.clone(), share: gain / total };
    let used = names.iter().zip(gains).filter(|(_, gain)| *gain > 0.0);
    let mut shares: Vec<Importance> = used.map(share).collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

/// A group during training.
struct List<'a> {
    group: &'a Group,
    gains: &'a [f64],
    pull: Pull,
    scores: Vec<f64>,
}

impl<'a> List<'a> {
    fn of(group: &'a Group, gains: &'a [f64], params: &Params, start: &Forest) -> Self {
        let pull = Pull::of(gains, params.truncation, params.normalise);
        let own: Vec<Vec<f32>> = group.rows.iter().map(|row| row.own.clone()).collect();
        let scores = start.scores(&group.shared, &own);
        Self { group, gains, pull, scores }
    }
}

fn prior(data: &Dataset, params: &Params) -> Option<Prior> {
    let own = data.own.iter().position(|name| name == PRIOR_FEATURE)?;
    let feature = u16::try_from(data.shared.len() + own).ok()?;
    (params.prior != 0.0).then_some(Prior { feature, weight: params.prior })
}

/// Grows one more tree on a sample of groups and features; `None` if nothing can be split.
fn boost(table: &Table, lists: &[List<'_>], round: usize, params: &Params) -> Option<Tree> {
    let mut random = Stream::new(params.seed, round as u64);
    let chosen = sample(lists.len(), params.group_share, &mut random);
    let features = table.features();
    let of_features = sample(features.len(), params.feature_share, &mut random);
    let features: Vec<u16> = of_features.into_iter().map(|at| features[at]).collect();
    let parts: Vec<Vec<Slope>> = chosen
        .par_iter()
        .map(|&at| lists[at].pull.slopes(lists[at].gains, &lists[at].scores))
        .collect();
    let mut first = Vec::with_capacity(lists.len());
    let mut rows = 0;
    for list in lists {
        first.push(rows);
        rows += list.gains.len();
    }
    let mut slopes = vec![Slope::default(); rows];
    let mut sampled: Vec<u32> = Vec::with_capacity(rows);
    for (&at, part) in chosen.iter().zip(&parts) {
        slopes[first[at]..][..part.len()].copy_from_slice(part);
        sampled.extend((first[at]..first[at] + part.len()).map(|row| row as u32));
    }
    let limits = Limits {
        leaves: params.leaves,
        min_rows: params.min_rows,
        min_hessian: params.min_hessian,
        l2: params.l2,
        rate: params.rate,
    };
    let tree = grow(table, &slopes, sampled, &features, &limits);
    (!tree.feature.is_empty()).then_some(tree)
}

/// A random share of `0..count`, at least one element, in ascending order.
fn sample(count: usize, share: f64, random: &mut Stream) -> Vec<usize> {
    let wanted = ((count as f64 * share).ceil() as usize).clamp(1.min(count), count);
    let mut all: Vec<usize> = (0..count).collect();
    for at in 0..wanted {
        all.swap(at, at + random.below((count - at) as u64) as usize);
    }
    all.truncate(wanted);
    all.sort_unstable();
    all
}

fn add(lists: &mut [List<'_>], tree: &Tree) {
    lists.par_iter_mut().for_each(|list| {
        let shared = &list.group.shared;
        for (score, row) in list.scores.iter_mut().zip(&list.group.rows) {
            *score += f64::from(tree.value(|feature| read(shared, &row.own, feature)));
        }
    });
}

/// Mean NDCG over lists.
fn quality(lists: &[List<'_>]) -> f64 {
    let each: Vec<f64> =
        lists.par_iter().map(|list| ndcg(list.gains, &list.scores, JUDGED_AT)).collect();
    each.iter().sum::<f64>() / lists.len().max(1) as f64
}

/// Least-squares slope of ln(time) on scores within groups, each relative to its group's mean. 0 if the scores do not correlate
/// with times.
fn scale(forest: &Forest, groups: &[&Group]) -> f64 {
    let sums: Vec<(f64, f64)> = groups
        .par_iter()
        .map(|group| {
            let rows: Vec<_> = group.rows.iter().filter(|row| is_time(row.us)).collect();
            let own: Vec<Vec<f32>> = rows.iter().map(|row| row.own.clone()).collect();
            let scores = forest.scores(&group.shared, &own);
            let times: Vec<f64> = rows.iter().map(|row| row.us.ln()).collect();
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
            let (score, time) = (mean(&scores), mean(&times));
            scores.iter().zip(&times).fold((0.0, 0.0), |(cross, square), (s, t)| {
                (cross + (s - score) * (t - time), square + (s - score) * (s - score))
            })
        })
        .collect();
    let (cross, square) =
        sums.iter().fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
    if square > 0.0 { (-cross / square).max(0.0) } else { 0.0 }
}

#[cfg(test)]
mod tests;
