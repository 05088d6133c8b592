//! Devices, readiness and upkeep.

use crate::world::*;
use sparsetune::domain::plan::{Launch, PlanArray, UpdateProgram};
use sparsetune::domain::*;
use sparsetune::service::ServiceError;
use sparsetune::store::Quarantined;
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn auto_is_the_best_device_here() {
    let world = World::new().await;
    let elsewhere = world.elsewhere("there").await;
    elsewhere.register(gpu(9, 9000.0)).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let chosen =
        async |n| world.service.submit(&request(&matrix, n), None).await.unwrap().job.device.0;
    assert_eq!(chosen(1).await, "cuda:9", "better than none");
    world.service.register(device()).await.unwrap();
    assert_eq!(chosen(2).await, "cpu");
    world.service.register(gpu(0, 1000.0)).await.unwrap();
    world.service.register(gpu(1, 2000.0)).await.unwrap();
    assert_eq!(chosen(3).await, "cuda:1");
}

#[tokio::test]
async fn jobs_are_for_devices_that_are_online() {
    let world = World::with(|settings| settings.heartbeat = Duration::from_millis(200)).await;
    let elsewhere = world.elsewhere("there").await;
    elsewhere.register(gpu(9, 9000.0)).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let submit = async |name: &str| {
        let device = name.to_owned();
        world.service.submit(&JobRequest { device, ..request(&matrix, 1) }, None).await
    };
    for name in ["auto", "cuda:9"] {
        match submit(name).await {
            Err(ServiceError::Unavailable { message }) => {
                assert!(message.contains("heartbeats"), "{message}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    world.service.register(device()).await.unwrap();
    assert_eq!(submit("auto").await.unwrap().job.device.0, "cpu", "here, however long silent");
    assert!(matches!(submit("cuda:9").await, Err(ServiceError::Unavailable { .. })));
    assert!(matches!(submit("cuda:8").await, Err(ServiceError::Invalid { .. })));
    elsewhere.register(gpu(9, 9000.0)).await.unwrap();
    assert_eq!(submit("cuda:9").await.unwrap().job.device.0, "cuda:9");
}

#[tokio::test]
async fn devices_tell_how_they_are() {
    let world = World::with(|settings| settings.heartbeat = Duration::from_millis(30)).await;
    assert!(matches!(world.service.ready().await, Err(ServiceError::Unavailable { .. })));
    // Lookups need no device.
    world.service.ready_to_answer().await.unwrap();
    world.service.register(device()).await.unwrap();
    world.service.ready().await.unwrap();
    let elsewhere = world.elsewhere("there").await;
    elsewhere.register(gpu(0, 1000.0)).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    world.service.submit(&request(&matrix, 1), None).await.unwrap();
    let claim = world.claim().await;
    let entry = Quarantined {
        class: device().class(),
        kernel_digest: kernel_text(),
        candidate: Candidate::new("row_split"),
        scope: QuarantineScope::Pattern,
        reason: "hung".to_owned(),
        at: Timestamp::now(),
    };
    world.service.store().quarantine(&entry, &matrix.pattern_digest).await.unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;

    let status = world.service.devices().await.unwrap();
    let (here, there) = (&status[0], &status[1]);
    assert_eq!((here.device.id.0.as_str(), here.local, here.online), ("cpu", true, true));
    assert_eq!((here.running.as_ref(), here.quarantined), (Some(&claim.job.id), 1));
    assert_eq!((there.owner.as_str(), there.local, there.online), ("there", false, false));

    world.service.set_device_trouble(&device().id, Some("it does not open".to_owned()));
    let status = world.service.devices().await.unwrap();
    assert_eq!(status[0].trouble.as_deref(), Some("it does not open"));
    assert!(matches!(world.service.ready().await, Err(ServiceError::Unavailable { .. })));
    world.service.set_device_trouble(&device().id, None);
    world.service.ready().await.unwrap();
}

#[tokio::test]
async fn upkeep_keeps_in_touch_and_stops_when_told() {
    let world = World::with(|settings| settings.heartbeat = Duration::from_millis(30)).await;
    world.service.register(device()).await.unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn(world.service.clone().upkeep(stop.clone()));
    let before = world.service.plans_epoch();
    let elsewhere = world.elsewhere("there").await;
    elsewhere.register(gpu(0, 1000.0)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), async {
        while world.service.plans_epoch() == before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        while !elsewhere.devices().await.unwrap().iter().any(|d| d.owner == "here" && d.online) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
}

#[tokio::test]
async fn files_of_killed_processes_go_and_others_stay() {
    let world = World::new().await;
    let old = SystemTime::now() - Duration::from_secs(7 * 3600);
    let put = |path: std::path::PathBuf, aged: bool| {
        let file = std::fs::File::create(&path).unwrap();
        if aged {
            file.set_modified(old).unwrap();
        }
        path
    };
    let orphan = put(world.uploads().join("sparsetune-upload-a"), true);
    let staged = put(world.staging().join("blob-b"), true);
    let fresh = put(world.uploads().join("sparsetune-upload-c"), false);
    let foreign = put(world.uploads().join("somebody-elses"), true);
    // The arrays of a plan that was never stored.
    let arrays = world.staging().join("blobs-d");
    std::fs::create_dir(&arrays).unwrap();
    put(arrays.join("array-0"), true);
    std::fs::File::open(&arrays).unwrap().set_modified(old).unwrap();
    let removed = world.service.remove_old().await.unwrap();
    assert_eq!(removed.files, 3);
    assert!(!orphan.exists() && !staged.exists() && !arrays.exists());
    assert!(fresh.exists() && foreign.exists());
}

#[tokio::test]
async fn blobs_that_nothing_names_go_with_age() {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    world.service.submit(&request(&matrix, 32), None).await.unwrap();
    let claim = world.claim().await;
    let blobs = world.service.blobs().clone();
    let put = async |text: &'static str| blobs.put(text.into()).await.unwrap();
    let mut kept = Vec::new();
    for text in ["source", "cubin", "order", "ptx", "gather", "gather cubin", "gather ptx"] {
        kept.push(put(text).await);
    }
    let (lost, young, again) = (put("lost").await, put("young").await, put("again").await);
    let order = PlanArray { name: "order".into(), element: "u32".into(), length: 1, blob: kept[2] };
    let launch = Launch {
        entry: "solve".into(),
        source: Some(kept[0]),
        cubin: Some(kept[1]),
        ptx: Some(kept[3]),
        options: Vec::new(),
        compiler: Some("NVRTC 13.0".into()),
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        arguments: Vec::new(),
        steps: Vec::new(),
        arrays: vec![order],
        scratch: Vec::new(),
        zero_output: false,
        update: Some(UpdateProgram {
            entry: "gather".into(),
            quotients: None,
            source: kept[4],
            cubin: kept[5],
            ptx: kept[6],
        }),
    };
    let plan = Plan { launch: Some(launch), ..plan(&device(), &matrix, &claim.job) };
    world.service.store().finish(&claim.fence, &ended(&claim.job, Some(plan))).await.unwrap();
    for digest in kept.iter().chain([&lost, &again, &matrix.digest]) {
        let file = std::fs::File::open(blobs.local_copy(digest).await.unwrap()).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(25 * 3600)).unwrap();
    }
    // A running job needs it once more.
    put("again").await;
    assert_eq!(world.service.remove_old().await.unwrap().blobs, 1);
    let in_trash = world.folder.path().join("blobs/trash").join(lost.to_string());
    assert!(in_trash.is_file());
    // What is needed after all comes back, and goes again.
    assert!(blobs.exists(&lost).await.unwrap() && !in_trash.exists());
    let age = |file: &std::path::Path, hours: u64| {
        let file = std::fs::File::open(file).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
    };
    age(&blobs.local_copy(&lost).await.unwrap(), 23);
    assert_eq!(world.service.remove_old().await.unwrap().blobs, 0, "younger than the grace");
    age(&blobs.local_copy(&lost).await.unwrap(), 25);
    let removed = world.service.remove_old().await.unwrap();
    assert_eq!((removed.blobs, removed.trash), (1, 0), "its time in the trash begins now");
    age(&in_trash, 25);
    assert_eq!(world.service.remove_old().await.unwrap().trash, 1);
    assert!(!blobs.exists(&lost).await.unwrap() && !in_trash.exists());
    for digest in kept.iter().chain([&young, &again, &matrix.digest]) {
        assert!(blobs.exists(digest).await.unwrap(), "{digest}");
    }
}

#[tokio::test]
async fn not_ready_while_a_device_is_still_to_come() {
    let world = World::new().await;
    let (cpu, gpu) = (
        world.service.opening(DeviceId("cpu".to_owned())),
        world.service.opening(DeviceId("cuda:0".to_owned())),
    );
    world.service.register(device()).await.unwrap();
    drop(cpu);
    match world.service.ready().await {
        Err(ServiceError::Unavailable { message }) => {
            assert!(message.contains("cuda:0"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    // Whether it has come or has failed: waiting longer would bring nothing.
    drop(gpu);
    world.service.ready().await.unwrap();
}

#[tokio::test]
async fn restarts_are_told_of_all_devices() {
    let world = World::new().await;
    let elsewhere = world.elsewhere("there").await;
    elsewhere.register(gpu(0, 1000.0)).await.unwrap();
    world.service.register(device()).await.unwrap();
    world.service.set_device_restarts(&device().id, 3);
    let devices = world.service.devices().await.unwrap();
    let told: Vec<_> = devices.iter().map(|status| (status.local, status.restarts)).collect();
    assert_eq!(told, [(true, Some(3)), (false, Some(0))]);
}
