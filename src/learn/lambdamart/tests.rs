//! Tests of gradients, tree growth and reproducibility.

use super::{Gain, Params, continue_from, importance, sample, train, train_on};
use crate::learn::data::{Dataset, Group, Row};
use crate::learn::forest::Forest;
use crate::learn::ndcg::ndcg;
use crate::sparse::random::Stream;

/// Synthetic times: own features determine them, and a shared feature determines which.
fn made_up(groups: usize, rows: usize, seed: u64) -> Dataset {
    let group = |at: usize| {
        let mut random = Stream::new(seed, at as u64);
        let shared: Vec<f32> = (0..2).map(|_| random.unit() as f32).collect();
        let row = |index: usize| {
            let own: Vec<f32> = (0..3).map(|_| (random.unit() * 16.0).floor() as f32).collect();
            let [a, b, c] = [0, 1, 2].map(|at: usize| f64::from(own[at]) / 16.0);
            let nepers = if shared[0] < 0.5 { a + 0.3 * b } else { (1.0 - a) + 0.3 * c };
            let us = 100.0 * (2.0 * nepers + 0.05 * random.normal()).exp();
            let predicted_us = 100.0 * (2.0 * a).exp();
            Row { candidate: format!("c{index}"), own, us, predicted_us }
        };
        let rows = (0..rows).map(row).collect();
        Group { pattern: format!("p{at}"), shared, rows }
    };
    Dataset {
        shared: ["s0", "s1"].map(str::to_owned).to_vec(),
        own: ["a", "b", "c"].map(str::to_owned).to_vec(),
        groups: (0..groups).map(group).collect(),
    }
}

fn small() -> Params {
    Params { trees: 30, leaves: 8, rate: 0.2, min_rows: 5, ..Params::default() }
}

fn quality(data: &Dataset, forest: &Forest, groups: &[usize]) -> f64 {
    let each = groups.iter().map(|&at| {
        let group = &data.groups[at];
        let own: Vec<Vec<f32>> = group.rows.iter().map(|row| row.own.clone()).collect();
        ndcg(&Gain::Power(4.0).of_group(group), &forest.scores(&group.shared, &own), 10)
    });
    each.sum::<f64>() / groups.len() as f64
}

fn grown(data: &Dataset, groups: &[usize], held_out: &[usize], params: &Params) -> Forest {
    train(data, groups, held_out, params, &mut |_| true).expect("nothing cancels it")
}

#[test]
fn learns_the_decisive_features() {
    let data = made_up(60, 40, 1);
    let (seen, unseen): (Vec<usize>, Vec<usize>) = (0..60).partition(|at| at % 3 != 0);
    let forest = grown(&data, &seen, &[], &small());
    assert_eq!(forest.trees.len(), 30);
    assert_eq!(forest.check(5), Ok(()));
    let learned = quality(&data, &forest, &unseen);
    assert!(learned > 0.9, "NDCG {learned}");
    assert!(quality(&data, &Forest::default(), &unseen) < 0.5, "the task is too easy");
    assert!(forest.scale > 0.0);
    let names: Vec<String> = data.shared.iter().chain(&data.own).cloned().collect();
    let shares = importance(&forest, &names);
    assert_eq!(shares[0].feature, "a");
    assert!((shares.iter().map(|share| share.share).sum::<f64>() - 1.0).abs() < 1e-12);
    assert!(shares.windows(2).all(|pair| pair[0].share >= pair[1].share));
    let of = |name: &str| shares.iter().find(|s| s.feature == name).map_or(0.0, |s| s.share);
    assert!(of("s0") > of("s1"));
}

/// Times on another device: like [`made_up`], but the third feature costs there.
fn on_another_device(groups: usize, rows: usize, seed: u64) -> Dataset {
    let mut data = made_up(groups, rows, seed);
    for row in data.groups.iter_mut().flat_map(|group| &mut group.rows) {
        row.us *= (0.6 * f64::from(row.own[2]) / 16.0).exp();
    }
    data
}

