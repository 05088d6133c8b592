//! Runs plans of bundles on a real device: calls, captured calls, new values, refusals.
//!
//! Without a device it says so and passes, unless `SPARSETUNE_REQUIRE_GPU` is set.

#[allow(dead_code, reason = "the example uses the rest")]
#[path = "fixture/driver.rs"]
mod driver;
#[path = "fixture/scale.rs"]
mod scale;

use driver::Driver;
use scale::{ROWS, expected, values};
use sparsetune::domain::bundle::{Argument, Forward, Manifest};
use sparsetune::engine::EngineError;
use sparsetune::engine::cuda::CudaPlan;
use std::path::PathBuf;

fn libraries() -> Vec<PathBuf> {
    let named = std::env::var("SPARSETUNE_CUDA_LIBRARIES").unwrap_or_default();
    named.split(':').filter(|name| !name.is_empty()).map(PathBuf::from).collect()
}

fn device() -> Option<Driver> {
    let driver = Driver::open();
    if driver.is_none() {
        assert!(std::env::var_os("SPARSETUNE_REQUIRE_GPU").is_none(), "no CUDA device");
        println!("SKIPPED: no CUDA device");
    }
    driver
}

fn refusal<T>(result: Result<T, EngineError>) -> String {
    match result {
        Err(EngineError::Refused(sentence)) => sentence,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused"),
    }
}

fn close(got: &[f32], want: impl Fn(usize) -> f32) {
    let wanted: Vec<f32> = (0..got.len()).map(want).collect();
    assert_eq!(got, wanted);
}

#[test]
fn without_a_driver_a_plan_is_refused_with_a_sentence() {
    if Driver::open().is_some() {
        return;
    }
    let (manifest, files) = scale::plan("9.0");
    let sentence = refusal(CudaPlan::load(&[], 0, &manifest, &files));
    assert!(sentence.contains("CUDA driver"), "{sentence}");
}

#[test]
fn a_plan_runs_alone_captured_and_with_new_values() {
    let Some(driver) = device() else { return };
    let (manifest, files) = scale::plan(&driver.compute_capability());
    let before = driver.current();
    driver.make_current(0);
    let plan = CudaPlan::load(&libraries(), 0, &manifest, &files).expect("the plan loads");
    assert_eq!(driver.current(), 0, "the caller's context is as it was");
    driver.make_current(before);
    println!("{:#?}", plan.warnings());
    assert!(plan.warnings().iter().any(|warning| warning.contains("PTX")));

    let b: Vec<f32> = (0..ROWS).map(|row| row as f32 - 1.25).collect();
    let (device_b, device_c) = (driver.upload(&b), driver.upload(&[f32::NAN; ROWS]));
    let stream = driver.stream();
    let result = || {
        driver.wait(stream);
        driver.download::<f32>(device_c, ROWS)
    };
    let run = || unsafe { plan.run(device_b, device_c, stream, 1.0, 0.0) }.expect("a call");
    let mut call = 0;
    let mut next = |values: &[f64]| {
        run();
        call += 1;
        close(&result(), |row| expected(values, &b, row, call));
    };
    (0..3).for_each(|_| next(&values()));

    // Whenever a graph runs, its call is a first one, and calls beside it go on counting.
    let graph = driver.record(stream, run);
    for _ in 0..3 {
        graph();
        close(&result(), |row| expected(&values(), &b, row, 1));
    }
    next(&values());

    let new: Vec<f64> = values().iter().map(|value| 3.0 * value - 1.0).collect();
    plan.update_values_from_host(&new, stream).expect("new values");
    next(&new);
    let rounded: Vec<f32> = values().iter().map(|&value| value as f32).collect();
    let on_device = driver.upload(&rounded);
    unsafe { plan.update_values_on_device(on_device, stream) }.expect("new values");
    next(&values());
    graph();
    close(&result(), |row| expected(&values(), &b, row, 1));

    assert_eq!(plan.gave_up(), Ok(false));
    let mut c = [0; 4 * ROWS];
    let bytes: Vec<u8> = b.iter().flat_map(|value| value.to_le_bytes()).collect();
    plan.call_on_host(&bytes, &mut c, 1.0, 0.0).expect("a call on the host");
    plan.replace(&manifest, &files).expect("the same arrays");
    plan.call_on_host(&bytes, &mut c, 1.0, 0.0).expect("a call on the host");
    let c: Vec<f32> = c
        .chunks_exact(4)
        .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    close(&c, |row| expected(&values(), &b, row, 1));

    assert!(refusal(plan.update_values_from_host(&new[1..], stream)).contains("4 values"));
    assert!(refusal(unsafe { plan.run(device_b, device_b, stream, 1.0, 0.0) }).contains("overlap"));
    assert!(refusal(unsafe { plan.run(device_b, device_c, stream, 2.0, 0.0) }).contains("alpha"));
}

#[test]
fn what_does_not_fit_the_device_is_refused() {
    let Some(driver) = device() else { return };
    let here = driver.compute_capability();
    let altered = |change: &dyn Fn(&mut Manifest)| {
        let (mut manifest, files) = scale::plan(&here);
        change(&mut manifest);
        refusal(CudaPlan::load(&libraries(), 0, &manifest, &files))
    };
    fn steps(manifest: &mut Manifest) -> &mut sparsetune::domain::bundle::CudaForward {
        match &mut manifest.forward {
            Forward::Cuda(forward) => forward,
            _ => panic!("not a CUDA plan"),
        }
    }
    let cases: [(&str, &dyn Fn(&mut Manifest)); 9] = [
        ("compute capability 1.0", &|m| m.target.compute_capability = "1.0".to_owned()),
        ("100000 multiprocessors", &|m| m.target.multiprocessors = 100_000),
        ("array `other`", &|m| {
            steps(m).steps[0].arguments[0] = Argument::Array { name: "other".to_owned() };
        }),
        ("takes arguments", &|m| drop(steps(m).steps[0].arguments.pop())),
        ("grid.x is 0", &|m| steps(m).steps[0].grid[0] = 0),
        ("block.y is 0", &|m| steps(m).steps[0].block[1] = 0),
        ("cluster", &|m| steps(m).steps[0].cluster = 2),
        ("shared memory", &|m| steps(m).steps[0].shared_bytes = 1 << 20),
        ("`nothing`", &|m| steps(m).steps[0].symbol = "nothing".to_owned()),
    ];
    for (word, change) in cases {
        let sentence = altered(change);
        assert!(sentence.contains(word), "{word}: {sentence}");
    }
    let (manifest, mut files) = scale::plan(&here);
    files.arrays.remove("diagonal");
    assert!(refusal(CudaPlan::load(&libraries(), 0, &manifest, &files)).contains("missing"));
    assert!(refusal(CudaPlan::load(&libraries(), 999, &manifest, &files)).contains("999"));
}

#[test]
fn values_that_were_left_out_must_be_given_first() {
    let Some(driver) = device() else { return };
    let (mut manifest, mut files) = scale::plan(&driver.compute_capability());
    manifest.arrays[0].included = false;
    files.arrays.remove("diagonal");
    let plan = CudaPlan::load(&libraries(), 0, &manifest, &files).expect("the plan loads");
    let b: Vec<u8> = [1f32; ROWS].iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut c = [0; 4 * ROWS];
    assert!(refusal(plan.call_on_host(&b, &mut c, 1.0, 0.0)).contains("left out"));
    plan.update_values_from_host(&values(), 0).expect("values");
    plan.call_on_host(&b, &mut c, 1.0, 0.0).expect("a call");
}
