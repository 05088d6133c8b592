//! A store as it is after a long time of use, made through the store's own traits: nothing here knows SQL.

use super::Error;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sparsetune::domain::job::{Best, Progress};
use sparsetune::domain::*;
use sparsetune::service::Service;
use sparsetune::store::{Fence, Finish, JobFilter, NewWork, PageRequest, Queue};

const MATRICES: usize = 30;
const TRIALS: u32 = 100;
/// Trials of the one large job.
const LARGE: u32 = 1500;
/// Candidates of the one job that pruned nearly all of very many.
const WIDE: u32 = 50_000;
const HOUR_MS: i64 = 3_600_000;

/// Names that the requests use.
#[derive(Serialize, Deserialize)]
pub struct Known {
    pub trials: u64,
    /// An ordinary job that succeeded.
    pub job: String,
    pub large: String,
    pub wide: String,
    pub running: String,
    pub matrix: String,
    pub plan: String,
    /// Cursor in the middle of the list of jobs.
    pub deep: String,
}

fn device(number: usize) -> Result<Device, Error> {
    let plan: Plan = serde_json::from_str(include_str!("../../tests/http/plan.json"))?;
    let (id, kind, name) = match number {
        0 => ("cpu", DeviceKind::Cpu, "a processor"),
        1 => ("cuda:0", DeviceKind::Cuda, "a large GPU"),
        _ => ("cuda:1", DeviceKind::Cuda, "a small GPU"),
    };
    Ok(Device { id: DeviceId(id.to_owned()), kind, name: name.to_owned(), ..plan.device })
}

pub async fn devices(service: &Service) -> Result<(), Error> {
    for number in 0..3 {
        service.register(device(number)?).await?;
    }
    Ok(())
}

pub async fn fill(service: &Service, jobs: usize) -> Result<Known, Error> {
    let template: Plan = serde_json::from_str(include_str!("../../tests/http/plan.json"))?;
    let mut matrices = Vec::new();
    for number in 0..MATRICES {
        let body = futures_util::stream::iter([Ok::<_, std::io::Error>(band(2000 + 97 * number))]);
        matrices.push(service.upload(body, Some(format!("matrix {number}"))).await?.matrix);
    }
    let mut maker = Maker { service, template, matrices, jobs, trials: 0 };
    // The ids that the requests use, each of the last job of its kind.
    let (mut job, mut plan, mut large, mut wide, mut running) = Default::default();
    for number in 0..jobs {
        let made = maker.job(number).await?;
        match made.state {
            _ if number == jobs / 2 => large = made.id.0,
            _ if number == jobs / 3 => wide = made.id.0,
            JobState::Running => running = made.id.0,
            JobState::Succeeded if number % MATRICES == 0 => {
                job = made.id.0;
                plan = made.plan.map(|plan| plan.0).unwrap_or_default();
            }
            _ => {}
        }
        if number % 1000 == 999 {
            eprintln!("{} jobs, {} trials", number + 1, maker.trials);
        }
    }
    let matrix = maker.matrices[0].digest.to_string();
    let deep = half_way(service, jobs).await?;
    Ok(Known { trials: maker.trials, job, large, wide, running, matrix, plan, deep })
}

struct Maker<'a> {
    service: &'a Service,
    template: Plan,
    matrices: Vec<Matrix>,
    jobs: usize,
    trials: u64,
}