#[test]
fn with_few_groups_continuing_beats_training_from_nothing() {
    let base = grown(&made_up(60, 40, 1), &(0..60).collect::<Vec<_>>(), &[], &small());
    let data = on_another_device(60, 40, 7);
    let (few, unseen): (Vec<usize>, Vec<usize>) = ((0..6).collect(), (6..60).collect());
    let continued = |params: &Params, held_out: &[usize]| {
        continue_from(&base, &data, &few, held_out, params, &mut |_| true).unwrap()
    };
    let forest = continued(&small(), &[]);
    assert_eq!(forest.trees[..30], base.trees);
    assert_eq!((forest.trees.len(), forest.check(5)), (60, Ok(())));
    let of = |forest: &Forest| quality(&data, forest, &unseen);
    let (new, lent, alone) = (of(&forest), of(&base), of(&grown(&data, &few, &[], &small())));
    assert!(new > lent && new > alone, "continued {new}, lent {lent}, from nothing {alone}");
    // The seed determines it, and no tree at all leaves the base's order.
    assert_eq!(continued(&small(), &[]), forest);
    assert_ne!(continued(&Params { seed: 2, ..small() }, &[]), forest);
    let same = continued(&Params { trees: 0, ..small() }, &[]);
    assert_eq!((&same.trees, of(&same)), (&base.trees, lent));
    // An empty base is none.
    let nothing = Forest::default();
    let from_nothing = continue_from(&nothing, &data, &few, &[], &small(), &mut |_| true);
    assert_eq!(from_nothing, Some(grown(&data, &few, &[], &small())));
    // Held-out groups decide how many of the new trees are kept.
    let stopped = continued(&small(), &[6, 7, 8, 9]);
    assert_eq!(stopped.trees[..30], base.trees);
}

#[test]
fn one_split_matches_the_manual_computation() {
    // Two rows, the better one second: both pairs' weights are 1 - 1 / log2(3), divided by an ideal of 1.
    let row =
        |own: f32, us| Row { candidate: String::new(), own: vec![own], us, predicted_us: 1.0 };
    let group = Group {
        pattern: String::new(),
        shared: vec![],
        rows: vec![row(3.0, f64::INFINITY), row(5.0, 7.0)],
    };
    let data = Dataset { shared: vec![], own: vec!["x".to_owned()], groups: vec![group] };
    let params = Params { trees: 1, min_rows: 1, l2: 0.5, rate: 0.1, normalise: false, ..small() };
    let forest = grown(&data, &[0], &[], &params);
    let weight = 1.0 - 1.0 / 3f64.log2();
    let (gradient, hessian) = (weight / 2.0, weight / 4.0);
    let value = (0.1 * gradient / (hessian + 0.5)) as f32;
    let tree = &forest.trees[0];
    assert_eq!((&tree.feature[..], &tree.threshold[..]), (&[0][..], &[4.0][..]));
    assert_eq!(tree.value, [-value, value]);
    let gain = (2.0 * gradient * gradient / (hessian + 0.5)) as f32;
    assert_eq!(tree.gain, [gain]);
    // Only one row of the group has a time, so there is no difference to derive a scale from.
    assert_eq!(forest.scale, 0.0);
}

#[test]
fn the_forest_does_not_depend_on_the_number_of_threads() {
    let data = made_up(40, 30, 2);
    let (seen, unseen): (Vec<usize>, Vec<usize>) = (0..40).partition(|at| at % 4 != 0);
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| grown(&data, &seen, &unseen, &small()))
    };
    let one = on(1);
    assert_eq!(serde_json::to_vec(&one).unwrap(), serde_json::to_vec(&on(4)).unwrap());
    let other = grown(&data, &seen, &unseen, &Params { seed: 2, ..small() });
    assert_ne!(one, other, "the seed has no effect");
}

