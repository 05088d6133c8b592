//! Loss of power, imitated: the folder as it is at one moment under load, less what had not been synced by then. `docs/keeping.md`
//! says what is promised; this shows it.
//!
//! What SQLite has not synced is the end of its write-ahead log since the last checkpoint: any of its pages may be lost, whatever became
//! of those after them. What blobs sync before they have a name is not shown by this: a copy has all of it.

use crate::world::*;
use sparsetune::domain::*;
use sparsetune::service::Service;
use sparsetune::service::checkup::checkup;
use sparsetune::store::{Matrices as _, Plans as _, Upkeep as _, pairing};
use sqlx::{Connection, SqliteConnection};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The log's header and the header of each of its pages, in bytes.
const LOG_HEADER: usize = 32;
const FRAME: usize = 24 + 4096;

/// What was acknowledged, in order.
type Told<T> = Arc<Mutex<Vec<T>>>;

async fn uploads(service: Service, told: Told<Digest>, stop: Arc<AtomicBool>) {
    for rows in 10.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let stored = service.upload(body(&tridiagonal(rows)), None).await.unwrap();
        told.lock().unwrap().push(stored.matrix.digest);
    }
}

/// Plays a worker: each job has a trial, a program and a plan.
async fn tunes(service: Service, matrix: Matrix, told: Told<PlanId>, stop: Arc<AtomicBool>) {
    for n in 1.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        service.submit(&request(&matrix, n), None).await.unwrap();
        let store = service.store();
        let claim = crate::claimed::claim_job(&**store, &device(), "worker", 60_000).await.unwrap();
        store.record_trials(&claim.fence, &[trial(&claim.job.id, 0)]).await.unwrap();
        let source = service.blobs().put(format!("program {n}").into()).await.unwrap();
        let launch = serde_json::from_value(serde_json::json!({
            "entry": "k", "source": source, "cubin": null, "grid": [1, 1, 1], "block": [1, 1, 1], "shared_bytes": 0, "arguments": []
        }));
        let plan = Plan { launch: Some(launch.unwrap()), ..plan(&device(), &matrix, &claim.job) };
        let id = plan.id.clone();
        store.finish(&claim.fence, &ended(&claim.job, Some(plan))).await.unwrap();
        told.lock().unwrap().push(id);
    }
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().unwrap().is_dir() {
            // What is being written has no name yet.
            true if entry.file_name() == "staging" => {}
            true => copy_folder(&path, &target),
            false => drop(std::fs::copy(&path, &target).unwrap()),
        }
    }
}

/// The database and its log as they are at one moment, and the pages of the log that had been synced.
struct Image {
    database: Vec<u8>,
    log: Vec<u8>,
    synced: usize,
}

/// Copies the files one by one while others write. A reader holds the state: what the log has by now is not overwritten until it ends,
/// as in a file system that stops at one moment.
async fn image(file: &Path) -> Image {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut reader = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("BEGIN").execute(&mut reader).await.unwrap();
    sqlx::query("SELECT count(*) FROM matrices").execute(&mut reader).await.unwrap();
    let database = std::fs::read(file).unwrap();
    let log = std::fs::read(with_end(file, "-wal")).unwrap();
    // The log is synced before its pages are written to the database: `nBackfillAttempted` of SQLite's shared memory.
    let shared = std::fs::read(with_end(file, "-shm")).unwrap();
    let synced = u32::from_ne_bytes(shared[128..132].try_into().unwrap()) as usize;
    sqlx::query("ROLLBACK").execute(&mut reader).await.unwrap();
    reader.close().await.unwrap();
    Image { database, log, synced }
}

