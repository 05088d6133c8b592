//! Model selection: each learner is cross-validated on held-out patterns, and the best is trained on all data.

use super::handle::TrainingHandle;
use super::{Halt, replay, verdict};
use crate::domain::learned::{HeldOut, Importance, Learner, RankerScore, Scope};
use crate::domain::training::TrainingStage;
use crate::domain::{ModelId, Op};
use crate::learn::folds::split;
use crate::learn::judge::{self, Evaluation, Train, cross_validate};
use crate::learn::mlp::Labels;
use crate::learn::{
    Dataset, EvaluationError, Forest, Model, ModelFile, Trainer, file, lambdamart, mlp,
};
use crate::ops::features;
use crate::ops::sptrsv::features::TEN;
use crate::service::ActiveModel;

/// Number of folds.
const FOLDS: usize = 5;

/// The final training of a perceptron holds out `1 / HELD_OUT` of the data for early stopping.
const HELD_OUT: usize = 10;

/// With fewer trials than this, a forest is retrained with the early-stopping groups included, because they are a
/// considerable part of the data. With more trials they are not, and training takes long.
const REGROWN_BELOW: usize = 50_000;

/// The selected and trained model.
pub(super) struct Lesson {
    pub learner: Learner,
    /// The lender whose trees it continues.
    pub started_from: Option<ModelId>,
    pub quality: HeldOut,
    pub importance: Vec<Importance>,
    pub file: Vec<u8>,
}

/// The learners for an operation: LO-SpMM's for SpMM; for SpTRSV AG-SpTRSV's in three variants, LO-SpMM's, and AG-SpTRSV's
/// as the paper has it, for comparison.
const fn learners(op: Op) -> &'static [Learner] {
    match op {
        Op::Spmm => &[Learner::Lambdamart],
        Op::Sptrsv => &[
            Learner::Mlp,
            Learner::MlpRegret,
            Learner::MlpGraded,
            Learner::Lambdamart,
            Learner::MlpTen,
        ],
    }
}

/// Input features of a perceptron: all shared features except those of the device, which are constant within a scope.
fn inputs(shared: &[String]) -> Vec<u16> {
    let reads = |(i, name): (usize, &String)| {
        (!name.starts_with("device_")).then(|| u16::try_from(i).ok()).flatten()
    };
    shared.iter().enumerate().filter_map(reads).collect()
}

/// AG-SpTRSV's ten features among the shared ones, and those of them that are stored as logarithms.
fn ten(shared: &[String]) -> (Vec<u16>, Vec<u16>) {
    let at = |of: &str| shared.iter().position(|name| name == of);
    let found =
        TEN.into_iter().filter_map(|(name, log)| Some((u16::try_from(at(name)?).ok()?, log)));
    let (logs, plain): (Vec<_>, Vec<_>) = found.partition(|(_, log)| *log);
    let [sizes, rest] =
        [logs, plain].map(|of| of.into_iter().map(|(at, _)| at).collect::<Vec<_>>());
    let mut all = [sizes.clone(), rest].concat();
    all.sort_unstable();
    (all, sizes)
}

