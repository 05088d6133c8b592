//! Our LambdaMART beside LightGBM's on the same rows, grades and parameters: it may rank held-out groups worse by no more than
//! a small margin of NDCG.
//!
//! LightGBM is in the environment of scripts/test; without it the test fails where `CI` or `SPARSETUNE_REQUIRE_LIGHTGBM` is set,
//! and else says that it was skipped.

use serde_json::{Value, json};
use sparsetune::learn::lambdamart::{Params, train_on};
use sparsetune::learn::ndcg::ndcg;
use sparsetune::learn::{Dataset, Group, Row};
use sparsetune::sparse::random::Stream;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const MARGIN: f64 = 0.01;
/// What a row of each grade is worth.
const GAINS: [f64; 5] = [0.0, 1.0, 3.0, 7.0, 15.0];
const SHARED: usize = 4;
const OWN: usize = 8;
const GROUPS: usize = 90;

/// Groups of rows whose grades come of a rule with noise; the rule is another in each fixture.
struct Fixture {
    data: Dataset,
    grades: Vec<Vec<usize>>,
}

impl Fixture {
    fn of(seed: u64) -> Self {
        let (mut groups, mut grades) = (Vec::new(), Vec::new());
        for at in 0..GROUPS {
            let mut random = Stream::new(seed, at as u64);
            let shared: Vec<f32> = (0..SHARED).map(|_| random.unit() as f32).collect();
            let rows: Vec<Vec<f32>> = (0..20 + random.below(40))
                .map(|_| (0..OWN).map(|own| value(&mut random, own)).collect())
                .collect();
            let worth: Vec<f64> =
                rows.iter().map(|own| rule(seed, &shared, own) + 0.2 * random.normal()).collect();
            grades.push(graded(&worth));
            let row =
                |own| Row { candidate: String::new(), own, us: f64::INFINITY, predicted_us: 0.0 };
            let rows = rows.into_iter().map(row).collect();
            groups.push(Group { pattern: at.to_string(), shared, rows });
        }
        let names = |kind: &str, count| (0..count).map(|at| format!("{kind}{at}")).collect();
        let data = Dataset { shared: names("shared", SHARED), own: names("own", OWN), groups };
        Self { data, grades }
    }

    fn gains(&self) -> Vec<Vec<f64>> {
        let gains = |grades: &Vec<usize>| grades.iter().map(|&grade| GAINS[grade]).collect();
        self.grades.iter().map(gains).collect()
    }

    /// Some groups as the script reads them.
    fn part(&self, groups: &[usize]) -> Value {
        let (mut rows, mut labels): (Vec<Vec<f32>>, Vec<usize>) = Default::default();
        let mut sizes = Vec::new();
        for &at in groups {
            let group = &self.data.groups[at];
            sizes.push(group.rows.len());
            labels.extend(&self.grades[at]);
            let all =
                |row: &Row| group.shared.iter().chain(&row.own).copied().collect::<Vec<f32>>();
            rows.extend(group.rows.iter().map(all));
        }
        json!({ "rows": rows, "labels": labels, "groups": sizes })
    }
}

/// Half of the features take few values, as parameters do.
fn value(random: &mut Stream, own: usize) -> f32 {
    let value = random.unit();
    if own.is_multiple_of(2) { value as f32 } else { (value * 6.0).floor() as f32 / 6.0 }
}

fn rule(seed: u64, shared: &[f32], own: &[f32]) -> f64 {
    let [a, b, c, d] = [0, 1, 2, 3].map(|at| f64::from(own[at]));
    let [s, t] = [0, 1].map(|at| f64::from(shared[at]));
    match seed {
        1 => a + 0.7 * b - 0.5 * c * d,
        2 => (1.0 - 2.0 * s) * a + (if t > 0.5 { b } else { d }),
        _ => -(a - s).powi(2) * 3.0 - (c - t).abs() + 0.5 * f64::from(b > 0.5),
    }
}

