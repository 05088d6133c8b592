//! Pages and cursors.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::job::Best;
use sparsetune::domain::{
    Candidate, DeviceClass, Digest, Job, JobState, Matrix, Op, QuarantineScope, Timestamp, Work,
};
use sparsetune::store::order::Column;
use sparsetune::store::{
    Direction, JobColumn, JobFilter, JobOrder, MatrixColumn, MatrixOrder, Page, PageRequest,
    Quarantined, StoreError,
};
use std::collections::HashSet;

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

/// All pages of a list, of this many rows each.
async fn pages<T>(
    limit: u32,
    read: impl AsyncFn(PageRequest) -> Result<Page<T>, StoreError>,
) -> Vec<T> {
    let mut all = Vec::new();
    let mut request = page(limit);
    loop {
        let part = read(request).await.unwrap();
        assert!(part.items.len() <= limit as usize);
        all.extend(part.items);
        let Some(next) = part.next else { return all };
        request = PageRequest { after: Some(next), limit };
    }
}

pub async fn matrices_are_sorted_on_all_pages(harness: &Harness) {
    let store = harness.open().await;
    // Two of one size, two names that differ by case alone, and one without a name.
    let given = [("pear", 5, 70), ("Apple", 9, 10), ("apple", 2, 70), ("fig", 9, 40)];
    for (at, (name, rows, nnz)) in (0..).zip(given) {
        let matrix = Matrix { rows, nnz, ..matrix(name, at) };
        store.insert_matrix(&matrix).await.unwrap();
    }
    let unnamed = Matrix { name: None, rows: 1, nnz: 1, ..matrix("unnamed", 4) };
    store.insert_matrix(&unnamed).await.unwrap();
    let sorted = async |by, direction, named: Option<&str>, limit| {
        let order = MatrixOrder { by, direction };
        pages(limit, async |page| store.sorted_matrices(named, order, &page).await).await
    };
    for limit in [1, 2, 3, 100] {
        for by in MatrixColumn::ALL.iter().copied() {
            let rising = sorted(by, Direction::Asc, None, limit).await;
            let mut falling = sorted(by, Direction::Desc, None, limit).await;
            let digests = |all: &[Matrix]| all.iter().map(|m| m.digest).collect::<Vec<_>>();
            assert_eq!(digests(&rising).len(), 5, "{by:?} {limit}");
            // What has no value is last both ways.
            let last = if by == MatrixColumn::Name { 4 } else { 5 };
            falling[..last].reverse();
            assert_eq!(digests(&rising), digests(&falling), "{by:?} {limit}");
            let values = rising.iter().map(|m| match by {
                MatrixColumn::CreatedAt => m.created_at.0 as u64,
                MatrixColumn::Name => 0,
                MatrixColumn::Rows => m.rows,
                MatrixColumn::Nnz => m.nnz,
            });
            assert!(values.is_sorted(), "{by:?} {limit}");
        }
        let names = sorted(MatrixColumn::Name, Direction::Asc, None, limit).await;
        let names: Vec<String> =
            names.into_iter().map(|m| m.name.unwrap_or_default().to_lowercase()).collect();
        assert_eq!(names, ["apple", "apple", "fig", "pear", ""]);
        let found = sorted(MatrixColumn::Nnz, Direction::Desc, Some("APPLE"), limit).await;
        assert_eq!(found.iter().map(|m| m.nnz).collect::<Vec<_>>(), [70, 10]);
    }
}

pub async fn a_sorted_page_goes_on_behind_what_was_shown(harness: &Harness) {
    let store = harness.open().await;
    for nnz in [10, 20, 30, 40] {
        let matrix = Matrix { nnz, ..matrix(&nnz.to_string(), 1) };
        store.insert_matrix(&matrix).await.unwrap();
    }
    let order = MatrixOrder::of(MatrixColumn::Nnz, None);
    let first = store.sorted_matrices(None, order, &page(2)).await.unwrap();
    assert_eq!(first.items.iter().map(|m| m.nnz).collect::<Vec<_>>(), [40, 30]);
    // The row that the cursor names goes, another comes before it, and a third behind it.
    store.delete_matrix(&Digest::of(b"30")).await.unwrap();
    for nnz in [35, 25] {
        let matrix = Matrix { nnz, ..matrix(&nnz.to_string(), 2) };
        store.insert_matrix(&matrix).await.unwrap();
    }
    let rest = PageRequest { after: first.next.clone(), limit: 9 };
    let rest = store.sorted_matrices(None, order, &rest).await.unwrap();
    assert_eq!(rest.items.iter().map(|m| m.nnz).collect::<Vec<_>>(), [25, 20, 10]);
    // A cursor is of its order alone.
    let turned = MatrixOrder { direction: Direction::Asc, ..order };
    let others = [turned, MatrixOrder::of(MatrixColumn::Rows, None), MatrixOrder::default()];
    for order in others {
        let page = PageRequest { after: first.next.clone(), limit: 2 };
        let refused = store.sorted_matrices(None, order, &page).await;
        assert!(matches!(refused, Err(StoreError::BadCursor)), "{order:?}");
    }
}

