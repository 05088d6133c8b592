//! Leave-groups-out evaluation: how well ways to choose do on patterns that their models have not seen.

use super::folds::{folds, split};
use super::mlp::Labels;
use super::{Dataset, Group, Model, ndcg};
use crate::domain::learned::{AtK, HeldOut, Learner, RankerScore};

/// Numbers of candidates that may be tried.
pub const KS: [u32; 7] = [1, 2, 4, 8, 10, 16, 32];

/// Within this share of the best, a choice is satisfactory.
const SATISFACTORY: f64 = 0.85;

/// A choice that failed or was given up counts as one that takes ten times the best, and so do those that take longer: how bad
/// the bad are is not known, and must not make the others look good.
const WORST_SHARE: f64 = 0.1;

/// Only groups with this many rows are judged by, where there are [`ENOUGH`] of them: the first ten of few rows tell nothing.
const TELLING: usize = 40;
const ENOUGH: usize = 10;

/// The part of the other patterns that a learner may stop by is 1 over this.
const STOP_BY: usize = 6;

/// Told the share that is done; `false` ends the work.
pub type Progress<'a> = &'a mut dyn FnMut(f64) -> bool;

/// Trains on some groups, and stops by others: (data, train, held out, progress).
pub type Train<'a> =
    Box<dyn Fn(&Dataset, &[usize], &[usize], Progress<'_>) -> Option<Model> + Sync + 'a>;

/// A learner with its parameters.
pub struct Trainer<'a> {
    pub learner: Learner,
    pub train: Train<'a>,
}

impl<'a> Trainer<'a> {
    /// The perceptron over these shared features, of the labels that the parameters say.
    pub fn mlp(inputs: &'a [u16], params: &'a super::mlp::Params) -> Self {
        let learner = match params.labels {
            Labels::Plain => Learner::Mlp,
            Labels::ByRegret => Learner::MlpRegret,
            Labels::Graded => Learner::MlpGraded,
        };
        let train: Train<'a> = Box::new(move |data, train, held_out, progress| {
            super::mlp::train(data, train, held_out, inputs, params, progress).map(Model::Mlp)
        });
        Self { learner, train }
    }
}

/// What a learner chose first for a group that its model had not seen.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupVerdict {
    pub learner: Learner,
    /// The group's place in the data.
    pub group: usize,
    pub pattern: String,
    pub first: String,
    /// Microseconds; infinite where the choice failed.
    pub first_us: f64,
    pub best: String,
    pub best_us: f64,
}

/// What came of a cross-validation.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The learners in their order, then `analytic`, then `random`.
    pub held_out: HeldOut,
    /// By learner, then by group.
    pub verdicts: Vec<GroupVerdict>,
    /// By learner: trees of the forests of each part; none of other models.
    pub trees: Vec<Vec<usize>>,
}

/// Why nothing was judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unjudged {
    #[error("it was ended")]
    Ended,
    #[error("there are measurements of {0} patterns; to judge on what was not seen takes two")]
    TooFew(usize),
}

