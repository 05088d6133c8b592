//! Small domain values for the checks.

pub use crate::claimed::Claimed;
pub use crate::claimed::HOST;
use crate::claimed::claim_job;
pub use crate::device::processor as device;
use crate::plan as fixture;
use sparsetune::domain::job::Progress;
use sparsetune::domain::matrix::Spread;
use sparsetune::domain::plan::PlanKey;
use sparsetune::domain::*;
pub use sparsetune::store::{ActivationQuery, DescribedJob, MatrixQuery, PlanQuery, TrialQuery};
use sparsetune::store::{Finish, NewWork, PageRequest, Queue, Store, Submission};

pub const LEASE: i64 = 60_000;

pub fn matrix(name: &str, at: i64) -> Matrix {
    Matrix {
        digest: Digest::of(name.as_bytes()),
        pattern_digest: Digest::of(format!("pattern of {name}").as_bytes()),
        name: Some(name.to_owned()),
        rows: 10,
        cols: 20,
        nnz: 30,
        symmetric: false,
        has_full_diagonal: false,
        features: Features {
            version: 1,
            density: 0.15,
            row_nnz: Spread { max: 5, mean: 3.0, cov: 0.1 },
            col_nnz: Spread { max: 4, mean: 1.5, cov: 0.2 },
            empty_rows: 0,
            empty_cols: 1,
            bandwidth: 19,
            mean_offset: 0.3,
            neighbour_overlap: 0.5,
            lower: None,
        },
        created_at: Timestamp(at),
    }
}

pub fn problem() -> Problem {
    Problem::Spmm(Spmm::new(32, Dtype::F32, Layout::Row))
}

/// The queue of the device.
pub fn of_cpu() -> Queue {
    Queue::of(&device(), HOST)
}

/// A device of another class.
pub fn other_device() -> Device {
    Device { name: "another".to_owned(), ..device() }
}

pub fn cpu() -> DeviceId {
    DeviceId("cpu".to_owned())
}

pub fn new_job(matrix: &Matrix, dedup: &str, at: i64) -> NewWork {
    NewWork {
        work: Work::from(Job {
            id: JobId::fresh(),
            request: JobRequest {
                matrix: matrix.digest,
                problem: problem(),
                device: "auto".to_owned(),
                search: Search::default(),
                expected_calls: None,
            },
            device: cpu(),
            device_class: Some(device().class()),
            only_on: None,
            ran_on: None,
            state: JobState::Queued,
            stage: Stage::Waiting,
            progress: Progress::default(),
            best: None,
            plan: None,
            outlook: None,
            follow_up: None,
            priority: 0,
            stopped_by: None,
            error: None,
            attempts: 0,
            search_seconds: 0.0,
            created_at: Timestamp(at),
            started_at: None,
            finished_at: None,
        }),
        dedup_key: dedup.to_owned(),
        idempotency: None,
        priority: 0,
        continues: false,
    }
}

pub fn trial(job: &JobId, ordinal: u32, median_us: f64) -> Trial {
    let timing = Timing::of(vec![median_us; 3], 0).unwrap();
    let state = TrialState::Tried(Outcome::Measured {
        timing,
        rel_error: 1e-7,
        resources: None,
        preprocess_ms: 0.1,
    });
    Trial {
        job: job.clone(),
        ordinal,
        candidate: Candidate::new("row_split").with("lanes", ordinal.into()),
        state,
        predicted_us: Some(0.1 + 0.2),
        despite: None,
        features: None,
        created_at: Timestamp(5),
    }
}

pub fn pruned(job: &JobId, ordinal: u32) -> Trial {
    let state = TrialState::Pruned(Removal::by("load_balance"));
    Trial { state, ..trial(job, ordinal, 1.0) }
}

pub fn plan(matrix: &Matrix, job: &JobId, at: i64) -> Plan {
    fixture::plan(&device(), matrix, problem(), job, Timestamp(at))
}

pub fn page(limit: u32) -> PageRequest {
    PageRequest { after: None, limit }
}

/// About as many of the pruned candidates of a family as a page holds.
pub fn sample(family: &str) -> TrialQuery {
    TrialQuery::PrunedSample { family: family.to_owned() }
}

/// Every trial of a job.
pub async fn trials_of(store: &dyn Store, job: &JobId) -> Vec<Trial> {
    store.trials(job, &TrialQuery::All, &PageRequest::ALL).await.unwrap().items
}

/// The newest measured plan of a key.
pub async fn answer(store: &dyn Store, key: &PlanKey) -> Option<Plan> {
    let newest = store.plans(&PlanQuery::Measured(key.clone()), &page(1)).await.unwrap();
    newest.items.into_iter().next()
}

pub fn created(submission: Submission) -> Job {
    match submission {
        Submission::Created(Work::Tune(job)) => *job,
        other => panic!("not created: {other:?}"),
    }
}

/// A stored matrix with one queued job.
pub async fn queued(store: &dyn Store) -> (Matrix, Job) {
    let matrix = matrix("m", 1);
    store.insert_matrix(&matrix).await.unwrap();
    let job = created(store.submit(&new_job(&matrix, "same", 1)).await.unwrap());
    (matrix, job)
}

pub async fn claim(store: &dyn Store, owner: &str, lease_ms: i64) -> Option<Claimed> {
    claim_job(store, &device(), owner, lease_ms).await
}

pub fn ended(job: &Job, state: JobState, plan: Option<Plan>) -> Finish {
    let job = Job {
        state,
        stage: Stage::Done,
        stopped_by: Some(StoppedBy::Completed),
        finished_at: Some(Timestamp(100)),
        ..job.clone()
    };
    Finish::job(job, plan)
}
