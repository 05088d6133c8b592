//! The page of a job: what it shows of a job that waits, runs, ended or failed, and that no name becomes markup.

use crate::app::TestApp;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sparsetune::domain::*;
use sparsetune::store::Finish;
use sqlx::Connection;

/// A page or fragment that must be there, with its policy against inline scripts.
async fn page(app: &TestApp, path: &str) -> String {
    let response = app.get(path).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("script-src 'self';"), "{policy}");
    response.text().await.unwrap()
}

fn data(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"<script type="application/json" id="trials">"#).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn assert_has(page: &str, wanted: &[&str]) {
    for text in wanted {
        assert!(page.contains(text), "{text} is not in {page}");
    }
}

async fn queued(app: &TestApp) -> (Value, String) {
    let matrix = app.matrix(8).await;
    let job = app.job(&matrix, 4).await;
    (matrix, job["id"].as_str().unwrap().to_owned())
}

fn trial(job: &JobId, ordinal: u32, candidate: Candidate, state: TrialState) -> Trial {
    let predicted_us = Some(2.5);
    Trial {
        job: job.clone(),
        ordinal,
        candidate,
        state,
        predicted_us,
        despite: None,
        features: None,
        created_at: Timestamp::now(),
    }
}

fn panel(m1: i64, n1: i64) -> Candidate {
    Candidate::new("row_panel").with("m1", m1).with("n1", n1)
}

async fn end(app: &TestApp, claim: &crate::claimed::Claimed, state: JobState, error: Option<&str>) {
    let job = Job {
        state,
        error: error.map(str::to_owned),
        finished_at: Some(Timestamp::now()),
        ..claim.job.clone()
    };
    app.running.service.store().finish(&claim.fence, &Finish::job(job, None)).await.unwrap();
}

