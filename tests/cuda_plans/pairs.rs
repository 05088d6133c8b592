//! Two plans by one call: alone, captured, with new values, and on a real device against float64.

use super::{Here, ROWS, bytes, close, expected, refusal, scale, triangle, values};
use sparsetune::bundle::{LoadedPlan, Opened, Place};
use sparsetune::engine::cuda::CudaLink;
use std::process::Command;

#[test]
fn two_plans_run_by_one_call_alone_and_captured() {
    let Some(here) = Here::open() else { return };
    let driver = &here.driver;
    let (manifest, files) = scale::plan(&driver.compute_capability());
    let b: Vec<f32> = (0..ROWS).map(|row| row as f32 - 1.25).collect();
    let (device_b, device_c) = (driver.upload(&b), driver.upload(&[f32::NAN; ROWS]));
    let stream = driver.stream();
    let live = here.count("fakeLive");
    let [first, second] = [0, 1].map(|_| here.load(&manifest, &files).expect("the plan loads"));
    let link = CudaLink::new(&first, &second).expect("the plans fit together");
    let run = || {
        unsafe { link.run([&first, &second], device_b, device_c, stream) }.expect("a call");
    };
    let right = |call| {
        driver.wait(stream);
        let between: Vec<f32> = (0..ROWS).map(|row| expected(&values(), &b, row, call)).collect();
        let got = driver.download::<f32>(device_c, ROWS);
        close(&got, |row| expected(&values(), &between, row, call));
    };
    let allocations = here.count("fakeAllocations");
    for call in 1..=3 {
        run();
        right(call);
    }
    assert_eq!(here.count("fakeAllocations"), allocations, "a call allocates nothing");
    // One graph with the launches of both.
    let graph = driver.record(stream, run);
    for _ in 0..3 {
        graph();
        right(1);
    }
    run();
    right(4);
    let refused = unsafe { link.run([&first, &second], device_b + 1, device_c, stream) };
    assert!(refusal(refused).contains("multiple"));
    assert_eq!((first.gave_up(), second.gave_up()), (Ok(false), Ok(false)));
    drop(link);
    drop((first, second));
    assert_eq!(here.count("fakeLive"), live, "all memory is given back");
}

/// Threads share a pair: no call writes the vector between the plans before another's second plan has read it.
#[test]
fn calls_of_several_threads_keep_to_their_own_numbers() {
    let Some(here) = Here::open().filter(|here| here.fake) else { return };
    let [first, second] = [false, true].map(|transpose| {
        let (manifest, files) = triangle::plan("spsv", transpose, 1, true);
        here.load(&manifest, &files).expect("the plan loads")
    });
    for plan in [&first, &second] {
        plan.update_values_from_host(&triangle::FIRST, 0).expect("new values");
    }
    let link = CudaLink::new(&first, &second).expect("the plans fit together");
    let driver = &here.driver;
    let stream = driver.stream();
    let rows = triangle::known(1).len();
    // Each call with a result of its own.
    const CALLS: usize = 500;
    let operands: Vec<(u64, Vec<u64>)> = (1..=4)
        .map(|thread| driver.upload(&vec![thread as f32; rows]))
        .map(|b| (b, (0..CALLS).map(|_| driver.upload(&vec![0f32; rows])).collect()))
        .collect();
    let run = |b: u64, x: u64| {
        unsafe { link.run([&first, &second], b, x, stream) }.expect("a call");
    };
    let alone = operands.iter().map(|(b, own)| {
        run(*b, own[0]);
        driver.wait(stream);
        driver.download::<f32>(own[0], rows)
    });
    let alone: Vec<Vec<f32>> = alone.collect();
    assert!(alone.windows(2).all(|two| two[0] != two[1]));
    std::thread::scope(|scope| {
        for (b, own) in &operands {
            scope.spawn(|| own.iter().for_each(|x| run(*b, *x)));
        }
    });
    driver.wait(stream);
    for ((_, own), alone) in operands.iter().zip(&alone) {
        let right = |x: &&u64| driver.download::<f32>(**x, rows) == *alone;
        assert_eq!(own.iter().filter(right).count(), CALLS);
    }
}

