//! Microseconds that a call of a plan takes on the host, beside a bare launch of the same kernel:
//! `cargo run --release --example bundle_overhead` on a machine with a GPU.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/fixture/driver.rs"]
mod driver;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/fixture/scale.rs"]
mod scale;

use driver::Driver;
use scale::ROWS;
use sparsetune::engine::cuda::CudaPlan;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// Calls that are queued at a time; the driver's queue holds as many without waiting.
const CALLS: u32 = 500;
const ROUNDS: usize = 41;

/// The median of the rounds, microseconds of one call.
fn median(driver: &Driver, stream: u64, call: impl Fn()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            driver.wait(stream);
            let started = Instant::now();
            (0..CALLS).for_each(|_| call());
            started.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(driver) = Driver::open(Path::new("libcuda.so.1")) else {
        return Err("there is no CUDA device here".into());
    };
    let (mut manifest, files) = scale::plan(&driver.compute_capability());
    if let sparsetune::domain::bundle::Forward::Cuda(forward) = &mut manifest.forward {
        // A memset beside the launch would be counted too.
        forward.zero_output = false;
    }
    let plan = CudaPlan::load(&[], 0, &manifest, &files)?;
    let (b, c) = (driver.upload(&[1f32; ROWS]), driver.upload(&[0f32; ROWS]));
    let (values, turn) = (driver.upload(&[1f32; ROWS]), driver.upload(&[0f32; ROWS]));
    let stream = driver.stream();
    let kernel = driver.kernel(include_str!("../tests/fixture/scale.ptx"), "scale");
    let words = [values, b, c, turn, 1, ROWS as u64];

    let bare = median(&driver, stream, || driver.launch(kernel, stream, &words));
    // SAFETY: both operands have as many elements as the plan's, and the stream is alive.
    let run = || unsafe { plan.run(b, c, stream, 1.0, 0.0) }.expect("a call");
    let planned = median(&driver, stream, run);
    println!("bare launch    {bare:.3} us");
    println!("plan           {planned:.3} us");
    println!("above it       {:.3} us", planned - bare);
    Ok(())
}
