//! The learning itself: each learner is judged on patterns that it has not seen, and the best is trained on everything.

use super::handle::TrainingHandle;
use super::{Halt, replay, verdict};
use crate::domain::learned::{HeldOut, Importance, Learner, Op, RankerScore, Scope};
use crate::domain::training::TrainingStage;
use crate::learn::folds::split;
use crate::learn::judge::{self, Judgement, Train, cross_validate};
use crate::learn::mlp::Labels;
use crate::learn::{Dataset, Model, ModelFile, Trainer, Unjudged, file, lambdamart, mlp};
use crate::ops::features;

/// Parts that the patterns are dealt into to judge.
const FOLDS: usize = 5;

/// The last training of a perceptron leaves one part of so many out, to know when to stop.
const HELD_OUT: usize = 10;

/// With fewer trials a forest that held-out groups have told how far to grow is grown again with them: they are a good part of what
/// is known. With more they are not, and growing takes its time.
const REGROWN_BELOW: usize = 50_000;

/// What comes of the learning.
pub(super) struct Lesson {
    pub learner: Learner,
    pub quality: HeldOut,
    pub importance: Vec<Importance>,
    pub file: Vec<u8>,
}

/// The learners tried for an operation: LO-SpMM's for tiles; for schemes AG-SpTRSV's in three variants, and LO-SpMM's too.
const fn learners(op: Op) -> &'static [Learner] {
    match op {
        Op::Spmm => &[Learner::Lambdamart],
        Op::Sptrsv => &[Learner::Mlp, Learner::MlpRegret, Learner::MlpGraded, Learner::Lambdamart],
    }
}

/// What a perceptron reads: all that is shared but the device's facts, which a scope's groups have in common.
fn inputs(shared: &[String]) -> Vec<u16> {
    let reads = |(i, name): (usize, &String)| {
        (!name.starts_with("device_")).then(|| u16::try_from(i).ok()).flatten()
    };
    shared.iter().enumerate().filter_map(reads).collect()
}