#[test]
fn a_saved_forest_scores_bit_identically() {
    let data = made_up(30, 30, 3);
    let params = Params { prior: 1.5, ..small() };
    let data =
        Dataset { own: ["a", "b", super::PRIOR_FEATURE].map(str::to_owned).to_vec(), ..data };
    let forest = grown(&data, &(0..20).collect::<Vec<_>>(), &[], &params);
    assert_eq!(forest.prior.map(|prior| (prior.feature, prior.weight)), Some((4, 1.5)));
    let loaded: Forest = serde_json::from_slice(&serde_json::to_vec(&forest).unwrap()).unwrap();
    assert_eq!(loaded, forest);
    for group in &data.groups {
        let own: Vec<Vec<f32>> = group.rows.iter().map(|row| row.own.clone()).collect();
        let bits = |forest: &Forest| -> Vec<u64> {
            forest.scores(&group.shared, &own).into_iter().map(f64::to_bits).collect()
        };
        assert_eq!(bits(&loaded), bits(&forest));
    }
}

#[test]
fn training_stops_when_held_out_groups_no_longer_improve() {
    let data = made_up(24, 20, 4);
    let (seen, unseen): (Vec<usize>, Vec<usize>) = (0..24).partition(|at| at % 3 != 0);
    let params = Params { trees: 400, patience: 10, ..small() };
    let mut rounds = 0;
    let forest = train(&data, &seen, &unseen, &params, &mut |_| {
        rounds += 1;
        true
    });
    let forest = forest.unwrap();
    assert!(rounds < 400, "training did not stop early");
    assert!(!forest.trees.is_empty() && forest.trees.len() <= rounds - 10, "{rounds}");
    // The chosen round is among the best.
    let at = |trees: usize| {
        let trees = grown(&data, &seen, &[], &Params { trees, ..params.clone() }).trees;
        quality(&data, &Forest { trees, ..Forest::default() }, &unseen)
    };
    let kept = quality(&data, &forest, &unseen);
    for trees in [1, forest.trees.len() / 2, rounds] {
        assert!(at(trees.max(1)) <= kept + 1e-3, "{trees}");
    }
}

#[test]
fn a_prior_determines_the_initial_order() {
    let data = made_up(20, 25, 5);
    let data =
        Dataset { own: [super::PRIOR_FEATURE, "b", "c"].map(str::to_owned).to_vec(), ..data };
    let params = Params { trees: 0, prior: 2.0, ..small() };
    let forest = grown(&data, &[0, 1, 2], &[3, 4], &params);
    let scores = forest.scores(&[0.0, 0.0], &[vec![0.0, 0.0, 0.0], vec![1.0, 0.0, 0.0]]);
    assert_eq!(scores, [0.0, -2.0 * std::f64::consts::LN_2]);
    // Without the feature there is no prior.
    assert_eq!(grown(&made_up(5, 5, 5), &[0, 1], &[], &params).prior, None);
}

#[test]
fn the_scale_converts_scores_to_logarithms_of_time() {
    // The analytic ranking is exact here: time is 3 x 2^feature, and the scale cancels the prior's weight.
    let row = |x: f32| Row {
        candidate: String::new(),
        own: vec![x],
        us: 3.0 * f64::from(x).exp2(),
        predicted_us: 1.0,
    };
    let group =
        Group { pattern: String::new(), shared: vec![], rows: [0.0, 1.0, 2.5].map(row).to_vec() };
    let own = vec![super::PRIOR_FEATURE.to_owned()];
    let data = Dataset { shared: vec![], own, groups: vec![group] };
    let forest = grown(&data, &[0], &[], &Params { trees: 0, prior: 4.0, ..small() });
    assert!((forest.scale - 0.25).abs() < 1e-12, "{}", forest.scale);
}

#[test]
fn uninformative_lists_yield_no_forest() {
    let mut data = made_up(3, 12, 6);
    data.groups[0].rows.truncate(1);
    data.groups[1].rows.iter_mut().for_each(|row| row.us = 5.0);
    data.groups[2].rows.iter_mut().for_each(|row| row.us = f64::NAN);
    let forest = grown(&data, &[0, 1, 2, 99], &[0], &small());
    assert!(forest.trees.is_empty() && forest.scale == 0.0);
    assert!(importance(&forest, &["a".to_owned()]).is_empty());
    let nothing = grown(&Dataset::default(), &[], &[], &small());
    assert_eq!(nothing, Forest::default());
    data.groups[0].rows.clear();
    assert!(grown(&data, &[0], &[0], &small()).trees.is_empty());
}

