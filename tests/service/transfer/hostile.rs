//! Exports that were damaged, cut, made up or interrupted: nothing of a damaged one is stored, and large ones take little memory.

use super::*;

/// Held by tests that look at the memory of the process.
static MEMORY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn an_import_that_was_killed_is_done_again() {
    let from = world().await;
    let path = exported(&from.service, everything(), from.folder.path(), "a").await;
    let to = World::new().await;
    // As a process that is killed leaves it: some of the records are in the store.
    let mut reader = Reader::open(&path, u64::MAX).unwrap();
    let mut some = 0;
    while let Some(entry) = reader.next_entry().unwrap() {
        match entry.piece {
            Piece::Record(Record::Job(job)) => {
                to.service.store().take_job(&job, &reader.header().store).await.unwrap();
            }
            Piece::Record(Record::Trial(trial)) if some < 17 => {
                let job = trial.trial.job.clone();
                to.service.store().take_trials(&job, &[*trial]).await.unwrap();
                some += 1;
            }
            _ => {}
        }
    }
    let report = to.service.import(&path, false).await.unwrap();
    assert_eq!(
        (report.trials.new, report.trials.known),
        (GROUPS as u64 * u64::from(ROWS) - 17, 17)
    );
    let scope = Scope { op: Op::Spmm, device_class: device().class() };
    let version = features::version(Op::Spmm);
    let here = from.service.store().training_groups(&scope, version, None, 10).await.unwrap();
    assert_eq!(here, to.service.store().training_groups(&scope, version, None, 10).await.unwrap());
    // A client that goes away ends an import between two transactions; the rest comes with the next one.
    let third = World::new().await;
    let service = third.service.clone();
    let file = path.clone();
    let task = tokio::spawn(async move { service.import(&file, false).await });
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    task.abort();
    let _ = task.await;
    third.service.import(&path, false).await.unwrap();
    assert_eq!(
        here,
        third.service.store().training_groups(&scope, version, None, 10).await.unwrap()
    );
}

#[tokio::test]
async fn of_a_damaged_export_nothing_is_stored() {
    let from = world().await;
    with_program(&from).await;
    let path = exported(&from.service, everything(), from.folder.path(), "a").await;
    let to = World::new().await;
    let bad = from.folder.path().join("bad");
    let whole = lines(&path);
    let text = zstd::decode_all(std::fs::File::open(&path).unwrap()).unwrap();
    // One bit of a record of every kind, and of its digest.
    let starts: Vec<usize> = std::iter::once(0)
        .chain(text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1))
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    for (number, line) in whole.iter().enumerate() {
        let record =
            serde_json::from_str::<Value>(line).unwrap()["record"].as_str().unwrap().to_owned();
        if !seen.insert(record) {
            continue;
        }
        for offset in [3, 65 + line.len() / 2] {
            let mut text = text.clone();
            text[starts[number] + offset] ^= 1;
            std::fs::write(&bad, zstd::encode_all(&text[..], 1).unwrap()).unwrap();
            let why = refusal(to.service.import(&bad, false).await);
            assert!(number == 0 || why.contains(&format!("record {}", number + 1)), "{why}");
        }
        // A record that is missing.
        if number > 0 {
            let mut less = text[..starts[number]].to_vec();
            less.extend_from_slice(&text[starts[number + 1]..]);
            std::fs::write(&bad, zstd::encode_all(&less[..], 1).unwrap()).unwrap();
            refusal(to.service.import(&bad, false).await);
        }
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
    // Bits of the packed file, and an end that is missing.
    let file = std::fs::read(&path).unwrap();
    for at in (0..file.len()).step_by(file.len() / 40) {
        let mut file = file.clone();
        file[at] ^= 0x10;
        std::fs::write(&bad, &file).unwrap();
        // What is packed has more than one form: a copy from elsewhere may be of the same bytes.
        let same = zstd::decode_all(&file[..]).is_ok_and(|unpacked| unpacked == text);
        assert!(same || to.service.import(&bad, false).await.is_err(), "byte {at}");
        std::fs::write(&bad, &file[..at]).unwrap();
        refusal(to.service.import(&bad, false).await);
    }
    packed(&whole[..whole.len() - 1], &bad);
    assert!(refusal(to.service.import(&bad, false).await).contains("not complete"));
    std::fs::write(&bad, [file.clone(), file].concat()).unwrap();
    assert!(refusal(to.service.import(&bad, false).await).contains("follows the last record"));
    assert!(jobs(&to.service).await.is_empty());
    assert!(to.service.store().named_blobs().await.unwrap().is_empty());
}

