//! The pool over real child processes: whatever a child does, the trial is recorded and the next one works.

mod fence;
mod fixture;
mod gpu;
mod host;
mod orphans;

use fixture::{BINARY, EFFORT, Fixture, SOON, detail, hostile, never, outcome, works};
use sparsetune::domain::{Candidate, Clock, Digest, Outcome};
use sparsetune::pool::PoolError;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn outcomes_come_as_recorded() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.loaded(fixture.replay()).await;
    works(&mut evaluator).await;
    for (family, state, says) in [
        ("inexact", "wrong", "exceeds the tolerance"),
        ("uncompilable", "compile_failed", "expected a ;"),
        ("unlaunchable", "refused", "too many registers"),
        ("partial", "wrong", "5 elements"),
        ("unrecorded", "refused", "no record for unrecorded{}"),
        ("hostile", "refused", "--allow-hostile"),
    ] {
        let outcome = outcome(&mut evaluator, &Candidate::new(family), None).await;
        assert_eq!(outcome.state(), state, "{outcome:?}");
        assert!(detail(&outcome).contains(says), "{outcome:?}");
    }
    assert_eq!(evaluator.restarts(), 0);
}

#[tokio::test]
async fn a_hang_is_killed_at_its_deadline() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.loaded(fixture.replay()).await;
    let started = Instant::now();
    let hung = outcome(&mut evaluator, &Candidate::new("hanging"), SOON).await;
    assert_eq!(hung.state(), "timed_out");
    assert!(detail(&hung).contains("within 150 ms of verifying"), "{hung:?}");
    assert!(started.elapsed() < Duration::from_secs(3));
    works(&mut evaluator).await;

    evaluator.deadlines_mut().compile = Duration::from_millis(300);
    let hung = outcome(&mut evaluator, &Candidate::new("hanging_compile"), None).await;
    // Nothing of it has run on the device: it is to be tried again.
    assert_eq!(hung.state(), "refused");
    assert!(detail(&hung).contains("within 300 ms of compiling"), "{hung:?}");
    evaluator.deadlines_mut().compile = Duration::from_secs(20);
    works(&mut evaluator).await;
    assert_eq!(evaluator.restarts(), 2);
}

#[tokio::test]
async fn a_death_and_a_lost_device_cost_their_own_trial() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.loaded(fixture.replay()).await;
    let died = outcome(&mut evaluator, &Candidate::new("dying"), None).await;
    assert_eq!(died.state(), "crashed");
    assert!(detail(&died).contains("SIGABRT"), "{died:?}");
    works(&mut evaluator).await;
    let lost = outcome(&mut evaluator, &Candidate::new("losing"), None).await;
    assert_eq!(lost, Outcome::Crashed { detail: "illegal address".to_owned() });
    works(&mut evaluator).await;
    assert_eq!(evaluator.restarts(), 2);
}

#[tokio::test]
async fn hostile_code_is_survived() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.loaded(fixture.hostile()).await;
    for (kind, state, says) in [
        ("hang", "timed_out", "verifying"),
        ("fault", "crashed", "SIGSEGV"),
        ("wrong", "wrong", "exceeds the tolerance"),
        ("unwritten", "wrong", "1 elements"),
        ("none", "refused", "has an unknown kind"),
    ] {
        let deadline = if kind == "hang" { SOON } else { None };
        let outcome = outcome(&mut evaluator, &hostile(kind), deadline).await;
        assert_eq!(outcome.state(), state, "{outcome:?}");
        assert!(detail(&outcome).contains(says), "{outcome:?}");
    }
    let slow = outcome(&mut evaluator, &hostile("slow").with("ms", 2), None).await;
    assert!(slow.median_us().unwrap() >= 2000.0, "{slow:?}");
    works(&mut evaluator).await;
    assert_eq!(evaluator.restarts(), 2);
}

