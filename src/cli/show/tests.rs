//! Plans in a few lines, as they were stored and changed in some members.

use super::{Lookup, Place, Plan, us};
use crate::domain::{self, QuotaExceeded};
use crate::service::{Found, of_predicted, of_unstored};
use serde_json::{Value, json};

/// The stored plan of the HTTP tests, changed in some members.
fn plan(change: impl FnOnce(&mut Value)) -> Plan {
    let stored = include_str!("../../../tests/http/plan.json");
    let mut stored: Value = serde_json::from_str(stored).unwrap();
    change(&mut stored);
    serde_json::from_value::<domain::Plan>(stored).unwrap().into()
}

fn solve(stored: &mut Value) {
    stored["problem"] = json!({
        "op": "sptrsv", "rhs": 1, "dtype": "f64", "triangle": "lower", "diagonal": "unit", "transpose": false
    });
    stored["candidate"] = json!({"family": "slices", "params": {"rows": 4}});
    stored["measured"]["median_us"] = json!(80.0);
    stored["measured"]["clock"] = json!("pipelined");
    let alone = |us| json!({"isolated": {"median_us": us, "ci95_us": [us, us], "samples": 9}});
    stored["measured"]["clocks"] = alone(90.0);
    stored["baseline"]["clocks"] = alone(135.0);
    stored["baseline"]["preprocess_ms"] = json!(2.5);
    stored["limit"] = json!({"us": 40.0, "bound": "latency", "fraction": 0.5, "bytes": 9});
    stored["predicted"] = json!({"model": "waits_v1", "median_us": 75.0});
    stored["model_error"] = json!({
        "model": "waits_v1", "trials": 64, "median_ratio": 1.125, "spread": 1.5, "rank_correlation": 0.75
    });
    stored["preprocess_ms"] = json!(6.5);
    stored["break_even_calls"] = json!(25);
    stored["validity"]["update_values_ms"] = json!(1.25);
    stored["host"]["device"] = json!("cpu/P");
    stored["host"]["median_us"] = json!(60.0);
}

#[test]
fn a_plan_of_a_solve_tells_bound_costs_and_host() {
    let dense = plan(|stored| {
        solve(stored);
        let params = json!({"algorithm": "cublas_dense"});
        stored["candidate"] = json!({"family": "vendor", "params": params});
    });
    let shown = super::plan(&dense);
    assert!(shown.contains("cost 1.25 ms on the device, where A is made dense again"), "{shown}");
    let divided = plan(|stored| {
        solve(stored);
        stored["candidate"] = json!({"family": "chains", "params": {"rows": 4}});
        let digest = "00".repeat(32);
        stored["launch"]["update"] = json!({
            "entry": "gather", "quotients": "divide", "source": digest, "cubin": digest, "ptx": digest
        });
    });
    let shown = super::plan(&divided);
    assert!(
        shown.contains("cost 1.25 ms on the host; a bundle takes them on the device"),
        "{shown}"
    );
    let shown = super::plan(&plan(solve));
    for line in [
        "problem  sptrsv rhs=1 dtype=f64 triangle=lower diagonal=unit transpose=false",
        "time     80.00 us a call, calls back to back, 95 % within 12.25 .. 12.75, 31 samples, largest error 1.0e-7",
        "also     90.00 us a call, each call alone; the baseline's 135.0 us, so 1.50x",
        "bound    40.00 us for its levels at 263 ns a hop, measured: 50 % of it reached",
        "model    waits_v1 said 75.00 us; over 64 trials measured is 1.12x predicted, spread 1.50x, rank correlation 0.75",
        "prepare  6.50 ms once (the baseline's 2.50 ms); chosen for 1000 calls; breaks even after 25 calls",
        "values   new ones of the same pattern cost 1.25 ms on the host",
        "host     60.00 us on cpu/P: faster than this device",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}:\n{shown}");
    }
}

#[test]
fn a_predicted_plan_says_that_nothing_was_measured() {
    let plan = plan(|stored| {
        for absent in ["measured", "baseline", "speedup", "model_error", "preprocess_ms"] {
            stored[absent] = Value::Null;
        }
        for absent in ["expected_calls", "break_even_calls", "host", "launch"] {
            stored[absent] = Value::Null;
        }
        stored["id"] = json!("p");
        stored["device"]["name"] = json!("P");
        stored["candidate"] = json!({"family": "row_split", "params": {"lanes": 8}});
        stored["limit"] = json!({"us": 40.0, "bound": "bytes", "fraction": 0.5, "bytes": 9});
        stored["predicted"] = json!({"model": "nightly", "median_us": 80.0, "passed_over": 2});
        stored["alternatives"] = json!([{"family": "serial", "params": {}}]);
        stored["validity"]["update_values_ms"] = json!(0.0);
        stored["provenance"]["model"] = json!("nightly");
    });
    let lookup: Lookup = serde_json::from_value(json!({
        "match": {"grade": "predicted", "reasons": ["it was not measured: POST /v1/jobs measures it"]},
        "plan": plan,
    }))
    .unwrap();
    let shown = super::lookup(&lookup);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines,
        [
            "match    predicted",
            "         it was not measured: `sparsetune submit` measures it",
            "plan     p",
            "problem  spmm n=32 dtype=f32 layout=row",
            "device   cpu (P)",
            "choice   row_split lanes=8",
            "time     80.00 us a call by the analytic model, ranked by nightly: predicted, not measured; 2 ranked before it \
             could not be compiled",
            "next     serial",
            "baseline not measured",
            "bound    40.00 us for 9 bytes at 10 GB/s measured copy: 50 % of it, if the prediction holds",
            "prepare  not measured",
        ]
    );
}