pub async fn jobs_are_sorted_on_all_pages(harness: &Harness) {
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    store.insert_matrix(&matrix).await.unwrap();
    // A number that has no short decimal form, two that are alike, and two jobs without any.
    let times = [Some(0.1 + 0.2), Some(7.5), None, Some(7.5), Some(1e-3), None];
    for (at, time) in (0..).zip(times) {
        let job = created(store.submit(&new_job(&matrix, &at.to_string(), at)).await.unwrap());
        let Some(median_us) = time else {
            store.request_cancel(&job.id).await.unwrap();
            continue;
        };
        let claim = claim(&*store, "w", LEASE).await.unwrap();
        assert_eq!(claim.job.id, job.id);
        let best = Best {
            candidate: Candidate::new("row_split"),
            median_us,
            speedup: (median_us > 1.0).then_some(2.0),
        };
        let job = Job { best: Some(best), ..claim.job };
        store.finish(&claim.fence, &ended(&job, JobState::Failed, None)).await.unwrap();
    }
    // How long they took rises otherwise than when they were made: 0, 2, 1 and 3 s.
    harness
        .spoil(
            "UPDATE jobs SET started_at = 5000, finished_at = 5000 + created_at * 7 % 5 * 1000 WHERE state = 'failed'",
        )
        .await;
    let sorted = async |by, direction, filter: JobFilter, limit| -> Vec<Job> {
        let order = JobOrder { by, direction };
        let all = pages(limit, async |page| store.sorted_works(&filter, order, &page).await).await;
        all.into_iter().filter_map(Work::into_job).collect()
    };
    let median = |jobs: &[Job]| -> Vec<Option<f64>> {
        jobs.iter().map(|job| job.best.as_ref().map(|best| best.median_us)).collect()
    };
    for limit in [1, 2, 4, 100] {
        let all = JobFilter::default;
        let fastest = sorted(JobColumn::MedianUs, Direction::Asc, all(), limit).await;
        let rising = [Some(1e-3), Some(0.1 + 0.2), Some(7.5), Some(7.5), None, None];
        assert_eq!(median(&fastest), rising, "{limit}");
        let slowest = sorted(JobColumn::MedianUs, Direction::Desc, all(), limit).await;
        let falling = [Some(7.5), Some(7.5), Some(0.1 + 0.2), Some(1e-3), None, None];
        assert_eq!(median(&slowest), falling, "{limit}");
        let ids: HashSet<&str> = slowest.iter().map(|job| job.id.0.as_str()).collect();
        assert_eq!(ids.len(), 6, "none twice");
        // The newest first among those without a value, whichever way the list goes.
        for jobs in [&fastest, &slowest] {
            assert!(jobs[4].created_at > jobs[5].created_at);
        }
        let factors = sorted(JobColumn::Speedup, Direction::Desc, all(), limit).await;
        assert_eq!(median(&factors[..2]), [Some(7.5), Some(7.5)]);
        for by in JobColumn::ALL.iter().copied() {
            for direction in Direction::ALL {
                assert_eq!(sorted(by, direction, all(), limit).await.len(), 6, "{by:?}");
            }
        }
        let took = |jobs: &[Job]| -> Vec<Option<i64>> {
            let one = |job: &Job| Some(job.finished_at?.0 - job.started_at?.0);
            jobs.iter().map(one).collect()
        };
        let mut lasted = [Some(3000), Some(2000), Some(1000), Some(0), None, None];
        let longest = sorted(JobColumn::Took, Direction::Desc, all(), limit).await;
        assert_eq!(took(&longest), lasted, "{limit}");
        lasted[..4].reverse();
        let shortest = sorted(JobColumn::Took, Direction::Asc, all(), limit).await;
        assert_eq!(took(&shortest), lasted, "{limit}");
        let oldest = sorted(JobColumn::CreatedAt, Direction::Asc, all(), limit).await;
        assert!(oldest.is_sorted_by_key(|job| job.created_at));
        let failed = JobFilter { state: Some(JobState::Failed), ..all() };
        let failed = sorted(JobColumn::MedianUs, Direction::Asc, failed, limit).await;
        assert_eq!(median(&failed), rising[..4]);
        let of = JobFilter { matrix: Some(matrix.digest), op: Some(Op::Spmm), ..all() };
        assert_eq!(median(&sorted(JobColumn::MedianUs, Direction::Desc, of, limit).await), falling);
        let none = JobFilter { op: Some(Op::Sptrsv), ..all() };
        assert_eq!(sorted(JobColumn::Speedup, Direction::Desc, none, limit).await, []);
    }
}