#[tokio::test]
async fn nonsense_from_the_child_is_a_crash() {
    // Eight lines pass: one for open, four for load, the measurement's up to its first call. Then it goes wrong.
    for (misbehave, says) in [
        (r#""$0" "$@" | (sed -u 8q; echo hello from a library; sleep 60)"#, "hello from a library"),
        (r#""$0" "$@" | (sed -u 8q; exec cat /dev/zero)"#, "invalid message"),
        (r#""$0" "$@" | (sed -u 8q; yes '{"seq":3,"message":"stage","stage":"timing"}')"#, "notes"),
        (r#""$0" "$@" | sed -u '8 s/"seq":3/"seq":4/'"#, "request 4 instead of 3"),
        (r#""$0" "$@" | (sed -u 8q; kill -s ABRT $$)"#, "SIGABRT"),
        // Alive, but its stdout is shut.
        (
            r#"exec 3<&0; "$0" "$@" <&3 | (sed -u 8q; exec >&-; sleep 60) & exec >&-; wait"#,
            "killed",
        ),
    ] {
        let fixture = Fixture::new();
        let mut evaluator = fixture.loaded(fixture.bad_once(misbehave)).await;
        let good = Candidate::new("good").with("m1", 4);
        let outcome = outcome(&mut evaluator, &good, None).await;
        assert_eq!(outcome.state(), "crashed", "{misbehave}: {outcome:?}");
        assert!(detail(&outcome).contains(says), "{misbehave}: {outcome:?}");
        works(&mut evaluator).await;
        assert_eq!(evaluator.restarts(), 1);
    }
}

#[tokio::test]
async fn cancelling_a_hang_takes_less_than_two_seconds() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.loaded(fixture.hostile()).await;
    let cancel = CancellationToken::new();
    let trigger = cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        trigger.cancel();
    });
    let started = Instant::now();
    let hung = evaluator.measure(&hostile("hang"), EFFORT, None, &cancel).await;
    assert_eq!(hung, Err(PoolError::Cancelled));
    assert!(started.elapsed() < Duration::from_secs(2));
    // A token that is already cancelled does not even wake the child.
    assert_eq!(evaluator.open(&cancel).await, Err(PoolError::Cancelled));
    assert_eq!(evaluator.restarts(), 0);
    works(&mut evaluator).await;
}

#[tokio::test]
async fn a_call_dropped_half_way_takes_its_child_along() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.loaded(fixture.replay()).await;
    let (hanging, never) = (Candidate::new("hanging"), never());
    let call = evaluator.measure(&hanging, EFFORT, None, &never);
    assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
    works(&mut evaluator).await;
    assert_eq!(evaluator.restarts(), 1);
}

#[tokio::test]
async fn a_kill_from_outside_is_survived() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.loaded(fixture.replay()).await;
    let kill = |pid: u32| unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    // At rest nobody is to blame for it.
    assert_eq!(kill(evaluator.process_id().unwrap()), 0);
    tokio::time::sleep(Duration::from_millis(50)).await;
    works(&mut evaluator).await;

    let told = evaluator.take_interruptions();
    assert!(told.len() == 1 && told[0].contains("between requests"), "{told:?}");
}

/// Eight lines pass, so that the candidate is running when the child is killed.
const KILLED: &str = r#""$0" "$@" | (sed -u 8q; kill -s KILL $$)"#;

#[tokio::test]
async fn a_candidate_is_not_blamed_for_a_kill_from_outside() {
    for (signal, named) in [("KILL", "signal 9 (SIGKILL)"), ("TERM", "signal 15 (SIGTERM)")] {
        let fixture = Fixture::new();
        let misbehave = KILLED.replace("KILL", signal);
        let mut evaluator = fixture.loaded(fixture.bad_once(&misbehave)).await;
        // It is asked a second time by itself.
        works(&mut evaluator).await;
        assert_eq!(evaluator.restarts(), 1);
        let told = evaluator.take_interruptions();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains(named) && told[0].contains("asked again"), "{told:?}");
        // Every Linux that runs this test counts its kills for want of memory.
        let counts = std::fs::read_to_string("/proc/self/cgroup").is_ok();
        assert!(!counts || told[0].contains("oom_kill") || !has_count(), "{told:?}");
        assert!(evaluator.take_interruptions().is_empty());
    }
}

fn has_count() -> bool {
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]
        .iter()
        .any(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains("oom_kill ")))
}

#[tokio::test]
async fn a_second_kill_at_the_same_candidate_counts() {
    let fixture = Fixture::new();
    let selector = fixture.selector();
    let script = KILLED.to_owned();
    let mut evaluator = fixture
        .loaded(fixture.spawning("sh", ["-c", &script, BINARY, "evaluator", "--device", &selector]))
        .await;
    let killed = outcome(&mut evaluator, &Candidate::new("good").with("m1", 4), None).await;
    assert_eq!(killed.state(), "crashed");
    assert!(detail(&killed).contains("killed twice in a row"), "{killed:?}");
    assert_eq!(evaluator.take_interruptions().len(), 2);
}

/// Neither the first time nor the second, and whatever the signal: a process may also end itself for want of memory.
#[tokio::test]
async fn a_death_for_want_of_memory_is_never_blamed_on_the_candidate() {
    for signal in ["KILL", "ABRT"] {
        let mut fixture = Fixture::new();
        let events = fixture.folder.path().join("memory.events");
        std::fs::write(&events, "oom 0\noom_kill 0\n").unwrap();
        let count = format!("echo \"oom_kill $(date +%s%N)\" > {}", events.display());
        fixture.memory_events = Some(events);
        let script = KILLED.replace("kill -s KILL", &format!("{count}; kill -s {signal}"));
        let selector = fixture.selector();
        let mut evaluator = fixture
            .loaded(
                fixture.spawning("sh", ["-c", &script, BINARY, "evaluator", "--device", &selector]),
            )
            .await;
        let killed = outcome(&mut evaluator, &Candidate::new("good").with("m1", 4), None).await;
        assert_eq!(killed.state(), "refused", "{killed:?}");
        assert!(detail(&killed).contains("not enough memory"), "{killed:?}");
        assert_eq!(evaluator.take_interruptions().len(), 2);
    }
}