/// As `service` says them, so that other words there are not passed on as they are.
#[test]
fn what_a_lookup_says_in_requests_is_told_in_commands() {
    let exceeded =
        QuotaExceeded { quota: "stored_bytes", limit: 9.0, used: 9.0, need: 1.0, passes: false };
    let unstored = [Found::Made, Found::NoRoom, Found::OverQuota(exceeded)];
    for found in unstored {
        let reasons = [of_predicted("nightly"), of_unstored(&found).unwrap()];
        let [predicted, told] = reasons.map(|reason| super::by_commands(&reason));
        assert_eq!(
            predicted,
            "this plan is predicted by nightly and was not measured: `sparsetune submit` measures it"
        );
        assert!(told.starts_with("it is not stored, so it has no page"), "{told}");
        assert!(!told.contains("its id") && !told.contains("POST"), "{told}");
        assert_eq!(told.contains(": "), found != Found::Made, "{told}");
    }
    assert_eq!(of_unstored(&Found::Stored), None);
}

#[test]
fn the_lines_that_use_a_plan_follow_it() {
    let plan = plan(|stored| stored["id"] = json!("p"));
    let place = Place::Server { address: "http://h", token_file: None };
    let shown = super::usage(&plan, place);
    let blocks: Vec<&str> = shown.split("\n\n").collect();
    assert_eq!(blocks.len(), 3, "{shown}");
    assert!(blocks[0].starts_with("\nuse it: Python\n  import sparsetune\n  plan = "), "{shown}");
    assert!(shown.contains("\n  sparsetune bundle export p -o p.stplan --server 'http://h'\n"));
}

#[test]
fn times_have_four_digits_or_so() {
    assert_eq!(
        [us(1.23456), us(12.3456), us(123.456), us(12345.6)],
        ["1.235", "12.35", "123.5", "12346"]
    );
}

#[test]
fn an_approximate_solve_is_called_so() {
    let exact = super::time(&plan(|_| {}));
    assert!(exact.contains("largest error") && !exact.contains("approximate"), "{exact}");
    let near = super::time(&plan(|stored| {
        stored["candidate"] = json!({"family": "sweeps", "params": {"sweeps": 4}});
        stored["measured"]["rel_error"] = json!(0.07);
    }));
    assert!(near.contains("approximate, largest residual beside b 7.0e-2"), "{near}");
}

#[test]
fn the_finals_are_shown_with_their_winner_and_why_the_fastest_trial_is_not_it() {
    let candidate = |family: &str| json!({"family": family, "params": {}});
    let finalist = |family: &str, us: f64, samples: u32| json!({"candidate": candidate(family), "median_us": us, "ci95_us": [us, us], "samples": samples});
    let decided = plan(|stored| {
        stored["candidate"] = candidate("steady");
        stored["measured"]["median_us"] = json!(11.0);
        stored["finals"] = json!([
            finalist("steady", 11.0, 15),
            finalist("lucky", 12.0, 15),
            finalist("vendor", 22.0, 3)
        ]);
        stored["baseline"]["median_us"] = json!(22.0);
    });
    let shown = super::finals(&decided).unwrap();
    let rows: Vec<&str> = shown.lines().skip(2).collect();
    assert!(rows[0].contains("winner") && rows[0].contains("steady") && rows[0].contains("2.00x"));
    assert!(!rows[1].contains("winner") && rows[1].contains("12.00 .. 12.00"), "{shown}");
    // Three samples have no 95 % interval.
    assert!(!rows[2].contains(".."), "{shown}");

    let trial = |family: &str, us: f64, samples: u32| {
        let state = domain::TrialState::Tried(domain::Outcome::Measured {
            timing: domain::Timing::of(vec![us; samples as usize], 0).unwrap(),
            rel_error: 0.0,
            resources: None,
            preprocess_ms: 0.0,
        });
        let view = crate::wire::Trial::from(domain::Trial {
            job: domain::JobId::fresh(),
            ordinal: 0,
            candidate: domain::Candidate::new(family),
            state,
            predicted_us: None,
            despite: None,
            features: None,
            created_at: domain::Timestamp(0),
        });
        crate::cli::client::Answer { view, raw: Value::Null }
    };
    let trials = [trial("lucky", 9.0, 1), trial("steady", 10.0, 15)];
    let why = super::why_other(&trials, &decided).unwrap();
    assert!(
        why.starts_with("The fastest trial took 9.000 us, 12.00 in the finals. It lost to steady."),
        "{why}"
    );
    let table = super::candidates(&trials, &decided).to_string();
    let rows: Vec<&str> = table.lines().skip(2).collect();
    assert!(rows[1].contains("winner") && rows[1].contains("10.00 .. 10.00"), "{table}");
    assert!(!rows[0].contains(".."), "one sample has no interval: {table}");
    let agreed = [trial("steady", 12.0, 15)];
    assert_eq!(super::why_other(&agreed, &decided), None);
}