/// Whether an update can be captured is known before anything of it is queued.
#[test]
fn an_update_that_cannot_be_captured_is_known_beforehand() {
    let Some(here) = Here::open().filter(|here| here.fake) else { return };
    let driver = &here.driver;
    let (manifest, files) = scale::plan(&driver.compute_capability());
    let placed = here.load(&manifest, &files).expect("the plan loads");
    let (manifest, files) = triangle::plan("spsv", false, 1, true);
    let analysed = here.load(&manifest, &files).expect("the plan loads");
    let stream = driver.stream();
    for plan in [&placed, &analysed] {
        assert_eq!(plan.may_take_on_device(stream), Ok(()));
    }
    drop(driver.record(stream, || {
        assert_eq!(placed.may_take_on_device(stream), Ok(()));
        assert!(refusal(analysed.may_take_on_device(stream)).contains("captured"));
    }));
}

/// One call from the host and back goes through the vector between the plans, as one on the device does.
#[test]
fn a_call_on_the_host_is_a_call_of_the_link() {
    let Some(here) = Here::open() else { return };
    let (manifest, files) = scale::plan(&here.driver.compute_capability());
    let [first, second] = [0, 1].map(|_| here.load(&manifest, &files).expect("the plan loads"));
    let link = CudaLink::new(&first, &second).expect("the plans fit together");
    let b: Vec<f32> = (0..ROWS).map(|row| row as f32 - 1.25).collect();
    let mut c = vec![0; ROWS * 4];
    link.call_on_host([&first, &second], &bytes(&b), &mut c).expect("a call");
    let between: Vec<f32> = (0..ROWS).map(|row| expected(&values(), &b, row, 1)).collect();
    let got: Vec<f32> = c
        .chunks_exact(4)
        .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    close(&got, |row| expected(&values(), &between, row, 1));
    let refused = link.call_on_host([&first, &second], &c[4..], &mut [0; 4]);
    assert!(refusal(refused).contains("bytes"));
}

/// The factors of an incomplete Cholesky factorisation by cuSPARSE, L and its transpose.
#[test]
fn both_solves_take_new_values_and_undo_both_products() {
    let Some(here) = Here::open().filter(|here| here.fake) else { return };
    for (algorithm, columns) in [("spsv", 1), ("spsv_alg2", 1), ("spsm", 3)] {
        let [first, second] = [false, true].map(|transpose| {
            let (manifest, files) = triangle::plan(algorithm, transpose, columns, true);
            here.load(&manifest, &files).expect("the plan loads")
        });
        let link = CudaLink::new(&first, &second).expect("the plans fit together");
        for values in [triangle::FIRST, triangle::SECOND, triangle::FIRST] {
            for plan in [&first, &second] {
                plan.update_values_from_host(&values, 0).expect("new values");
            }
            let (x, half) = (triangle::known(columns), triangle::product(&values, true, columns));
            // L times what L^T makes of x.
            let mut b = vec![0.0; x.len()];
            let entries = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 2)];
            for ((row, col), value) in entries.into_iter().zip(values) {
                for side in 0..columns {
                    b[row * columns + side] += value as f32 * half[col * columns + side];
                }
            }
            let driver = &here.driver;
            let (device_b, device_x) = (driver.upload(&b), driver.upload(&vec![0f32; x.len()]));
            let stream = driver.stream();
            unsafe { link.run([&first, &second], device_b, device_x, stream) }.expect("a call");
            driver.wait(stream);
            assert_eq!(bytes(&driver.download::<f32>(device_x, x.len())), bytes(&x));
        }
    }
    let load = |columns| {
        let (manifest, files) = triangle::plan("spsm", false, columns, true);
        here.load(&manifest, &files).expect("the plan loads")
    };
    let refused = CudaLink::new(&load(2), &load(3));
    assert!(refusal(refused).contains("24 bytes"));
}

