//! Plans in a few lines, as they were stored and changed in some members.

use super::{Lookup, Place, Plan, us};
use crate::domain;
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
    let shown = super::plan(&plan(solve));
    for line in [
        "problem  sptrsv rhs=1 dtype=f64 triangle=lower diagonal=unit transpose=false",
        "time     80.00 us a call, calls back to back, 95 % within 12.25 .. 12.75, 31 samples, largest error 1.0e-7",
        "also     90.00 us a call, each call alone; the vendor's 135.0 us, so 1.50x",
        "limit    40.00 us for its levels at 263 ns a hop, measured: 50 % of it reached",
        "model    waits_v1 said 75.00 us; over 64 trials measured is 1.12x predicted, spread 1.50x, rank correlation 0.75",
        "prepare  6.50 ms once (the vendor's 2.50 ms); chosen for 1000 calls; breaks even after 25 calls",
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
        "match": {"grade": "predicted", "reasons": ["POST /v1/jobs has it measured"]},
        "plan": plan,
    }))
    .unwrap();
    let shown = super::lookup(&lookup);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(
        lines,
        [
            "match    predicted",
            "         POST /v1/jobs has it measured",
            "plan     p",
            "problem  spmm n=32 dtype=f32 layout=row",
            "device   cpu (P)",
            "choice   row_split lanes=8",
            "time     80.00 us a call by the analytic model, ranked by nightly: predicted, not measured; 2 ranked before it \
             could not be compiled",
            "next     serial",
            "vendor   not measured",
            "limit    40.00 us for 9 bytes at 10 GB/s measured copy: 50 % of it, if the prediction holds",
            "prepare  not measured",
        ]
    );
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
