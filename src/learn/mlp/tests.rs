//! Tests of labels, weights and training of the perceptron.

use super::super::Row;
use super::super::file::{Model, ModelFile, VERSION};
use super::*;
use crate::domain::DeviceClass;
use crate::domain::Op;
use crate::domain::learned::Scope;

fn row(candidate: &str, us: f64) -> Row {
    Row { candidate: candidate.to_owned(), own: Vec::new(), us, predicted_us: 1.0 }
}

/// Which of `a`, `b` and `c` is best depends on the signs of two features; `z` is always bad.
fn toy(groups: u64) -> Dataset {
    let group = |at: u64| {
        let mut stream = Stream::new(3, at);
        let (x, y) = (stream.range(-1.0, 1.0), stream.range(-1.0, 1.0));
        let best = if x * y > 0.0 {
            "a"
        } else if x > 0.0 {
            "b"
        } else {
            "c"
        };
        let mut time = |name: &str| {
            let us = if name == best { 10.0 } else { 20.0 + 10.0 * stream.unit() };
            row(name, us)
        };
        let mut rows: Vec<Row> = ["a", "b", "c"].map(&mut time).to_vec();
        rows.push(row("z", if at.is_multiple_of(3) { f64::INFINITY } else { 90.0 }));
        Group { pattern: at.to_string(), shared: vec![x as f32, 7.0, y as f32], rows }
    };
    let groups = (0..groups).map(group).collect();
    let shared = ["x", "same", "y"].map(str::to_owned).to_vec();
    Dataset { shared, own: Vec::new(), groups }
}

fn params() -> Params {
    Params { epochs: 60, members: 2, rate: 1e-2, ..Params::default() }
}

fn trained(data: &Dataset, params: &Params) -> Perceptron {
    let (train, held_out): (Vec<usize>, Vec<usize>) = (0..120).partition(|at| at % 5 != 0);
    super::train(data, &train, &held_out, &[0, 1, 2], params, &mut |_| true).unwrap()
}

#[test]
fn learns_a_rule_that_needs_two_features() {
    let data = toy(200);
    for labels in [Labels::Plain, Labels::ByRegret, Labels::Graded] {
        let model = trained(&data, &Params { labels, ..params() });
        let right = |group: &&Group| {
            let rows: Vec<(&str, f64)> =
                group.rows.iter().map(|row| (row.candidate.as_str(), 1.0)).collect();
            group.rows[model.order(&group.shared, &rows)[0]].us == 10.0
        };
        let hits = data.groups[120..].iter().filter(right).count();
        assert!(hits >= 70, "{labels:?}: {hits} of 80");
    }
}

#[test]
fn the_papers_perceptron_learns_it_from_sizes() {
    // The features as they would be stored: x and y shifted to sizes of 1 to 3, as logarithms.
    let mut data = toy(200);
    for group in &mut data.groups {
        group.shared.iter_mut().for_each(|value| *value = (*value + 3.0).log2());
    }
    let params = Params::of_the_paper(vec![0, 2], 1);
    let model = trained(&data, &Params { epochs: 150, rate: 1e-2, ..params });
    let widths: Vec<usize> = model.members[0].iter().map(|layer| layer.bias.len()).collect();
    assert_eq!((model.members.len(), widths), (1, vec![32, 32, model.schemes.len()]));
    // The mean of the first size, x + 2 for x in -1 to 1.
    assert!((model.mean[0] - 2.0).abs() < 0.2, "{}", model.mean[0]);
    let right = |group: &&Group| {
        let rows: Vec<(&str, f64)> =
            group.rows.iter().map(|row| (row.candidate.as_str(), 1.0)).collect();
        group.rows[model.order(&group.shared, &rows)[0]].us == 10.0
    };
    let hits = data.groups[120..].iter().filter(right).count();
    assert!(hits >= 65, "{hits} of 80");
}

