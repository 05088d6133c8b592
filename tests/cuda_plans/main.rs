//! Runs plans of bundles: calls, captured calls, new values, refusals.
//!
//! On a real device if there is one, and otherwise on a driver without a GPU that knows the kernels of a plan made by hand.
//! `SPARSETUNE_REQUIRE_GPU` asks for a real one. `SPARSETUNE_BUNDLES` names a folder of bundles that are run on it too.

#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../fixture/driver.rs"]
mod driver;
mod equality;
#[path = "../fixture/fake.rs"]
mod fake;
mod faults;
mod pairs;
mod quotients;
#[path = "../fixture/scale.rs"]
mod scale;
#[path = "../fixture/triangle.rs"]
mod triangle;

use driver::Driver;
use scale::{ROWS, expected, values};
use sparsetune::bundle::{LoadedPlan, Opened, Place, cpp};
use sparsetune::domain::bundle::{Argument, Forward, Manifest};
use sparsetune::domain::element::Element;
use sparsetune::engine::EngineError;
use sparsetune::engine::cuda::CudaPlan;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where plans run.
struct Here {
    driver: Driver,
    /// As `CudaPlan::load` takes them.
    libraries: Vec<PathBuf>,
    fake: bool,
    /// One test at a time: the driver without a GPU is as simple as can be.
    _alone: MutexGuard<'static, ()>,
}

impl Here {
    /// `None` where there is neither a device nor a compiler.
    fn open() -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let named = std::env::var("SPARSETUNE_CUDA_LIBRARIES").unwrap_or_default();
        let named = named.split(':').filter(|name| !name.is_empty()).map(PathBuf::from);
        if let Some(driver) = Driver::open(Path::new("libcuda.so.1")) {
            let libraries = named.collect();
            return Some(Self { driver, libraries, fake: false, _alone: alone });
        }
        assert!(std::env::var_os("SPARSETUNE_REQUIRE_GPU").is_none(), "no CUDA device");
        let Some(folder) = fake::folder() else {
            println!("SKIPPED: neither a CUDA device nor a C++ compiler");
            return None;
        };
        let driver = Driver::open(&folder.join("libcuda.so.1")).expect("the driver without a GPU");
        Some(Self { driver, libraries: vec![folder], fake: true, _alone: alone })
    }

    fn load(&self, manifest: &Manifest, files: &scale::Files) -> Result<CudaPlan, EngineError> {
        CudaPlan::load(&self.libraries, 0, manifest, files)
    }

    /// A count of the driver without a GPU; the real one counts nothing.
    fn count(&self, function: &str) -> u64 {
        if self.fake { self.driver.count(function) } else { 0 }
    }
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

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn without_a_driver_a_plan_is_refused_with_a_sentence() {
    if Driver::open(Path::new("libcuda.so.1")).is_some() {
        return;
    }
    let (manifest, files) = scale::plan("9.0");
    let sentence = refusal(CudaPlan::load(&[], 0, &manifest, &files));
    assert!(sentence.contains("CUDA driver"), "{sentence}");
}

#[test]
fn a_plan_runs_alone_captured_and_with_new_values() {
    let Some(here) = Here::open() else { return };
    let (manifest, files) = scale::plan(&here.driver.compute_capability());
    runs(&here, &manifest, &files);
}

/// Plans of earlier versions have no kernel that puts new values in place.
#[test]
fn new_values_pass_through_the_host_where_there_is_no_kernel() {
    let Some(here) = Here::open() else { return };
    let (mut manifest, files) = scale::plan(&here.driver.compute_capability());
    if let sparsetune::domain::bundle::UpdateValues::Gather(gather) = &mut manifest.update_values {
        gather.kernel = None;
    }
    runs(&here, &manifest, &files);
}

