//! Tests of the evaluation.

use super::super::Row;
use super::super::mlp;
use super::*;

/// Candidates `0`, `1`, ... with ascending predictions.
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
    // Shares of the first choice: 1/2 and 1; of the best of two: 0.9 and 1. The third group has no measurement.
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
fn a_failed_choice_counts_as_ten_times_the_best_time() {
    let data = data(vec![group("a", &[f64::INFINITY, 3.0]), group("b", &[1e9, 3.0])]);
    let found = ranker("analytic", &data, |at| analytic(&data.groups[at]));
    near(found.at[0].share, 0.1);
    near(found.at[1].share, 1.0);
    near(found.regret[2], 9.0);
}

/// The expectation by enumerating every subset of k rows.
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
    // Half of the weight is at 1 or below: the three rows of the second group have 1/6 each, those of the first 1/18.
    near(found.regret[0], 1.0);
    near(found.regret[2], 29.0 / 3.0 - 1.0);
    assert_eq!(found.ndcg10, None);
}

/// Ranks groups seen in training correctly and all others in reverse, so that a leak would be noticed.
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
fn each_fold_is_evaluated_with_models_trained_on_the_others() {
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
    assert_eq!(ended, Err(EvaluationError::Ended));
}

#[test]
fn one_pattern_cannot_be_evaluated() {
    let data = data(vec![group("a", &[1.0]), group("a", &[2.0])]);
    let found = cross_validate(&data, &[], 5, 1, &mut |_| true);
    assert_eq!(found, Err(EvaluationError::TooFew(1)));
}

#[test]
fn the_perceptron_finds_what_the_analytic_model_ranks_last() {
    let groups = (0..24).map(|i| group(&format!("p{i}"), &[30.0, 20.0, 10.0])).collect();
    let data = data(groups);
    let params = mlp::Params { epochs: 20, members: 1, min_groups: 4, ..Default::default() };
    let trainers = [Trainer::mlp(Learner::Mlp, &[0], &params)];
    let found = cross_validate(&data, &trainers, 4, 1, &mut |_| true).unwrap();
    near(found.held_out.rankers[0].at[0].share, 1.0);
    near(found.held_out.rankers[1].at[0].share, 1.0 / 3.0);
}
