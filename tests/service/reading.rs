//! Uploads that are read by a process of their own: the same answers as in process, and whatever such a process does, the server
//! goes on, says what happened, and stores nothing under a digest that is not its own.

use crate::world::*;
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use sparsetune::bundle::Extract;
use sparsetune::domain::{Digest, Matrix};
use sparsetune::pool::{Allowed, ReaderSpec};
use sparsetune::service::{Coding, Imported, Result, ServiceError, Uploaded};
use sparsetune::sparse::canonical;
use sparsetune::sparse::read::Pool;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_sparsetune");

const TEXT: &str = "%%MatrixMarket matrix coordinate real general\n2 3 2\n1 1 0.5\n2 3 2\n";

/// Plays a reader that was taken over. It has the upload and the order, and does what its argument says.
const TAKEN_OVER: &str = r#"
import json, os, socket, struct, sys, time
mode = sys.argv[1]
service = socket.socket(fileno=0)
order, files, _, _ = socket.recv_fds(service, 65536, 4)
def say(**said):
    os.write(1, json.dumps(said).encode() + b"\n")
def ask(**said):
    say(**said)
    line, files, _, _ = socket.recv_fds(service, 65536, 4)
    return json.loads(line), files
def csr(rows, cols, pointers, columns, values, digest):
    nnz = len(columns)
    head = b"sparsetune csr\0\0" + struct.pack("<4Q", 1, rows, cols, nnz) + digest * 64 + bytes(16)
    body = struct.pack(f"<{rows + 1}Q", *pointers) + struct.pack(f"<{nnz}I", *columns)
    return head + body + bytes(4 * (nnz % 2)) + struct.pack(f"<{nnz}d", *values)
def hand_in(data, announced=None):
    answer, files = ask(said="output", bytes=announced or len(data))
    os.write(files[0], data)
    say(said="done", name="a\x00name\n")
if mode == "other":
    hand_in(csr(2, 2, [0, 1, 2], [0, 1], [1.0, 2.0], b"\x11"))
elif mode == "unsorted":
    hand_in(csr(2, 2, [0, 2, 2], [1, 0], [1.0, 2.0], b"\x11"))
elif mode == "too much":
    hand_in(csr(2, 2, [0, 1, 2], [0, 1], [1.0, 2.0], b"\x11") + b"more", 176)
elif mode == "no matrix":
    hand_in(b"hello")
elif mode == "nothing":
    say(said="done")
elif mode == "two files":
    ask(said="output", bytes=10)
    ask(said="output", bytes=10)
    say(said="done")
elif mode == "all memory":
    answer, _ = ask(said="memory", least=1 << 62, most=1 << 63, place="itself")
    say(said="done" if answer["answer"] != "denied" else "refused", kind="io", message="its own reason")
elif mode == "questions":
    while True: ask(said="memory", least=0, most=0, place="x")
elif mode == "text":
    hand_in(sys.argv[2].encode())
elif mode == "large":
    ask(said="output", bytes=1 << 30)
    say(said="done")
elif mode == "unasked":
    ask(said="spool")
    hand_in(sys.argv[2].encode())
elif mode == "ungranted":
    answer, files = ask(said="spool")
    os.write(files[0], b"x" * 1000)
    hand_in(sys.argv[2].encode())
elif mode == "still there":
    hand_in(csr(2, 2, [0, 1, 2], [0, 1], [1.0, 2.0], b"\x11"))
    time.sleep(60)
"#;

fn taken_over(mode: &str) -> ReaderSpec {
    ReaderSpec::new("python3", ["-c", TAKEN_OVER, mode])
}

/// One that has this to say of a bundle.
fn saying(mode: &str, of_bundle: &Value) -> ReaderSpec {
    ReaderSpec::new("python3", ["-c", TAKEN_OVER, mode, &of_bundle.to_string()])
}

fn shell(script: &str) -> ReaderSpec {
    ReaderSpec::new("sh", ["-c", script])
}

fn fenced() -> ReaderSpec {
    ReaderSpec::new(BINARY, ["reader"]).fenced("auto", "nobody")
}

async fn world(reader: ReaderSpec) -> World {
    World::with(|settings| settings.reader = Some(reader)).await
}

async fn upload(world: &World, bytes: Vec<u8>) -> Result<Uploaded> {
    let body = stream::iter([Ok::<_, Infallible>(Bytes::from(bytes))]);
    world.service.upload(body, None).await
}

