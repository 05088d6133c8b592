//! Trials and events: what a job leaves behind while it runs.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::{
    Candidate, EventKind, FunnelStep, JobId, JobState, Outcome, Trial, TrialCount, TrialFilter,
    TrialState, Work,
};
use sparsetune::store::{PageRequest, StoreError};
use std::time::Duration;

pub async fn a_resumed_job_finds_its_trials(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let first = claim(&*store, "w", 0).await.unwrap();
    let known = [trial(&job.id, 0, 3.25), pruned(&job.id, 1), trial(&job.id, 2, 1.0 / 3.0)];
    store.record_trials(&first.fence, &known).await.unwrap();
    drop(store);
    let store = harness.open().await;
    let second = claim(&*store, "w", LEASE).await.unwrap();
    assert_eq!(trials_of(&*store, &second.job.id).await, known);
    store.record_trials(&second.fence, &[trial(&job.id, 3, 2.0)]).await.unwrap();
    assert_eq!(trials_of(&*store, &job.id).await.len(), 4);
}

pub async fn a_recorded_trial_stays(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let fence = claim(&*store, "w", LEASE).await.unwrap().fence;
    store.record_trials(&fence, &[trial(&job.id, 0, 1.0)]).await.unwrap();
    let events = store.events(&job.id, 0, 100).await.unwrap().len();
    // The same trial again, and the same candidate under another number.
    let twice = [trial(&job.id, 0, 9.0), Trial { ordinal: 7, ..trial(&job.id, 0, 9.0) }];
    store.record_trials(&fence, &twice).await.unwrap();
    assert_eq!(trials_of(&*store, &job.id).await, [trial(&job.id, 0, 1.0)]);
    assert_eq!(store.events(&job.id, 0, 100).await.unwrap().len(), events);
    // Another candidate under a used number would be lost: all of the batch is refused.
    let clash = Trial { candidate: Candidate::new("row_panel"), ..trial(&job.id, 0, 1.0) };
    let refused = store.record_trials(&fence, &[trial(&job.id, 1, 1.0), clash]).await;
    assert!(matches!(refused, Err(StoreError::Misuse(_))));
    assert_eq!(trials_of(&*store, &job.id).await.len(), 1);
}

pub async fn events_have_no_gaps(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let claim = claim(&*store, "w", LEASE).await.unwrap();
    let fence = &claim.fence;
    store.update(fence, &claim.job.clone().into()).await.unwrap();
    let batch = [trial(&job.id, 2, 1.0), pruned(&job.id, 1), trial(&job.id, 0, 2.0)];
    store.record_trials(fence, &batch).await.unwrap();
    store.log(fence, &EventKind::Log { message: "hello".to_owned() }).await.unwrap();
    store.finish(fence, &ended(&claim.job, JobState::Failed, None)).await.unwrap();
    let events = store.events(&job.id, 0, 100).await.unwrap();
    let seen: Vec<_> = events.iter().map(|event| (event.seq, event.kind.name())).collect();
    let names = ["job", "job", "job", "trial", "trial", "log", "job"];
    assert_eq!(seen, (1..).zip(names).collect::<Vec<_>>());
    assert_eq!(events[3].kind, EventKind::Trial(Box::new(trial(&job.id, 0, 2.0))));
    let last = store.job(&job.id).await.unwrap().unwrap();
    assert_eq!(events[6].kind, Work::from(last).into_event());
    assert_eq!(store.events(&job.id, 2, 3).await.unwrap(), events[2..5]);
    assert_eq!(store.events(&job.id, u64::MAX, 3).await.unwrap(), []);
}

