//! Means, classes and lines of made-up runs.

use super::{Run, USUAL, Width, geometric_mean, groups, header, line, median, table, vendors};
use crate::cli::bench::run::{Figures, Timed, Tried};
use crate::domain::Clock;
use std::collections::BTreeMap;

fn timed(us: f64, speedup: f64) -> Timed {
    Timed { us, vendor_us: Some(us * speedup), speedup: Some(speedup) }
}

pub fn run(task: &str, class: &str, matrix: &str, speedup: Option<f64>) -> Run {
    let problem =
        r#"{"op":"sptrsv","rhs":1,"triangle":"upper","diagonal":"unit","transpose":true}"#;
    let figures = speedup.map(|speedup| Figures {
        device: "a device".to_owned(),
        us: 10.0,
        vendor: Some("v".to_owned()),
        vendor_us: Some(10.0 * speedup),
        speedup: Some(speedup),
        clock: Clock::Pipelined,
        clocks: [
            (Clock::Pipelined, timed(10.0, speedup)),
            (Clock::Isolated, timed(12.5, 0.5 * speedup)),
        ]
        .into(),
        limit_us: 2.5,
        limit_fraction: 0.25,
        bytes: 5000,
        copy_gbps: 2.0,
        model: None,
        predicted_us: None,
        bound: "latency".to_owned(),
        winner: "ag nw=2".to_owned(),
        vendor_won: false,
        tie: false,
        measured: 9,
        failed: BTreeMap::from([("timed_out".to_owned(), 2)]),
        tuning_s: speedup,
        search_s: 0.5,
        preprocess_ms: 1.0,
        break_even_calls: None,
    });
    Run {
        matrix: matrix.to_owned(),
        task: task.to_owned(),
        problem: serde_json::from_str(problem).unwrap(),
        class: class.to_owned(),
        rows: Some(100),
        cols: Some(100),
        nnz: Some(300),
        levels: Some(10),
        rows_per_level: Some(10.0),
        growth: None,
        family: None,
        error: figures.is_none().then(|| "no\nmemory".to_owned()),
        figures,
        plan: None,
        predicted: None,
        lookup: None,
        trials: vec![],
    }
}

#[test]
fn groups_go_by_problem_and_class() {
    let mut runs = [
        run("f64", ">= 2000", "a", Some(2.0)),
        run("f64", "4-32", "b", Some(8.0)),
        run("f64", "4-32", "c", Some(2.0)),
        run("f64", "4-32", "d", None),
        run("f32", "4-32", "b", Some(4.0)),
    ];
    let trial = |us, predicted_us| Tried {
        candidate: "ag".to_owned(),
        state: "measured".to_owned(),
        us,
        predicted_us,
        detail: None,
    };
    runs[1].trials = vec![
        trial(Some(2.0), Some(4.0)),
        trial(Some(2.0), None),
        trial(None, Some(1.0)),
        trial(Some(8.0), Some(1.0)),
    ];
    let groups = groups(&runs);
    let names: Vec<_> = groups.iter().map(|g| (g.task.as_str(), g.class.as_str())).collect();
    let f64s = [("f64", "4-32"), ("f64", ">= 2000"), ("f64", "all")];
    assert_eq!(names, [&f64s[..], &[("f32", "all"), ("all", "all")]].concat());
    let first = &groups[0];
    assert_eq!((first.runs, first.failed), (3, 1));
    let speedups = &first.speedups;
    assert!((speedups.speedup.unwrap() - 4.0).abs() < 1e-12);
    assert_eq!((speedups.worst, speedups.worst_matrix.as_deref()), (Some(2.0), Some("c")));
    assert_eq!(first.clocks[&Clock::Pipelined], *speedups);
    let isolated = &first.clocks[&Clock::Isolated];
    assert!((isolated.speedup.unwrap() - 2.0).abs() < 1e-12 && isolated.worst == Some(1.0));
    let said = serde_json::to_value(first).unwrap();
    assert_eq!((&said["worst"], &said["clocks"]["isolated"]["worst"]), (&2.0.into(), &1.0.into()));
    assert_eq!((first.tuning_s, first.longest_s), (Some(5.0), Some(8.0)));
    assert!((first.model_error.unwrap() - 4.0).abs() < 1e-12);
    assert_eq!(groups[1].model_error, None);
    assert!((first.limit_fraction.unwrap() - 0.25).abs() < 1e-12);
    let text = table(&groups, Width::Wide).to_string();
    assert!(text.contains("4.00x") && text.contains("2.00x") && text.contains("25.0 %"), "{text}");
    assert!(text.contains("pipelined") && text.contains("isolated"), "{text}");
}

#[test]
fn lines_say_what_failed_and_what_is_uncommon() {
    let good = line(&run("sptrsv f64 x1", "4-32", "b", Some(8.0)), Width::Wide);
    for part in [
        "sptrsv f64 x1 up T unit",
        "80.00",
        "8.00x",
        "4.00x",
        "latency",
        "never",
        "ag nw=2; 2 timed_out",
    ] {
        assert!(good.contains(part), "`{part}` is not in {good}");
    }
    let bad = line(&run("f64", "4-32", "b", None), Width::Wide);
    assert!(bad.ends_with("FAILED: no memory"), "{bad}");
}

#[test]
fn the_usual_width_is_that_of_a_terminal() {
    let long = "a matrix with quite a long name, as some collections have them";
    let mut told = run("spmm f32 n=128 row", "power-law graphs", long, Some(8.0));
    if let Some(figures) = &mut told.figures {
        figures.winner = format!("row_split {}", "lanes=8 ".repeat(20));
        figures.failed.insert("timed_out".to_owned(), 3);
    }
    let lines =
        [header(false, Width::Usual), line(&told, Width::Usual), header(true, Width::Usual)];
    for text in &lines {
        assert!(text.chars().count() <= USUAL, "{text}");
    }
    assert!(lines[1].contains("8.00x") && lines[1].contains("25.0 %"), "{}", lines[1]);
    let table = table(&groups(&[told]), Width::Usual).to_string();
    assert!(table.lines().all(|row| row.trim_end().chars().count() <= USUAL), "{table}");
    assert!(table.contains("8.00x"), "{table}");
}

#[test]
fn the_libraries_are_named_once_with_their_versions() {
    let of = |vendor: &str| {
        let mut run = run("f32", "4-32", "a", Some(2.0));
        if let Some(figures) = &mut run.figures {
            figures.vendor = Some(vendor.to_owned());
        }
        run
    };
    let runs = ["cuSPARSE 12.9.4 csr_alg3", "cuSPARSE 12.9.4 csr_alg1", "cuSPARSE 12.6.3 spsv"];
    let sentence = "Speed-ups are over the baseline (cuSPARSE 12.6.3, cuSPARSE 12.9.4), by both clocks; times, choices and shares of \
                    the bound go by the clock pipelined.";
    assert_eq!(vendors(&runs.map(of)).as_deref(), Some(sentence));
    assert_eq!(vendors(&[]), None);
}

#[test]
fn means_of_nothing_are_nothing() {
    assert_eq!(geometric_mean([].into_iter()), None);
    assert_eq!((median(&[]), median(&[1.0, 2.0])), (None, Some(1.5)));
    assert!(groups(&[]).is_empty());
}
