//! Pages and cursors.

use crate::Sqlite;
use crate::words::*;
use sparsetune::domain::JobState;
use sparsetune::store::{JobFilter, PageRequest, StoreError};

pub async fn pages_stay_put_under_inserts(harness: &Sqlite) {
    let store = harness.open().await;
    for i in 0..7 {
        // Pairs share their moment: the digest breaks the tie.
        store.insert_matrix(&matrix(&i.to_string(), i / 2)).await.unwrap();
    }
    let all = store.matrices(&page(100)).await.unwrap();
    assert_eq!((all.items.len(), all.next), (7, None));
    assert!(all.items.is_sorted_by_key(|m| std::cmp::Reverse((m.created_at, m.digest))));
    let first = store.matrices(&page(3)).await.unwrap();
    store.insert_matrix(&matrix("newer", 50)).await.unwrap();
    let second = store.matrices(&PageRequest { after: first.next, limit: 3 }).await.unwrap();
    let third = store.matrices(&PageRequest { after: second.next, limit: 3 }).await.unwrap();
    let read = [first.items, second.items, third.items].concat();
    assert_eq!(read, all.items);
    assert_eq!(third.next, None);
}

pub async fn filters_hold_on_every_page(harness: &Sqlite) {
    let store = harness.open().await;
    let (a, b) = (matrix("a", 1), matrix("b", 1));
    store.insert_matrix(&a).await.unwrap();
    store.insert_matrix(&b).await.unwrap();
    for i in 0..6 {
        let of = if i % 2 == 0 { &a } else { &b };
        let job = created(store.submit(&new_job(of, &i.to_string(), i)).await.unwrap());
        if i >= 4 {
            store.request_cancel(&job.id).await.unwrap();
        }
    }
    let filter =
        JobFilter { state: Some(JobState::Queued), matrix: Some(a.digest), device: Some(cpu()) };
    let first = store.jobs(&filter, &page(1)).await.unwrap();
    let second = store.jobs(&filter, &PageRequest { after: first.next, limit: 1 }).await.unwrap();
    let times = [first.items[0].created_at.0, second.items[0].created_at.0];
    assert_eq!((times, second.next), ([2, 0], None));
    assert_eq!(store.jobs(&JobFilter::default(), &page(100)).await.unwrap().items.len(), 6);
}

pub async fn foreign_cursors_are_refused(harness: &Sqlite) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    for i in 0..3 {
        store.insert_matrix(&matrix(&i.to_string(), i)).await.unwrap();
    }
    let foreign = store.matrices(&page(1)).await.unwrap().next;
    assert!(foreign.is_some());
    for after in [foreign, Some("!".to_owned()), Some(String::new())] {
        let page = PageRequest { after, limit: 1 };
        let jobs = store.jobs(&JobFilter::default(), &page).await;
        assert!(matches!(jobs, Err(StoreError::BadCursor)));
        let trials = store.trials_page(&job.id, None, &page).await;
        assert!(matches!(trials, Err(StoreError::BadCursor)));
    }
}
