//! Leave-groups-out evaluation: how well rankings choose on patterns that their models have not seen.

use super::folds::{folds, split};
use super::{Dataset, Group, Model, ndcg};
use crate::domain::learned::{AtK, HeldOut, Learner, RankerScore};

/// Numbers of tried candidates (K) that are evaluated.
pub const KS: [u32; 7] = [1, 2, 4, 8, 10, 16, 32];

/// A choice is satisfactory from this share of the best performance on.
const SATISFACTORY: f64 = 0.85;

/// Lower bound of a share. A choice that failed, was stopped or takes longer counts as taking ten times the best time,
/// because how bad such choices are is not known and must not make the others look good.
const WORST_SHARE: f64 = 0.1;

/// If there are [`ENOUGH`] groups with at least this many rows, only those are evaluated: with only a few rows, chosen
/// by a model, the first ten are not informative.
const TELLING: usize = 40;
const ENOUGH: usize = 10;

/// A learner holds out `1 / STOP_BY` of its training patterns for early stopping.
const STOP_BY: usize = 6;

/// Callback that receives the share of work done; returning `false` cancels.
pub type Progress<'a> = &'a mut dyn FnMut(f64) -> bool;

/// Trains on some groups, with early stopping on others: (data, train, held out, progress).
pub type Train<'a> =
    Box<dyn Fn(&Dataset, &[usize], &[usize], Progress<'_>) -> Option<Model> + Sync + 'a>;

/// A learner with its parameters.
pub struct Trainer<'a> {
    pub learner: Learner,
    pub train: Train<'a>,
}

impl<'a> Trainer<'a> {
    /// A perceptron on these shared features.
    pub fn mlp(learner: Learner, inputs: &'a [u16], params: &'a super::mlp::Params) -> Self {
        let train: Train<'a> = Box::new(move |data, train, held_out, progress| {
            super::mlp::train(data, train, held_out, inputs, params, progress).map(Model::Mlp)
        });
        Self { learner, train }
    }
}

/// A learner's first choice for a group that its model had not seen.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupVerdict {
    pub learner: Learner,
    /// The group's index in the data.
    pub group: usize,
    pub pattern: String,
    pub first: String,
    /// Microseconds; infinite if the choice failed.
    pub first_us: f64,
    pub best: String,
    pub best_us: f64,
}

/// Result of a cross-validation.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The learners in the given order, then `analytic`, then `random`.
    pub held_out: HeldOut,
    /// By learner, then by group.
    pub verdicts: Vec<GroupVerdict>,
    /// For each learner: numbers of trees of its forests, one per fold; empty for other models.
    pub trees: Vec<Vec<usize>>,
}

/// Why there is no evaluation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    #[error("the evaluation was cancelled")]
    Ended,
    #[error(
        "there are measurements of only {0} patterns; an evaluation on held-out patterns needs at least two"
    )]
    TooFew(usize),
}

impl Model {
    /// Rows of a group in the order in which to try them; ties are broken by the analytic prediction.
    pub fn rank(&self, group: &Group) -> Vec<usize> {
        match self {
            Self::Mlp(perceptron) => {
                let rows: Vec<(&str, f64)> = group
                    .rows
                    .iter()
                    .map(|row| (row.candidate.as_str(), row.predicted_us))
                    .collect();
                perceptron.order(&group.shared, &rows)
            }
            Self::Lambdamart(forest) => {
                let own: Vec<Vec<f32>> = group.rows.iter().map(|row| row.own.clone()).collect();
                let scores = forest.scores(&group.shared, &own);
                sorted(group, |at| -scores[at])
            }
        }
    }
}

/// Rows by the analytic model's prediction.
pub fn analytic(group: &Group) -> Vec<usize> {
    sorted(group, |_| 0.0)
}

fn sorted(group: &Group, key: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..group.rows.len()).collect();
    let predicted = |at: usize| group.rows[at].predicted_us;
    rows.sort_by(|&a, &b| {
        key(a).total_cmp(&key(b)).then(predicted(a).total_cmp(&predicted(b))).then(a.cmp(&b))
    });
    rows
}