impl Image {
    /// The log as a loss of power may leave it: cut at several places behind what was synced, also within a page, and with a page in
    /// the middle that never came.
    fn losses(&self) -> Vec<(String, Vec<u8>)> {
        let kept = LOG_HEADER + self.synced * FRAME;
        let unsynced = self.log.len().saturating_sub(kept);
        let cut = |at: usize| self.log[..(kept + at).min(self.log.len())].to_vec();
        let mut losses = vec![("nothing lost".to_owned(), self.log.clone())];
        for (part, of) in [(0, 1), (1, 3), (2, 3)] {
            let at = unsynced * part / of / FRAME * FRAME;
            losses.push((format!("cut at {part}/{of}"), cut(at)));
            losses.push((format!("cut within a page at {part}/{of}"), cut(at + 1000)));
        }
        let mut hole = self.log.clone();
        let from = (kept + unsynced / 2 / FRAME * FRAME).min(hole.len());
        let to = (from + FRAME).min(hole.len());
        hole[from..to].fill(0);
        losses.push(("a page never came".to_owned(), hole));
        losses
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_of_power_takes_the_last_commits_at_most() {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(5)).await.matrix;
    let file = world.store_file();
    let blobs = world.folder.path().join("blobs");
    drop(pairing::open(&file, &blobs).await.unwrap());
    let (stop, matrices, plans) =
        (Arc::new(AtomicBool::new(false)), Told::default(), Told::default());
    let load = [
        tokio::spawn(uploads(world.service.clone(), matrices.clone(), stop.clone())),
        tokio::spawn(tunes(world.service.clone(), matrix, plans.clone(), stop.clone())),
    ];
    let folder = tempfile::tempdir().unwrap();
    let mut images = Vec::new();
    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        if round == 1 {
            // In the middle of the log, so that a part of it is in the database as well.
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
            let mut other = SqliteConnection::connect_with(&options).await.unwrap();
            sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").execute(&mut other).await.unwrap();
            other.close().await.unwrap();
        }
        let told = (matrices.lock().unwrap().clone(), plans.lock().unwrap().clone());
        let image = image(&file).await;
        // Files after names: a file is synced before it is named.
        let copied = folder.path().join(format!("blobs{round}"));
        copy_folder(&blobs, &copied);
        images.push((image, copied, told));
    }
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
    let (matrices, plans) = (matrices.lock().unwrap().clone(), plans.lock().unwrap().clone());
    assert!(matrices.len() > 10 && plans.len() > 10, "{} and {}", matrices.len(), plans.len());

    for (round, (image, blobs, told)) in images.iter().enumerate() {
        for (number, (loss, log)) in image.losses().into_iter().enumerate() {
            let store = folder.path().join(format!("{round}-{number}.db"));
            std::fs::write(&store, &image.database).unwrap();
            std::fs::write(with_end(&store, "-wal"), log).unwrap();
            let (store, blobs) = pairing::open(&store, blobs).await.unwrap();
            let found = checkup(&store, &*blobs, DAY, false).await.unwrap();
            assert!(found.is_whole(), "{round}, {loss}: {found:?}");
            // What is there is what was stored first: nothing is lost that came before something that is there.
            let mut there = (0, 0);
            for (place, digest) in matrices.iter().enumerate() {
                if store.matrix(digest).await.unwrap().is_some() {
                    assert_eq!(there.0, place, "{round}, {loss}: a matrix before it is lost");
                    there.0 += 1;
                }
            }
            for (place, id) in plans.iter().enumerate() {
                if store.plan(id).await.unwrap().is_some() {
                    assert_eq!(there.1, place, "{round}, {loss}: a plan before it is lost");
                    there.1 += 1;
                }
            }
            let acknowledged = (told.0.len(), told.1.len());
            println!(
                "{round}, {loss}: of {acknowledged:?} acknowledged matrices and plans, {there:?} are there"
            );
            if number == 0 {
                // As after a SIGKILL, which loses nothing that was acknowledged.
                assert!(there.0 >= acknowledged.0 && there.1 >= acknowledged.1, "{there:?}");
            }
            store.close().await;
        }
    }
}
