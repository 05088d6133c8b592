//! Decides which learner's model is kept, and whether it is activated.

use super::replay::CORRECTED;
use crate::domain::ModelId;
use crate::domain::learned::{Activation, HeldOut, LearnedModel, Learner, RankerScore};
use crate::service::Ranker;

/// The name of the analytic model among rankers.
const ANALYTIC: &str = "analytic";

/// The name among rankers of a model that saw none of the measurements: the class's own that was trained elsewhere, as those that
/// ship, or that of the nearest class of device, which ranks where the class has none.
pub(super) const BORROWED: &str = "borrowed";

/// A new model replaces the active one even if it is worse by this much: the two were evaluated on different data, so
/// smaller differences are not significant, and the new one was trained on more data.
const MARGIN: f64 = 0.005;

/// A ranker's share at `k`, or at the next smaller K if the groups were too small.
fn share(ranker: &RankerScore, k: u32) -> Option<f64> {
    let at = ranker.at.iter().filter(|at| at.k <= k).max_by_key(|at| at.k)?;
    Some(at.share).filter(|share| share.is_finite())
}

/// The criterion by which learners are compared: the share at K = 1, which matters for predicted plans, plus that at K
/// = 10, which matters for ranked searches, with equal weights.
fn merit(ranker: &RankerScore) -> Option<f64> {
    Some(share(ranker, 1)? + share(ranker, 10)?)
}

fn ranker<'a>(quality: &'a HeldOut, name: &str) -> Option<&'a RankerScore> {
    quality.rankers.iter().find(|ranker| ranker.name == name)
}

/// The best learner on held-out patterns; the first among equals. `None` if none was evaluated.
pub(super) fn best(quality: &HeldOut, learners: &[Learner]) -> Option<Learner> {
    let mut best: Option<(Learner, f64)> = None;
    for learner in learners {
        let Some(merit) = ranker(quality, learner.name()).and_then(merit) else { continue };
        if best.is_none_or(|(_, most)| merit > most) {
            best = Some((*learner, merit));
        }
    }
    best.map(|(learner, _)| learner)
}