/// Evaluates learners by cross-validation over `k` folds of the patterns, together with the analytic model and random
/// choice. A learner that cannot learn anything in a fold chooses like the analytic model. Groups without any
/// measurement are ignored.
pub fn cross_validate(
    data: &Dataset,
    trainers: &[Trainer<'_>],
    k: usize,
    seed: u64,
    progress: Progress<'_>,
) -> Result<Evaluation, EvaluationError> {
    let parts = folds(data, k.max(2), seed);
    if parts.len() < 2 {
        return Err(EvaluationError::TooFew(usize::from(!data.groups.is_empty())));
    }
    let steps = (parts.len() * trainers.len()).max(1) as f64;
    let mut orders = vec![vec![Vec::new(); data.groups.len()]; trainers.len()];
    let mut trees = vec![Vec::new(); trainers.len()];
    for (fold, part) in parts.iter().enumerate() {
        let others: Vec<usize> =
            (0..data.groups.len()).filter(|group| part.binary_search(group).is_err()).collect();
        let (train, stop_by) = split(data, &others, STOP_BY, seed.wrapping_add(fold as u64));
        for (which, trainer) in trainers.iter().enumerate() {
            let done = (fold * trainers.len() + which) as f64;
            let mut ended = false;
            let mut tell = |share: f64| {
                ended |= !progress((done + share.clamp(0.0, 1.0)) / steps);
                !ended
            };
            let model = (trainer.train)(data, &train, &stop_by, &mut tell);
            if ended {
                return Err(EvaluationError::Ended);
            }
            if let Some(Model::Lambdamart(forest)) = &model {
                trees[which].push(forest.trees.len());
            }
            for &at in part {
                let group = &data.groups[at];
                orders[which][at] =
                    model.as_ref().map_or_else(|| analytic(group), |model| model.rank(group));
            }
        }
    }
    Ok(Evaluation { trees, ..judgement(data, trainers, &orders, parts.len()) })
}

fn judgement(
    data: &Dataset,
    trainers: &[Trainer<'_>],
    orders: &[Vec<Vec<usize>>],
    folds: usize,
) -> Evaluation {
    let mut rankers = Vec::new();
    let mut verdicts = Vec::new();
    for (trainer, orders) in trainers.iter().zip(orders) {
        rankers.push(ranker(trainer.learner.name(), data, |at| orders[at].clone()));
        for (at, group) in measured(data) {
            let best = group.rows.iter().min_by(|a, b| a.us.total_cmp(&b.us));
            let first = orders[at].first().map(|&row| &group.rows[row]);
            if let (Some(first), Some(best)) = (first, best) {
                verdicts.push(GroupVerdict {
                    learner: trainer.learner,
                    group: at,
                    pattern: group.pattern.clone(),
                    first: first.candidate.clone(),
                    first_us: first.us,
                    best: best.candidate.clone(),
                    best_us: best.us,
                });
            }
        }
    }
    rankers.push(ranker("analytic", data, |at| analytic(&data.groups[at])));
    rankers.push(chance(data));
    let groups = measured(data).count() as u64;
    let held_out = HeldOut { folds: folds as u32, groups, rankers };
    Evaluation { held_out, verdicts, trees: Vec::new() }
}

/// The groups with measurements that are evaluated, with their indices.
fn measured(data: &Dataset) -> impl Iterator<Item = (usize, &Group)> {
    let telling = data.groups.iter().filter(|group| group.rows.len() >= TELLING).count();
    let least = if telling >= ENOUGH { TELLING } else { 0 };
    data.groups.iter().enumerate().filter(move |(_, group)| {
        let best = group.best_us();
        best.is_finite() && best > 0.0 && group.rows.len() >= least
    })
}

/// Best time divided by each row's time, at least [`WORST_SHARE`].
fn shares(group: &Group) -> Vec<f64> {
    let best = group.best_us();
    group.rows.iter().map(|row| (best / row.us).max(WORST_SHARE)).collect()
}

/// Evaluates one ranking; `order` returns the rows of a group in the order in which to try them.
pub fn ranker(name: &str, data: &Dataset, order: impl Fn(usize) -> Vec<usize>) -> RankerScore {
    let mut sums = [(0.0, 0.0); KS.len()];
    let (mut ndcg, mut regrets) = (0.0, Vec::new());
    for (at, group) in measured(data) {
        let shares = shares(group);
        let chosen: Vec<f64> = order(at).into_iter().map(|row| shares[row]).collect();
        for (sum, k) in sums.iter_mut().zip(KS) {
            let share = chosen.iter().take(k as usize).fold(WORST_SHARE, |a, b| a.max(*b));
            sum.0 += share.ln();
            sum.1 += f64::from(u8::from(share >= SATISFACTORY));
        }
        ndcg += ndcg10(&chosen, &shares);
        regrets.push((1.0 / chosen.first().map_or(WORST_SHARE, |share| *share) - 1.0, 1.0));
    }
    let groups = regrets.len();
    let ndcg10 = (groups > 0).then(|| ndcg / groups as f64);
    RankerScore {
        name: name.to_owned(),
        ndcg10,
        at: at_ks(sums, groups),
        regret: quantiles(regrets),
    }
}

/// The exact score of random choice: the expectation over all orders of a group's rows.
///
/// With the shares sorted, the best of `k` of `n` rows drawn without replacement is the i-th (from 0) with probability
/// `C(n - 1 - i, k - 1) / C(n, k)`; the geometric mean uses the expectation of its logarithm. None of `m` satisfactory
/// rows is drawn with probability `C(n - m, k) / C(n, k)`. The first choice is each row with probability `1 / n`.
pub fn chance(data: &Dataset) -> RankerScore {
    let mut sums = [(0.0, 0.0); KS.len()];
    let (mut groups, mut regrets) = (0, Vec::new());
    for (_, group) in measured(data) {
        let mut shares = shares(group);
        shares.sort_by(|a, b| b.total_cmp(a));
        let n = shares.len();
        let satisfactory = shares.iter().filter(|&&share| share >= SATISFACTORY).count();
        for (sum, k) in sums.iter_mut().zip(KS) {
            let k = (k as usize).min(n);
            let mut p = k as f64 / n as f64;
            for (at, share) in shares.iter().enumerate().take(n - k + 1) {
                sum.0 += p * share.ln();
                let left = n - 1 - at;
                p *= (left + 1 - k) as f64 / left.max(1) as f64;
            }
            let missed =
                |drawn: usize| n.saturating_sub(satisfactory + drawn) as f64 / (n - drawn) as f64;
            sum.1 += 1.0 - (0..k).map(missed).product::<f64>();
        }
        regrets.extend(shares.iter().map(|share| (1.0 / share - 1.0, 1.0 / n as f64)));
        groups += 1;
    }
    let at = at_ks(sums, groups);
    RankerScore { name: "random".to_owned(), ndcg10: None, at, regret: quantiles(regrets) }
}

fn at_ks(sums: [(f64, f64); KS.len()], groups: usize) -> Vec<AtK> {
    let count = groups.max(1) as f64;
    let at = |((logarithm, within), k): ((f64, f64), u32)| AtK {
        k,
        share: if groups == 0 { 0.0 } else { (logarithm / count).exp() },
        within_85: within / count,
    };
    sums.into_iter().zip(KS).map(at).collect()
}

/// Normalised discounted cumulative gain of the first ten. A row's relevance is 5 times its share of the best, and its
/// gain is `2^relevance - 1`.
fn ndcg10(chosen: &[f64], all: &[f64]) -> f64 {
    let gains = |shares: &[f64]| -> Vec<f64> {
        shares.iter().map(|share| (5.0 * share).exp2() - 1.0).collect()
    };
    let placed = gains(chosen).into_iter().take(10).enumerate();
    let gained: f64 = placed.map(|(place, gain)| gain * ndcg::discount(place)).sum();
    gained / ndcg::ideal(&gains(all), 10)
}

/// Median, 90th percentile and maximum of weighted values: the smallest value at which the cumulative weight reaches
/// that share.
fn quantiles(mut values: Vec<(f64, f64)>) -> [f64; 3] {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = values.iter().map(|(_, weight)| weight).sum();
    let at = |share: f64| {
        let mut passed = 0.0;
        let reached = values.iter().find(|(_, weight)| {
            passed += weight;
            passed >= share * total * (1.0 - 1e-12)
        });
        reached.or(values.last()).map_or(0.0, |(value, _)| *value)
    };
    [at(0.5), at(0.9), values.last().map_or(0.0, |(value, _)| *value)]
}

#[cfg(test)]
mod tests;
