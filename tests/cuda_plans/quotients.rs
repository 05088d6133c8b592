//! New values where arrays hold quotients of them: the kernel computes these, and zeros that would divide are refused.

use super::{Here, ROWS, close, expected, refusal, scale};
use sparsetune::domain::bundle::{Manifest, NO_ENTRY, ONE, UpdateValues};

/// Numerators and divisors of the places, the last of which is not touched.
const MAP: [u32; ROWS + 1] = [4, ONE, 2, 1, 0, NO_ENTRY];
const DIVISORS: [u32; ROWS + 1] = [0, 3, NO_ENTRY, 3, 0, NO_ENTRY];

/// The plan of `scale` with quotients on the diagonal.
fn plan(here: &Here) -> (Manifest, scale::Files) {
    let (mut manifest, mut files) = scale::plan(&here.driver.compute_capability());
    let words = |map: [u32; ROWS + 1]| map.iter().flat_map(|it| it.to_le_bytes()).collect();
    files.arrays.insert("diagonal.map".to_owned(), words(MAP));
    files.arrays.insert("diagonal.divisors".to_owned(), words(DIVISORS));
    manifest.version = 3;
    let values = manifest.arrays[0].values.as_mut().expect("the array holds values");
    values.divisors = Some("diagonal.divisors".to_owned());
    let UpdateValues::Gather(gather) = &mut manifest.update_values else { panic!("no gather") };
    let kernel = gather.kernel.as_mut().expect("there is a kernel");
    kernel.quotients = Some("quotients".to_owned());
    (manifest, files)
}

/// The coefficients of the rows, in reverse order, as `scale` expects values.
fn coefficients(values: &[f64]) -> Vec<f64> {
    let value = |entry: u32| f64::from(values[entry as usize] as f32);
    let places = MAP.iter().zip(DIVISORS).take(ROWS).map(|(&above, below)| {
        let above = if above == ONE { 1.0 } else { -value(above) };
        f64::from(if below == NO_ENTRY { above } else { above / value(below) } as f32)
    });
    places.rev().collect()
}

#[test]
fn coefficients_are_divided_on_the_device() {
    let Some(here) = Here::open() else { return };
    let driver = &here.driver;
    let (manifest, files) = plan(&here);
    let loaded = here.load(&manifest, &files).expect("the plan loads");
    let b: Vec<f32> = (0..ROWS).map(|row| row as f32 - 1.25).collect();
    let (device_b, device_c) = (driver.upload(&b), driver.upload(&[f32::NAN; ROWS]));
    let stream = driver.stream();
    let mut call = 0;
    let mut right = |values: &[f64]| {
        unsafe { loaded.run(device_b, device_c, stream, 1.0, 0.0) }.expect("a call");
        call += 1;
        driver.wait(stream);
        let coefficients = coefficients(values);
        let got = driver.download::<f32>(device_c, ROWS);
        close(&got, |row| expected(&coefficients, &b, row, call));
    };
    let first = [0.1, -7.0, 3.0, 0.3, 1.1];
    loaded.update_values_from_host(&first, stream).expect("new values");
    right(&first);
    let second = [3.0_f32, 0.0, -0.0, 7.0, 1e-3];
    let on_device = driver.upload(&second);
    unsafe { loaded.update_values_on_device(on_device, stream) }.expect("new values");
    right(&second.map(f64::from));
    // Entries 0 and 3 divide; the plan keeps what it has where they are zero.
    for (values, entry) in [
        ([0.0, 1.0, 1.0, 1.0, 1.0], "entry 0"),
        ([1.0, 1.0, 1.0, -0.0, 1.0], "entry 3"),
        ([1.0, 1.0, 1.0, 1e-60, 1.0], "entry 3"),
    ] {
        let refused = refusal(loaded.update_values_from_host(&values, stream));
        assert!(refused.contains(entry) && refused.contains("diagonal"), "{refused}");
    }
    right(&second.map(f64::from));
    // Values that are in the type's range, and a quotient that is not; the largest over the smallest alone says nothing.
    let wide = [1e-30, 1e30, 1.0, 1e30, 1e-20];
    loaded.update_values_from_host(&wide, stream).expect("their quotients fit");
    right(&wide);
    let refused = refusal(loaded.update_values_from_host(&[1e-30, 1.0, 1.0, 1.0, 1e20], stream));
    assert!(refused.contains("entry 0") && refused.contains("beyond the range"), "{refused}");
    let refused = refusal(loaded.update_values_from_host(&[1.0, 1.0, 1.0, 1e-40, 1.0], stream));
    assert!(refused.contains("entry 3") && refused.contains("beyond the range"), "{refused}");
    assert!(refusal(loaded.accepts(&[0.0; ROWS])).contains("entry 0"));
    right(&wide);
}

#[test]
fn quotients_need_their_kernel_and_whole_maps() {
    let Some(here) = Here::open() else { return };
    let load = |change: &dyn Fn(&mut Manifest, &mut scale::Files)| {
        let (mut manifest, mut files) = plan(&here);
        change(&mut manifest, &mut files);
        refusal(here.load(&manifest, &files))
    };
    let kernel = |symbol: Option<&'static str>| {
        move |manifest: &mut Manifest, _: &mut scale::Files| {
            let UpdateValues::Gather(gather) = &mut manifest.update_values else { return };
            let kernel = gather.kernel.as_mut().expect("there is a kernel");
            kernel.quotients = symbol.map(str::to_owned);
        }
    };
    assert!(load(&kernel(None)).contains("no kernel that divides"));
    let sizes = load(&kernel(Some("gather")));
    assert!(sizes.contains("5 words") || !here.fake, "{sizes}");
    let words = |name: &'static str, word: u32| {
        move |_: &mut Manifest, files: &mut scale::Files| {
            let map = files.arrays.get_mut(name).expect("the map");
            map[..4].copy_from_slice(&word.to_le_bytes());
        }
    };
    assert!(load(&words("diagonal.divisors", ROWS as u32)).contains("entry 5"));
    assert!(load(&words("diagonal.divisors", ONE)).contains("divisor"));
    assert!(load(&words("diagonal.map", ROWS as u32)).contains("entry 5"));
    let missing = load(&|_, files| {
        files.arrays.remove("diagonal.divisors");
    });
    assert!(missing.contains("is missing"), "{missing}");
    // As they are, values cannot be 1 and no value.
    let plain = load(&|manifest, _| {
        manifest.arrays[0].values.as_mut().expect("values").divisors = None;
    });
    assert!(plain.contains(&ONE.to_string()), "{plain}");
}