/// The error of an upload by this reader, after which nothing is left and everything was given back.
async fn refused(reader: ReaderSpec) -> ServiceError {
    let world = world(reader).await;
    let error = upload(&world, TEXT.into()).await.unwrap_err();
    assert_eq!(world.litter(), 0, "{error}");
    let limits = &world.service.settings().limits;
    assert_eq!((limits.memory.taken(), limits.disk.taken()), (0, 0), "{error}");
    error
}

fn seeds() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let folders =
        ["matrix_market", "npz", "smtx", "rutherford_boeing", "harwell_boeing", "compressed"];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(root.join(folder)).unwrap());
    files.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answers_are_those_of_reading_in_process() {
    let (within, beside) = (world(fenced()).await, World::new().await);
    let mut stored = 0;
    for file in seeds() {
        let bytes = std::fs::read(&file).unwrap();
        match (upload(&within, bytes.clone()).await, upload(&beside, bytes).await) {
            (Ok(a), Ok(b)) => {
                let now = b.matrix.created_at;
                assert_eq!(
                    (Matrix { created_at: now, ..a.matrix.clone() }, a.created),
                    (b.matrix, b.created)
                );
                let path = within.service.matrix_file(&a.matrix.digest).await.unwrap();
                let other = beside.service.matrix_file(&a.matrix.digest).await.unwrap();
                assert_eq!(std::fs::read(path).unwrap(), std::fs::read(other).unwrap());
                stored += 1;
            }
            (Err(a), Err(b)) => assert_eq!(format!("{a:?}"), format!("{b:?}"), "{file:?}"),
            (a, b) => panic!("{file:?}: {a:?}, but {b:?}"),
        }
    }
    assert!(stored > 10, "{stored}");
    // What is unpacked and large goes to a file that the service opens.
    let mut text = format!("{}\n", TEXT.lines().next().unwrap());
    while text.len() < 12 << 20 {
        text.push_str("% a line that says nothing, and many of them need a file\n");
    }
    text.push_str(TEXT.split_once('\n').unwrap().1);
    let packed = zstd::encode_all(text.as_bytes(), 1).unwrap();
    assert_eq!(upload(&within, packed).await.unwrap().matrix.nnz, 2);
    assert_eq!((within.litter(), beside.litter()), (0, 0));
}

#[tokio::test]
async fn limits_are_those_that_all_readers_share() {
    let world = world(fenced()).await;
    let others = world.service.settings().limits.memory.open(u64::MAX);
    others.charge(world.service.settings().limits.memory.limit() - 10, 1, "others").unwrap();
    let error = upload(&world, TEXT.into()).await.unwrap_err();
    assert!(matches!(&error, ServiceError::Shortage { .. }), "{error:?}");
    assert!(error.to_string().contains("in use now"), "{error}");
    drop(others);
    upload(&world, TEXT.into()).await.unwrap();
}

#[tokio::test]
async fn a_reader_that_takes_more_memory_than_it_may_ends_alone() {
    // It is granted all it asks for, so that only the system's limit stops it.
    let allowed =
        Allowed { memory: 0, disk: 1 << 30, upload: 1 << 30, time: Duration::from_secs(60) };
    let world = world(fenced().within(allowed)).await;
    let text = "%%MatrixMarket matrix coordinate pattern general\n40000000 9 1\n1 1\n";
    let mut text = text.to_owned();
    text.push_str(&" ".repeat(8 << 20));
    let error = upload(&world, text.into_bytes()).await.unwrap_err();
    assert!(matches!(&error, ServiceError::ReaderFailed { .. }), "{error:?}");
    assert!(error.to_string().contains("SIGABRT"), "{error}");
    assert!(
        error.to_string().contains("gets no more memory; the upload was not stored"),
        "{error}"
    );
    upload(&world, TEXT.into()).await.unwrap();
    assert_eq!(world.litter(), 0);
}

#[tokio::test]
async fn a_reader_that_takes_too_long_is_stopped() {
    let spinning = refused(shell("ulimit -St 1; while :; do :; done")).await;
    assert!(matches!(&spinning, ServiceError::TooLarge { .. }), "{spinning:?}");
    assert!(spinning.to_string().contains("processor time"), "{spinning}");
    let sleeping = ReaderSpec { time: Duration::from_millis(200), ..shell("sleep 60") };
    let sleeping = refused(sleeping).await;
    assert!(matches!(&sleeping, ServiceError::TooLarge { .. }), "{sleeping:?}");
    assert!(sleeping.to_string().contains("longer than 0.2 s"), "{sleeping}");
}