/// Grades by place in the group: few are of the highest.
fn graded(worth: &[f64]) -> Vec<usize> {
    let place = |of: &f64| worth.iter().filter(|other| *other > of).count();
    worth
        .iter()
        .map(|of| match place(of) * 20 / worth.len() {
            0 => 4,
            1..=2 => 3,
            3..=5 => 2,
            6..=9 => 1,
            _ => 0,
        })
        .collect()
}

/// LightGBM's scores of the held-out rows, one after another; why there are none if it is not here.
fn lightgbm(fixture: &Value) -> Result<Vec<f64>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("target/venv/bin/python");
    let there = Command::new(&python).args(["-c", "import lightgbm"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        return Err("target/venv has no LightGBM".to_owned());
    }
    let mut child = Command::new(&python)
        .arg(root.join("scripts/lightgbm_oracle.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(fixture.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the script failed: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn ranks_as_well_as_lightgbm() {
    for seed in [1, 2, 3] {
        let fixture = Fixture::of(seed);
        let gains = fixture.gains();
        let (train, held_out): (Vec<usize>, Vec<usize>) = (0..GROUPS).partition(|at| at % 3 != 0);
        let params = Params {
            trees: 60,
            leaves: 15,
            rate: 0.1,
            min_rows: 20,
            min_hessian: 1e-3,
            l2: 1.0,
            group_share: 1.0,
            feature_share: 1.0,
            bins: 255,
            truncation: 20,
            normalise: true,
            ..Params::default()
        };
        let theirs = json!({
            "params": {
                "objective": "lambdarank",
                "label_gain": GAINS,
                "lambdarank_truncation_level": params.truncation,
                "lambdarank_norm": params.normalise,
                "num_leaves": params.leaves,
                "learning_rate": params.rate,
                "min_data_in_leaf": params.min_rows,
                "min_sum_hessian_in_leaf": params.min_hessian,
                "lambda_l2": params.l2,
                "max_bin": params.bins,
                "min_data_in_bin": 1,
                "deterministic": true,
                "force_row_wise": true,
                "num_threads": 1,
                "seed": 1,
                "verbosity": -1,
            },
            "rounds": params.trees,
            "train": fixture.part(&train),
            "held_out": fixture.part(&held_out),
        });
        let theirs = match lightgbm(&theirs) {
            Ok(scores) => scores,
            Err(error) => {
                let required = ["CI", "SPARSETUNE_REQUIRE_LIGHTGBM"];
                let required = required.into_iter().find(|name| std::env::var_os(name).is_some());
                assert!(required.is_none(), "{} is set, but {error}", required.unwrap_or_default());
                println!("SKIPPED: {error}; scripts/test makes the environment");
                return;
            }
        };
        let forest = train_on(&fixture.data, &gains, &train, &[], &params, &mut |_| true).unwrap();
        let (mut ours_sum, mut theirs_sum, mut chance, mut first) = (0.0, 0.0, 0.0, 0);
        for &at in &held_out {
            let group = &fixture.data.groups[at];
            let own: Vec<Vec<f32>> = group.rows.iter().map(|row| row.own.clone()).collect();
            ours_sum += ndcg(&gains[at], &forest.scores(&group.shared, &own), 10);
            theirs_sum += ndcg(&gains[at], &theirs[first..][..own.len()], 10);
            chance += ndcg(&gains[at], &vec![0.0; own.len()], 10);
            first += own.len();
        }
        assert_eq!(first, theirs.len());
        let [ours, theirs, chance] =
            [ours_sum, theirs_sum, chance].map(|sum| sum / held_out.len() as f64);
        println!("fixture {seed}: NDCG@10 {ours:.4}, LightGBM {theirs:.4}, by chance {chance:.4}");
        assert!(theirs > chance + 0.2, "fixture {seed} teaches nothing: {theirs} over {chance}");
        assert!(ours >= theirs - MARGIN, "fixture {seed}: {ours} is below LightGBM's {theirs}");
    }
}
