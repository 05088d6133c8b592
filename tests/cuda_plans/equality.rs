//! The word that says whether all values are equal: whoever puts new values in place sets it, and a kernel that reads it is right.

use super::{Here, ROWS, close, refusal, scale};
use serde_json::json;
use sparsetune::domain::bundle::{
    Argument, BundleArray, Forward, GraphUse, Manifest, UpdateValues,
};
use sparsetune::domain::element::Element;

/// The plan of `scale` with a kernel that reads the word, for values that are all equal.
fn plan(here: &Here) -> (Manifest, scale::Files) {
    let (mut manifest, mut files) = scale::plan(&here.driver.compute_capability());
    manifest.version = 3;
    manifest.arrays.push(BundleArray {
        name: "equal".to_owned(),
        element: Element::U32,
        length: 1,
        included: true,
        values: None,
        equality: true,
    });
    files.arrays.insert("equal".to_owned(), 1u32.to_le_bytes().to_vec());
    files.arrays.insert(
        "diagonal".to_owned(),
        [2.5f32; ROWS + 1].iter().flat_map(|v| v.to_le_bytes()).collect(),
    );
    let Forward::Cuda(forward) = &mut manifest.forward else { panic!("not a CUDA plan") };
    let array = |name: &str| Argument::Array { name: name.to_owned() };
    let rows = Argument::U32 { value: ROWS as u32 };
    forward.steps[0].symbol = "weigh".to_owned();
    forward.steps[0].arguments =
        vec![array("diagonal"), array("equal"), Argument::B, Argument::C, rows];
    forward.graph = GraphUse::Plain;
    forward.zero_output = false;
    (manifest, files)
}

fn follows_the_values(here: &Here, manifest: &Manifest, files: &scale::Files) {
    let driver = &here.driver;
    let loaded = here.load(manifest, files).expect("the plan loads");
    let b: Vec<f32> = (0..ROWS).map(|row| row as f32 - 1.25).collect();
    let (device_b, device_c) = (driver.upload(&b), driver.upload(&[f32::NAN; ROWS]));
    let stream = driver.stream();
    let run = || unsafe { loaded.run(device_b, device_c, stream, 1.0, 0.0) }.expect("a call");
    let right = |values: &[f64]| {
        driver.wait(stream);
        let got = driver.download::<f32>(device_c, ROWS);
        // The map has the entries in reverse order.
        close(&got, |row| values[ROWS - 1 - row] as f32 * b[row]);
    };
    let (equal, other) = ([4.0; ROWS], [1.0, 2.0, 3.0, 4.0, 5.0]);
    run();
    right(&[2.5; ROWS]);
    let graph = driver.record(stream, run);
    for values in [other, equal, other] {
        loaded.update_values_from_host(&values, stream).expect("new values");
        run();
        right(&values);
        graph();
        right(&values);
    }
    // Nobody compares what comes from the device.
    loaded.update_values_from_host(&equal, stream).expect("new values");
    for values in [other, equal, other] {
        let on_device = driver.upload(&values.map(|value| value as f32));
        unsafe { loaded.update_values_on_device(on_device, stream) }.expect("new values");
        graph();
        right(&values);
    }
    // What is refused changes nothing.
    loaded.update_values_from_host(&equal, stream).expect("new values");
    refusal(loaded.update_values_from_host(&[1.0, 1.0, 1.0, 1.0, 1e39], stream));
    run();
    right(&equal);
}

#[test]
fn the_word_follows_the_values() {
    let Some(here) = Here::open() else { return };
    let (manifest, files) = plan(&here);
    follows_the_values(&here, &manifest, &files);
}

#[test]
fn the_word_follows_values_that_pass_through_the_host() {
    let Some(here) = Here::open() else { return };
    let (mut manifest, files) = plan(&here);
    let UpdateValues::Gather(gather) = &mut manifest.update_values else { panic!("no gather") };
    gather.kernel = None;
    follows_the_values(&here, &manifest, &files);
}

#[test]
fn an_update_that_a_graph_captured_says_that_nobody_compared() {
    let Some(here) = Here::open() else { return };
    let driver = &here.driver;
    let (manifest, files) = plan(&here);
    let loaded = here.load(&manifest, &files).expect("the plan loads");
    let b = [1.0f32; ROWS];
    let (device_b, device_c) = (driver.upload(&b), driver.upload(&[f32::NAN; ROWS]));
    let stream = driver.stream();
    let on_device = driver.upload(&[1.0f32, 2.0, 3.0, 4.0, 5.0]);
    let graph = driver.record(stream, || {
        unsafe { loaded.update_values_on_device(on_device, stream) }.expect("new values");
        unsafe { loaded.run(device_b, device_c, stream, 1.0, 0.0) }.expect("a call");
    });
    loaded.update_values_from_host(&[7.0; ROWS], stream).expect("new values");
    graph();
    driver.wait(stream);
    close(&driver.download::<f32>(device_c, ROWS), |row| (ROWS - row) as f32);
}

#[test]
fn what_is_no_word_is_refused() {
    let Some(here) = Here::open() else { return };
    for (field, value) in [("length", json!(2)), ("element", json!("f32")), ("values", json!({}))] {
        let (manifest, mut files) = plan(&here);
        let mut manifest = serde_json::to_value(&manifest).expect("JSON");
        let last =
            manifest["arrays"].as_array_mut().and_then(|all| all.last_mut()).expect("arrays");
        last[field] = value;
        files.arrays.insert("equal".to_owned(), vec![0; if field == "length" { 8 } else { 4 }]);
        let manifest = serde_json::from_value(manifest).expect("a manifest");
        let sentence = refusal(here.load(&manifest, &files));
        assert!(sentence.contains("no word"), "{field}: {sentence}");
    }
}