#[tokio::test]
async fn records_that_nothing_here_could_use_are_refused_by_number() {
    let from = world().await;
    let path = exported(&from.service, everything(), from.folder.path(), "a").await;
    let to = World::new().await;
    let bad = from.folder.path().join("bad");
    let whole = lines(&path);
    let place = |record: &str| {
        let named = format!("{{\"record\":\"{record}\"");
        whole.iter().position(|line| line.starts_with(&named)).unwrap()
    };
    let spoilt = |record: &str, pointer: &str, value: Value| {
        let at = place(record);
        let mut json: Value = serde_json::from_str(&whole[at]).unwrap();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        json.pointer_mut(parent).unwrap()[name] = value;
        let mut lines = whole.clone();
        lines[at] = json.to_string();
        (lines, at + 1)
    };
    let long = "x".repeat(300);
    for (record, pointer, value, says) in [
        ("header", "/version", json!(2), "version 2"),
        ("header", "/format", json!("another"), "no export"),
        ("header", "/selection/tokens", json!(true), "tokens"),
        ("plan", "/plan/device/kind", json!("tpu"), "tpu"),
        ("plan", "/plan/version", json!(99), "version 99"),
        ("plan", "/plan/id", json!("../../x"), "no id"),
        ("plan", "/plan/measured", json!(null), "not measured"),
        ("plan", "/plan/limit/us", json!(-1.0), "bound"),
        ("plan", "/plan/matrix", json!(Digest::of(b"x")), "another matrix"),
        ("plan", "/matrix/name", json!(long), "too long"),
        ("job", "/device_class", json!("tpu/x/1"), "unknown"),
        ("job", "/request/problem/n", json!(0), "n must be"),
        ("job", "/request/problem/op", json!("gemm"), "gemm"),
        ("job", "/request/extra", json!(1), "extra"),
        ("job", "/finished_at", json!(0), "ended before"),
        ("job", "/finished_at", json!(i64::MAX), "in the future"),
        ("job", "/created_at", json!(i64::MIN), "before 1970"),
        ("job", "/features/values", json!("AAA="), "whole number"),
        ("job", "/features/values", json!("AADAfw=="), "no finite number"),
        ("trial", "/trial/job", json!("another"), "stand before it"),
        ("trial", "/trial/state", json!({"pruned_by": "rank"}), "not tried"),
        ("trial", "/trial/state/timing/median_us", json!(0.0), "0 us"),
        ("trial", "/features", json!("%"), "`trial`"),
        ("trial", "/features", json!("AACAfw=="), "no finite number"),
        ("matrix", "/matrix/nnz", json!(u64::MAX), "places"),
        ("part", "/data", json!(STANDARD.encode([0; 7])), "digest says|missing"),
        ("end", "/trials", json!(1), "counts"),
        ("trial", "/record", json!("token"), "token"),
    ] {
        let (lines, number) = spoilt(record, pointer, value.clone());
        packed(&lines, &bad);
        let why = refusal(to.service.import(&bad, false).await);
        assert!(says.split('|').any(|says| why.contains(says)), "{pointer} {value}: {why}");
        if record != "header" && record != "part" {
            assert!(why.contains(&format!("record {number}")), "{pointer} {value}: {why}");
        }
    }
    // A line without an end, a file that is not packed, and nothing.
    packed(&[whole[0].clone(), "x".repeat(17 << 20)], &bad);
    assert!(refusal(to.service.import(&bad, false).await).contains("more than"));
    for content in ["", "plain text"] {
        std::fs::write(&bad, content).unwrap();
        assert!(refusal(to.service.import(&bad, false).await).contains("no export"));
    }
    // A matrix whose file is another one's is left out, and the rest is taken.
    let at = place("matrix");
    let mut json: Value = serde_json::from_str(&whole[at]).unwrap();
    json["matrix"]["digest"] = json!(Digest::of(b"another"));
    let mut lines = whole.clone();
    lines[at] = json.to_string();
    packed(&lines, &bad);
    let report = to.service.import(&bad, false).await.unwrap();
    assert_eq!((report.matrices.left_out, report.matrices.new), (1, GROUPS as u64 - 1));
    assert_eq!(report.left_out.len(), 1);
}

/// 100,000 trials go out and come in; what is held at a time is pages and pieces of them.
#[tokio::test]
async fn a_hundred_thousand_trials_take_little_memory() {
    let _alone = MEMORY.lock().await;
    const JOBS: u32 = 4;
    const EACH: u32 = 25_000;
    let from = World::new().await;
    from.service.register(device()).await.unwrap();
    let matrix = from.upload(&tridiagonal(5)).await.matrix;
    for n in 1..=JOBS {
        let request = crate::world::request(&matrix, n);
        from.service.submit(&request, None).await.unwrap();
        let claim = from.claim().await;
        let described = JobFeatures {
            scope: Scope { op: Op::Spmm, device_class: device().class() },
            problem: problem(n),
            matrix: matrix.digest,
            pattern: matrix.pattern_digest,
            name: None,
            features_version: features::version(Op::Spmm),
            shared: vec![1.0; 20],
            created_at: Timestamp::now(),
        };
        let store = from.service.store();
        store.describe(DescribedJob::Running(&claim.fence), &described).await.unwrap();
        for first in (0..EACH).step_by(5000) {
            let some: Vec<Trial> =
                (first..first + 5000).map(|at| crate::world::trial(&claim.job.id, at)).collect();
            store.record_trials(&claim.fence, &some).await.unwrap();
        }
        let plan = crate::world::plan(&device(), &matrix, &claim.job);
        store.finish(&claim.fence, &crate::world::ended(&claim.job, Some(plan))).await.unwrap();
    }
    let before = resident();
    let path = exported(&from.service, Selection::default(), from.folder.path(), "a").await;
    let to = World::new().await;
    let report = to.service.import(&path, false).await.unwrap();
    assert_eq!(report.trials.new, u64::from(JOBS * EACH));
    let grown = resident().saturating_sub(before);
    // As text they are several times as much.
    assert!(grown < 48 << 20, "{grown} bytes more");
}