impl Maker<'_> {
    /// How the job ends: most succeed; the last few are running or queued.
    fn state(&self, number: usize) -> JobState {
        match number {
            _ if number + 6 > self.jobs => JobState::Queued,
            _ if number + 9 > self.jobs => JobState::Running,
            _ if number % 20 == 7 => JobState::Failed,
            _ if number % 20 == 13 => JobState::Cancelled,
            _ => JobState::Succeeded,
        }
    }

    async fn job(&mut self, number: usize) -> Result<Job, Error> {
        let (state, device) = (self.state(number), device(number % 3)?);
        let job = self.asked(number, &device);
        let store = self.service.store();
        let dedup_key = job.id.0.clone();
        store
            .submit(&NewWork {
                work: job.clone().into(),
                dedup_key,
                idempotency: None,
                priority: 0,
                continues: false,
            })
            .await?;
        if state == JobState::Queued {
            return Ok(job);
        }
        // Running jobs stay so for ever: no worker exists here.
        let queue = Queue::of(&device, "bench");
        let claim =
            store.claim(&queue, "bench", 10_000 * HOUR_MS, u32::MAX).await?.ok_or("no job")?;
        let claimed = claim.work.into_job().ok_or("a training")?;
        let count = match number {
            _ if number == self.jobs / 2 => LARGE,
            _ if number == self.jobs / 3 => WIDE,
            _ => TRIALS,
        };
        let trials = trials(&claimed.id, count, number, job.created_at);
        self.record(&claim.fence, &trials).await?;
        let best = best(&trials)?;
        let progress = Progress { done: count * 2 / 5, total: count * 2 / 5 };
        let told = Job { stage: Stage::Measuring, progress, best: Some(best), ..claimed };
        store.update(&claim.fence, &told.clone().into()).await?;
        if state == JobState::Running {
            return Ok(Job { state, ..told });
        }
        let plan = (state == JobState::Succeeded).then(|| self.plan(&told, device));
        let job = Job {
            state,
            stage: Stage::Done,
            plan: plan.as_ref().map(|plan| plan.id.clone()),
            stopped_by: (state == JobState::Cancelled).then_some(StoppedBy::Cancelled),
            error: (state == JobState::Failed).then(|| "the device does not open".to_owned()),
            finished_at: Some(told.created_at.plus_millis(60_000)),
            ..told
        };
        store.finish(&claim.fence, &Finish::job(job.clone(), plan)).await?;
        Ok(job)
    }

    fn asked(&self, number: usize, device: &Device) -> Job {
        let matrix = self.matrices[number % MATRICES].digest;
        // Each plan of a matrix has a distinct key: there are as many as there are widths and devices.
        let n = 1 + (number / (3 * MATRICES)) as u32;
        let problem = match self.template.problem {
            Problem::Spmm(spmm) => Problem::Spmm(Spmm { n, ..spmm }),
            other => other,
        };
        let (search, expected_calls) = (Search::default(), None);
        let request =
            JobRequest { matrix, problem, device: device.id.0.clone(), search, expected_calls };
        Job {
            id: JobId::fresh(),
            request,
            device: device.id.clone(),
            device_class: Some(device.class()),
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
            created_at: Timestamp::now(),
            started_at: None,
            finished_at: None,
        }
    }

    async fn record(&mut self, fence: &Fence, trials: &[Trial]) -> Result<(), Error> {
        let store = self.service.store();
        for message in ["loading the matrix", "pruning", "measuring", "finals"] {
            store.log(fence, &EventKind::Log { message: message.to_owned() }).await?;
        }
        store.log(fence, &EventKind::Funnel { steps: self.template.funnel.clone() }).await?;
        store.record_trials(fence, trials).await?;
        self.trials += trials.len() as u64;
        Ok(())
    }

    fn plan(&self, job: &Job, device: Device) -> Plan {
        let matrix = self.matrices.iter().find(|matrix| matrix.digest == job.request.matrix);
        let pattern = matrix.map_or(self.template.pattern_digest, |matrix| matrix.pattern_digest);
        let provenance =
            plan::Provenance { job: Some(job.id.clone()), ..self.template.provenance.clone() };
        Plan {
            id: PlanId::fresh(),
            matrix: job.request.matrix,
            pattern_digest: pattern,
            problem: job.request.problem,
            device,
            provenance,
            created_at: Timestamp::now(),
            ..self.template.clone()
        }
    }
}