#[tokio::test]
async fn finals_are_timed_again_after_a_kill_from_outside() {
    let fixture = Fixture::new();
    // Seven lines: one for open, four for load, then this script's own turn at the reply of the pair.
    let misbehave = r#""$0" "$@" | (sed -u 5q; kill -s KILL $$)"#;
    let mut evaluator = fixture.loaded(fixture.bad_once(misbehave)).await;
    let good = Candidate::new("good").with("m1", 4);
    let timings = evaluator.pair(vec![good], 4, Clock::Isolated, None, &never()).await.unwrap();
    assert_eq!(timings.len(), 1);
    // Where the kill came before the request it was a death between requests, which is told as well.
    assert_eq!((evaluator.restarts(), evaluator.take_interruptions().len()), (1, 1));
}

#[tokio::test]
async fn a_device_that_never_comes_up_is_unavailable() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.spawning("sh", ["-c", "echo no such device >&2; exit 3"]);
    let Err(PoolError::Unavailable { attempts: 2, last, .. }) = evaluator.open(&never()).await
    else {
        panic!("it came up");
    };
    assert!(last.contains("exit code 3") && last.contains("no such device"), "{last}");
    let mut evaluator = fixture.spawning("/nonexistent", [""; 0]);
    let error = evaluator.open(&never()).await.unwrap_err();
    assert!(matches!(error, PoolError::Unavailable { .. }), "{error}");
    // A clear answer is not asked for again.
    let mut evaluator = fixture.spawning(BINARY, ["evaluator", "--device", "replay:/nonexistent"]);
    let error = evaluator.open(&never()).await.unwrap_err();
    assert!(matches!(&error, PoolError::Failed(why) if why.contains("recording")), "{error}");
    assert_eq!(evaluator.restarts(), 0);
}

#[tokio::test]
async fn a_load_that_cannot_be_is_said_and_the_child_goes_on() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.replay();
    let mut load = fixture.load.clone();
    load.digest = Digest::of(b"another");
    let error = evaluator.load(load.clone(), &never()).await.unwrap_err();
    assert!(matches!(&error, PoolError::Failed(why) if why.contains("contains matrix")), "{error}");
    load.path = fixture.folder.path().join("missing");
    assert!(matches!(evaluator.load(load, &never()).await, Err(PoolError::Failed(_))));
    let early = evaluator.measure(&Candidate::new("good"), EFFORT, None, &never()).await;
    assert!(
        matches!(&early, Err(PoolError::Failed(why)) if why.contains("no matrix")),
        "{early:?}"
    );
    let mut evaluator = fixture.loaded(evaluator).await;
    works(&mut evaluator).await;
    assert_eq!(evaluator.restarts(), 0);
}

#[tokio::test]
async fn finalists_are_prepared_paired_and_exported() {
    let fixture = Fixture::new();
    let mut evaluator = fixture.loaded(fixture.replay()).await;
    let good = Candidate::new("good").with("m1", 4);
    // Far more than a pipe holds.
    let many = (0..20_000).map(|i| Candidate::new("other").with("i", i)).chain([good.clone()]);
    evaluator.prepare(many.collect(), &never()).await.unwrap();
    works(&mut evaluator).await;
    let both = vec![good.clone(), Candidate::new("other")];
    let timings = evaluator.pair(both, 4, Clock::Isolated, None, &never()).await.unwrap();
    let samples: Vec<_> = timings.into_iter().map(|timing| timing.samples_us).collect();
    assert_eq!(samples, [[8.0, 7.0, 6.0, 8.0], [9.0; 4]]);
    assert_eq!(evaluator.export(&good, None, &never()).await.unwrap().steps[0].entry, "good");

    evaluator.deadlines_mut().pair = Duration::from_millis(150);
    let hung = vec![good.clone(), Candidate::new("hanging_pair")];
    let error = evaluator.pair(hung, 4, Clock::Isolated, None, &never()).await.unwrap_err();
    assert!(matches!(error, PoolError::TimedOut(_)), "{error}");
    evaluator.deadlines_mut().pair = Duration::from_secs(20);
    let lost = evaluator
        .pair(vec![Candidate::new("losing_pair")], 4, Clock::Isolated, None, &never())
        .await
        .unwrap_err();
    assert!(matches!(&lost, PoolError::Crashed(why) if why.contains("exit code 70")), "{lost}");
    works(&mut evaluator).await;
    evaluator.close().await;
    assert_eq!(evaluator.process_id(), None);
    works(&mut evaluator).await;
}