/// Whoever makes an export chooses how long its records are.
#[tokio::test]
async fn long_records_are_not_gathered_and_bombs_are_not_unpacked() {
    let _alone = MEMORY.lock().await;
    let from = world().await;
    let path = exported(&from.service, Selection::default(), from.folder.path(), "a").await;
    let whole = lines(&path);
    let kind = |line: &String, kind: &str| line.starts_with(&format!("{{\"record\":\"{kind}\""));
    let job = whole.iter().find(|line| kind(line, "job")).unwrap();
    let trial = whole.iter().find(|line| kind(line, "trial")).unwrap();
    let mut long: Value = serde_json::from_str(trial).unwrap();
    long["trial"]["job"] = serde_json::from_str::<Value>(job).unwrap()["id"].clone();
    long["trial"]["state"]["timing"]["samples_us"] = json!(vec![1.5; 200_000]);
    let (long, end) = (
        long.to_string(),
        json!({ "record": "end", "files": 0, "plans": 0, "jobs": 1, "trials": 100, "models": 0, "matrices": 0 }),
    );
    let mut lines = vec![whole[0].clone(), job.clone()];
    lines.extend(std::iter::repeat_n(long, 100));
    lines.push(end.to_string());
    let file = from.folder.path().join("long");
    packed(&lines, &file);
    let to = World::new().await;
    let before = resident();
    let report = to.service.import(&file, true).await.unwrap();
    assert_eq!(report.trials.new, 100);
    let grown = resident().saturating_sub(before);
    // All together have 160 MB; other tests of this process take some of their own meanwhile.
    assert!(grown < 120 << 20, "{grown} bytes more");

    // What a client sends may unpack to so much for its length; a file of the operator's own to anything.
    let padded = format!("{job}{}", " ".repeat(15 << 20));
    let mut lines = vec![whole[0].clone()];
    lines.extend(std::iter::repeat_n(padded, 5));
    lines.push(end.to_string().replace("100", "0").replace("\"jobs\":1", "\"jobs\":5"));
    packed(&lines, &file);
    let sent = std::fs::read(&file).unwrap();
    assert!(sent.len() < 1 << 17);
    let body = futures_util::stream::iter([Ok::<_, String>(bytes::Bytes::from(sent))]);
    match to.service.import_body(body, None, false).await {
        Err(ServiceError::TooLarge { message }) => {
            assert!(message.contains("max_ratio"), "{message}")
        }
        other => panic!("{other:?}"),
    }
    assert!(jobs(&to.service).await.is_empty());
    assert_eq!(to.service.import(&file, false).await.unwrap().jobs.new, 1);
}

/// Files count in a quota with the plan that names them, and nobody takes what another namespace has by naming its digest.
#[tokio::test]
async fn files_come_with_the_plan_that_names_them() {
    let from = World::new().await;
    let plan = with_program(&from).await;
    let path = exported(&from.service, everything(), from.folder.path(), "a").await;
    let whole = lines(&path);
    let without: Vec<String> =
        whole.iter().filter(|line| !line.contains(&plan.id.0)).cloned().collect();
    let bad = from.folder.path().join("bad");
    packed(&without, &bad);
    let to = World::new().await;
    assert!(refusal(to.service.import(&bad, false).await).contains("named by no plan"));
    assert!(to.service.store().named_blobs().await.unwrap().is_empty());

    to.service.import(&path, false).await.unwrap();
    let bare = exported(&from.service, Selection::default(), from.folder.path(), "b").await;
    let mut renamed = lines(&bare);
    for line in &mut renamed {
        *line = line.replace(&plan.id.0, "another");
    }
    packed(&renamed, &bare);
    let other = to.service.on_behalf_of(&Caller::owner(None, "other".parse().unwrap()));
    // The other plan's id is known in the first namespace.
    let report = other.import(&bare, false).await.unwrap();
    assert_eq!((report.plans.new, report.plans.left_out), (1, 1), "{report:?}");
    assert!(report.left_out[0].contains("another namespace"), "{report:?}");
    let taken = other.plan(&PlanId("another".to_owned())).await.unwrap();
    assert!(taken.launch.is_none() && taken.provenance.imported.unwrap().without_program);
}

/// Bytes of memory that this process has; 0 where that is not told.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