#[tokio::test]
async fn a_reader_that_ends_or_talks_nonsense_is_told_of() {
    for (script, says) in [
        ("kill -s SEGV $$", "SIGSEGV"),
        ("exit 3", "exit code 3"),
        ("echo hello; sleep 60", "it sent `hello"),
        ("cat /dev/zero", "it sent `"),
        ("exec >&-; sleep 60", "it was killed"),
    ] {
        let error = refused(shell(script)).await;
        assert!(matches!(&error, ServiceError::ReaderFailed { .. }), "{script}: {error:?}");
        assert!(error.to_string().contains(says), "{script}: {error}");
        assert!(error.to_string().ends_with("the upload was not stored"), "{script}: {error}");
    }
    let error = refused(shell("kill -s KILL $$")).await;
    assert!(matches!(&error, ServiceError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("killed from outside"), "{error}");
    let error = refused(ReaderSpec::new("/no/such/program", ["reader"])).await;
    assert!(matches!(&error, ServiceError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("could not be started"), "{error}");
}

#[tokio::test]
async fn what_a_reader_hands_in_is_checked() {
    for (mode, says) in [
        ("unsorted", "cannot be read"),
        ("too much", "180 bytes instead of 176"),
        ("no matrix", "cannot be read"),
        ("nothing", "no file"),
        ("two files", "second file"),
        ("questions", "questions"),
    ] {
        let error = refused(taken_over(mode)).await;
        assert!(matches!(&error, ServiceError::ReaderFailed { .. }), "{mode}: {error:?}");
        assert!(error.to_string().contains(says), "{mode}: {error}");
    }
    // The service's own reason, not the reader's.
    let error = refused(taken_over("all memory")).await;
    assert!(matches!(&error, ServiceError::Shortage { .. }), "{error:?}");
    assert!(error.to_string().contains("for itself"), "{error}");
}

#[tokio::test]
async fn a_reader_cannot_choose_a_digest() {
    for mode in ["other", "still there"] {
        let world = world(taken_over(mode)).await;
        let began = std::time::Instant::now();
        let matrix = upload(&world, TEXT.into()).await.unwrap().matrix;
        assert!(began.elapsed() < Duration::from_secs(30), "it is not waited for");
        // It handed in another matrix, which is stored as what it is.
        assert_eq!((matrix.rows, matrix.cols, matrix.nnz), (2, 2, 2));
        assert_eq!(matrix.name.as_deref(), Some("aname"));
        let file = world.service.matrix_file(&matrix.digest).await.unwrap();
        assert_eq!(canonical::recomputed(&file).unwrap(), Some(matrix.digest));
        let honest = World::new().await;
        let text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 2\n";
        let same = upload(&honest, text.into()).await.unwrap().matrix;
        assert_eq!(Matrix { created_at: same.created_at, name: None, ..matrix }, same);
    }
}

#[tokio::test]
async fn what_is_stored_needs_no_room_also_behind_the_fence() {
    let world = World::with(|settings| {
        settings.reader = Some(fenced());
        settings.stored.folder = settings.temp_dir.parent().map(|data| data.join("blobs"));
        settings.stored.most = 300;
    })
    .await;
    assert!(upload(&world, TEXT.into()).await.unwrap().created);
    for _ in 0..3 {
        assert!(!upload(&world, TEXT.into()).await.unwrap().created);
    }
    let other = TEXT.replace("0.5", "0.25");
    let error = upload(&world, other.into()).await.unwrap_err();
    assert!(matches!(&error, ServiceError::Shortage { .. }), "{error:?}");
    assert_eq!(world.litter(), 0);
}

fn bundles() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/bundle");
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

async fn import(world: &World, bytes: Vec<u8>, coding: Option<Coding>) -> Result<Imported> {
    let body = stream::iter([Ok::<_, Infallible>(Bytes::from(bytes))]);
    world.service.import_bundle(body, coding).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bundles_are_verified_behind_the_fence_with_the_same_answers() {
    let (within, beside) = (world(fenced()).await, World::new().await);
    let zstd = Coding::named("zstd");
    let mut taken = 0;
    for file in bundles() {
        let bytes = std::fs::read(&file).unwrap();
        let mut damaged = bytes.clone();
        damaged[bytes.len() / 2] ^= 1;
        let packed = zstd::encode_all(&bytes[..], 1).unwrap();
        let other = zstd::encode_all(&b"no bundle"[..], 1).unwrap();
        for (bytes, coding) in [
            (damaged, None),
            (bytes[..bytes.len() / 3].to_vec(), None),
            (Vec::new(), None),
            (bytes.clone(), zstd),
            (other, zstd),
            (packed, zstd),
            (bytes, None),
        ] {
            let a = import(&within, bytes.clone(), coding).await;
            match (a, import(&beside, bytes, coding).await) {
                (Ok(a), Ok(b)) => {
                    assert_eq!(a, b);
                    taken += u32::from(a.created);
                }
                (Err(a), Err(b)) => assert_eq!(format!("{a:?}"), format!("{b:?}"), "{file:?}"),
                (a, b) => panic!("{file:?}: {a:?}, but {b:?}"),
            }
            for world in [&within, &beside] {
                let limits = &world.service.settings().limits;
                let taken = (limits.memory.taken(), limits.disk.taken(), world.litter());
                assert_eq!(taken, (0, 0, 0), "{file:?}");
            }
        }
    }
    assert_eq!(taken, 2, "each of them once");
    let files = |world: &World| {
        let mut found: Vec<_> = walk(&world.folder.path().join("blobs"));
        found.sort();
        found
    };
    assert_eq!(files(&within), files(&beside));
    // An export that was packed on its way is unpacked there, too.
    let other = zstd::encode_all(&b"no export"[..], 1).unwrap();
    for world in [&within, &beside] {
        let body = stream::iter([Ok::<_, Infallible>(Bytes::from(other.clone()))]);
        let refused = world.service.import_body(body, zstd, true).await.unwrap_err();
        assert!(matches!(&refused, ServiceError::BadExport { .. }), "{refused:?}");
    }
}

/// The names and contents of all files of a folder.
fn walk(folder: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: PathBuf| match path.is_dir() {
        true => walk(&path),
        false => vec![(path.file_name().unwrap().to_owned(), std::fs::read(&path).unwrap())],
    };
    entries.flat_map(of).collect()
}

#[tokio::test]
async fn what_a_reader_says_of_a_bundle_is_checked() {
    let bundle = std::fs::read(&bundles()[0]).unwrap();
    let file = std::fs::File::open(&bundles()[0]).unwrap();
    let honest = Extract::of_file(&file, &Pool::memory(u64::MAX)).unwrap().to_json().unwrap();
    let honest: Value = serde_json::from_slice(&honest).unwrap();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut changed = honest.clone();
        change(&mut changed);
        changed
    };
    let digest = Digest::of(b"another's file").to_string();
    let launch = json!({"entry": "mine", "source": digest, "cubin": null, "grid": [1, 1, 1], "block": [1, 1, 1],
        "shared_bytes": 0, "arguments": []});
    let of_another = |bytes: u64| {
        changed(&|it| {
            it["plan"]["launch"] = launch.clone();
            it["files"] = json!([{"digest": digest, "start": 0, "bytes": bytes}]);
        })
    };
    let zstd = Coding::named("zstd");
    for (reader, coding, says) in [
        (taken_over("nothing"), None, "no file"),
        (taken_over("large"), None, "a file of 1073741824 bytes"),
        (saying("text", &json!("hello")), None, "cannot be understood"),
        (saying("text", &changed(&|it| it["plan"]["version"] = json!(99))), None, "version 99"),
        (saying("text", &changed(&|it| it["facts"]["digest"] = json!(digest))), None, "differ"),
        (saying("text", &of_another(1 << 40)), None, "or nowhere"),
        (saying("text", &of_another(10)), None, "has no file"),
        (saying("unasked", &honest), None, "unpacked what was not packed"),
        (saying("text", &honest), zstd, "or did not"),
        (saying("ungranted", &honest), zstd, "more than it was granted"),
    ] {
        let world = world(reader).await;
        let error = import(&world, bundle.clone(), coding).await.unwrap_err();
        assert!(matches!(&error, ServiceError::ReaderFailed { .. }), "{says}: {error:?}");
        assert!(error.to_string().contains(says), "{says}: {error}");
        let limits = &world.service.settings().limits;
        let taken = (limits.memory.taken(), limits.disk.taken(), world.litter());
        assert_eq!(taken, (0, 0, 0), "{error}");
    }
}