/// Cross-validates the operation's learners, then trains the best. `corrected` are the rows of each group that a search
/// without a learned model would try; `lender` is a model that saw none of the data: the class's own of elsewhere, or the nearest class's. Deterministic for given data and seed.
pub(super) fn train_best(
    data: &Dataset,
    corrected: &[Vec<usize>],
    scope: &Scope,
    seed: u64,
    lender: Option<&ActiveModel>,
    handle: &TrainingHandle,
) -> Result<Lesson, Halt> {
    let inputs = inputs(&data.shared);
    let alike = mlp::Params { seed, ..mlp::Params::default() };
    let by_regret = mlp::Params { labels: Labels::ByRegret, ..alike.clone() };
    let graded = mlp::Params { labels: Labels::Graded, ..alike.clone() };
    let (ten, sizes) = ten(&data.shared);
    let papers = mlp::Params::of_the_paper(sizes, seed);
    let rows = data.groups.iter().map(|group| group.rows.len()).sum();
    let forest = lambdamart::Params { seed, ..lambdamart::Params::of_rows(rows) };
    let base = lender.and_then(|lender| match &lender.file.model {
        Model::Lambdamart(base) => Some(base),
        Model::Mlp(_) => None,
    });
    let mut learners = learners(scope.op).to_vec();
    learners.extend(base.map(|_| Learner::LambdamartContinued));
    let trainers: Vec<Trainer<'_>> = learners
        .iter()
        .map(|learner| match learner {
            Learner::Mlp => Trainer::mlp(*learner, &inputs, &alike),
            Learner::MlpRegret => Trainer::mlp(*learner, &inputs, &by_regret),
            Learner::MlpGraded => Trainer::mlp(*learner, &inputs, &graded),
            Learner::MlpTen => Trainer::mlp(*learner, &ten, &papers),
            Learner::Lambdamart => boosted(&forest, None),
            Learner::LambdamartContinued => boosted(&forest, base),
        })
        .collect();
    let mut progress = |share: f64| handle.progress(share);
    let judged = cross_validate(data, &trainers, FOLDS, seed, &mut progress);
    let Evaluation { held_out: mut quality, trees, .. } = match judged {
        Ok(judgement) => judgement,
        Err(EvaluationError::Ended) => return Err(Halt::Stopped),
        Err(why @ EvaluationError::TooFew(_)) => return Err(Halt::Failed(why.to_string())),
    };
    quality.rankers.push(unlearned(data, corrected));
    quality.rankers.extend(lender.map(|lender| lent(data, lender)));
    let learner = verdict::best(&quality, &learners)
        .ok_or_else(|| Halt::Failed("no learner could be evaluated".to_owned()))?;
    handle.stage(
        TrainingStage::Training,
        format!("training {}, the best in cross-validation", learner.name()),
    );
    let all: Vec<usize> = (0..data.groups.len()).collect();
    let base = base.filter(|_| learner == Learner::LambdamartContinued);
    let chosen = trainers.iter().position(|trainer| trainer.learner == learner);
    let model = chosen.and_then(|chosen| match median(&trees[chosen]) {
        Some(trees) => {
            // The number of trees is known from the folds, so no data needs to be held out.
            let params = lambdamart::Params { trees: grown(trees, base), ..forest.clone() };
            (boosted(&params, base).train)(data, &all, &[], &mut progress)
        }
        None => {
            let (train, held_out) = split(data, &all, HELD_OUT, seed);
            (trainers[chosen].train)(data, &train, &held_out, &mut progress)
        }
    });
    let Some(model) = model else {
        return Err(match handle.signals.stop.is_cancelled() {
            true => Halt::Stopped,
            false => {
                Halt::Failed(format!("{} could not learn anything from the data", learner.name()))
            }
        });
    };
    let importance = match &model {
        Model::Lambdamart(forest) => {
            let names: Vec<String> = data.shared.iter().chain(&data.own).cloned().collect();
            lambdamart::importance(forest, &names)
        }
        Model::Mlp(_) => Vec::new(),
    };
    let file = ModelFile {
        version: file::VERSION,
        scope: scope.clone(),
        features_version: features::version(scope.op),
        shared: data.shared.clone(),
        own: data.own.clone(),
        largest: largest(data),
        model,
    };
    let file = file.to_bytes().map_err(|error| Halt::Failed(error.to_string()))?;
    let started_from = base.and(lender).map(|lender| lender.card.id.clone());
    Ok(Lesson { learner, started_from, quality, importance, file })
}

/// The largest size among the groups.
fn largest(data: &Dataset) -> Option<f32> {
    let at = data.shared.iter().position(|name| name == file::SIZE)?;
    data.groups.iter().filter_map(|group| group.shared.get(at).copied()).max_by(f32::total_cmp)
}

/// The median; the upper of the two middle values.
fn median(counts: &[usize]) -> Option<usize> {
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied()
}

/// The score of the search without a learned model, as far as its trials reach.
fn unlearned(data: &Dataset, corrected: &[Vec<usize>]) -> RankerScore {
    let tried = |group: usize| corrected.get(group).cloned().unwrap_or_default();
    let mut ranker = judge::ranker(replay::CORRECTED, data, tried);
    ranker.at.retain(|at| at.k as usize <= replay::TRIES);
    ranker
}

/// The score of another class's model, which saw none of the measurements.
fn lent(data: &Dataset, lender: &ActiveModel) -> RankerScore {
    judge::ranker(verdict::BORROWED, data, |at| lender.file.model.rank(&data.groups[at]))
}

/// How many trees of a forest were grown here, after those of the base; at least one without a base, since an empty forest
/// does not rank.
fn grown(trees: usize, base: Option<&Forest>) -> usize {
    base.map_or(trees.max(1), |base| trees.saturating_sub(base.trees.len()))
}

