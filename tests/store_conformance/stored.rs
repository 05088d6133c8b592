//! The count of the blobs' bytes that servers have together.

use crate::Harness;
use sparsetune::store::RoomTaken;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

pub async fn bytes_are_counted_together(harness: &Harness) {
    let (store, other) = (harness.open().await, harness.open().await);
    assert_eq!(store.take_bytes(1, u64::MAX, HOUR).await.unwrap(), RoomTaken::Uncounted);
    store.bytes_counted(40, store.taken_bytes().await.unwrap()).await.unwrap();
    assert_eq!(store.take_bytes(60, 100, Duration::ZERO).await.unwrap(), RoomTaken::Uncounted);
    assert_eq!(other.take_bytes(61, 100, HOUR).await.unwrap(), RoomTaken::Full(40));
    assert_eq!(other.take_bytes(u64::MAX, u64::MAX, HOUR).await.unwrap(), RoomTaken::Full(40));
    assert_eq!(other.take_bytes(60, 100, HOUR).await.unwrap(), RoomTaken::Yes);
    assert_eq!(store.take_bytes(1, 100, HOUR).await.unwrap(), RoomTaken::Full(100));
    store.give_bytes(25).await.unwrap();
    assert_eq!(other.take_bytes(25, 100, HOUR).await.unwrap(), RoomTaken::Yes);

    // What is taken while all of it is looked at may or may not have been seen; it is counted.
    let before = store.taken_bytes().await.unwrap();
    assert_eq!(other.take_bytes(7, 200, HOUR).await.unwrap(), RoomTaken::Yes);
    store.bytes_counted(50, before).await.unwrap();
    assert_eq!(other.take_bytes(200, 200, HOUR).await.unwrap(), RoomTaken::Full(57));
    // More was given back meanwhile than was taken.
    let before = store.taken_bytes().await.unwrap();
    other.give_bytes(9).await.unwrap();
    store.bytes_counted(50, before).await.unwrap();
    assert_eq!(other.take_bytes(200, 200, HOUR).await.unwrap(), RoomTaken::Full(50));
}

pub async fn of_many_who_take_the_last_room_few_get_it(harness: &Harness) {
    let stores = [harness.open().await, harness.open().await];
    stores[0].bytes_counted(0, stores[0].taken_bytes().await.unwrap()).await.unwrap();
    let takers: Vec<_> = (0..32)
        .map(|number| {
            let store = stores[number % 2].clone();
            tokio::spawn(async move { store.take_bytes(10, 105, HOUR).await.unwrap() })
        })
        .collect();
    let mut taken = 0;
    for taker in takers {
        taken += usize::from(taker.await.unwrap() == RoomTaken::Yes);
    }
    assert_eq!(taken, 10);
}
