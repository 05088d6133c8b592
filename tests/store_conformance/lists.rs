//! Pages and cursors.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::{
    Candidate, DeviceClass, Digest, JobState, Matrix, Op, QuarantineScope, Timestamp,
};
use sparsetune::store::{JobFilter, PageRequest, Quarantined, StoreError};

pub async fn pages_stay_put_under_inserts(harness: &Harness) {
    let store = harness.open().await;
    for i in 0..7 {
        // Pairs share their moment: the digest breaks the tie.
        store.insert_matrix(&matrix(&i.to_string(), i / 2)).await.unwrap();
    }
    let all = store.matrices(&MatrixQuery::All, &page(100)).await.unwrap();
    assert_eq!((all.items.len(), all.next), (7, None));
    assert!(all.items.is_sorted_by_key(|m| std::cmp::Reverse((m.created_at, m.digest))));
    let first = store.matrices(&MatrixQuery::All, &page(3)).await.unwrap();
    store.insert_matrix(&matrix("newer", 50)).await.unwrap();
    let second = store
        .matrices(&MatrixQuery::All, &PageRequest { after: first.next, limit: 3 })
        .await
        .unwrap();
    let third = store
        .matrices(&MatrixQuery::All, &PageRequest { after: second.next, limit: 3 })
        .await
        .unwrap();
    let read = [first.items, second.items, third.items].concat();
    assert_eq!(read, all.items);
    assert_eq!(third.next, None);
}

pub async fn filters_hold_on_every_page(harness: &Harness) {
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
    let filter = JobFilter {
        state: Some(JobState::Queued),
        matrix: Some(a.digest),
        device: Some(cpu()),
        ..JobFilter::default()
    };
    let first = store.jobs(&filter, &page(1)).await.unwrap();
    let second = store.jobs(&filter, &PageRequest { after: first.next, limit: 1 }).await.unwrap();
    let times = [first.items[0].created_at.0, second.items[0].created_at.0];
    assert_eq!((times, second.next), ([2, 0], None));
    assert_eq!(store.jobs(&JobFilter::default(), &page(100)).await.unwrap().items.len(), 6);
    for (op, jobs) in [(Op::Spmm, 6), (Op::Sptrsv, 0)] {
        let filter = JobFilter { op: Some(op), ..JobFilter::default() };
        assert_eq!(store.works(&filter, &page(100)).await.unwrap().items.len(), jobs, "{op}");
    }
}

pub async fn foreign_cursors_are_refused(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    for i in 0..3 {
        store.insert_matrix(&matrix(&i.to_string(), i)).await.unwrap();
    }
    let foreign = store.matrices(&MatrixQuery::All, &page(1)).await.unwrap().next;
    assert!(foreign.is_some());
    for after in [foreign, Some("!".to_owned()), Some(String::new())] {
        let page = PageRequest { after, limit: 1 };
        let jobs = store.jobs(&JobFilter::default(), &page).await;
        assert!(matches!(jobs, Err(StoreError::BadCursor)));
        let trials = store.trials(&job.id, &TrialQuery::All, &page).await;
        assert!(matches!(trials, Err(StoreError::BadCursor)));
        let quarantine = store.quarantined(None, &page).await;
        assert!(matches!(quarantine, Err(StoreError::BadCursor)));
    }
}

pub async fn the_quarantine_is_read_in_pages(harness: &Harness) {
    let store = harness.open().await;
    let entry = |n: i64| Quarantined {
        // A class may hold anything, also what cursors are divided by.
        class: DeviceClass(format!("cuda/a|b/{}", n % 2)),
        kernel_digest: Digest::of(&[n as u8 % 3]),
        candidate: Candidate::new("row_split").with("lanes", n),
        scope: QuarantineScope::Pattern,
        reason: n.to_string(),
        // Four share a moment: the key breaks the tie.
        at: Timestamp(n / 4),
    };
    for n in 0..14 {
        store.quarantine(&entry(n), &Digest::of(b"pattern")).await.unwrap();
    }
    let read = async |class: Option<&DeviceClass>| {
        let mut all = Vec::new();
        let mut page = page(3);
        loop {
            let part = store.quarantined(class, &page).await.unwrap();
            assert!(part.items.len() <= 3);
            all.extend(part.items);
            page.after = part.next;
            if page.after.is_none() {
                return all;
            }
        }
    };
    let all = read(None).await;
    assert_eq!(all.len(), 14);
    assert!(all.is_sorted_by_key(|entry| std::cmp::Reverse(entry.at)));
    let reasons: std::collections::HashSet<&str> = all.iter().map(|e| e.reason.as_str()).collect();
    assert_eq!(reasons.len(), 14, "none twice");
    let class = entry(1).class;
    let own = read(Some(&class)).await;
    let expected: Vec<_> = all.into_iter().filter(|entry| entry.class == class).collect();
    assert_eq!(own, expected);
    assert_eq!(read(Some(&DeviceClass("another".to_owned()))).await, []);
}

pub async fn matrices_are_found_by_part_of_their_name(harness: &Harness) {
    let store = harness.open().await;
    for (at, name) in (0..).zip(["Delaunay_n10", "100%_full", "delaunay_n11", "road\\x"]) {
        store.insert_matrix(&matrix(name, at)).await.unwrap();
    }
    let unnamed = Matrix { name: None, ..matrix("delaunay, unnamed", 9) };
    store.insert_matrix(&unnamed).await.unwrap();
    let found = async |part: &str, limit| -> Vec<String> {
        let found =
            store.matrices(&MatrixQuery::Named(part.to_owned()), &page(limit)).await.unwrap();
        found.items.into_iter().filter_map(|matrix| matrix.name).collect()
    };
    assert_eq!(found("DELAUNAY", 9).await, ["delaunay_n11", "Delaunay_n10"]);
    assert_eq!(found("delaunay", 1).await, ["delaunay_n11"]);
    // Nothing in it stands for anything else.
    assert_eq!(found("%", 9).await, ["100%_full"]);
    assert_eq!(found("n_1", 9).await, [""; 0]);
    assert_eq!(found("\\", 9).await, ["road\\x"]);
    assert_eq!(found("'", 9).await, [""; 0]);
}