#[test]
fn a_constant_feature_is_never_split() {
    let mut data = made_up(20, 20, 7);
    for group in &mut data.groups {
        group.shared[1] = 4.0;
        group.rows.iter_mut().for_each(|row| row.own[1] = -1.0);
    }
    let forest = grown(&data, &(0..20).collect::<Vec<_>>(), &[], &small());
    let read: Vec<u16> = forest.trees.iter().flat_map(|tree| tree.feature.clone()).collect();
    assert!(!read.is_empty() && !read.contains(&1) && !read.contains(&3));
}

#[test]
fn leaves_respect_the_minimum_number_of_rows() {
    let data = made_up(20, 20, 8);
    let params = Params { min_rows: 50, leaves: 31, group_share: 1.0, trees: 3, ..small() };
    let forest = grown(&data, &(0..20).collect::<Vec<_>>(), &[], &params);
    for tree in &forest.trees {
        let mut held = vec![0; tree.value.len()];
        let values = tree.value.clone();
        for group in &data.groups {
            for row in &group.rows {
                let at = |feature: usize| match feature.checked_sub(2) {
                    None => group.shared[feature],
                    Some(own) => row.own[own],
                };
                let value = tree.value(at);
                held[values.iter().position(|other| *other == value).unwrap()] += 1;
            }
        }
        assert!(held.len() <= 8 && held.iter().all(|&rows| rows >= 50), "{held:?}");
    }
}

#[test]
fn custom_gains_and_cancellation() {
    let data = made_up(10, 20, 9);
    let all: Vec<usize> = (0..10).collect();
    // Gains in reverse order reverse the ranking.
    let gains: Vec<Vec<f64>> = data
        .groups
        .iter()
        .map(|group| group.rows.iter().map(|row| f64::from(row.us > 300.0)).collect())
        .collect();
    let forest = train_on(&data, &gains, &all, &[], &small(), &mut |_| true).unwrap();
    assert!(quality(&data, &forest, &all) < 0.3);
    let mut told = Vec::new();
    let cancelled = train(&data, &all, &[], &small(), &mut |share| {
        told.push(share);
        told.len() < 3
    });
    assert!(cancelled.is_none());
    assert_eq!(told, [1.0 / 30.0, 2.0 / 30.0, 3.0 / 30.0]);
}

#[test]
fn gains_are_1_for_the_best_and_0_without_a_time() {
    let mut group = made_up(1, 5, 10).groups.remove(0);
    for (row, us) in group.rows.iter_mut().zip([8.0, 4.0, f64::INFINITY, 0.0, f64::NAN]) {
        row.us = us;
    }
    assert_eq!(Gain::Power(3.0).of_group(&group), [0.125, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(Gain::Grade(2.0).of_group(&group)[..2], [1.0 / 3.0, 1.0]);
}

#[test]
fn samples_have_the_requested_share_and_are_sorted() {
    let mut random = Stream::new(1, 1);
    assert_eq!(sample(0, 0.5, &mut random), [0; 0]);
    assert_eq!(sample(3, 1.0, &mut random), [0, 1, 2]);
    assert_eq!(sample(3, 0.0, &mut random).len(), 1);
    let some = sample(100, 0.3, &mut random);
    assert_eq!(some.len(), 30);
    assert!(some.windows(2).all(|pair| pair[0] < pair[1]));
}

#[test]
fn trees_are_larger_where_there_are_many_rows() {
    assert_eq!(Params::of_rows(19_999), Params::default());
    let many = Params::of_rows(20_000);
    assert!(
        many.leaves > Params::default().leaves && many.truncation > Params::default().truncation
    );
}
