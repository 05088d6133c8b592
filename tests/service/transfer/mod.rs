//! From one store to another: everything that is exported arrives, once.

mod hostile;

use crate::measured::{ROWS, measured};
use crate::world::{World, device, problem, tridiagonal};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use serde_json::{Value, json};
use sparsetune::domain::learned::Scope;
use sparsetune::domain::plan::{Launch, PlanArray};
use sparsetune::domain::transfer::{Report, Selection, SentPlan};
use sparsetune::domain::*;
use sparsetune::ops::features;
use sparsetune::service::transfer::{Piece, Reader, Record};
use sparsetune::service::{JobFilter, LookupQuery, PageRequest, Service, ServiceError};
use sparsetune::store::{DescribedJob, Place, TrialQuery};
use std::io::Write;
use std::path::{Path, PathBuf};

const GROUPS: usize = 3;

/// Writes an export of what is selected to a file.
async fn exported(service: &Service, of: Selection, folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let mut file = std::fs::File::create(&path).unwrap();
    let mut pieces = service.export(of).await.unwrap();
    while let Some(piece) = pieces.next().await {
        file.write_all(&piece.unwrap()).unwrap();
    }
    path
}

fn everything() -> Selection {
    Selection { files: true, matrices: true, ..Selection::default() }
}

/// The lines of an export, each without its digest.
fn lines(path: &Path) -> Vec<String> {
    let text = zstd::decode_all(std::fs::File::open(path).unwrap()).unwrap();
    let text = String::from_utf8(text).unwrap();
    text.lines().map(|line| line[65..].to_owned()).collect()
}

/// An export of these lines, with right digests.
fn packed(lines: &[String], to: &Path) {
    let mut chain = Digest::of(b"sparsetune export v1\0");
    let mut text = String::new();
    for line in lines {
        chain = Digest::of(&[&chain.as_bytes()[..], line.as_bytes()].concat());
        text.push_str(&format!("{chain} {line}\n"));
    }
    std::fs::write(to, zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap();
}

fn refusal(result: Result<Report, ServiceError>) -> String {
    match result {
        Err(ServiceError::BadExport { message }) => message,
        other => panic!("{other:?}"),
    }
}

/// A plan whose program is stored here.
async fn with_program(world: &World) -> Plan {
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(9)).await.matrix;
    let plan = world.tune(&matrix, 4).await;
    let source = world.service.blobs().put("a source".into()).await.unwrap();
    let array = world.service.blobs().put(vec![7; 1_000_000].into()).await.unwrap();
    let launch = json!({
        "entry": "k", "source": source, "cubin": null, "grid": [1, 1, 1], "block": [32, 1, 1],
        "shared_bytes": 0, "arguments": []
    });
    let mut launch: Launch = serde_json::from_value(launch).unwrap();
    launch.arrays.push(PlanArray {
        name: "rows".to_owned(),
        element: "u32".to_owned(),
        length: 250_000,
        blob: array,
    });
    let other = Plan { id: PlanId::fresh(), launch: Some(launch), ..plan };
    let sent = SentPlan { plan: other.clone(), matrix, superseded: false };
    assert!(world.service.store().take_plan(&sent, Place::First, 0).await.unwrap());
    other
}

async fn world() -> World {
    let world = World::new().await;
    measured(&world.service, &device(), GROUPS).await;
    world
}

async fn jobs(service: &Service) -> Vec<Job> {
    let mut jobs =
        service.store().jobs(&JobFilter::default(), &PageRequest::ALL).await.unwrap().items;
    jobs.sort_by(|a, b| a.id.cmp(&b.id));
    jobs
}