impl Model {
    /// Rows of a group in the order in which to try them; the analytic prediction decides among equals.
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

/// Judges learners by `k` parts of the patterns, each by models trained on the others, beside the analytic model and chance.
/// A learner that finds nothing to learn in a part chooses as the analytic model does. Groups where nothing ran are left out.
pub fn cross_validate(
    data: &Dataset,
    trainers: &[Trainer<'_>],
    k: usize,
    seed: u64,
    progress: Progress<'_>,
) -> Result<Judgement, Unjudged> {
    let parts = folds(data, k.max(2), seed);
    if parts.len() < 2 {
        return Err(Unjudged::TooFew(usize::from(!data.groups.is_empty())));
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
                return Err(Unjudged::Ended);
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
    Ok(Judgement { trees, ..judgement(data, trainers, &orders, parts.len()) })
}

fn judgement(
    data: &Dataset,
    trainers: &[Trainer<'_>],
    orders: &[Vec<Vec<usize>>],
    folds: usize,
) -> Judgement {
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
    Judgement { held_out, verdicts, trees: Vec::new() }
}

/// Groups where anything ran, and enough to tell, with their places.
fn measured(data: &Dataset) -> impl Iterator<Item = (usize, &Group)> {
    let telling = data.groups.iter().filter(|group| group.rows.len() >= TELLING).count();
    let least = if telling >= ENOUGH { TELLING } else { 0 };
    data.groups.iter().enumerate().filter(move |(_, group)| {
        let best = group.best_us();
        best.is_finite() && best > 0.0 && group.rows.len() >= least
    })
}

/// Best time over each row's, at least [`WORST_SHARE`].
fn shares(group: &Group) -> Vec<f64> {
    let best = group.best_us();
    group.rows.iter().map(|row| (best / row.us).max(WORST_SHARE)).collect()
}

/// Judges one way to choose; `order` gives the rows of a group in the order in which to try them.
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

/// Chance, exactly: the expectation over all orders of a group's rows.
///
/// With the shares sorted, the best of `k` of `n` drawn without replacement is the i-th (from 0) with the probability
/// `C(n - 1 - i, k - 1) / C(n, k)`; the geometric mean takes the expectation of its logarithm. None of `m` satisfactory rows is
/// among them with the probability `C(n - m, k) / C(n, k)`. The first choice is each row with `1 / n`.
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

/// Normalised discounted cumulative gain of the first ten. A row's relevance is 5 times its share of the best, its gain
/// `2^relevance - 1`.
fn ndcg10(chosen: &[f64], all: &[f64]) -> f64 {
    let gains = |shares: &[f64]| -> Vec<f64> {
        shares.iter().map(|share| (5.0 * share).exp2() - 1.0).collect()
    };
    let placed = gains(chosen).into_iter().take(10).enumerate();
    let gained: f64 = placed.map(|(place, gain)| gain * ndcg::discount(place)).sum();
    gained / ndcg::ideal(&gains(all), 10)
}

/// Median, 90th percentile and largest of weighted values: the smallest value that so much of the weight does not exceed.
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
mod tests {
    use super::super::Row;
    use super::super::mlp;
    use super::*;

    /// Candidates `0`, `1`, ...; predictions rise with their place.
    fn group(pattern: &str, times: &[f64]) -> Group {
        let row = |(at, &us): (usize, &f64)| Row {
            candidate: at.to_string(),
            own: vec![at as f32],
            us,
            predicted_us: 1.0 + at as f64,
        };
        let rows = times.iter().enumerate().map(row).collect();
        Group { pattern: pattern.to_owned(), shared: vec![1.0], rows }
    }

    fn data(groups: Vec<Group>) -> Dataset {
        Dataset { shared: vec!["s".to_owned()], own: vec!["o".to_owned()], groups }
    }

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
    }

    #[test]
    fn shares_of_the_analytic_order_by_hand() {
        // Shares of the first: 1/2 and 1; of the best of two: 0.9 and 1. The third group never ran.
        let none = group("c", &[f64::INFINITY; 2]);
        let data = data(vec![group("a", &[18.0, 10.0, 9.0]), group("b", &[4.0, 8.0]), none]);
        let found = ranker("analytic", &data, |at| analytic(&data.groups[at]));
        near(found.at[0].share, 0.5f64.sqrt());
        near(found.at[0].within_85, 0.5);
        near(found.at[1].share, 0.9f64.sqrt());
        near(found.at[1].within_85, 1.0);
        near(found.at[2].share, 1.0);
        assert_eq!(found.at.iter().map(|at| at.k).collect::<Vec<_>>(), KS);
        assert_eq!(found.regret, [0.0, 1.0, 1.0]);
        let gain = |share: f64| (5.0 * share).exp2() - 1.0;
        let (second, third) = (1.0 / 3f64.log2(), 0.5);
        let chosen = gain(0.5) + gain(0.9) * second + gain(1.0) * third;
        let ideal = gain(1.0) + gain(0.9) * second + gain(0.5) * third;
        near(found.ndcg10.unwrap(), (chosen / ideal + 1.0) / 2.0);
    }

    #[test]
    fn a_choice_that_failed_counts_as_tenfold() {
        let data = data(vec![group("a", &[f64::INFINITY, 3.0]), group("b", &[1e9, 3.0])]);
        let found = ranker("analytic", &data, |at| analytic(&data.groups[at]));
        near(found.at[0].share, 0.1);
        near(found.at[1].share, 1.0);
        near(found.regret[2], 9.0);
    }

    /// Every subset of k rows, tried.
    fn by_enumeration(times: &[f64], k: usize) -> (f64, f64) {
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        let (mut sum, mut within, mut count) = (0.0, 0.0, 0.0);
        for set in 0u32..1 << times.len() {
            if set.count_ones() as usize != k.min(times.len()) {
                continue;
            }
            let chosen = (0..times.len()).filter(|at| set >> at & 1 == 1).map(|at| times[at]);
            let share = best / chosen.fold(f64::INFINITY, f64::min);
            sum += share.ln();
            within += f64::from(u8::from(share >= 0.85));
            count += 1.0;
        }
        (sum / count, within / count)
    }

    #[test]
    fn chance_is_the_mean_of_all_subsets() {
        let (one, two) = ([5.0, 3.0, 9.0, 3.2, 3.0, 29.0, 7.0, 3.6, 20.0], [2.0, 1.0, 6.0]);
        let data = data(vec![group("a", &one), group("b", &two)]);
        let found = chance(&data);
        for at in &found.at {
            let (a, b) = (by_enumeration(&one, at.k as usize), by_enumeration(&two, at.k as usize));
            near(at.share, ((a.0 + b.0) / 2.0).exp());
            near(at.within_85, (a.1 + b.1) / 2.0);
        }
        // Half of the weight lies at 1 or below: the three of the second group have 1/6 each, those of the first 1/18.
        near(found.regret[0], 1.0);
        near(found.regret[2], 29.0 / 3.0 - 1.0);
        assert_eq!(found.ndcg10, None);
    }

    /// The right order for those seen in training, the reverse for others: what was seen cannot leak.
    fn knowing<'a>(learner: Learner) -> Trainer<'a> {
        let train: Train<'a> = Box::new(|data, train, held_out, progress| {
            assert!(!train.is_empty() && !held_out.is_empty());
            let name = |at: &usize| data.groups[*at].pattern.as_str();
            assert!(train.iter().all(|at| held_out.iter().all(|other| name(at) != name(other))));
            progress(1.0).then_some(())?;
            let right = super::super::forest::Forest { scale: 1.0, ..Default::default() };
            Some(Model::Lambdamart(right))
        });
        Trainer { learner, train }
    }

    #[test]
    fn each_part_is_judged_by_models_of_the_others() {
        let groups = (0..12).map(|i| group(&format!("p{}", i % 6), &[2.0, 1.0])).collect();
        let data = data(groups);
        let mut shares = Vec::new();
        let trainers = [knowing(Learner::Lambdamart)];
        let found = cross_validate(&data, &trainers, 3, 1, &mut |share| {
            shares.push(share);
            true
        });
        let found = found.unwrap();
        assert_eq!((found.held_out.folds, found.held_out.groups), (3, 12));
        let names: Vec<&str> = found.held_out.rankers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["lambdamart", "analytic", "random"]);
        assert_eq!(shares, [1.0 / 3.0, 2.0 / 3.0, 1.0]);
        assert_eq!(found.verdicts.len(), 12);
        let verdict = &found.verdicts[7];
        assert_eq!((verdict.group, verdict.pattern.as_str()), (7, "p1"));
        assert_eq!((verdict.first.as_str(), verdict.first_us), ("0", 2.0));
        assert_eq!((verdict.best.as_str(), verdict.best_us), ("1", 1.0));
        let ended = cross_validate(&data, &trainers, 3, 1, &mut |_| false);
        assert_eq!(ended, Err(Unjudged::Ended));
    }

    #[test]
    fn one_pattern_cannot_be_judged() {
        let data = data(vec![group("a", &[1.0]), group("a", &[2.0])]);
        let found = cross_validate(&data, &[], 5, 1, &mut |_| true);
        assert_eq!(found, Err(Unjudged::TooFew(1)));
    }

    #[test]
    fn the_perceptron_finds_what_the_analytic_model_ranks_last() {
        let groups = (0..24).map(|i| group(&format!("p{i}"), &[30.0, 20.0, 10.0])).collect();
        let data = data(groups);
        let params = mlp::Params { epochs: 20, members: 1, min_groups: 4, ..Default::default() };
        let trainers = [Trainer::mlp(&[0], &params)];
        let found = cross_validate(&data, &trainers, 4, 1, &mut |_| true).unwrap();
        near(found.held_out.rankers[0].at[0].share, 1.0);
        near(found.held_out.rankers[1].at[0].share, 1.0 / 3.0);
    }
}