pub async fn writers_at_once_leave_no_gap(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let claim = claim(&*store, "w", LEASE).await.unwrap();
    let tasks: Vec<_> = (0..30)
        .map(|i| {
            let (store, claim, id) = (store.clone(), claim.clone(), job.id.clone());
            tokio::spawn(async move {
                match i % 3 {
                    0 => store.record_trials(&claim.fence, &[trial(&id, i, 1.0)]).await,
                    1 => store.update(&claim.fence, &claim.job.clone().into()).await,
                    _ => store.log(&claim.fence, &EventKind::Log { message: i.to_string() }).await,
                }
                .unwrap()
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let events = store.events(&job.id, 0, 100).await.unwrap();
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=32).collect::<Vec<_>>());
}

pub async fn a_large_funnel_is_one_batch(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let fence = claim(&*store, "w", LEASE).await.unwrap().fence;
    let all: Vec<Trial> = (0..3000).map(|i| pruned(&job.id, i)).collect();
    store.record_trials(&fence, &all).await.unwrap();
    let mut page = PageRequest { after: None, limit: 800 };
    let mut read = Vec::new();
    loop {
        let part = store.trials(&job.id, &TrialQuery::All, &page).await.unwrap();
        read.extend(part.items);
        page.after = part.next;
        if page.after.is_none() {
            break;
        }
    }
    assert_eq!(read, all);
    // Pruned candidates are not announced.
    assert_eq!(store.events(&job.id, 0, 100).await.unwrap().len(), 2);
}

pub async fn trials_are_listed_by_state(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let fence = claim(&*store, "w", LEASE).await.unwrap().fence;
    let failed = |ordinal, outcome| Trial {
        state: TrialState::Tried(outcome),
        ..trial(&job.id, ordinal, 1.0)
    };
    let why = || "why".to_owned();
    let all = [
        pruned(&job.id, 0),
        trial(&job.id, 1, 2.0),
        failed(2, Outcome::CompileFailed { detail: why() }),
        failed(3, Outcome::Refused { detail: why() }),
        pruned(&job.id, 4),
        failed(5, Outcome::Wrong { rel_error: Some(1.0), detail: why() }),
        failed(6, Outcome::TimedOut { detail: why(), stopped: false, out_of_time: false }),
        failed(7, Outcome::Crashed { detail: why() }),
        trial(&job.id, 8, 3.0),
    ];
    store.record_trials(&fence, &all).await.unwrap();
    let listed = async |filter: Option<TrialFilter>| {
        let of = filter.map_or(TrialQuery::All, TrialQuery::Of);
        let mut page = page(2);
        let mut ordinals = Vec::new();
        loop {
            let part = store.trials(&job.id, &of, &page).await.unwrap();
            ordinals.extend(part.items.into_iter().map(|trial| trial.ordinal));
            page.after = part.next;
            if page.after.is_none() {
                return ordinals;
            }
        }
    };
    assert_eq!(listed(None).await, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let expected: [(_, &[u32]); 8] = [
        (TrialFilter::Tried, &[1, 2, 3, 5, 6, 7, 8]),
        (TrialFilter::Pruned, &[0, 4]),
        (TrialFilter::Measured, &[1, 8]),
        (TrialFilter::CompileFailed, &[2]),
        (TrialFilter::Refused, &[3]),
        (TrialFilter::Wrong, &[5]),
        (TrialFilter::TimedOut, &[6]),
        (TrialFilter::Crashed, &[7]),
    ];
    for (filter, ordinals) in expected {
        assert_eq!(listed(Some(filter)).await, ordinals, "{filter:?}");
    }
}

pub async fn a_story_is_the_log_and_the_last_funnel(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    assert_eq!(store.story(&job.id).await.unwrap().last_seq, 1);
    let claim = claim(&*store, "w", LEASE).await.unwrap();
    let funnel = |left| {
        let constraint = "load_balance".to_owned();
        vec![FunnelStep { constraint, removed: 10 - left, left, detail: None }]
    };
    let tell = async |kind| store.log(&claim.fence, &kind).await.unwrap();
    tell(EventKind::Log { message: "one".to_owned() }).await;
    tell(EventKind::Funnel { steps: funnel(9) }).await;
    store.record_trials(&claim.fence, &[trial(&job.id, 0, 2.0)]).await.unwrap();
    store.update(&claim.fence, &claim.job.clone().into()).await.unwrap();
    tell(EventKind::Log { message: "two".to_owned() }).await;
    tell(EventKind::Funnel { steps: funnel(4) }).await;
    let story = store.story(&job.id).await.unwrap();
    let lines: Vec<&str> = story.log.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(story.funnel, Some(funnel(4)));
    let events = store.events(&job.id, 0, 100).await.unwrap();
    assert_eq!(story.last_seq, events.last().unwrap().seq);
    assert_eq!(events.last().unwrap().kind, EventKind::Funnel { steps: funnel(4) });
    assert_eq!(store.story(&JobId("nobody".to_owned())).await.unwrap(), Default::default());
}

pub async fn trials_are_counted_and_read_in_part(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let fence = claim(&*store, "w", LEASE).await.unwrap().fence;
    let panel = |n: u32| Trial {
        candidate: Candidate::new("row_panel").with("m1", n.into()),
        ..pruned(&job.id, n)
    };
    let crashed = TrialState::Tried(Outcome::Crashed { detail: "why".to_owned() });
    let crashed = Trial { state: crashed, ..trial(&job.id, 4, 1.0) };
    let all = [
        panel(0),
        trial(&job.id, 1, 2.0),
        panel(2),
        trial(&job.id, 3, 3.0),
        crashed.clone(),
        pruned(&job.id, 5),
    ];
    store.record_trials(&fence, &all).await.unwrap();
    let mut counts = store.trial_counts(&job.id).await.unwrap();
    counts.sort_by(|a, b| (&a.family, &a.state).cmp(&(&b.family, &b.state)));
    let count = |family: &str, state: &str, by: Option<&str>, count| TrialCount {
        family: family.to_owned(),
        state: state.to_owned(),
        pruned_by: by.map(str::to_owned),
        count,
    };
    let expected = [
        count("row_panel", "pruned", Some("load_balance"), 2),
        count("row_split", "crashed", None, 1),
        count("row_split", "measured", None, 2),
        count("row_split", "pruned", Some("load_balance"), 1),
    ];
    assert_eq!(counts, expected);

    let bare = |mut trial: Trial| {
        if let TrialState::Tried(Outcome::Measured { timing, .. }) = &mut trial.state {
            timing.samples_us.clear();
        }
        trial
    };
    let tried = store.trials(&job.id, &TrialQuery::Summaries, &page(9)).await.unwrap().items;
    assert_eq!(tried, [bare(all[1].clone()), bare(all[3].clone()), crashed]);
    assert_eq!(
        store.trials(&job.id, &TrialQuery::Summaries, &page(2)).await.unwrap().items,
        tried[..2]
    );
    let mut panels = store.trials(&job.id, &sample("row_panel"), &page(9)).await.unwrap().items;
    panels.sort_by_key(|trial| trial.ordinal);
    assert_eq!(panels, [panel(0), panel(2)]);
    let nobody = JobId("nobody".to_owned());
    assert_eq!(store.trial_counts(&nobody).await.unwrap(), []);
    assert_eq!(store.trials(&nobody, &TrialQuery::Summaries, &page(9)).await.unwrap().items, []);
    assert_eq!(store.trials(&nobody, &sample("row_panel"), &page(9)).await.unwrap().items, []);
}

pub async fn of_many_pruned_an_even_sample_is_read(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let fence = claim(&*store, "w", LEASE).await.unwrap().fence;
    let all: Vec<Trial> = (0..3000).map(|i| pruned(&job.id, i)).collect();
    store.record_trials(&fence, &all).await.unwrap();
    let read = store.trials(&job.id, &sample("row_split"), &page(300)).await.unwrap().items;
    assert!((290..=310).contains(&read.len()), "{}", read.len());
    for tenth in 0..10 {
        let own = read.iter().filter(|trial| trial.ordinal / 300 == tenth).count();
        assert!((25..=35).contains(&own), "{own} of the tenth {tenth}");
    }
    assert_eq!(
        store.trials(&job.id, &sample("row_split"), &page(3000)).await.unwrap().items.len(),
        3000
    );
}

pub async fn events_of_a_later_version_are_skipped(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let fence = claim(&*store, "w", LEASE).await.unwrap().fence;
    for n in 0..5 {
        store.log(&fence, &EventKind::Log { message: n.to_string() }).await.unwrap();
    }
    harness
        .spoil("UPDATE events SET body = '{\"event\":\"weather\",\"data\":{\"wet\":1}}' WHERE seq IN (4, 5)")
        .await;
    let seen = async |after, limit| -> Vec<u64> {
        let events = store.events(&job.id, after, limit).await.unwrap();
        events.iter().map(|event| event.seq).collect()
    };
    assert_eq!(seen(0, 100).await, [1, 2, 3, 6, 7]);
    // Not even where there is nothing else to read at once.
    assert_eq!(seen(3, 2).await, [6, 7]);
    let story = store.story(&job.id).await.unwrap();
    let told: Vec<&str> = story.log.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!((told, story.last_seq), (vec!["0", "3", "4"], 7));
    // What is no event at all, and a known one that cannot be read, are still faults.
    harness.spoil("UPDATE events SET body = '{\"event\":\"log\",\"data\":1}' WHERE seq = 5").await;
    assert!(matches!(store.events(&job.id, 0, 9).await, Err(StoreError::Corrupt { .. })));
    assert!(matches!(store.story(&job.id).await, Err(StoreError::Corrupt { .. })));
}

/// Two stores stand for two processes.
pub async fn one_publishes_at_a_time(harness: &Harness) {
    let stores = [harness.open().await, harness.open().await];
    let held = stores[0].publishing().await.unwrap();
    let next = {
        let other = stores[1].clone();
        tokio::spawn(async move { other.publishing().await.unwrap() })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!next.is_finished());
    // Nothing else waits for it.
    queued(&*stores[1]).await;
    drop(held);
    drop(next.await.unwrap());
    drop(stores[0].publishing().await.unwrap());
}