fn runs(here: &Here, manifest: &Manifest, files: &scale::Files) {
    let driver = &here.driver;
    let live = here.count("fakeLive");
    let before = driver.current();
    driver.make_current(0);
    let plan = here.load(manifest, files).expect("the plan loads");
    assert_eq!(driver.current(), 0, "the caller's context is as it was");
    assert!(plan.warnings().iter().any(|warning| warning.contains("PTX")), "{:?}", plan.warnings());
    driver.make_current(before);

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
    let allocations = here.count("fakeAllocations");
    (0..3).for_each(|_| next(&values()));

    // Whenever a graph runs, its call is a first one, and calls beside it go on counting.
    let graph = driver.record(stream, || {
        run();
        let refused = refusal(plan.update_values_from_host(&values(), stream));
        assert!(refused.contains("captured"), "{refused}");
    });
    for _ in 0..3 {
        graph();
        close(&result(), |row| expected(&values(), &b, row, 1));
    }
    next(&values());
    assert_eq!(here.count("fakeAllocations"), allocations, "calls allocate nothing");

    let new: Vec<f64> = values().iter().map(|value| 3.0 * value - 1.0).collect();
    plan.update_values_from_host(&new, stream).expect("new values");
    next(&new);
    let rounded: Vec<f32> = values().iter().map(|&value| value as f32).collect();
    let on_device = driver.upload(&rounded);
    unsafe { plan.update_values_on_device(on_device, stream) }.expect("new values");
    next(&values());
    graph();
    close(&result(), |row| expected(&values(), &b, row, 1));

    // From another thread, where no context is current.
    std::thread::scope(|scope| scope.spawn(run).join().expect("a call of another thread"));
    close(&result(), |row| expected(&values(), &b, row, 7));

    assert_eq!(plan.gave_up(), Ok(false));
    let mut c = [0; 4 * ROWS];
    plan.call_on_host(&bytes(&b), &mut c, 1.0, 0.0).expect("a call on the host");
    assert_eq!(
        c[..],
        bytes(&(0..ROWS).map(|row| expected(&values(), &b, row, 8)).collect::<Vec<_>>())
    );
    plan.replace(manifest, files).expect("the same arrays");
    plan.call_on_host(&bytes(&b), &mut c, 1.0, 0.0).expect("a call on the host");
    assert_eq!(
        c[..],
        bytes(&(0..ROWS).map(|row| expected(&values(), &b, row, 1)).collect::<Vec<_>>())
    );

    assert!(refusal(plan.update_values_from_host(&new[1..], stream)).contains("4 values"));
    assert!(refusal(plan.update_values_from_host(&[1e39; ROWS], stream)).contains("entry 0"));
    assert!(refusal(unsafe { plan.run(device_b, device_b, stream, 1.0, 0.0) }).contains("overlap"));
    assert!(refusal(unsafe { plan.run(device_b, device_c, stream, 2.0, 0.0) }).contains("alpha"));

    // All but the three buffers of this test.
    driver.make_current(0);
    drop(plan);
    assert_eq!(driver.current(), 0);
    driver.make_current(before);
    assert_eq!(here.count("fakeLive"), if here.fake { live + 3 } else { 0 });
}

fn cuda(manifest: &mut Manifest) -> &mut sparsetune::domain::bundle::CudaForward {
    match &mut manifest.forward {
        Forward::Cuda(forward) => forward,
        _ => panic!("not a CUDA plan"),
    }
}

#[test]
fn what_does_not_fit_the_plan_is_refused() {
    let Some(here) = Here::open() else { return };
    let capability = here.driver.compute_capability();
    let live = here.count("fakeLive");
    let altered = |change: &dyn Fn(&mut Manifest)| {
        let (mut manifest, files) = scale::plan(&capability);
        change(&mut manifest);
        refusal(here.load(&manifest, &files))
    };
    type Change = &'static dyn Fn(&mut Manifest);
    let cases: [(&str, Change); 7] = [
        ("array `other`", &|m| {
            cuda(m).steps[0].arguments[0] = Argument::Array { name: "other".to_owned() };
        }),
        ("takes arguments", &|m| drop(cuda(m).steps[0].arguments.pop())),
        ("grid.x is 0", &|m| cuda(m).steps[0].grid[0] = 0),
        ("block.y is 0", &|m| cuda(m).steps[0].block[1] = 0),
        ("cluster", &|m| cuda(m).steps[0].cluster = 2),
        ("`nothing`", &|m| cuda(m).steps[0].symbol = "nothing".to_owned()),
        ("no PTX", &|m| cuda(m).module.ptx = None),
    ];
    for (word, change) in cases {
        let sentence = altered(change);
        assert!(sentence.contains(word), "{word}: {sentence}");
    }
    let (manifest, mut files) = scale::plan(&capability);
    let beyond = CudaPlan::load(&here.libraries, 999, &manifest, &files);
    assert!(refusal(beyond).contains("999"));
    files.arrays.remove("diagonal");
    assert!(refusal(here.load(&manifest, &files)).contains("missing"));
    assert_eq!(here.count("fakeLive"), live, "a refused plan frees what it had");
}

