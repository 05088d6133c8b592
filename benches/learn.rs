//! Time of training a forest on as many trials as a large corpus has, and of scoring a whole space. Run by hand:
//!
//! ```text
//! cargo bench --bench learn
//! ```

use sparsetune::learn::lambdamart::{Params, train};
use sparsetune::learn::{Dataset, Group, Row};
use sparsetune::sparse::random::Stream;
use std::time::Instant;

const SHARED: usize = 45;
const OWN: usize = 55;
const GROUPS: usize = 800;
const ROWS: usize = 125;
/// Candidates of a large space.
const SPACE: usize = 1500;

fn main() {
    // `cargo bench` passes --bench, `cargo test --all-targets` does not: then nothing is measured.
    if !std::env::args().any(|arg| arg == "--bench") {
        println!("run by hand: cargo bench --bench learn");
        return;
    }
    let groups: Vec<Group> = (0..GROUPS).map(|at| group(at as u64, ROWS)).collect();
    let names = |kind: &str, count| (0..count).map(|at| format!("{kind}{at}")).collect();
    let data = Dataset { shared: names("shared", SHARED), own: names("own", OWN), groups };
    let (held_out, seen): (Vec<usize>, Vec<usize>) = (0..GROUPS).partition(|at| at % 10 == 0);
    // All trees are grown, whatever the held-out groups say.
    let params = Params { patience: usize::MAX, ..Params::default() };
    let started = Instant::now();
    let Some(forest) = train(&data, &seen, &[], &params, &mut |_| true) else { return };
    println!(
        "training: {:.1} s for {} trees on {} trials of {} features, {} threads",
        started.elapsed().as_secs_f64(),
        forest.trees.len(),
        seen.len() * ROWS,
        SHARED + OWN,
        std::thread::available_parallelism().map_or(1, usize::from),
    );
    let mut times = Vec::new();
    for at in held_out {
        let group = group((GROUPS + at) as u64, SPACE);
        let own: Vec<Vec<f32>> = group.rows.into_iter().map(|row| row.own).collect();
        let started = Instant::now();
        let scores = std::hint::black_box(forest.scores(&group.shared, &own));
        times.push(started.elapsed().as_secs_f64() * 1e3);
        assert_eq!(scores.len(), SPACE);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "scores of {SPACE} candidates: median {:.3} ms, best {:.3} ms, worst {:.3} ms of {} spaces",
        times[times.len() / 2],
        times[0],
        times[times.len() - 1],
        times.len(),
    );
}

/// Some features are flags and sizes of few values, as those of candidates are, and some are continuous; a dozen decide.
fn group(at: u64, rows: usize) -> Group {
    let mut random = Stream::new(3, at);
    let shared: Vec<f32> = (0..SHARED).map(|_| random.normal() as f32).collect();
    let row = |index: usize| {
        let value = |feature: usize| match feature % 5 {
            0 | 1 => (random.unit() * 2.0).floor() as f32,
            2 | 3 => (random.unit() * 6.0).floor() as f32,
            _ => random.normal() as f32,
        };
        let own: Vec<f32> = (0..OWN).map(value).collect();
        let decides = |feature: usize| {
            f64::from(own[feature] * (shared[feature] + 0.5))
                / if feature % 5 > 1 { 6.0 } else { 2.0 }
        };
        let nepers: f64 = (0..12).map(decides).sum();
        let us = (nepers + 0.05 * random.normal()).exp();
        Row { candidate: index.to_string(), own, us, predicted_us: us }
    };
    let rows = (0..rows).map(row).collect();
    Group { pattern: at.to_string(), shared, rows }
}
