//! The CPU as a device, end to end: a real engine in a real child, with the candidates that the service would try.

use crate::fixture::{BINARY, Fixture, SOON, hostile, never, outcome};
use sparsetune::domain::protocol::Load;
use sparsetune::domain::{Clock, DeviceKind, Outcome};
use sparsetune::ops;
use sparsetune::sparse::canonical;
use std::ffi::OsString;

#[tokio::test]
async fn the_cpu_measures_what_the_service_would_try() {
    let fixture = Fixture::new();
    let exports = fixture.folder.path().join("exports");
    let arguments = ["evaluator", "--allow-hostile", "--device", "cpu", "--exports"];
    let arguments = arguments.map(OsString::from).into_iter().chain([exports.clone().into()]);
    let mut evaluator = fixture.spawning(BINARY, arguments);
    let device = evaluator.open(&never()).await.unwrap();
    assert_eq!(device.kind, DeviceKind::Cpu);
    let facts = evaluator.load(fixture.load.clone(), &never()).await.unwrap();
    assert!(facts.limit_us > 0.0 && facts.limit_us.is_finite());

    let (matrix, _) = canonical::open(&fixture.load.path).unwrap();
    let space = ops::space(&matrix, &fixture.load.problem, &device).unwrap();
    let tried = space.vendor.iter().chain(space.scored.iter().map(|(c, _)| c).take(4));
    let tried: Vec<_> = tried.cloned().collect();
    assert!(tried.len() >= 2);
    evaluator.prepare(tried.clone(), &never()).await.unwrap();
    for candidate in &tried {
        let outcome = outcome(&mut evaluator, candidate, None).await;
        let Outcome::Measured { timing, preprocess_ms, .. } = &outcome else {
            panic!("{candidate}: {outcome:?}");
        };
        assert!(timing.median_us > 0.0 && *preprocess_ms >= 0.0, "{candidate}: {outcome:?}");
    }

    // The engine's own threads do not keep a killed child alive, and the next one knows the matrix.
    assert_eq!(outcome(&mut evaluator, &hostile("hang"), SOON).await.state(), "timed_out");
    assert_eq!(outcome(&mut evaluator, &hostile("fault"), None).await.state(), "crashed");
    let timings = evaluator.pair(tried.clone(), 3, Clock::Isolated, None, &never()).await.unwrap();
    assert!(timings.iter().all(|timing| timing.samples_us.len() == 3));
    let exported = evaluator.export(&tried[0], None, &never()).await.unwrap();
    assert_eq!(exported.kernel_digest, device.kernels.get(&tried[0].family).copied());
    // A recipe's arrays arrive as files.
    let panel = space.scored.iter().map(|(c, _)| c).find(|c| c.family == "row_panel").unwrap();
    let folder = tempfile::tempdir_in(exports).unwrap();
    let exported = evaluator.export(panel, Some(folder.path()), &never()).await.unwrap();
    assert!(!exported.arrays.is_empty());
    for array in &exported.arrays {
        assert_eq!(array.element, "u32");
        let bytes = std::fs::read(array.file.as_ref().unwrap()).unwrap();
        assert_eq!(bytes.len() as u64, array.length * 4);
    }
    assert_eq!(evaluator.restarts(), 2);
}

/// From one stored matrix, which is not square: every outcome was compared with the product of the transpose.
#[tokio::test]
async fn the_cpu_multiplies_with_the_transpose() {
    let fixture = Fixture::new();
    let problem = serde_json::from_str(r#"{"op":"spmm","n":3,"transpose":true}"#).unwrap();
    let load = Load { problem, ..fixture.load.clone() };
    let mut evaluator = fixture.spawning(BINARY, ["evaluator", "--device", "cpu"]);
    let device = evaluator.open(&never()).await.unwrap();
    let facts = evaluator.load(load, &never()).await.unwrap();
    // 5 row pointers, 4 entries, the 2 rows of B that have entries, 4 rows of C, 3 wide.
    assert_eq!(facts.compulsory_bytes, 5 * 4 + 4 * 8 + (2 + 4) * 3 * 4);

    let (matrix, _) = canonical::open(&fixture.load.path).unwrap();
    let space = ops::space(&ops::operand(matrix, &problem), &problem, &device).unwrap();
    let mut families = Vec::new();
    for candidate in space.vendor.iter().chain(space.scored.iter().map(|(c, _)| c)) {
        if !families.contains(&candidate.family) {
            families.push(candidate.family.clone());
            let outcome = outcome(&mut evaluator, candidate, None).await;
            assert_eq!(outcome.state(), "measured", "{candidate}: {outcome:?}");
        }
    }
    assert!(families.len() >= 3, "{families:?}");
}