#[test]
fn identical_on_any_number_of_threads_and_after_loading() {
    let data = toy(130);
    let params = Params { epochs: 3, members: 3, ..params() };
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| trained(&data, &params))
    };
    let model = on(1);
    assert_eq!(model, on(3));
    assert_ne!(model, trained(&data, &Params { seed: 2, ..params.clone() }));

    let scope = Scope { op: Op::Sptrsv, device_class: DeviceClass("d".to_owned()) };
    let (shared, own) = (data.shared.clone(), Vec::new());
    let kept = Model::Mlp(model.clone());
    let file = ModelFile {
        version: VERSION,
        scope,
        features_version: 1,
        shared,
        own,
        largest: None,
        model: kept,
    };
    let loaded = ModelFile::parse(&file.to_bytes().unwrap()).unwrap();
    let Model::Mlp(loaded) = loaded.model else { panic!("it was a perceptron") };
    for group in &data.groups {
        let bits = |model: &Perceptron| -> Vec<u32> {
            model.probabilities(&group.shared).iter().map(|p| p.to_bits()).collect()
        };
        assert_eq!(bits(&model), bits(&loaded));
    }
}

#[test]
fn schemes_are_those_that_ran_in_enough_groups() {
    let mut data = toy(9);
    data.groups[0].rows.extend([row("rare", 1.0), row("rare", 1.0)]);
    let all: Vec<usize> = (0..9).collect();
    // `z` failed in three of nine.
    assert_eq!(schemes(&data, &all, 6), ["a", "b", "c", "z"]);
    assert_eq!(schemes(&data, &all, 7), ["a", "b", "c"]);
    assert_eq!(schemes(&data, &all, 1).len(), 5);
    assert_eq!(schemes(&data, &all, 2).len(), 4);
}

#[test]
fn labels_and_weights_match_the_manual_computation() {
    let rows = vec![
        row("a", 85.0),
        row("b", 100.0),
        row("c", 100.1),
        row("d", f64::INFINITY),
        row("unknown", 200.0),
    ];
    let group = Group { pattern: String::new(), shared: Vec::new(), rows };
    let schemes = ["a", "b", "c", "d", "e"].map(str::to_owned);
    let plain = targets(&group, &schemes, &Params::default());
    let labels: Vec<(usize, f32)> = plain.iter().map(|t| (t.output, t.label)).collect();
    // `e` was not measured: it has no target.
    assert_eq!(labels, [(0, 1.0), (1, 1.0), (2, 0.0), (3, 0.0)]);
    assert!(plain.iter().all(|target| target.weight == 0.25));

    let weighted =
        targets(&group, &schemes, &Params { labels: Labels::ByRegret, ..Params::default() });
    let weight = |at: usize| f64::from(weighted[at].weight);
    assert!((weight(0) - 0.5).abs() < 1e-6 && weight(1).abs() < 1e-6);
    // ln(100.1 / 100) against ln 2.
    let near = 1.001f64.ln() / (1.001f64.ln() + WORST);
    assert!((weight(2) - 0.5 * near).abs() < 1e-6, "{}", weight(2));
    assert!((weight(3) - 0.5 * (1.0 - near)).abs() < 1e-6);

    let graded = targets(&group, &schemes, &Params { labels: Labels::Graded, ..Params::default() });
    assert!(graded.iter().all(|target| target.weight == 0.25));
    // 1 / (1 + 0.85^10) at the best, a half at the threshold.
    let labels = [1.0 / (1.0 + 0.85f32.powi(10)), 0.5, 0.497_5, 0.0];
    for (target, label) in graded.iter().zip(labels) {
        assert!((target.label - label).abs() < 1e-5, "{} {label}", target.label);
    }
}

#[test]
fn nothing_to_learn_and_cancellation() {
    let data = toy(20);
    let all: Vec<usize> = (0..20).collect();
    let go = |inputs: &[u16], params: &Params, go_on: bool| {
        super::train(&data, &all, &[], inputs, params, &mut |_| go_on)
    };
    assert!(go(&[0, 2], &params(), true).is_some());
    assert!(go(&[], &params(), true).is_none());
    assert!(go(&[0], &Params { min_groups: 21, ..params() }, true).is_none());
    assert!(go(&[0], &params(), false).is_none());
}
