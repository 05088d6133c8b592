//! A search of the full space: what the rules would have removed is measured all the same, and each trial says which rule.
//! Fixed parameter values leave out what has others.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use sparsetune::ops::{self, Narrowing, Space};
use sparsetune::search::Draw;
use sparsetune::sparse::canonical;
use std::collections::BTreeMap;

fn full(trials: u32) -> Search {
    Search { strategy: SearchStrategy::Full, trials: Some(trials), ..Search::default() }
}

/// The matrix as the job reads it, with the whole space of a problem that pads columns.
fn space(bench: &Bench, problem: &Problem, full: bool) -> Space {
    let name = bench.matrix.digest.to_string();
    let path = bench.folder.path().join("blobs").join(&name[..2]).join(name);
    let (csr, _) = canonical::open(&path).unwrap();
    let full = full.then_some(Draw { most: usize::MAX, seed: 1 });
    let narrowing = Narrowing { full, ..Narrowing::default() };
    ops::of(problem).space(&csr, &device(), &narrowing).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_rules_remove_is_measured_and_says_which_rule_it_breaks() {
    let bench = Bench::new().await;
    // One column wastes most of every tile.
    let problem = Problem::Spmm(Spmm::new(9, Dtype::F32, Layout::Row));
    let (usual, whole) = (space(&bench, &problem, false), space(&bench, &problem, true));
    assert!(!usual.pruned.removed.is_empty() && !usual.scored.is_empty());
    // What only repeats another candidate stays away.
    let others = usual.pruned.removed.iter().filter(|removed| removed.rule != "duplicates").count();
    assert!(others > 0);
    assert_eq!(whole.scored.len(), usual.scored.len() + others);
    // What the rules remove is the fastest.
    let us = |candidate: &Candidate| match whole.despite.contains_key(&candidate.id()) {
        true => 50.0,
        false => 100.0,
    };
    let scored = whole.scored.iter();
    let mut acts: BTreeMap<Candidate, Act> =
        scored.map(|(candidate, _)| (candidate.clone(), takes(us(candidate)))).collect();
    acts.insert(vendor(), takes(200.0));
    let worker = bench.work(&bench.service, &device(), acts).await;

    let job = bench.ended(&bench.submit_for(problem, "auto", full(1000)).await).await;
    let plan = bench.plan(&job).await;
    let tried = bench.tried(&job.id).await;
    assert_eq!(tried.len(), whole.scored.len() + 1);
    for trial in &tried[1..] {
        let expected = whole.despite.get(&trial.candidate.id());
        assert_eq!(trial.despite.as_ref(), expected, "{}", trial.candidate);
        assert!(trial.predicted_us.is_some());
    }
    let winner = tried.iter().find(|trial| trial.candidate == plan.candidate).unwrap();
    let removal = winner.despite.as_ref().unwrap();
    let rules: Vec<&str> = usual.pruned.removed.iter().map(|removed| removed.rule).collect();
    assert!(rules.contains(&removal.pruned_by.as_str()), "{removal:?}");
    assert!(removal.value.unwrap() > removal.limit.unwrap());
    let draw = plan.funnel.last().unwrap();
    assert_eq!((draw.constraint.as_str(), draw.removed), ("draw", 0));
    let against = tried.iter().filter(|trial| trial.despite.is_some()).count();
    assert_eq!(against, whole.despite.len());

    // A draw is a part of it, and the vendor's routine is one of the trials.
    let job = bench.ended(&bench.submit_for(problem, "auto", full(6)).await).await;
    let (plan, drawn) = (bench.plan(&job).await, bench.tried(&job.id).await);
    assert_eq!((drawn.len(), job.stopped_by), (6, Some(StoppedBy::Completed)));
    let draw = plan.funnel.last().unwrap();
    assert_eq!((draw.left, draw.removed + draw.left), (5, whole.scored.len() as u64));
    let passing = drawn[1..].iter().filter(|trial| trial.despite.is_none()).count();
    let detail = draw.detail.as_deref().unwrap();
    assert!(detail.starts_with("5 of all "), "{detail}");
    assert!(detail.ends_with(&format!("; {passing} of them pass every rule")), "{detail}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fixed_values_leave_out_others() {
    let bench = Bench::new().await;
    let acts = bench.candidates(&device()).into_iter().map(|candidate| (candidate, takes(100.0)));
    let acts: Vec<(Candidate, Act)> = acts.chain([(vendor(), takes(200.0))]).collect();
    let worker = bench.work(&bench.service, &device(), acts).await;
    let n1 = |value: Param| Fixed([("n1".to_owned(), value)].into());
    let search = Search { fixed: n1(Param::Int(8)), ..exhaustive() };
    let job = bench.ended(&bench.submit(search).await).await;
    let tried = bench.tried(&job.id).await;
    assert!(tried.len() > 1);
    assert!(tried[1..].iter().all(|trial| trial.candidate.int("n1") == Some(8)));
    let plan = bench.plan(&job).await;
    assert_eq!(plan.funnel[0].constraint, "fixed");
    assert_eq!(plan.funnel[0].detail.as_deref(), Some("the request fixes n1=8"));
    worker.stop().await;
}