/// Judges the operation's learners, then trains the best. `corrected` are the rows of each group that the search without a
/// learned model tries. Always the same for the same data and seed.
pub(super) fn give(
    data: &Dataset,
    corrected: &[Vec<usize>],
    scope: &Scope,
    seed: u64,
    handle: &TrainingHandle,
) -> Result<Lesson, Halt> {
    let inputs = inputs(&data.shared);
    let alike = mlp::Params { seed, ..mlp::Params::default() };
    let by_regret = mlp::Params { labels: Labels::ByRegret, ..alike.clone() };
    let graded = mlp::Params { labels: Labels::Graded, ..alike.clone() };
    let forest = lambdamart::Params { seed, ..lambdamart::Params::default() };
    let trainers: Vec<Trainer<'_>> = learners(scope.op)
        .iter()
        .map(|learner| match learner {
            Learner::Mlp => Trainer::mlp(&inputs, &alike),
            Learner::MlpRegret => Trainer::mlp(&inputs, &by_regret),
            Learner::MlpGraded => Trainer::mlp(&inputs, &graded),
            Learner::Lambdamart => boosted(&forest),
        })
        .collect();
    let mut progress = |share: f64| handle.progress(share);
    let judged = cross_validate(data, &trainers, FOLDS, seed, &mut progress);
    let Judgement { held_out: mut quality, trees, .. } = match judged {
        Ok(judgement) => judgement,
        Err(Unjudged::Ended) => return Err(Halt::Stopped),
        Err(why @ Unjudged::TooFew(_)) => return Err(Halt::Failed(why.to_string())),
    };
    quality.rankers.push(unlearned(data, corrected));
    let learner = verdict::best(&quality, learners(scope.op))
        .ok_or_else(|| Halt::Failed("no learner could be judged".to_owned()))?;
    handle.stage(TrainingStage::Training, format!("{} judged best; training it", learner.name()));
    let all: Vec<usize> = (0..data.groups.len()).collect();
    let chosen = trainers.iter().position(|trainer| trainer.learner == learner);
    let model = chosen.and_then(|chosen| match median(&trees[chosen]) {
        Some(trees) => {
            // How far to grow is known from the parts: nothing need be left out to see that again.
            let params = lambdamart::Params { trees: trees.max(1), ..forest.clone() };
            (boosted(&params).train)(data, &all, &[], &mut progress)
        }
        None => {
            let (train, held_out) = split(data, &all, HELD_OUT, seed);
            (trainers[chosen].train)(data, &train, &held_out, &mut progress)
        }
    });
    let Some(model) = model else {
        return Err(match handle.stop.is_cancelled() {
            true => Halt::Stopped,
            false => Halt::Failed(format!("{} found nothing to learn", learner.name())),
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
        model,
    };
    let file = file.to_bytes().map_err(|error| Halt::Failed(error.to_string()))?;
    Ok(Lesson { learner, quality, importance, file })
}

/// The middle one, the upper of two.
fn median(counts: &[usize]) -> Option<usize> {
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied()
}

/// The search without a learned model, as far as it goes.
fn unlearned(data: &Dataset, corrected: &[Vec<usize>]) -> RankerScore {
    let tried = |group: usize| corrected.get(group).cloned().unwrap_or_default();
    let mut ranker = judge::ranker(replay::CORRECTED, data, tried);
    ranker.at.retain(|at| at.k as usize <= replay::TRIES);
    ranker
}

/// Held-out groups say how many trees to grow; where trials are few, so many are then grown on those groups, too.
fn boosted(params: &lambdamart::Params) -> Trainer<'_> {
    let train: Train<'_> = Box::new(move |data, train, held_out, progress| {
        let again = !held_out.is_empty()
            && data.groups.iter().map(|group| group.rows.len()).sum::<usize>() < REGROWN_BELOW;
        let (first, second) = if again { (0.5, 0.5) } else { (1.0, 0.0) };
        let mut grow = |train: &[usize], held_out: &[usize], params, from: f64, part: f64| {
            let mut tell = |share: f64| progress(from + part * share);
            // Without trees there is no order.
            lambdamart::train(data, train, held_out, params, &mut tell)
                .filter(|forest| forest.prior.is_some() || !forest.trees.is_empty())
        };
        let forest = grow(train, held_out, params, 0.0, first)?;
        if !again {
            return Some(Model::Lambdamart(forest));
        }
        let mut all: Vec<usize> = train.iter().chain(held_out).copied().collect();
        all.sort_unstable();
        let params = lambdamart::Params { trees: forest.trees.len().max(1), ..params.clone() };
        grow(&all, &[], &params, first, second).map(Model::Lambdamart)
    });
    Trainer { learner: Learner::Lambdamart, train }
}

#[cfg(test)]
mod tests {
    use super::{boosted, median};
    use crate::learn::{Dataset, Group, Model, Row, lambdamart};

    #[test]
    fn the_middle_count_is_taken() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7]), Some(7));
        assert_eq!(median(&[6, 300, 120, 90, 200]), Some(120));
        assert_eq!(median(&[1, 2, 3, 4]), Some(3));
    }

    /// Of every two rows the first is faster, as its feature tells.
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
    fn few_trials_are_grown_on_again_with_what_was_held_out() {
        let params = lambdamart::Params { trees: 30, ..lambdamart::Params::default() };
        let (data, train, held_out) = (data(12, false), [0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11]);
        let mut told = Vec::new();
        let model = (boosted(&params).train)(&data, &train, &held_out, &mut |share| {
            told.push(share);
            true
        });
        let Some(Model::Lambdamart(forest)) = model else { panic!("it learned nothing") };
        assert!(told.is_sorted() && told.last() == Some(&1.0), "{told:?}");
        // The same as of all groups with that many trees.
        let all: Vec<usize> = (0..12).collect();
        let trees = lambdamart::Params { trees: forest.trees.len(), ..params.clone() };
        let again = lambdamart::train(&data, &all, &[], &trees, &mut |_| true);
        assert_eq!(Some(forest), again);
    }

    #[test]
    fn lists_without_an_order_leave_no_model() {
        let params = lambdamart::Params::default();
        let model = (boosted(&params).train)(&data(6, true), &[0, 1, 2, 3], &[4, 5], &mut |_| true);
        assert_eq!(model, None);
    }
}
