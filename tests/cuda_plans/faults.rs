//! Kernels that give up, captures that other threads could disturb, and plans for other devices.

use super::{Here, bytes, close, cuda, scale};
use scale::{ROWS, expected, values};
use sparsetune::bundle::RunError;
use sparsetune::domain::DeviceKind;
use sparsetune::domain::bundle::{Argument, Manifest};
use sparsetune::engine::EngineError;
use sparsetune::engine::cuda::CudaPlan;

/// The scaling, followed by a kernel that gives up if b begins with a large number.
fn impatient(capability: &str) -> (Manifest, scale::Files) {
    let (mut manifest, files) = scale::plan(capability);
    let steps = &mut cuda(&mut manifest).steps;
    let mut step = steps[0].clone();
    (step.symbol, step.arguments) = ("impatient".to_owned(), vec![Argument::B, Argument::Status]);
    steps.push(step);
    (manifest, files)
}

#[test]
fn the_call_after_one_that_gave_up_says_so() {
    let Some(here) = Here::open() else { return };
    let driver = &here.driver;
    let live = here.count("fakeLive");
    let (manifest, files) = impatient(&driver.compute_capability());
    let plan = here.load(&manifest, &files).expect("the plan loads");
    let (fine, late) = ([1.5; ROWS], [2000.0f32; ROWS]);
    let (b, too_large) = (driver.upload(&fine), driver.upload(&late));
    let (c, stream) = (driver.upload(&[f32::NAN; ROWS]), driver.stream());
    let run = |b| unsafe { plan.run(b, c, stream, 1.0, 0.0) };
    let is = |call| {
        driver.wait(stream);
        close(&driver.download::<f32>(c, ROWS), |row| expected(&values(), &fine, row, call));
    };
    let watchdog = |result: Result<(), EngineError>| match result {
        Err(EngineError::Watchdog(why)) => assert!(why.contains("not valid"), "{why}"),
        other => panic!("{other:?}"),
    };
    run(b).expect("a call");
    is(1);
    run(too_large).expect("a call, which is queued before its kernels run");
    driver.wait(stream);
    watchdog(run(b));
    // The scratch is as it was at first.
    run(b).expect("a call");
    is(1);
    // So it is when the caller asked.
    run(too_large).expect("a call");
    assert_eq!(plan.gave_up(), Ok(true));
    assert_eq!(plan.gave_up(), Ok(false));
    run(b).expect("a call");
    is(1);

    // A graph brings nothing to the host: its result is asked for.
    let graph = driver.record(stream, || run(too_large).expect("a call"));
    graph();
    driver.wait(stream);
    assert_eq!(plan.gave_up(), Ok(true));
    run(b).expect("a call");
    is(1);
    // A capture is not disturbed by waiting.
    run(too_large).expect("a call");
    driver.wait(stream);
    let empty = driver.record(stream, || watchdog(run(b)));
    empty();
    watchdog(run(b));
    run(b).expect("a call");
    is(1);
    drop(plan);
    assert_eq!(here.count("fakeLive"), if here.fake { live + 3 } else { 0 });
}

/// Allocating, loading and waiting of another thread would otherwise break the capture.
#[test]
fn a_capture_goes_on_while_another_thread_loads_and_updates() {
    let Some(here) = Here::open() else { return };
    let driver = &here.driver;
    let (manifest, files) = impatient(&driver.compute_capability());
    let plan = here.load(&manifest, &files).expect("the plan loads");
    let b: Vec<f32> = (0..ROWS).map(|row| row as f32).collect();
    let (device_b, c) = (driver.upload(&b), driver.upload(&[f32::NAN; ROWS]));
    let stream = driver.stream();
    let graph = driver.record(stream, || {
        unsafe { plan.run(device_b, c, stream, 1.0, 0.0) }.expect("a call");
        let beside = || {
            let other = CudaPlan::load(&here.libraries, 0, &manifest, &files).expect("a plan");
            other.update_values_from_host(&values(), 0).expect("new values");
            other.synchronize().expect("no work");
            other.replace(&manifest, &files).expect("the same arrays");
            let mut c = [0; 4 * ROWS];
            other.call_on_host(&bytes(&b), &mut c, 1.0, 0.0).expect("a call");
            assert_eq!(other.gave_up(), Ok(false));
        };
        std::thread::scope(|scope| scope.spawn(beside).join().expect("the other thread"));
    });
    graph();
    driver.wait(stream);
    close(&driver.download::<f32>(c, ROWS), |row| expected(&values(), &b, row, 1));
}

#[test]
fn another_device_is_told_from_other_faults() {
    let Some(here) = Here::open() else { return };
    type Change = &'static dyn Fn(&mut Manifest);
    let cases: [(&str, Change); 4] = [
        ("for a CPU", &|m| m.target.kind = DeviceKind::Cpu),
        ("compute capability 1.0", &|m| m.target.compute_capability = "1.0".to_owned()),
        ("100000 multiprocessors", &|m| m.target.multiprocessors = 100_000),
        ("shared memory", &|m| cuda(m).steps[0].shared_bytes = 1 << 20),
    ];
    for (word, change) in cases {
        let (mut manifest, files) = scale::plan(&here.driver.compute_capability());
        change(&mut manifest);
        match here.load(&manifest, &files).map(drop) {
            Err(EngineError::OtherDevice(why)) => assert!(why.contains(word), "{word}: {why}"),
            other => panic!("{word}: {other:?}"),
        }
    }
    let same = RunError::from(EngineError::OtherDevice("why".to_owned()));
    assert_eq!(same, RunError::OtherDevice("why".to_owned()));
}