/// For arrays that the host makes of all values.
#[test]
fn new_values_on_the_device_are_read_as_the_numbers_that_they_are() {
    let Some(here) = Here::open() else { return };
    let (manifest, files) = scale::plan(&here.driver.compute_capability());
    let plan = here.load(&manifest, &files).expect("the plan loads");
    let given: Vec<f32> = (0..values().len()).map(|at| 0.1 + at as f32).collect();
    let address = here.driver.upload(&given);
    let stream = here.driver.stream();
    let read = unsafe { plan.values_on_host(address, stream) }.expect("the values");
    assert_eq!(read, given.iter().map(|&value| f64::from(value)).collect::<Vec<_>>());
    drop(here.driver.record(stream, || {
        let refused = unsafe { plan.values_on_host(address, stream) };
        assert!(refusal(refused).contains("captured"));
    }));
}

/// One job for both triangles on a real device, from the command line to one call: against the host, captured, and with new values.
#[test]
fn factors_are_tuned_together_and_solved_by_one_call() {
    let Some(here) = Here::open().filter(|here| !here.fake) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let matrix = folder.path().join("factors.mtx");
    let sparsetune = |arguments: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_sparsetune"));
        let output = program.args(arguments).current_dir(folder.path()).output();
        let output = output.expect("the program runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(&matrix, factors(3000)).expect("the matrix is written");
    for transpose in [false, true] {
        let file = folder.path().join(format!("both-{transpose}.stplan"));
        let name = file.to_str().expect("a name");
        let mut arguments = vec!["tune", "factors.mtx", "--op", "sptrsv", "--dtype", "f64"];
        arguments.extend(["--triangle", "both", "--diagonal", "unit", "--device", "cuda:0"]);
        arguments.extend(["--seconds", "40", "--bundle", name, "--json"]);
        if transpose {
            arguments.push("--transpose");
        }
        sparsetune(&arguments);
        let opened = Opened::open(&file).expect("a pair");
        let place = Place::Cuda { ordinal: 0, libraries: here.libraries.clone() };
        let mut plan = LoadedPlan::open(&opened, &place).expect("the plan loads");
        assert!(plan.check().expect("the check runs").passed());
        super::captured(&here, &plan);
        let read = sparsetune::Matrix::read(&matrix).expect("the matrix");
        let host = LoadedPlan::untuned(&std::sync::Arc::new(read.csr().clone()), plan.problem());
        let mut host = host.expect("a host plan");
        let rows = plan.call().b.rows as usize;
        let b: Vec<u8> = (0..rows).flat_map(|row| (row as f64 * 0.7).sin().to_le_bytes()).collect();
        let changed: Vec<f64> = (0..)
            .zip(read.csr().values())
            .map(|(at, value): (u32, _)| value * (1.0 + 0.1 * f64::from(at).cos()))
            .collect();
        for round in 0..2 {
            let [mut x, mut expected] = [vec![0u8; b.len()], vec![0u8; b.len()]];
            plan.run_on_host(&b, &mut x, 1.0, 0.0).expect("a call");
            host.run_on_host(&b, &mut expected, 1.0, 0.0).expect("a call on the host");
            let f64s = sparsetune::domain::element::Element::F64;
            for (x, expected) in super::numbers(&x, f64s).zip(super::numbers(&expected, f64s)) {
                assert!((x - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{x} {expected}");
            }
            if round == 0 {
                // From the host, and from the device, whichever of the two plans rewrite their system.
                if transpose {
                    let (address, stream) = (here.driver.upload(&changed), here.driver.stream());
                    unsafe { plan.update_values_on_device(address, stream) }.expect("new values");
                    here.driver.wait(stream);
                } else {
                    plan.update_values(&changed).expect("new values");
                }
                host.update_values(&changed).expect("new values on the host");
            }
        }
        super::captured(&here, &plan);
        assert_eq!(plan.gave_up(), Ok(false));
    }
}

/// Combined factors with a dominant diagonal, as a file.
fn factors(rows: usize) -> String {
    let mut lines = Vec::new();
    for row in 0..rows {
        for col in [row.wrapping_sub(60), row.wrapping_sub(1), row, row + 1, row + 60] {
            if col < rows {
                let at = (row * 13 + col * 7) as f64;
                let value = if row == col { 4.0 + at.sin() } else { 0.45 * at.cos() };
                lines.push(format!("{} {} {value:.17e}", row + 1, col + 1));
            }
        }
    }
    let entries = lines.len();
    let header = "%%MatrixMarket matrix coordinate real general";
    format!("{header}\n{rows} {rows} {entries}\n{}\n", lines.join("\n"))
}