#[tokio::test]
async fn a_job_that_waits_listens_for_what_comes() {
    let app = TestApp::new().await;
    let (matrix, id) = queued(&app).await;
    let page = page(&app, &format!("/jobs/{id}")).await;
    let listens = format!(r#"hx-sse:connect="/v1/jobs/{id}/events?after=1""#);
    let cancel = format!(r#"data-cancel="{id}""#);
    let link =
        format!(r#"id="matrix-link" href="/matrices/{}""#, matrix["digest"].as_str().unwrap());
    assert_has(&page, &[&listens, &cancel, &link, r#"data-state="queued""#, "SpMM N=4 f32 row"]);
    let ids = "progress estimate best funnel best-chart trials-chart tile-map log connection";
    for id in ids.split(' ') {
        assert_has(&page, &[&format!(r#"id="{id}""#)]);
    }
    assert!(!page.contains("plan-link"));
    assert_eq!(data(&page)["trials"]["ordinal"], Value::Array(Vec::new()));
}

#[tokio::test]
async fn an_ended_job_links_its_plan_and_listens_no_more() {
    let app = TestApp::new().await;
    let (_, id) = queued(&app).await;
    let plan = app.finish(&app.claim().await).await;
    let page = page(&app, &format!("/jobs/{id}")).await;
    let link = format!(r#"id="plan-link" href="/plans/{}""#, plan.id);
    assert_has(
        &page,
        &[&link, r#"data-state="succeeded""#, "12.5 µs", "2.00× over sprs, one thread"],
    );
    // The job told no funnel; its plan has one.
    assert_has(&page, &["Registers", "LO-SpMM, section 3.2", "the top 16 by the model", "−44"]);
    assert!(!page.contains("hx-sse:connect") && !page.contains("data-cancel"));
    let data = data(&page);
    let trials = &data["trials"];
    assert_eq!(trials["ordinal"], json!([1]), "pruned candidates are not drawn");
    assert_eq!((&trials["median"], &trials["values"]), (&json!([2.0]), &json!([[8, "natural"]])));
    let shape = json!({"family": "row_split", "names": ["lanes", "order"]});
    assert_eq!((&data["shapes"], &trials["shape"]), (&json!([shape]), &json!([0])));
    assert_eq!((&data["states"], &trials["state"]), (&json!(["measured"]), &json!([0])));
}

#[tokio::test]
async fn the_winner_is_marked_among_the_trials_and_its_two_times_explained() {
    let app = TestApp::new().await;
    let (_, id) = queued(&app).await;
    let claim = app.claim().await;
    let measured = |us| {
        TrialState::Tried(Outcome::Measured {
            timing: Timing::of(vec![us], 0).unwrap(),
            rel_error: 0.0,
            resources: None,
            preprocess_ms: 0.0,
        })
    };
    let won = crate::app::fixture().candidate;
    let winner = trial(&claim.job.id, 70, won, measured(13.0));
    app.running.service.store().record_trials(&claim.fence, &[winner]).await.unwrap();
    app.finish(&claim).await;
    let page = page(&app, &format!("/jobs/{id}")).await;
    // Another trial took 2 µs; the plan is of this one.
    let again = "Timed again in turn with the other finalists: 12.5 µs (13.0 µs in its trial).";
    assert_has(&page, &[again, "The fastest trial was 2.00 µs of", "chosen for 1,000 calls"]);
    assert_eq!(page.matches("<tr class=\"winner\">").count(), 1);
    assert_has(&page, &["12.5 µs in the finals", "/trials?state=tried&amp;limit=500"]);
    assert_eq!(data(&page)["winner"], 70);
}

#[tokio::test]
async fn a_running_job_shows_its_funnel_tile_space_and_failures() {
    let app = TestApp::new().await;
    let (_, id) = queued(&app).await;
    let claim = app.claim().await;
    let store = app.running.service.store();
    let measured = |us| {
        TrialState::Tried(Outcome::Measured {
            timing: Timing::of(vec![us], 0).unwrap(),
            rel_error: 0.0,
            resources: None,
            preprocess_ms: 0.0,
        })
    };
    let crashed = Outcome::Crashed { detail: "illegal <b>address</b>".to_owned() };
    let pruned = TrialState::Pruned(Removal::by("panel_fill"));
    let of = |n, candidate, state| trial(&claim.job.id, n, candidate, state);
    let trials = [
        of(0, panel(4, 64), pruned),
        of(1, panel(2, 32), measured(10.0)),
        of(2, panel(2, 64), measured(40.0)),
        of(3, panel(4, 32), TrialState::Tried(crashed)),
        of(4, Candidate::new("row_split").with("lanes", 8), measured(8.0)),
    ];
    store.record_trials(&claim.fence, &trials).await.unwrap();
    let steps = vec![FunnelStep {
        constraint: "panel_fill".to_owned(),
        removed: 1,
        left: 1234,
        detail: Some("few & full".to_owned()),
    }];
    store.log(&claim.fence, &EventKind::Funnel { steps }).await.unwrap();
    store.log(&claim.fence, &EventKind::Log { message: "<i>hello".to_owned() }).await.unwrap();

    let whole = page(&app, &format!("/jobs/{id}")).await;
    assert_has(&whole, &["&#60;i&#62;hello", r#"role="log""#, r#"data-state="running""#]);
    let fragment = page(&app, &format!("/fragments/jobs/{id}")).await;
    assert!(!fragment.contains("<html"));
    for shown in [&whole, &fragment] {
        assert_has(shown, &["1,234", "few &#38; full", "3 of 3 measured", "10.0 µs", "40.0 µs"]);
        assert_has(shown, &["illegal &#60;b&#62;address", "row_panel{m1=4,n1=32}"]);
        assert_has(
            shown,
            &[
                "2 of 4 pairs measured; best of this family 10.0 µs at m1 2, n1 32; the job&#39;s fastest trial took 8.00 µs (row_split).",
                "m1 4, n1 64: 1 pruned by panel fill",
            ],
        );
        assert!(!shown.contains("<b>address"));
    }
    // Failures are drawn too: by kind, with their reason; and told where nothing is drawn.
    let data = data(&whole);
    let place = |name: &str| data["trials"][name][2].as_u64().unwrap() as usize;
    assert_eq!(data["trials"]["ordinal"][2], 3);
    assert_eq!(data["states"][place("state")], "crashed");
    assert_eq!(data["why"]["3"], "illegal <b>address</b>");
    assert_has(&whole, &["3 of 4 trials measured, 1 crashed; fastest row_split"]);
    let other = page(&app, &format!("/fragments/jobs/{id}?family=row_split")).await;
    assert_has(
        &other,
        &[r#"<option value="row_split" selected>"#, "do not vary in two parameters"],
    );
}

#[tokio::test]
async fn failed_and_cancelled_jobs_say_why_and_what_is_kept() {
    let app = TestApp::new().await;
    let (_, id) = queued(&app).await;
    end(&app, &app.claim().await, JobState::Failed, Some("row 3: <script>no")).await;
    let failed = page(&app, &format!("/jobs/{id}")).await;
    assert_has(&failed, &[r#"role="alert""#, "row 3: &#60;script&#62;no", "The job failed."]);
    assert_has(&failed, &["No trial was made."]);
    assert!(!failed.contains("0 of 0") && !failed.contains("0.0 s"), "{failed}");

    let (_, id) = queued(&app).await;
    let claim = app.claim().await;
    let state = TrialState::Pruned(Removal::by("load_balance"));
    let removed = trial(&claim.job.id, 0, panel(2, 32), state);
    app.running.service.store().record_trials(&claim.fence, &[removed]).await.unwrap();
    end(&app, &claim, JobState::Cancelled, None).await;
    let cancelled = page(&app, &format!("/jobs/{id}")).await;
    assert_has(&cancelled, &["no plan was written", "No trial had been made.", "Balanced tiles"]);
    assert_has(&cancelled, &["Reconstructed from the recorded trials"]);
}

#[tokio::test]
async fn a_name_is_text_wherever_it_stands() {
    let app = TestApp::new().await;
    let (_, id) = queued(&app).await;
    let claim = app.claim().await;
    let state = TrialState::Tried(Outcome::Refused { detail: "no".to_owned() });
    let hostile = Candidate::new("</script><script>").with_text("x", "\u{2028}<!--");
    let trials = [trial(&claim.job.id, 0, hostile, state)];
    app.running.service.store().record_trials(&claim.fence, &trials).await.unwrap();
    let page = page(&app, &format!("/jobs/{id}")).await;
    assert!(!page.contains("</script><script>") && !page.contains("<!--"));
    assert_eq!(data(&page)["shapes"][0]["family"], "</script><script>");
}

#[tokio::test]
async fn a_store_that_fails_is_no_answer() {
    let app = TestApp::new().await;
    let (matrix, id) = queued(&app).await;
    app.finish(&app.claim().await).await;
    let digest = matrix["digest"].as_str().unwrap();
    let store = app.running.service.store();
    assert!(store.delete_matrix(&digest.parse().unwrap()).await.unwrap());
    assert_eq!(app.get(&format!("/matrices/{digest}")).await.status(), StatusCode::NOT_FOUND);
    let file = app.folder.path().join("sparsetune.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut raw = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("UPDATE plans SET version = 99").execute(&mut raw).await.unwrap();
    for path in
        [format!("/jobs/{id}"), format!("/fragments/jobs/{id}"), format!("/matrices/{digest}")]
    {
        assert_eq!(app.get(&path).await.status(), StatusCode::INTERNAL_SERVER_ERROR, "{path}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_said_so() {
    let app = TestApp::new().await;
    for path in ["/jobs", "/fragments/jobs"] {
        let unknown = app.get(&format!("{path}/0193a7c4-1111-7222-8333-444455556666")).await;
        assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
        assert_eq!(app.get(&format!("{path}/x")).await.status(), StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn a_page_draws_so_many_trials_and_says_so() {
    let app = TestApp::new().await;
    let (_, id) = queued(&app).await;
    let claim = app.claim().await;
    let of = |n: u32| {
        let candidate = panel(n.into(), 64).with("block", 128).with("lanes", 8).with("unroll", 4);
        let state = match n {
            0..4001 => TrialState::Tried(Outcome::Measured {
                timing: Timing::of(vec![1.0 / f64::from(n + 3); 20], 0).unwrap(),
                rel_error: 0.0,
                resources: None,
                preprocess_ms: 0.0,
            }),
            _ => TrialState::Pruned(Removal::by("rank")),
        };
        trial(&claim.job.id, n, candidate, state)
    };
    let trials: Vec<Trial> = (0..4002).map(of).collect();
    app.running.service.store().record_trials(&claim.fence, &trials).await.unwrap();
    let page = page(&app, &format!("/jobs/{id}")).await;
    assert_has(&page, &["The first 4,000 of 4,001 trials are drawn", "20 of 4,001 measured"]);
    assert_eq!(data(&page)["trials"]["ordinal"].as_array().unwrap().len(), 4000);
    let sent = app.request(Method::GET, &format!("/jobs/{id}")).header("accept-encoding", "gzip");
    let sent = sent.send().await.unwrap().bytes().await.unwrap();
    assert!(sent.len() < 150_000, "{} bytes, packed", sent.len());
}