#[test]
fn values_that_were_left_out_must_be_given_first() {
    let Some(here) = Here::open() else { return };
    let (mut manifest, mut files) = scale::plan(&here.driver.compute_capability());
    manifest.arrays[0].included = false;
    files.arrays.remove("diagonal");
    let plan = here.load(&manifest, &files).expect("the plan loads");
    let b = bytes(&[1.0; ROWS]);
    let mut c = [0; 4 * ROWS];
    assert!(refusal(plan.call_on_host(&b, &mut c, 1.0, 0.0)).contains("left out"));
    plan.update_values_from_host(&values(), 0).expect("values");
    plan.call_on_host(&b, &mut c, 1.0, 0.0).expect("a call");
    let first: Vec<f32> = (0..ROWS).map(|row| expected(&values(), &[1.0; ROWS], row, 1)).collect();
    assert_eq!(c[..], bytes(&first));
}

/// The vendor's products and solves, through a library that refuses values which its analysis has not seen.
#[test]
fn vendors_routines_take_new_values_and_other_addresses() {
    let Some(here) = Here::open().filter(|here| here.fake) else { return };
    let live = here.count("fakeLive");
    let products = ["default", "csr_alg1", "csr_alg2", "csr_alg3", "bsr3"];
    let products = products.iter().map(|&name| (name, false, 2));
    let vectors = ["spmv_alg1", "spmv_alg2"].iter().map(|&name| (name, false, 1));
    let solves = [("spsv", 1), ("spsv_alg1", 1), ("spsv_alg2", 1), ("spsm", 3)];
    let solves = solves.iter().flat_map(|&(name, n)| [(name, false, n), (name, true, n)]);
    for (algorithm, transpose, columns) in products.chain(vectors).chain(solves) {
        for included in [true, false] {
            let (manifest, files) = triangle::plan(algorithm, transpose, columns, included);
            let plan = here.load(&manifest, &files).expect("the plan loads");
            let solves = !manifest.call.accumulate;
            let call = |values: &[f64]| {
                let (known, product) =
                    (triangle::known(columns), triangle::product(values, transpose, columns));
                let (b, want) = if solves { (product, known) } else { (known, product) };
                let mut c = bytes(&vec![1.0; want.len()]);
                let [alpha, beta] = if solves { [1.0, 0.0] } else { [2.0, 0.5] };
                plan.call_on_host(&bytes(&b), &mut c, alpha, beta)?;
                let scaled = |&value: &f32| if solves { value } else { 2.0 * value + 0.5 };
                assert_eq!(c, bytes(&want.iter().map(scaled).collect::<Vec<_>>()), "{algorithm}");
                Ok::<(), EngineError>(())
            };
            if !included {
                assert!(refusal(call(&triangle::FIRST)).contains("left out"));
                plan.update_values_from_host(&triangle::FIRST, 0).expect("values");
            }
            for values in [triangle::FIRST, triangle::SECOND, triangle::FIRST] {
                plan.update_values_from_host(&values, 0).expect("new values");
                call(&values).expect("a call");
            }
        }
    }
    let (manifest, files) = triangle::plan("csr_alg9", false, 1, true);
    let sentence = refusal(here.load(&manifest, &files));
    assert!(sentence.contains("12.9.2") && sentence.contains("csr_alg9"), "{sentence}");
    // Columns that the routine does not take, and blocks that the matrix is no multiple of.
    for (algorithm, columns, why) in
        [("spmv_alg1", 2, "one column, not 2"), ("bsr2", 2, "multiple")]
    {
        let (manifest, files) = triangle::plan(algorithm, false, columns, true);
        let sentence = refusal(here.load(&manifest, &files));
        assert!(sentence.contains(why), "{sentence}");
    }
    let (manifest, mut files) = triangle::plan("spsv", false, 1, true);
    files.arrays.insert("col_idx".to_owned(), vec![9; 20]);
    assert!(refusal(here.load(&manifest, &files)).contains("no matrix of 3 x 3"));
    // Half as many bytes as the library would read; others than it would take them for.
    for (at, element, bytes) in
        [(0, Element::U16, 8), (1, Element::U16, 10), (2, Element::U32, 20), (2, Element::F16, 10)]
    {
        let (mut manifest, mut files) = triangle::plan("spsv", false, 1, true);
        manifest.arrays[at].element = element;
        files.arrays.insert(manifest.arrays[at].name.clone(), vec![0; bytes]);
        let sentence = refusal(here.load(&manifest, &files));
        assert!(sentence.contains(element.name()), "{sentence}");
    }
    assert_eq!(here.count("fakeLive"), live);
}