#[tokio::test]
async fn everything_arrives_and_arrives_once() {
    let from = world().await;
    let plan = with_program(&from).await;
    let to = World::new().await;
    let path = exported(&from.service, everything(), from.folder.path(), "a.stexport").await;

    let would = to.service.import(&path, true).await.unwrap();
    assert!(would.dry_run && jobs(&to.service).await.is_empty());
    let report = to.service.import(&path, false).await.unwrap();
    assert_eq!(Report { dry_run: true, ..report.clone() }, would);
    let all = GROUPS as u64;
    assert_eq!((report.plans.new, report.jobs.new), (all + 2, all));
    assert_eq!((report.trials.new, report.matrices.new), (all * u64::from(ROWS), all + 1));
    assert_eq!((report.files.new, report.plans_without_program), (2, 0));

    // Jobs, trials and training data are as they were.
    let scope = Scope { op: Op::Spmm, device_class: device().class() };
    let version = features::version(Op::Spmm);
    let here = from.service.store().training_groups(&scope, version, None, 10).await.unwrap();
    let there = to.service.store().training_groups(&scope, version, None, 10).await.unwrap();
    assert_eq!(here, there);
    assert_eq!(here.len(), GROUPS);
    for job in jobs(&to.service).await {
        let first = from.service.job(&job.id).await.unwrap();
        assert_eq!(Job { attempts: 1, ..job.clone() }, Job { plan: job.plan.clone(), ..first });
        let all = |service: &Service| {
            let store = service.store().clone();
            let id = job.id.clone();
            async move { store.trials(&id, &TrialQuery::All, &PageRequest::ALL).await.unwrap().items }
        };
        assert_eq!(all(&from.service).await, all(&to.service).await);
    }
    // As new as their import, whenever they were measured.
    let new = to.service.store().described_since(&scope, version, Timestamp(0)).await.unwrap();
    assert_eq!(new, all * u64::from(ROWS));
    // The plan says where it came from, and nothing else of it differs.
    let mut arrived = to.service.plan(&plan.id).await.unwrap();
    let imported = arrived.provenance.imported.take().unwrap();
    assert_eq!(arrived, plan);
    assert_eq!(imported.store, from.service.store().id().await.unwrap());
    for blob in plan.launch.as_ref().unwrap().blobs() {
        let bytes = from.service.blobs().get(blob).await.unwrap();
        assert_eq!(to.service.blobs().get(blob).await.unwrap(), bytes);
    }
    // The lookup finds it, and says so.
    to.service.register(device()).await.unwrap();
    let query = LookupQuery {
        matrix: plan.matrix,
        problem: problem(4),
        device: None,
        l2_policy: None,
        neighbour: false,
        predicted: false,
    };
    let found = to.service.lookup(&query).await.unwrap();
    assert_eq!((found.grade, &found.plan.unwrap().id), (Grade::Exact, &plan.id));
    assert!(found.reasons.iter().any(|why| why.contains(&imported.store)), "{:?}", found.reasons);

    // Again: nothing new.
    let again = to.service.import(&path, false).await.unwrap();
    for taken in [again.plans, again.jobs, again.trials, again.models, again.matrices, again.files]
    {
        assert_eq!((taken.new, taken.left_out), (0, 0), "{again:?}");
    }
    // What came from elsewhere keeps its origin when it goes on, and comes home as known.
    let third = World::new().await;
    let on = exported(&to.service, everything(), to.folder.path(), "b.stexport").await;
    third.service.import(&on, false).await.unwrap();
    let twice = third.service.plan(&plan.id).await.unwrap().provenance.imported.unwrap();
    assert_eq!(twice.store, imported.store);
    let home = from.service.import(&on, false).await.unwrap();
    assert_eq!((home.plans.new, home.jobs.new, home.trials.new), (0, 0, 0));
    assert_eq!(to.litter() + third.litter(), 0);
}

