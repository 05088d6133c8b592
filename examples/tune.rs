//! Reads a matrix and tunes it on the CPU, in this process: `cargo run --example tune [FILE]`.
//!
//! Candidates are measured by the `sparsetune` binary, so build that first (`cargo build`).

use sparsetune::{Matrix, Problem, Search, Tuner};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let matrix = match std::env::args().nth(1) {
        Some(file) => Matrix::read(file)?,
        None => Matrix::generate("poisson2d:nx=48,ny=48")?,
    };
    // C = A B, where B has 16 columns; the fields are those of the API's `problem`.
    let problem: Problem = serde_json::from_str(r#"{"op": "spmm", "n": 16}"#)?;

    // `.data(FOLDER)` would keep matrix, trials and plan; `cuda:0` is the first GPU.
    let tuner = Tuner::options().open("cpu")?;
    let search = Search { top_k: Some(4), seconds: Some(10.0), ..Search::default() };
    let plan = tuner.tune_with(&matrix, &problem, search, None)?;

    println!("matrix    {}", plan.matrix);
    println!("device    {}", plan.device.name);
    println!("winner    {}", plan.candidate);
    if let (Some(us), Some(speedup)) = (plan.median_us(), plan.speedup) {
        println!("measured  {us:.1} us, {speedup:.2} times the baseline's speed");
    }
    Ok(())
}
