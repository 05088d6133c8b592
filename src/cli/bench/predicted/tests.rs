//! Predictions in words: searches for one candidate, lines, the sentence and the table.

use super::*;
use crate::cli::bench::compare::Earlier;
use crate::cli::bench::report::tests::run;
use crate::domain::Clock;
use serde_json::json;

fn candidate(lanes: i64) -> Candidate {
    crate::domain::Candidate::new("slices").with("lanes", lanes).with_text("sync", "packed").into()
}

fn tried(us: Option<f64>, state: &str, detail: Option<&str>) -> Tried {
    let (candidate, state) = (candidate(4).to_string(), state.to_owned());
    Tried { candidate, state, us, predicted_us: None, detail: detail.map(str::to_owned) }
}

/// What a lookup predicted; `timed` says whether the job chose it, and its time.
fn looked(timed: Option<(bool, f64)>) -> Looked {
    let standing = |(same, us)| Standing {
        same,
        time: Time { us, clock: Clock::Pipelined, clocks: BTreeMap::new() },
    };
    Looked {
        grade: Open::Known(Grade::Predicted),
        reasons: Vec::new(),
        seconds: 0.5,
        choice: Some(Choice {
            candidate: candidate(4),
            model: "m".to_owned(),
            predicted_us: 7.0,
            timed: timed.map(standing),
        }),
    }
}

fn predicted(matrix: &str, lookup: Option<Looked>) -> Run {
    let mut run = run("f64", "4-32", matrix, Some(2.0));
    if let Some(figures) = &mut run.figures {
        figures.predicted_us = Some(30.0);
    }
    Run { predicted: Some(json!({})), lookup, ..run }
}

#[test]
fn one_candidate_is_searched_for_by_all_that_it_is() {
    let asked = SearchArgs {
        strategy: Some(StrategyArg::Predicted),
        top_k: Some(2),
        trials: Some(1),
        seed: Some(5),
        expected_calls: Some(9),
        ..SearchArgs::default()
    };
    let search = alone(&asked, &candidate(4));
    let expected = json!({
        "strategy": "exhaustive", "families": ["slices"], "fixed": {"lanes": 4, "sync": "packed"},
        "exact": true, "seed": 5,
    });
    assert_eq!(search.wire(), expected);
    assert_eq!(search.expected_calls, Some(9));
}

#[test]
fn a_candidate_without_a_time_says_why() {
    let why = |trials: &[Tried]| failure(&candidate(4).to_string(), trials);
    let wrong = why(&[tried(None, "timed_out", Some("1 s"))]);
    assert_eq!(wrong, "slices lanes=4 sync=packed was predicted, and is timed out: 1 s");
    assert!(why(&[tried(Some(1.0), "measured", None)]).contains("in the finals"));
    let other = Tried { candidate: "vendor".to_owned(), ..tried(None, "wrong", Some("2")) };
    assert!(why(&[other]).ends_with("did not try it"));
}

#[test]
fn a_lookup_is_repeated_while_its_prediction_is_made() {
    let answer = |reason: &str| -> Lookup {
        serde_json::from_value(
            json!({"match": {"grade": "none", "reasons": ["no plan", reason]}, "plan": null}),
        )
        .unwrap()
    };
    assert!(is_being_made(&answer(&format!("a prediction is being made: {TRY_AGAIN}"))));
    assert!(!is_being_made(&answer("nothing is predicted")));
    let looked = Looked::of(answer("nothing is predicted"), 1.0);
    assert!(looked.choice.is_none() && looked.reasons.len() == 2);
    let said = serde_json::to_value(&looked).unwrap();
    assert_eq!((&said["grade"], said.get("candidate")), (&json!("none"), None));
}

#[test]
fn lookups_and_jobs_are_counted_by_whether_they_agree() {
    let exact = Looked { grade: Grade::Exact.into(), choice: None, ..looked(None) };
    let runs = [
        predicted("a", Some(looked(Some((true, 10.0))))),
        predicted("b", Some(looked(Some((false, 16.0))))),
        predicted("c", Some(looked(Some((true, 10.0))))),
        predicted("d", Some(looked(None))),
        predicted("e", Some(exact)),
        predicted("f", None),
    ];
    let lines: Vec<String> = runs.iter().map(told).collect();
    assert_eq!(lines[0], "; lookup: same");
    assert_eq!(lines[1], "; lookup: slices lanes=4 sync=packed, 16.00 us");
    assert_eq!((&lines[4][..], &lines[5][..]), ("; lookup: exact", ""));
    assert_eq!(
        agreement(&runs).unwrap(),
        "Of the lookups before all jobs, 5: 2 predicted what the job chose; 1 predicted another candidate; \
         1 predicted for a run that failed; 1 had the grade exact and is not compared."
    );
    assert_eq!(agreement(&runs[5..]), None);
    let said = serde_json::to_value(&runs[1]).unwrap();
    let said = &said["lookup"];
    assert_eq!(
        (&said["same"], &said["us"], &said["predicted_us"]),
        (&json!(false), &json!(16.0), &json!(7.0))
    );
    assert_eq!(said["candidate"]["family"], "slices");
}

#[test]
fn predictions_stand_beside_what_was_measured() {
    let runs = [
        predicted("a", Some(looked(Some((false, 16.0))))),
        predicted("unknown", None),
        run("f64", "4-32", "not predicted", Some(2.0)),
    ];
    let earlier: Earlier = serde_json::from_value(json!({"runs": [
        {"matrix": "a", "task": "f64", "figures": {"us": 8.0, "clock": "pipelined", "winner": "ag nw=1"}, "trials": [
            {"candidate": "vendor alg=1", "state": "measured", "us": 5.0},
            {"candidate": "ag nw=2", "state": "measured", "us": 10.0},
            {"candidate": "ag nw=1", "state": "measured", "us": 4.0},
        ]},
        {"matrix": "not predicted", "task": "f64", "figures": {"us": 1.0}, "trials": []},
    ]}))
    .unwrap();
    let mut run = runs[0].clone();
    run.trials =
        vec![Tried { candidate: "vendor alg=1".to_owned(), ..tried(Some(9.0), "measured", None) }];
    let beside = earlier.beside(&[run]);
    let [pair] = &beside[..] else { panic!("{beside:?}") };
    assert_eq!((pair.of_best, pair.lookup_of_best), (0.8, Some(0.5)));
    assert_eq!(pair.of_best_same_session, Some(0.4), "the vendor's routine was not predicted");
    assert_eq!(pair.earlier_winner.as_deref(), Some("ag nw=1"));

    let alone = table(&runs, &[], Width::Usual).unwrap().to_string();
    assert!(alone.contains("unknown") && !alone.contains("not predicted"), "{alone}");
    assert!(alone.contains("other, 16.00 us") && !alone.contains("of its best"), "{alone}");
    let compared = table(&runs, &earlier.beside(&runs), Width::Usual).unwrap().to_string();
    let row = compared.lines().find(|line| line.contains("other, 16.00 us")).unwrap();
    for part in ["30.00", "10.00", "8.000", "80.0 %"] {
        assert!(row.contains(part), "`{part}` is not in {row}");
    }
    let wide = table(&runs, &earlier.beside(&runs), Width::Wide).unwrap().to_string();
    assert!(wide.contains("ag nw=1") && wide.contains("ag nw=2"), "{wide}");
    assert!(table(&runs[2..], &[], Width::Usual).is_none());
}