#[tokio::test]
async fn a_program_that_is_not_brought_is_said_to_be_missing() {
    let from = World::new().await;
    let plan = with_program(&from).await;
    let to = World::new().await;
    let path = exported(&from.service, Selection::default(), from.folder.path(), "a").await;
    let report = to.service.import(&path, false).await.unwrap();
    assert_eq!((report.plans_without_program, report.files.new), (1, 0));
    let arrived = to.service.plan(&plan.id).await.unwrap();
    assert!(arrived.launch.is_none() && arrived.origin().unwrap().contains("program"));
    // No blob is named that is not there.
    assert!(to.service.store().named_blobs().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_is_selected_is_exported() {
    let from = world().await;
    let path =
        |name: &'static str, of: Selection| exported(&from.service, of, from.folder.path(), name);
    let kinds = |path: &Path| {
        let mut kinds: Vec<String> = lines(path)
            .iter()
            .map(|line| {
                serde_json::from_str::<Value>(line).unwrap()["record"].as_str().unwrap().to_owned()
            })
            .collect();
        kinds.dedup();
        kinds
    };
    let only = |parts: &str| {
        let mut of = Selection::default();
        of.only(parts).unwrap();
        of
    };
    assert_eq!(kinds(&path("plans", only("plans")).await), ["header", "plan", "end"]);
    let none = Selection { op: Some(Op::Sptrsv), ..Selection::default() };
    assert_eq!(kinds(&path("none", none).await), ["header", "end"]);
    let late =
        Selection { since: Some(Timestamp::now().plus_millis(60_000)), ..Selection::default() };
    assert_eq!(kinds(&path("late", late).await), ["header", "end"]);
    let class = Some(DeviceClass("cpu/another/avx2/2t".to_owned()));
    let other = Selection { device_class: class, ..Selection::default() };
    assert_eq!(kinds(&path("other", other).await), ["header", "end"]);
    let matrix = jobs(&from.service).await[0].request.matrix;
    let one = Selection { matrix: Some(matrix), matrices: true, ..only("trials") };
    let one = path("one", one).await;
    assert_eq!(kinds(&one), ["header", "job", "trial", "matrix", "part", "end"]);
    assert_eq!(lines(&one).len(), 5 + ROWS as usize);
    let matrices = path("matrices", Selection { matrices: true, ..only("none") }).await;
    assert_eq!(lines(&matrices).iter().filter(|line| line.contains("\"matrix\",")).count(), GROUPS);
}

/// Imports a plan of this time, made under these conditions, beside one that is here; whether it answers.
async fn answers(world: &World, by: &Service, here: &Plan, change: impl FnOnce(&mut Plan)) -> bool {
    let other = World::new().await;
    let mut plan = Plan { id: PlanId::fresh(), ..here.clone() };
    change(&mut plan);
    let matrix = world.service.matrix(&here.matrix).await.unwrap();
    let sent = SentPlan { plan: plan.clone(), matrix, superseded: false };
    other.service.store().take_plan(&sent, Place::ByAge, 0).await.unwrap();
    let path = exported(&other.service, Selection::default(), other.folder.path(), "one").await;
    let report = by.import(&path, false).await.unwrap();
    assert_eq!((report.plans.new, report.plans_before + report.plans_behind), (1, 1));
    // Both are kept, whichever answers.
    assert!(
        world.service.plan(&plan.id).await.unwrap().provenance.imported.unwrap().standing.is_some()
    );
    assert_eq!(&world.service.plan(&here.id).await.unwrap(), here);
    let newest = world.service.plans_of(&here.matrix, &PageRequest::ALL).await.unwrap().items;
    newest[0].id == plan.id
}

#[tokio::test]
async fn the_better_or_the_later_plan_answers_and_both_are_kept() {
    let faster = |plan: &mut Plan| {
        let measured = plan.measured.as_mut().unwrap();
        (measured.median_us, measured.ci95_us) = (1.0, [0.9, 1.1]);
        plan.created_at = plan.created_at.plus_millis(-1000);
    };
    let slower = |plan: &mut Plan| plan.measured.as_mut().unwrap().ci95_us = [1.7, 1.8];
    let elsewhere = |plan: &mut Plan| plan.provenance.environment = "another driver".to_owned();
    for (case, (answer, change)) in [
        (true, &faster as &dyn Fn(&mut Plan)),
        (false, &slower),
        // Within the noise.
        (false, &|_: &mut Plan| {}),
        // Not comparable, and later.
        (true, &|plan: &mut Plan| {
            elsewhere(plan);
            plan.created_at = plan.created_at.plus_millis(1);
        }),
        (false, &|plan: &mut Plan| {
            elsewhere(plan);
            faster(plan);
        }),
    ]
    .into_iter()
    .enumerate()
    {
        let world = World::new().await;
        let matrix = world.upload(&tridiagonal(5)).await.matrix;
        world.service.register(device()).await.unwrap();
        let here = world.tune(&matrix, 4).await;
        // Its software is unknown here from now on, so that this rule does not decide.
        world.service.store().forget_devices("here").await.unwrap();
        let by = world.elsewhere("there").await;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        assert_eq!(answers(&world, &by, &here, change).await, answer, "case {case}");
        // What is measured here afterwards answers in any case.
        world.service.register(device()).await.unwrap();
        let again = world.tune(&matrix, 4).await;
        let newest = world.service.plans_of(&matrix.digest, &PageRequest::ALL).await.unwrap().items;
        assert_eq!(newest[0].id, again.id);
    }
    // What was measured with the software that is here goes before what was not.
    let world = World::new().await;
    let matrix = world.upload(&tridiagonal(5)).await.matrix;
    world.service.register(device()).await.unwrap();
    let here = world.tune(&matrix, 4).await;
    assert!(
        !answers(&world, &world.service, &here, |plan| {
            elsewhere(plan);
            plan.created_at = plan.created_at.plus_millis(1);
        })
        .await
    );
}

/// The documented schema fits what is written, and nothing that is written is missing in it.
#[tokio::test]
async fn the_schema_describes_every_record() {
    let schema: Value =
        serde_json::from_str(include_str!("../../../docs/export.schema.json")).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let from = world().await;
    with_program(&from).await;
    from.service.ship_models().await.unwrap();
    let path = exported(&from.service, everything(), from.folder.path(), "a").await;
    let mut seen = std::collections::BTreeSet::new();
    for line in lines(&path) {
        let record: Value = serde_json::from_str(&line).unwrap();
        let faults: Vec<String> =
            validator.iter_errors(&record).map(|error| error.to_string()).collect();
        assert!(faults.is_empty(), "{line:.300}: {faults:?}");
        seen.insert(record["record"].as_str().unwrap().to_owned());
    }
    let named: std::collections::BTreeSet<String> = schema["oneOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["properties"]["record"]["const"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(seen, named);
    // Models arrive, and are not activated.
    let to = World::new().await;
    let report = to.service.import(&path, false).await.unwrap();
    assert!(report.models.new > 0 && report.models.left_out == 0, "{report:?}");
    let scopes = to.service.store().activations(sparsetune::store::ActivationQuery::InUse).await;
    assert!(scopes.unwrap().is_empty());
}

#[tokio::test]
async fn exports_and_imports_keep_to_their_namespace() {
    let from = world().await;
    let path = exported(&from.service, everything(), from.folder.path(), "a").await;
    let to = World::new().await;
    let other = Caller::owner(None, "other".parse().unwrap());
    let there = to.service.on_behalf_of(&other);
    let report = there.import(&path, false).await.unwrap();
    let all = GROUPS as u64;
    assert_eq!((report.plans.new, report.jobs.new, report.matrices.new), (all, all, all));
    assert!(jobs(&to.service).await.is_empty());
    assert_eq!(jobs(&there).await.len(), GROUPS);
    // What one namespace has, another does not export; and what is another's is not taken from it.
    let own = exported(&to.service, everything(), to.folder.path(), "own").await;
    assert_eq!(lines(&own).len(), 2);
    let again = to.service.import(&path, false).await.unwrap();
    assert_eq!((again.plans.new, again.jobs.new, again.trials.new), (0, 0, 0));
    assert_eq!((again.plans.left_out, again.jobs.left_out), (all, all));
    assert_eq!(again.matrices.new, all);
    assert!(jobs(&to.service).await.is_empty());
    let theirs = exported(&there, everything(), to.folder.path(), "theirs").await;
    let kinds = |path: &Path, kind: &str| {
        lines(path)
            .iter()
            .filter(|line| line.starts_with(&format!("{{\"record\":\"{kind}\"")))
            .count()
    };
    for kind in ["plan", "job", "trial", "matrix"] {
        assert_eq!(kinds(&theirs, kind), kinds(&path, kind), "{kind}");
    }
    // Models are the operator's.
    from.service.ship_models().await.unwrap();
    let models = exported(&from.service, Selection::default(), from.folder.path(), "m").await;
    let report = there.import(&models, false).await.unwrap();
    assert!(report.models.left_out > 0 && report.models.new == 0);
}
