//! A search is told with its own numbers, and nothing is said that it does not know.

use super::*;
use crate::domain::catalog::family::{Distinction, Flags, KernelId, Provider, StoredForm};
use crate::domain::{ClockTime, Clocks, Op};

fn plan() -> Plan {
    let mut plan: Plan = serde_json::from_str(include_str!("../../tests/http/plan.json")).unwrap();
    let step = |constraint: &str, removed, left| FunnelStep {
        constraint: constraint.to_owned(),
        removed,
        left,
        detail: None,
    };
    plan.funnel = vec![
        step("register_resource", 40, 60),
        step("load_balance", 30, 30),
        step("rank", 20, 10),
        step("of_another_version", 0, 10),
    ];
    plan
}

const STORED: &[StoredForm] = &[StoredForm::first("ag", Distinction::Alone)];

fn told(plan: &Plan, families: Vec<OfFamily>) -> Vec<Chapter> {
    let ag = FamilyDescriptor {
        id: KernelId("sptrsv.ag"),
        op: Op::Sptrsv,
        device: DeviceKind::Cuda,
        provider: Provider::Own,
        title: "AG",
        summary: "Nodes.",
        source: Some("AG-SpTRSV, section 4"),
        stored: STORED,
        parameters: Vec::new(),
        flags: Flags::default(),
    };
    chapters(&Search::of(plan, &Catalogue::new(vec![ag]), families, None))
}

#[test]
fn the_finals_are_told_by_both_clocks() {
    let finals = |plan: &Plan| {
        let told = told(plan, Vec::new());
        let of = told.iter().find(|chapter| chapter.id == "finals");
        of.map(|chapter| chapter.said.join(" ")).unwrap_or_default()
    };
    let mut plan = plan();
    let old = finals(&plan);
    assert!(
        old.contains("Times are of each call alone.") && !old.contains("back to back"),
        "{old}"
    );
    let time = |us| Some(ClockTime { median_us: us, ci95_us: [us; 2], samples: 9 });
    let row = |us| Clocks { pipelined: time(us), ..Clocks::default() };
    plan.measured.as_mut().unwrap().clocks = row(10.0);
    plan.baseline.as_mut().unwrap().clocks = row(15.0);
    let both = finals(&plan);
    let other = format!(
        "With calls back to back the winner took {}, and sprs {}, {} that.",
        numbers::micros(10.0),
        numbers::micros(15.0),
        numbers::times(1.5)
    );
    assert!(both.contains(&other), "{both}");
}

fn text(chapters: &[Chapter]) -> String {
    let lines = chapters.iter().flat_map(|chapter| {
        let points = chapter.points.iter().map(|(name, text)| format!("{name}: {text}"));
        chapter.said.iter().cloned().chain(points)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_never_was_a_candidate_is_told_with_the_space_and_counted_nowhere_else() {
    let old = plan();
    let mut new = plan();
    new.funnel.insert(
        0,
        FunnelStep {
            constraint: funnel::COMBINATIONS.to_owned(),
            removed: 90_000,
            left: 100,
            detail: Some("80000 without a kernel; 10000 that do the same".to_owned()),
        },
    );
    let (old, new) = (told(&old, Vec::new()), told(&new, Vec::new()));
    assert_eq!(text(&old), text(&new));
    for (before, after) in old.iter().zip(&new) {
        let names = |chapter: &Chapter| -> Vec<String> {
            chapter.steps.iter().map(|step| step.name.clone()).collect()
        };
        match after.id {
            "space" => {
                assert!(before.steps.is_empty());
                assert_eq!(names(after), [funnel::COMBINATIONS]);
                assert_eq!(after.steps[0].details.len(), 2);
                let counted = "Of 90,100 combinations 100 are candidates; 90,000 never were.";
                assert_eq!(after.steps[0].counted, counted);
            }
            _ => assert_eq!(names(before), names(after)),
        }
    }
}

#[test]
fn rules_and_choices_are_told_apart_and_counted() {
    let told = told(&plan(), Vec::new());
    let rules = told.iter().find(|chapter| chapter.id == "rules").unwrap();
    assert!(
        rules.said[0].contains("Of 100 candidates they removed 70 (70 %); 30 were left."),
        "{:?}",
        rules.said
    );
    let names: Vec<&str> = rules.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["register_resource", "load_balance", "of_another_version"]);
    assert_eq!(rules.steps[2].title, "of another version");
    let choice = told.iter().find(|chapter| chapter.id == "choice").unwrap();
    assert_eq!(choice.steps.len(), 1);
}

#[test]
fn families_are_counted_and_the_fastest_is_first() {
    let record = |family, us| Record { family, count: 1, us, candidate: None };
    let records = [record("a", None), record("b", Some(3.0)), record("b", Some(2.0))];
    let families = by_family(records.into_iter());
    let of: Vec<_> =
        families.iter().map(|f| (f.family.as_str(), f.candidates, f.measured, f.best_us)).collect();
    assert_eq!(of, [("b", 2, 2, Some(2.0)), ("a", 1, 0, None)]);
}

#[test]
fn what_is_no_longer_stored_is_said() {
    let all = text(&told(&plan(), Vec::new()));
    assert!(all.contains("the trials of this search are no longer stored"), "{all}");
}

#[test]
fn a_solve_goes_through_the_four_stages() {
    let mut plan = plan();
    let solve =
        serde_json::json!({"op": "sptrsv", "rhs": 1, "triangle": "lower", "diagonal": "unit"});
    plan.problem = serde_json::from_value(solve).unwrap();
    plan.device.kind = DeviceKind::Cuda;
    let record = Record { family: "ag", count: 2, us: Some(9.0), candidate: None };
    let told = told(&plan, by_family([record].into_iter()));
    let ids: Vec<&str> = told.iter().map(|chapter| chapter.id).collect();
    let stages = ["space", "prepare", "transform", "schedule", "rules", "choice"];
    assert_eq!(&ids[..6], stages);
    assert!(
        text(&told).contains("Its schemes, made in four stages, are ag: 2 candidates"),
        "{}",
        text(&told)
    );
}