/// The same of the loader that exports for C++ bring, which has programs of its own.
#[test]
fn the_loader_for_cpp_does_the_same() {
    let Some(folder) = fake::folder() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["loader", "vendor_loader"] {
        let program = folder.join(name);
        let mut compiler = Command::new("c++");
        compiler.args(fake::FLAGS).arg("-I").arg(root.join("src/bundle/cpp"));
        compiler.arg(root.join(format!("tests/fixture/{name}.cpp"))).arg("-o").arg(&program);
        let output = compiler.args(["-ldl", "-pthread"]).output().expect("the compiler runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut loader = Command::new(&program);
        loader.arg(folder.join(format!("{name}.stplan"))).env("LD_LIBRARY_PATH", &folder);
        let output = loader.output().expect("the program runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Bundles of a real device: each passes its check, alone and captured, by this loader and by that for C++.
#[test]
fn bundles_of_a_folder_run_and_are_right() {
    let Some(folder) = std::env::var_os("SPARSETUNE_BUNDLES") else { return };
    let Some(here) = Here::open().filter(|here| !here.fake) else { return };
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the folder")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "stplan"));
    files.sort();
    assert!(!files.is_empty(), "no bundle in the folder");
    for file in files {
        let opened = Opened::open(&file).expect("a bundle");
        let place = Place::Cuda { ordinal: 0, libraries: here.libraries.clone() };
        let plan = LoadedPlan::open(&opened, &place).expect("the plan loads");
        let report = plan.check().expect("the check runs");
        println!(
            "{}: {} samples, {:.3} of the bound",
            file.display(),
            report.samples,
            report.worst
        );
        assert!(report.passed(), "{}", file.display());
        captured(&here, &plan);
        let exported = tempfile::tempdir().expect("a folder");
        let export = match &opened {
            Opened::One(bundle) => cpp::export(bundle, "plan", exported.path()),
            Opened::Two(pair) => cpp::export_pair(pair, "plan", exported.path()),
        };
        export.expect("an export");
        let program = exported.path().join("check");
        let mut compiler = Command::new("c++");
        compiler.args(fake::FLAGS).arg(exported.path().join("main.cpp"));
        let compiled = compiler.arg("-o").arg(&program).arg("-ldl").status();
        if compiled.is_ok_and(|status| status.success()) {
            let output = Command::new(&program).current_dir(exported.path()).output();
            let output = output.expect("the program runs");
            println!("{}", String::from_utf8_lossy(&output.stdout));
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// A captured call gives what an ordinary one gives, up to the order of sums.
fn captured(here: &Here, plan: &LoadedPlan) {
    let driver = &here.driver;
    let call = plan.call();
    let size = |operand: &sparsetune::domain::bundle::DenseOperand| {
        (operand.rows * operand.cols * operand.element.bytes()) as usize
    };
    // Numbers between 1 and 2 in every type: the sign and the exponent of 1, and small fractions.
    let one: &[u8] = match call.b.element.bytes() {
        2 => &[0x10, 0x3c],
        4 => &[0, 0, 0x90, 0x3f],
        _ => &[0, 0, 0, 0, 0, 0, 0xf2, 0x3f],
    };
    let b: Vec<u8> = one.iter().copied().cycle().take(size(&call.b)).collect();
    let (device_b, device_c) = (driver.upload(&b), driver.upload(&vec![0u8; size(&call.c)]));
    let stream = driver.stream();
    let run =
        || unsafe { plan.run_on_device(device_b, device_c, stream, 1.0, 0.0) }.expect("a call");
    let result = || {
        driver.wait(stream);
        driver.download::<u8>(device_c, size(&call.c))
    };
    run();
    let usual = result();
    let graph = driver.record(stream, run);
    for _ in 0..3 {
        graph();
        let again = result();
        let near = |(one, other): (f64, f64)| {
            one.to_bits() == other.to_bits() || (one - other).abs() <= 0.01 * one.abs().max(1.0)
        };
        let element = call.c.element;
        assert!(numbers(&usual, element).zip(numbers(&again, element)).all(near));
    }
    assert_eq!(plan.gave_up(), Ok(false));
}

fn numbers(
    bytes: &[u8],
    element: sparsetune::domain::element::Element,
) -> impl Iterator<Item = f64> + '_ {
    bytes.chunks_exact(element.bytes() as usize).map(|bytes| match *bytes {
        [a, b] => f64::from(half::f16::from_le_bytes([a, b])),
        [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => f64::NAN,
    })
}