/// Determines the number of trees on held-out groups; if there are few trials, that many trees are then grown on all
/// groups. With a base they continue its trees.
fn boosted<'a>(params: &'a lambdamart::Params, base: Option<&'a Forest>) -> Trainer<'a> {
    let train: Train<'a> = Box::new(move |data, train, held_out, progress| {
        let again = !held_out.is_empty()
            && data.groups.iter().map(|group| group.rows.len()).sum::<usize>() < REGROWN_BELOW;
        let (first, second) = if again { (0.5, 0.5) } else { (1.0, 0.0) };
        let mut grow = |train: &[usize], held_out: &[usize], params, from: f64, part: f64| {
            let mut tell = |share: f64| progress(from + part * share);
            // An empty forest does not rank.
            let forest = match base {
                Some(base) => {
                    lambdamart::continue_from(base, data, train, held_out, params, &mut tell)
                }
                None => lambdamart::train(data, train, held_out, params, &mut tell),
            };
            forest.filter(|forest| forest.prior.is_some() || !forest.trees.is_empty())
        };
        let forest = grow(train, held_out, params, 0.0, first)?;
        if !again {
            return Some(Model::Lambdamart(forest));
        }
        let mut all: Vec<usize> = train.iter().chain(held_out).copied().collect();
        all.sort_unstable();
        let trees = grown(forest.trees.len(), base);
        let params = lambdamart::Params { trees, ..params.clone() };
        grow(&all, &[], &params, first, second).map(Model::Lambdamart)
    });
    let learner = match base {
        Some(_) => Learner::LambdamartContinued,
        None => Learner::Lambdamart,
    };
    Trainer { learner, train }
}

#[cfg(test)]
mod tests {
    use super::{boosted, median, ten};
    use crate::domain::Op;
    use crate::learn::{Dataset, Group, Model, Row, lambdamart};
    use crate::ops::features;

    #[test]
    fn the_median_count_is_used() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7]), Some(7));
        assert_eq!(median(&[6, 300, 120, 90, 200]), Some(120));
        assert_eq!(median(&[1, 2, 3, 4]), Some(3));
    }

    #[test]
    fn the_papers_chooser_reads_its_ten_features() {
        let (all, sizes) = ten(&features::names(Op::Sptrsv).0);
        assert_eq!(all, (0..10).collect::<Vec<u16>>());
        assert_eq!(sizes, [0, 1, 2, 3, 5, 6, 8]);
    }

    /// In every pair of rows the first is faster, as indicated by its feature.
    fn data(groups: usize, alike: bool) -> Dataset {
        let row = |at: usize| {
            let slow = at % 2;
            let us = if alike { 5.0 } else { 10.0 + 10.0 * slow as f64 };
            Row { candidate: at.to_string(), own: vec![slow as f32], us, predicted_us: 1.0 }
        };
        let group = |at: usize| Group {
            pattern: at.to_string(),
            shared: vec![at as f32],
            rows: (0..40).map(row).collect(),
        };
        let (shared, own) = (vec!["s".to_owned()], vec!["slow".to_owned()]);
        Dataset { shared, own, groups: (0..groups).map(group).collect() }
    }

    #[test]
    fn with_few_trials_the_forest_is_retrained_with_held_out_groups() {
        let params = lambdamart::Params { trees: 30, ..lambdamart::Params::default() };
        let (data, train, held_out) = (data(12, false), [0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11]);
        let mut reports = Vec::new();
        let model = (boosted(&params, None).train)(&data, &train, &held_out, &mut |share| {
            reports.push(share);
            true
        });
        let Some(Model::Lambdamart(forest)) = model else { panic!("it learned nothing") };
        assert!(reports.is_sorted() && reports.last() == Some(&1.0), "{reports:?}");
        // Equal to a forest with that many trees on all groups.
        let all: Vec<usize> = (0..12).collect();
        let trees = lambdamart::Params { trees: forest.trees.len(), ..params.clone() };
        let again = lambdamart::train(&data, &all, &[], &trees, &mut |_| true);
        assert_eq!(Some(forest), again);
    }

    #[test]
    fn uninformative_data_yields_no_model() {
        let params = lambdamart::Params::default();
        let model =
            (boosted(&params, None).train)(&data(6, true), &[0, 1, 2, 3], &[4, 5], &mut |_| true);
        assert_eq!(model, None);
    }
}
