//! The first GPU as a device, end to end: what hangs, faults or lies there costs its own trial. Without one it says so.
//!
//! `SPARSETUNE_CUDA_LIBRARIES` names library folders, separated by colons.

use crate::fixture::{BINARY, Fixture, detail, hostile, never, outcome};
use sparsetune::domain::{Candidate, Outcome};
use sparsetune::engine::cuda::devices;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_gpu_survives_hostile_kernels() {
    let named = std::env::var("SPARSETUNE_CUDA_LIBRARIES").unwrap_or_default();
    let libraries: Vec<_> = named.split(':').filter(|name| !name.is_empty()).collect();
    if devices(&libraries.iter().map(PathBuf::from).collect::<Vec<_>>()).is_empty() {
        println!("skipped: no CUDA device here");
        return;
    }
    let fixture = Fixture::new();
    let cache = fixture.folder.path().join("cubins").display().to_string();
    let mut args = ["evaluator", "--allow-hostile", "--device", "cuda:0", "--cubin-cache", &cache]
        .map(str::to_owned)
        .to_vec();
    args.extend(libraries.iter().flat_map(|path| ["--library-path".to_owned(), path.to_string()]));
    let mut evaluator = fixture.spawning(BINARY, args);
    evaluator.deadlines_mut().open = Duration::from_secs(60);
    let device = evaluator.open(&never()).await.unwrap();
    evaluator.load(fixture.load.clone(), &never()).await.unwrap();
    let vendor = Candidate::new("vendor").with_text("algorithm", "csr_alg2");
    let slow = hostile("slow").with("ms", 2);

    for (candidate, state, says) in [
        (hostile("hang"), "timed_out", "verifying"),
        (hostile("fault"), "crashed", ""),
        (hostile("wrong"), "wrong", "exceeds the tolerance"),
        (hostile("unwritten"), "wrong", "9 elements"),
        (slow.clone(), "measured", ""),
        (vendor.clone(), "measured", ""),
    ] {
        // A hung kernel is met while verifying; a restart is part of what the next candidate takes.
        let started = Instant::now();
        let outcome = outcome(&mut evaluator, &candidate, Some(Duration::from_secs(1))).await;
        println!("{candidate}: {outcome:?} after {:.1?}", started.elapsed());
        assert_eq!(outcome.state(), state, "{candidate}: {outcome:?}");
        assert!(detail(&outcome).contains(says), "{candidate}: {outcome:?}");
        if let (Outcome::Measured { timing, .. }, true) = (&outcome, candidate == slow) {
            assert!(timing.median_us > 2000.0, "{outcome:?}");
        }
    }
    assert_eq!(evaluator.restarts(), 2);
    let exported = evaluator.export(&slow, None, &never()).await.unwrap();
    assert!(exported.cubin.is_some());
    assert_eq!(exported.kernel_digest, device.kernels.get("hostile").copied());
    evaluator.close().await;
}
