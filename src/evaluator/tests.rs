//! Tests of the evaluator as a function from request lines to message lines, on a recording.

use super::{DeviceSelector, EXIT_IO, EXIT_LOST, EXIT_OK, EvaluatorOptions, Unlowered, run};
use crate::domain::protocol::{
    Effort, Load, MAX_LINE_BYTES, Message, MessageBody, PROTOCOL_VERSION, Reply, Request,
    RequestBody,
};
use crate::domain::{Candidate, Clock, L2Policy, Outcome};
use crate::fence::{Folders, Passed};
use crate::sparse::{Csr, canonical, digest};
use std::io::{self, Write};

struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let recording = include_str!("../../tests/pool/recording.jsonl");
        std::fs::write(folder.path().join("recording"), recording).unwrap();
        Self { folder }
    }

    /// A request to load a 1 x 1 matrix of this value.
    fn load(&self, value: f64, digest_of: f64) -> RequestBody {
        let path = self.folder.path().join(format!("{value:e}"));
        let of = |value| {
            let matrix = Csr::new(1, 1, vec![0, 1], vec![0], vec![value]).unwrap();
            let pattern = digest::pattern_digest(&matrix);
            let digest = digest::digest(&matrix, &pattern);
            (matrix, pattern, digest)
        };
        let (matrix, pattern, digest) = of(value);
        canonical::save(&matrix, &path, pattern, digest).unwrap();
        let problem = serde_json::from_str(r#"{"op":"spmm","n":2}"#).unwrap();
        let l2_policy = L2Policy::Warm;
        RequestBody::Load(Load { path, digest: of(digest_of).2, problem, l2_policy, seed: 3 })
    }

    fn run(&self, input: &str, output: impl Write) -> u8 {
        let options = EvaluatorOptions {
            device: DeviceSelector::Replay(self.folder.path().join("recording")),
            folders: Folders::default(),
            library_paths: Vec::new(),
            allow_hostile: false,
        };
        run(&options, &Unlowered, input.as_bytes(), Passed::default(), output)
    }

    /// The exit code and all messages.
    fn answers(&self, input: &str) -> (u8, Vec<Message>) {
        let mut output = Vec::new();
        let code = self.run(input, &mut output);
        let text = String::from_utf8(output).unwrap();
        (code, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }
}

fn line(seq: u64, body: RequestBody) -> String {
    serde_json::to_string(&Request { seq, body }).unwrap() + "\n"
}

fn measure(family: &str) -> RequestBody {
    let effort = Effort {
        warmups: 0,
        min_samples: 1,
        max_samples: 2,
        budget_ms: 1.0,
        give_up_us: None,
        clock: Clock::Isolated,
        left_ms: None,
        needed: false,
    };
    RequestBody::Measure { candidate: Candidate::new(family), effort }
}

fn open() -> String {
    line(1, RequestBody::Open { protocol: PROTOCOL_VERSION })
}

/// The error in the last reply.
fn complaint(messages: &[Message]) -> &str {
    match messages.last() {
        Some(Message { body: MessageBody::Reply(Reply::Failed { error }), .. }) => error,
        other => panic!("not an error: {other:?}"),
    }
}

#[test]
fn an_invalid_line_is_answered_and_skipped() {
    let fixture = Fixture::new();
    let long = "x".repeat(MAX_LINE_BYTES as usize + 5);
    let input = format!("nonsense\n{{\"seq\":8,\"request\":\"dance\"}}\n{long}\n{}", open());
    let (code, messages) = fixture.answers(&input);
    assert_eq!(code, EXIT_OK);
    assert_eq!(messages.iter().map(|message| message.seq).collect::<Vec<_>>(), [0, 8, 0, 1]);
    assert!(matches!(&messages[3].body, MessageBody::Reply(Reply::Opened(_))));
}

#[test]
fn requests_out_of_order_are_refused() {
    let fixture = Fixture::new();
    let (_, messages) = fixture.answers(&line(4, RequestBody::Open { protocol: 99 }));
    assert!(complaint(&messages).contains("version 99"));
    let (_, messages) = fixture.answers(&line(4, measure("other")));
    assert!(complaint(&messages).contains("not open"));
    let (_, messages) = fixture.answers(&(open() + &line(4, measure("other"))));
    assert!(complaint(&messages).contains("no matrix"));
}

#[test]
fn only_the_requested_matrix_is_loaded() {
    let fixture = Fixture::new();
    let load =
        |value, digest_of| fixture.answers(&(open() + &line(2, fixture.load(value, digest_of)))).1;
    assert!(complaint(&load(2.0, 3.0)).contains("contains matrix"));
    assert!(complaint(&load(1e300, 1e300)).contains("outside the range of f32"));
    let Some(MessageBody::Reply(Reply::Loaded(facts))) = load(2.0, 2.0).pop().map(|m| m.body)
    else {
        panic!("not loaded");
    };
    assert_eq!(facts.compulsory_bytes, 8 + 8 + 2 * 2 * 4);
}

#[test]
fn a_lost_device_is_reported_as_outcome_and_ends_the_process() {
    let fixture = Fixture::new();
    let input = open() + &line(2, fixture.load(2.0, 2.0)) + &line(3, measure("losing")) + &open();
    let (code, messages) = fixture.answers(&input);
    assert_eq!(code, EXIT_LOST);
    let Some(Message { seq: 3, body: MessageBody::Reply(Reply::Measured { outcome, .. }) }) =
        messages.last()
    else {
        panic!("{messages:?}");
    };
    assert_eq!(*outcome, Outcome::Crashed { detail: "illegal address".to_owned() });
}

#[test]
fn a_candidate_whose_first_call_took_all_the_time_says_so() {
    let fixture = Fixture::new();
    let within = |left_ms, needed| {
        let RequestBody::Measure { candidate, effort } = measure("other") else { panic!() };
        let effort = Effort { left_ms, needed, ..effort };
        let request = line(3, RequestBody::Measure { candidate, effort });
        let (_, messages) =
            fixture.answers(&(open() + &line(2, fixture.load(2.0, 2.0)) + &request));
        match messages.last() {
            Some(Message { body: MessageBody::Reply(Reply::Measured { outcome, .. }), .. }) => {
                outcome.clone()
            }
            other => panic!("{other:?}"),
        }
    };
    let late = within(Some(0.0), false);
    assert!(matches!(late, Outcome::TimedOut { stopped: true, out_of_time: true, .. }), "{late:?}");
    assert!(late.detail().is_some_and(|detail| detail.contains("time budget")), "{late:?}");
    // What there is no plan without is not left out, and without a limit nothing is.
    for outcome in [within(Some(0.0), true), within(None, false), within(Some(1e6), false)] {
        assert_eq!(outcome.counted_as(), "measured", "{outcome:?}");
    }
}

#[test]
fn every_stage_is_announced_before_it_begins() {
    let fixture = Fixture::new();
    let input = open() + &line(2, fixture.load(2.0, 2.0)) + &line(3, measure("other"));
    let (_, messages) = fixture.answers(&(input + &line(4, RequestBody::Close) + "ignored\n"));
    let said: Vec<_> = messages
        .iter()
        .map(|message| match &message.body {
            MessageBody::Stage { stage } => format!("{} {stage}", message.seq),
            MessageBody::Reply(_) => format!("{} reply", message.seq),
        })
        .collect();
    let load = ["2 reading", "2 multiplying", "2 uploading", "2 reply"];
    let measure = ["3 lowering", "3 compiling", "3 verifying", "3 timing", "3 reply"];
    let expected: Vec<_> =
        ["1 reply"].iter().chain(&load).chain(&measure).chain(&["4 reply"]).copied().collect();
    assert_eq!(said, expected);
}

#[test]
fn a_closed_output_ends_the_process() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    assert_eq!(Fixture::new().run(&open(), Closed), EXIT_IO);
}
