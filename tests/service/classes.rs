//! Which devices may run a job: any of a class, or one that is named.

use crate::world::*;
use sparsetune::domain::*;
use sparsetune::service::{Service, ServiceError};
use sparsetune::store::Queue;

fn with_uuid(index: u32, uuid: &str) -> Device {
    Device { uuid: Some(uuid.to_owned()), ..gpu(index, 1000.0) }
}

async fn claimed(service: &Service, device: &Device) -> Option<Job> {
    let queue = Queue::of(device, &service.settings().host);
    service.claim(&queue, "w").await.unwrap().and_then(|claim| claim.work.into_job())
}

#[tokio::test]
async fn two_hosts_with_a_device_of_one_name_share_a_class_and_not_a_name() {
    let world = World::new().await;
    let there = world.elsewhere_with("there", |settings| settings.host = "there".to_owned()).await;
    let (a, b) = (with_uuid(0, "GPU-a"), with_uuid(0, "GPU-b"));
    world.service.register(a.clone()).await.unwrap();
    there.register(b.clone()).await.unwrap();
    let other = Device { name: "another GPU".to_owned(), ..with_uuid(0, "GPU-c") };
    let third = world.elsewhere_with("third", |settings| settings.host = "third".to_owned()).await;
    third.register(other.clone()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let submit = async |name: &str, n| {
        let asked = JobRequest { device: name.to_owned(), ..request(&matrix, n) };
        world.service.submit(&asked, None).await
    };

    match submit("cuda:0", 1).await {
        Err(ServiceError::Ambiguous { pointer, choices, message }) => {
            assert_eq!(pointer, "/device");
            let classes = [a.class().0, other.class().0];
            let keys = ["GPU-a", "GPU-b", "GPU-c"].map(str::to_owned);
            assert_eq!(choices, keys.into_iter().chain(classes).collect::<Vec<_>>());
            assert!(message.contains("3 devices are called cuda:0"), "{message}");
        }
        told => panic!("{told:?}"),
    }
    let of_class = submit("auto", 1).await.unwrap().job;
    assert_eq!((&of_class.device_class, &of_class.only_on), (&Some(a.class()), &None));
    let by_name = submit(&a.class().0, 2).await.unwrap().job;
    let alone = submit("GPU-b", 3).await.unwrap().job;
    assert_eq!(alone.only_on, Some(DeviceKey("GPU-b".to_owned())));
    // An equal request for the class is the same job; for one device it is another.
    assert!(!submit(&a.class().0, 1).await.unwrap().created);
    assert!(submit("GPU-a", 1).await.unwrap().created);

    assert_eq!(claimed(&third, &other).await, None, "another class, though of the same name");
    assert_eq!(claimed(&there, &b).await.map(|job| job.id), Some(of_class.id));
    assert_eq!(claimed(&there, &b).await.map(|job| job.id), Some(by_name.id));
    assert_eq!(claimed(&there, &b).await.map(|job| job.id), Some(alone.id));
    assert_eq!(claimed(&there, &b).await, None, "the last is for the other alone");
    assert!(claimed(&world.service, &a).await.is_some());

    // A class in full that no worker serves, and a device that is gone.
    assert!(matches!(submit("cuda/none/cc1.0/1sm", 4).await, Err(ServiceError::Invalid { .. })));
    let devices = world.service.devices().await.unwrap();
    let keys: Vec<_> = devices.iter().map(|one| (one.owner.as_str(), one.key.0.as_str())).collect();
    assert_eq!(keys, [("here", "GPU-a"), ("there", "GPU-b"), ("third", "GPU-c")]);
    assert_eq!(devices[1].host.as_deref(), Some("there"));
    assert_eq!(devices[1].version.as_deref(), Some(env!("CARGO_PKG_VERSION")));
}

#[tokio::test]
async fn a_job_fits_all_devices_of_its_class() {
    let world = World::new().await;
    let there = world.elsewhere("there").await;
    world.service.register(with_uuid(0, "GPU-a")).await.unwrap();
    let small = Device { memory_bytes: 24 * 20, ..with_uuid(1, "GPU-b") };
    there.register(small).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let submit = async |name: &str| {
        let asked = JobRequest { device: name.to_owned(), ..request(&matrix, 4) };
        world.service.submit(&asked, None).await
    };
    assert!(matches!(submit("auto").await, Err(ServiceError::TooLarge { .. })));
    submit("GPU-a").await.unwrap();
}

#[tokio::test]
async fn a_process_that_drains_or_has_lost_its_name_claims_nothing() {
    let place = |of: &str| {
        let of = of.to_owned();
        move |settings: &mut sparsetune::service::ServiceSettings| settings.place = of
    };
    let world = World::with(place("one folder")).await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    world.service.submit(&request(&matrix, 1), None).await.unwrap();
    assert_eq!(world.service.keep_name().await.unwrap(), None);
    // As a container on another host with the same name would.
    let twin = world.elsewhere_with("here", place("another folder")).await;
    let holder = twin.keep_name().await.unwrap().unwrap();
    assert_eq!(holder.host, crate::claimed::HOST);
    world.service.leave_name().await.unwrap();
    assert_eq!(twin.keep_name().await.unwrap(), None);
    assert!(world.service.keep_name().await.unwrap().is_some());

    twin.drain();
    assert_eq!(claimed(&twin, &device()).await, None);
    assert!(claimed(&world.service, &device()).await.is_some());
}
