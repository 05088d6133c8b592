//! The count of the blobs' bytes that servers have together.

use crate::Harness;
use sparsetune::store::{RoomTaken, Store};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// Takes room as one upload, by a number.
async fn take(
    store: &dyn Store,
    upload: u32,
    bytes: u64,
    most: u64,
    within: Duration,
) -> RoomTaken {
    store.take_bytes(&upload.to_string(), bytes, most, within).await.unwrap()
}

async fn count(store: &dyn Store, found: u64) {
    store.bytes_counted(found, store.taken_bytes().await.unwrap()).await.unwrap();
}

pub async fn bytes_are_counted_together(harness: &Harness) {
    let (store, other) = (harness.open().await, harness.open().await);
    assert_eq!(take(&*store, 0, 1, u64::MAX, HOUR).await, RoomTaken::Uncounted);
    count(&*store, 40).await;
    assert_eq!(take(&*store, 0, 60, 100, Duration::ZERO).await, RoomTaken::Uncounted);
    assert_eq!(take(&*other, 0, 61, 100, HOUR).await, RoomTaken::Full(40));
    assert_eq!(take(&*other, 0, u64::MAX, u64::MAX, HOUR).await, RoomTaken::Full(40));
    assert_eq!(take(&*other, 1, 60, 100, HOUR).await, RoomTaken::Yes);
    assert_eq!(take(&*store, 0, 1, 100, HOUR).await, RoomTaken::Full(100));
    other.give_bytes("1", 60).await.unwrap();
    assert_eq!(take(&*other, 2, 35, 100, HOUR).await, RoomTaken::Yes);
    other.settle_bytes("2").await.unwrap();

    // What is taken while all of it is looked at may or may not have been seen; it is counted.
    let before = store.taken_bytes().await.unwrap();
    assert_eq!(take(&*other, 3, 7, 200, HOUR).await, RoomTaken::Yes);
    store.bytes_counted(50, before).await.unwrap();
    assert_eq!(take(&*other, 4, 200, 200, HOUR).await, RoomTaken::Full(57));
    // More was given back meanwhile than was taken.
    let before = store.taken_bytes().await.unwrap();
    other.give_bytes("3", 7).await.unwrap();
    store.bytes_counted(50 - before.under_way.unsigned_abs(), before).await.unwrap();
    assert_eq!(take(&*other, 4, 200, 200, HOUR).await, RoomTaken::Full(50));
}

/// An upload that is under way while all is counted, at another server or here, is in no count of what is there.
pub async fn what_is_under_way_outlives_a_count(harness: &Harness) {
    let (store, other) = (harness.open().await, harness.open().await);
    count(&*store, 0).await;
    assert_eq!(take(&*other, 1, 60, 100, HOUR).await, RoomTaken::Yes);
    for _ in 0..2 {
        count(&*store, 0).await;
        assert_eq!(take(&*store, 2, 50, 100, HOUR).await, RoomTaken::Full(60));
    }
    assert_eq!(take(&*store, 2, 40, 100, HOUR).await, RoomTaken::Yes);
    // One is stored, the other given up.
    other.settle_bytes("1").await.unwrap();
    store.give_bytes("2", 40).await.unwrap();
    count(&*other, 60).await;
    assert_eq!(take(&*store, 3, 50, 100, HOUR).await, RoomTaken::Full(60));
    // One whose process has ended counts for a day.
    assert_eq!(take(&*store, 3, 40, 100, HOUR).await, RoomTaken::Yes);
    harness.spoil("UPDATE under_way SET at = at - 86400000").await;
    count(&*other, 60).await;
    assert_eq!(take(&*store, 4, 40, 100, HOUR).await, RoomTaken::Yes);
}

pub async fn of_many_who_take_the_last_room_few_get_it(harness: &Harness) {
    let stores = [harness.open().await, harness.open().await];
    count(&*stores[0], 0).await;
    let takers: Vec<_> = (0..32)
        .map(|number| {
            let store = stores[number % 2].clone();
            tokio::spawn(async move { take(&*store, number as u32, 10, 105, HOUR).await })
        })
        .collect();
    let mut taken = 0;
    for taker in takers {
        taken += usize::from(taker.await.unwrap() == RoomTaken::Yes);
    }
    assert_eq!(taken, 10);
}