/// Trials as jobs leave them: a few per hundred failed, two fifths measured with 20 samples, the rest pruned.
fn trials(job: &JobId, count: u32, seed: usize, at: Timestamp) -> Vec<Trial> {
    let trial = |ordinal: u32| {
        let noise = f64::from((ordinal * 7919 + seed as u32 * 104_729) % 1000) / 1000.0;
        let median = 20.0 + 80.0 * noise;
        Trial {
            job: job.clone(),
            ordinal,
            candidate: candidate(ordinal),
            state: match ordinal {
                LARGE.. => TrialState::Pruned(Removal::by("rank")),
                _ => state(ordinal, median),
            },
            predicted_us: Some(median * (0.6 + 0.5 * noise)),
            despite: None,
            features: None,
            created_at: at.plus_millis(i64::from(ordinal) * 400),
        }
    };
    (0..count).map(trial).collect()
}

/// A different candidate for each ordinal, from three families with the parameters of the GPU families.
fn candidate(ordinal: u32) -> Candidate {
    let family = ["row_split", "nnz_split", "row_panel"][ordinal as usize % 3];
    let digit = |place: u32, base: u32| (ordinal / 3 / place) % base;
    let candidate = match ordinal / 3456 {
        0 => Candidate::new(family),
        far => Candidate::new(family).with("depth", far.into()),
    };
    candidate
        .with("lanes", 4 << digit(1, 4))
        .with("vec", 1 << digit(4, 3))
        .with("unroll", 1 << digit(12, 4))
        .with("ways", 1 << digit(48, 4))
        .with("block", 64 << digit(192, 3))
        .with_text("fetch", "direct")
        .with_text("order", if ordinal / 3 / 576 == 0 { "natural" } else { "length" })
}

fn state(ordinal: u32, median: f64) -> TrialState {
    let detail = "the launch was refused: too many resources requested".to_owned();
    match ordinal % 50 {
        49 => TrialState::Tried(Outcome::Refused { detail }),
        48 => TrialState::Tried(Outcome::Wrong { rel_error: Some(0.5), detail }),
        n if n % 5 < 2 => {
            let samples = (0..20).map(|at| median * (0.98 + 0.002 * f64::from(at))).collect();
            match Timing::of(samples, 0) {
                Some(timing) => TrialState::Tried(Outcome::Measured {
                    timing,
                    rel_error: 1e-7,
                    resources: Some(Resources {
                        registers: 48,
                        local_bytes: 0,
                        shared_bytes: 0,
                        blocks_per_multiprocessor: 5,
                        occupancy: 0.625,
                    }),
                    preprocess_ms: 0.25,
                }),
                None => TrialState::Pruned(Removal::by("rank")),
            }
        }
        n if n % 5 == 2 => TrialState::Pruned(Removal::by("load_balance")),
        _ => TrialState::Pruned(Removal::by("rank")),
    }
}

fn best(trials: &[Trial]) -> Result<Best, Error> {
    let timed = trials.iter().filter_map(|trial| {
        Some((trial.state.outcome().and_then(Outcome::median_us)?, &trial.candidate))
    });
    let (median_us, candidate) =
        timed.min_by(|a, b| a.0.total_cmp(&b.0)).ok_or("no trial was measured")?;
    Ok(Best { candidate: candidate.clone(), median_us, speedup: Some(2.0) })
}

/// Matrix Market text of a band; the number of rows makes each distinct.
fn band(rows: usize) -> Bytes {
    let mut lines = Vec::new();
    for row in 1..=rows {
        for col in [row.saturating_sub(40), row, row + 3] {
            if (1..=rows).contains(&col) {
                lines.push(format!("{row} {col} 1.5\n"));
            }
        }
    }
    let head = "%%MatrixMarket matrix coordinate real general";
    Bytes::from(format!("{head}\n{rows} {rows} {}\n{}", lines.len(), lines.concat()))
}

async fn half_way(service: &Service, jobs: usize) -> Result<String, Error> {
    let mut page = PageRequest { after: None, limit: 100 };
    for _ in 0..(jobs / 200).max(1) {
        page.after = service.jobs(&JobFilter::default(), &page).await?.next;
    }
    page.after.ok_or_else(|| "the list is too short for a second page".into())
}