/// Refuses an automatic activation if the operator made the last change, by a roll-back or by deactivating all models,
/// unless the model that was chosen cannot be used any more (`ranks` is false).
pub(super) fn chosen_otherwise(newest: Option<&Activation>, ranks: bool) -> Result<(), String> {
    match newest {
        Some(Activation { model: None, .. }) => Err(
            "all models of this operation and device class were deactivated; activate one manually"
                .to_owned(),
        ),
        Some(Activation { reason, .. }) if ranks && reason == Activation::ROLLED_BACK => {
            Err("the active model was chosen by a roll-back; activate another one manually"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether a new model is to be activated: `Ok` with the reason, or `Err` with the reason against it.
///
/// It must choose better than the analytic model at K = 1 and at K = 10 on held-out patterns. At K = 10 the reference
/// is the better of the plain analytic ranking and the ranked search without a learned model, which corrects
/// predictions during the search ([`CORRECTED`]). The active model was trained on part of the new one's data, so
/// evaluating it on that data would favour it; its own evaluation at K = 10 from when it was trained, minus [`MARGIN`],
/// is used instead. The `lender` saw none of the measurements, so it was evaluated on all of them ([`BORROWED`]), and where it
/// ranks now the new model must choose better by the sum that learners are compared by. If another class's model ranks that is
/// not the lender, there is nothing to compare with.
pub(super) fn better(
    quality: &HeldOut,
    learner: Learner,
    in_use: Option<&Ranker>,
    lender: Option<&ModelId>,
) -> Result<String, String> {
    let at = |name: &str| {
        let ranker = ranker(quality, name)?;
        Some((share(ranker, 1)?, share(ranker, 10)?))
    };
    let (Some((new_1, new_10)), Some((old_1, old_10))) = (at(learner.name()), at(ANALYTIC)) else {
        return Err("it was not compared with the analytic model".to_owned());
    };
    let corrected = ranker(quality, CORRECTED).and_then(|ranker| share(ranker, 10));
    let mut figures = format!(
        "{new_1:.3} of the best at K = 1 and {new_10:.3} at K = 10; analytic model: {old_1:.3} and {old_10:.3}"
    );
    if let Some(corrected) = corrected {
        figures.push_str(&format!(", its corrected search {corrected:.3}"));
    }
    if new_1 <= old_1 || new_10 <= old_10 {
        return Err(format!("it does not choose better than the analytic model: {figures}"));
    }
    if corrected.is_some_and(|corrected| new_10 <= corrected) {
        let why = "it does not choose better than the analytic model's corrected search";
        return Err(format!("{why}: {figures}"));
    }
    let Some(in_use) = in_use else { return Ok(figures) };
    let compared = at(BORROWED).filter(|_| lender == Some(&in_use.card().id));
    let Some((lent_1, lent_10)) = compared else {
        return match in_use {
            Ranker::Own(used) => better_than_own(new_10, &used.card).map(|()| figures),
            Ranker::Borrowed(_) => {
                Err("it was not compared with the borrowed model in use".to_owned())
            }
        };
    };
    let from = in_use.borrowed_from().map(|class| format!(", borrowed from {class}"));
    let (from, borrowed) = (from.unwrap_or_default(), in_use.borrowed_from().is_some());
    figures.push_str(&format!("; {}{from}: {lent_1:.3} and {lent_10:.3}", in_use.card().id));
    if new_1 + new_10 > lent_1 + lent_10 {
        return Ok(figures);
    }
    let which = if borrowed { "borrowed model" } else { "model" };
    Err(format!("it does not choose better than the {which} in use: {figures}"))
}

/// Against the class's own model in use, by its evaluation from when it was trained.
fn better_than_own(new_10: f64, used: &LearnedModel) -> Result<(), String> {
    let used = ranker(&used.quality, used.learner.name()).and_then(|used| share(used, 10));
    match used {
        Some(used) if new_10 < used - MARGIN => Err(format!(
            "the active model is better: {used:.3} of the best at K = 10, this one {new_10:.3}"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Op;
    use crate::domain::learned::{AtK, DataUsed, MODEL_VERSION, Scope};
    use crate::domain::{DeviceClass, Digest, ModelId, Timestamp};
    use crate::learn::ModelFile;
    use crate::service::ActiveModel;
    use crate::service::rankers::tests::sound;
    use std::sync::Arc;

    fn judged(name: &str, at_1: f64, at_10: f64) -> RankerScore {
        let at = |k, share| AtK { k, share, within_85: share };
        RankerScore {
            name: name.to_owned(),
            ndcg10: None,
            at: vec![at(1, at_1), at(8, 0.5), at(10, at_10), at(16, 1.0)],
            regret: [0.0; 3],
        }
    }

    fn quality(rankers: Vec<RankerScore>) -> HeldOut {
        HeldOut { folds: 5, groups: 100, rankers }
    }

    fn model(at_10: f64) -> LearnedModel {
        let newest = Timestamp(0);
        LearnedModel {
            version: MODEL_VERSION,
            id: ModelId("m".to_owned()),
            learner: Learner::Mlp,
            scope: Scope { op: Op::Sptrsv, device_class: DeviceClass("d".to_owned()) },
            features_version: 1,
            data: DataUsed { groups: 1, matrices: 1, generated: 0, trials: 1, newest },
            quality: quality(vec![judged("mlp", 0.9, at_10), judged("lambdamart", 0.0, 1.0)]),
            importance: Vec::new(),
            seed: 1,
            started_from: None,
            training: None,
            digest: Digest::of(b""),
            created_at: newest,
        }
    }

    #[test]
    fn the_sum_of_both_shares_decides_and_the_first_among_equals_wins() {
        let all = [Learner::Mlp, Learner::MlpRegret, Learner::Lambdamart];
        let of = |shares: [(f64, f64); 3]| {
            let names = all.map(Learner::name);
            let judged = names.iter().zip(shares).map(|(name, (a, b))| judged(name, a, b));
            best(&quality(judged.collect()), &all)
        };
        assert_eq!(of([(0.9, 0.9), (0.8, 0.99), (0.95, 0.86)]), Some(Learner::Lambdamart));
        assert_eq!(of([(0.9, 0.9), (0.8, 1.0), (0.7, 0.7)]), Some(Learner::Mlp));
        assert_eq!(of([(0.9, f64::NAN), (0.1, 0.2), (0.1, 0.1)]), Some(Learner::MlpRegret));
        assert_eq!(best(&quality(vec![judged("analytic", 1.0, 1.0)]), &all), None);
    }

    #[test]
    fn a_model_that_is_not_better_at_both_is_not_activated() {
        let against = |mine: (f64, f64), in_use: Option<f64>| {
            let rankers = vec![judged("mlp", mine.0, mine.1), judged(ANALYTIC, 0.8, 0.9)];
            let in_use = in_use.map(|at_10| Ranker::Own(active(model(at_10))));
            better(&quality(rankers), Learner::Mlp, in_use.as_ref(), None)
        };
        let reason = against((0.85, 0.95), None).unwrap();
        assert!(reason.contains("0.850") && reason.contains("0.900"), "{reason}");
        assert!(against((0.8, 0.95), None).is_err());
        assert!(against((0.85, 0.9), None).is_err());
        assert!(against((0.85, 0.95), Some(0.954)).is_ok());
        assert!(against((0.85, 0.95), Some(0.956)).is_err_and(|why| why.contains("0.956")));
        // With ten trials the ranked search without the model chooses better; with one it equals the analytic model.
        let beside = |corrected: f64| {
            let plain = [judged("mlp", 0.85, 0.95), judged(ANALYTIC, 0.8, 0.9)];
            let all = [&plain[..], &[judged(CORRECTED, 0.99, corrected)]].concat();
            better(&quality(all), Learner::Mlp, None, None)
        };
        for corrected in [0.94, 0.7] {
            let figures = format!("model: 0.800 and 0.900, its corrected search {corrected:.3}");
            assert!(beside(corrected).unwrap().ends_with(&figures));
        }
        let why = beside(0.95).unwrap_err();
        assert!(
            why.contains("model's corrected search: 0.850") && why.ends_with(" 0.950"),
            "{why}"
        );
        assert!(!reason.contains("corrected"), "{reason}");
        let alone = quality(vec![judged("mlp", 1.0, 1.0)]);
        assert!(better(&alone, Learner::Mlp, None, None).is_err());
    }

    fn active(card: LearnedModel) -> Arc<ActiveModel> {
        let (_, bytes) = sound("any", &card.scope);
        Arc::new(ActiveModel { card, file: Arc::new(ModelFile::parse(&bytes).unwrap()) })
    }

    #[test]
    fn what_ranks_now_is_beaten_even_if_it_is_borrowed() {
        let lent = Ranker::Borrowed(active(model(0.99)));
        let beside = |borrowed: Option<(f64, f64)>| {
            let mut rankers = vec![judged("mlp", 0.85, 0.95), judged(ANALYTIC, 0.6, 0.8)];
            rankers.extend(borrowed.map(|(first, tenth)| judged(BORROWED, first, tenth)));
            quality(rankers)
        };
        let with = |quality: &HeldOut, lender: &str| {
            better(quality, Learner::Mlp, Some(&lent), Some(&ModelId(lender.to_owned())))
        };
        let other = with(&beside(Some((0.84, 0.955))), "another");
        assert!(other.is_err_and(|why| why.contains("was not compared")));
        let beside = |borrowed| with(&beside(borrowed), "m");
        // Its evaluation on its own class's measurements (0.99) says nothing here.
        let figures = beside(Some((0.84, 0.955))).unwrap();
        assert!(figures.ends_with("; m, borrowed from d: 0.840 and 0.955"), "{figures}");
        let why = beside(Some((0.9, 0.91))).unwrap_err();
        assert!(why.starts_with("it does not choose better than the borrowed model"), "{why}");
        assert!(beside(Some((0.85, 0.95))).is_err(), "no better");
        assert!(beside(None).is_err());
    }

    #[test]
    fn manual_choices_are_kept() {
        let of = |model: Option<&str>, reason: &str, ranks| {
            let scope = Scope { op: Op::Spmm, device_class: DeviceClass("d".to_owned()) };
            let model = model.map(|id| ModelId(id.to_owned()));
            let newest = Activation { scope, model, reason: reason.to_owned(), at: Timestamp(0) };
            chosen_otherwise(Some(&newest), ranks)
        };
        let newest = |model: Option<&str>, reason: &str| of(model, reason, model.is_some());
        assert!(newest(None, "by hand").is_err_and(|why| why.contains("deactivated")));
        assert!(
            newest(Some("m"), Activation::ROLLED_BACK).is_err_and(|why| why.contains("roll-back"))
        );
        assert_eq!(newest(Some("m"), "by hand"), Ok(()));
        assert_eq!(
            of(Some("m"), Activation::ROLLED_BACK, false),
            Ok(()),
            "it reads other features"
        );
        assert_eq!(chosen_otherwise(None, false), Ok(()));
    }

    #[test]
    fn small_groups_are_compared_at_a_smaller_k() {
        let mut small = judged("mlp", 0.9, 0.9);
        small.at.truncate(2);
        assert_eq!(share(&small, 10), Some(0.5));
        small.at.clear();
        assert_eq!(share(&small, 1), None);
    }
}
