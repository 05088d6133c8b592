//! The family `ag` without a GPU: its space, its rules, and its lowered schedules interpreted on the host.

mod device;
mod systems;

use rayon::prelude::*;
use sparsetune::domain::{Candidate, Dtype, Fixed, Param};
use sparsetune::ops::sptrsv::Share;
use sparsetune::ops::sptrsv::System;
use sparsetune::ops::sptrsv::ag::prepare::TECHNIQUES;
use sparsetune::ops::sptrsv::ag::rules::{MOST, RULES, sentences};
use sparsetune::ops::sptrsv::ag::select::Space;
use sparsetune::ops::sptrsv::ag::{self, AgLowerer, Scheme, whole};
use sparsetune::search::Draw;
use sparsetune::sparse::oracle;
use std::collections::HashSet;

/// The reduced list without fixed values.
fn share(system: &System) -> Share {
    ag::share(system, &Fixed::default())
}

fn fixed(name: &str, value: &str) -> Fixed {
    Fixed([(name.to_owned(), Param::Text(value.to_owned()))].into())
}

/// Every `step`-th scheme of the full space, from `first` on.
fn sample(first: u64, step: u64) -> Vec<Candidate> {
    let space = Space::default();
    let numbers = (first..space.count()).step_by(step as usize);
    numbers.map(|number| space.nth(number).expect("in the space").candidate()).collect()
}

/// Solves three right-hand sides in turn on the interpreted device; `false` if the scheme was refused.
fn solves(name: &str, system: &System, lowerer: &mut AgLowerer, candidate: &Candidate) -> bool {
    let recipe = match lowerer.lower(candidate, system) {
        Ok(recipe) => recipe,
        Err(refusal) => {
            let known = refusal.to_string().contains("bytes of shared memory; the device has");
            assert!(known, "{name}, {candidate}: {refusal}");
            return false;
        }
    };
    let mut device = device::Device::new(system, &recipe);
    for call in 0..3 {
        let rows = system.triangular.rows();
        let mut stream = systems::Stream(call);
        let b: Vec<f64> = (0..rows).map(|_| stream.range(-1.0, 1.0)).collect();
        let expected = oracle::sptrsv(&system.triangular, &b, 1);
        let x = device.call(&b);
        for (row, (x, expected)) in x.iter().zip(&expected).enumerate() {
            let error = (x - expected).abs() / (1.0 + expected.abs());
            assert!(error < 1e-9, "{name}, {candidate}, row {row}: {x}, not {expected}");
        }
    }
    true
}

#[test]
fn schemes_of_the_whole_space_solve_odd_systems() {
    let systems: Vec<_> = [Dtype::F64, Dtype::F32].into_iter().flat_map(systems::systems).collect();
    systems.par_iter().enumerate().for_each(|(at, (name, system))| {
        let mut lowerer = AgLowerer::default();
        // A prime step, and another start for each system: every parameter value meets every shape in the end.
        let solved: Vec<bool> = sample(at as u64 * 131, 8191)
            .iter()
            .map(|candidate| solves(name, system, &mut lowerer, candidate))
            .collect();
        assert!(solved.iter().filter(|solved| **solved).count() > 50, "{name}");
    });
}

#[test]
fn schemes_without_one_technique_solve_too() {
    for (name, system) in systems::systems(Dtype::F64) {
        let mut lowerer = AgLowerer::default();
        for technique in TECHNIQUES {
            for candidate in sample(97, 65_537) {
                let without = candidate.with_text("without", technique.name());
                let scheme = Scheme::of(&without).expect("a scheme");
                assert_eq!(scheme.candidate(), without);
                solves(&name, &system, &mut lowerer, &without);
            }
        }
    }
}

#[test]
fn schemes_of_the_reduced_list_solve_and_are_predicted() {
    for (name, system) in systems::systems(Dtype::F64) {
        let share = share(&system);
        assert!(!share.scored.is_empty() && share.scored.len() <= MOST, "{name}");
        assert!(share.rules.len() >= 5);
        assert!(share.scored.iter().all(|(_, us)| us.is_finite() && *us > 0.0), "{name}");
        let distinct: HashSet<_> = share.scored.iter().map(|(candidate, _)| candidate).collect();
        assert_eq!(distinct.len(), share.scored.len(), "{name}: a scheme is listed twice");
        let mut lowerer = AgLowerer::default();
        let count = share.scored.len();
        for (candidate, _) in share.scored.iter().step_by(count.div_ceil(40)) {
            assert!(Scheme::of(candidate).is_some(), "{candidate}");
            assert!(solves(&name, &system, &mut lowerer, candidate), "{name}: {candidate}");
        }
    }
}

#[test]
fn the_list_is_deterministic_and_its_first_64_are_of_many_kinds() {
    let (name, system) = &systems::systems(Dtype::F32)[16];
    let (once, again) = (share(system), share(system));
    assert_eq!(once.scored, again.scored);
    let mut scored = once.scored;
    scored.sort_by(|a, b| a.1.total_cmp(&b.1));
    let of = |parameter: &str| {
        let texts = scored.iter().take(64).filter_map(|(candidate, _)| candidate.text(parameter));
        texts.collect::<HashSet<_>>().len()
    };
    assert!(of("merge") >= 4 && of("reorder") == 2 && of("sync") == 2, "{name}");
}

#[test]
fn a_drawn_scheme_is_in_the_list_or_breaks_a_rule() {
    let mut rules_met = HashSet::new();
    let systems = systems::systems(Dtype::F64);
    let met: Vec<HashSet<String>> = systems
        .par_iter()
        .map(|(name, system)| {
            let listed: HashSet<Candidate> =
                share(system).scored.into_iter().map(|(candidate, _)| candidate).collect();
            let most = 4000;
            let drawn = whole(system, &Fixed::default(), &Draw { most, seed: 3 });
            assert_eq!(drawn.scored.len(), most, "{name}");
            assert!(drawn.full <= Space::default().count() && drawn.full > 300_000, "{name}");
            let distinct: HashSet<&Candidate> = drawn.scored.iter().map(|(c, _)| c).collect();
            assert_eq!(distinct.len(), most, "{name}");
            let mut lowerer = AgLowerer::default();
            for (at, (candidate, us)) in drawn.scored.iter().enumerate() {
                assert!(us.is_finite() && *us > 0.0, "{name}: {candidate}");
                let removal = drawn.despite.get(&candidate.id());
                assert_eq!(removal.is_none(), listed.contains(candidate), "{name}: {candidate}");
                if at % 100 == 0 {
                    assert!(solves(name, system, &mut lowerer, candidate), "{name}: {candidate}");
                }
            }
            drawn.despite.into_values().map(|removal| removal.pruned_by).collect()
        })
        .collect();
    rules_met.extend(met.into_iter().flatten());
    for rule in RULES {
        assert!(rules_met.contains(rule), "no drawn scheme breaks {rule}");
    }
    assert_eq!(rules_met.len(), RULES.len());
    // Every rule has its words.
    assert_eq!(sentences().len(), RULES.len());
}

#[test]
fn fixed_values_are_drawn_and_listed_whatever_the_rules_prefer() {
    let (name, system) = &systems::systems(Dtype::F64)[8];
    let count = Space::default().count();
    for (parameter, value, of) in
        [("rg", "balance", 2), ("alpha", "8", 6), ("ag.nw", "32", 6), ("read", "shared", 2)]
    {
        let fixed = fixed(parameter, value);
        assert_eq!(Space::admitted(&fixed).count(), count / of, "{parameter}");
        let short = parameter.trim_start_matches("ag.");
        let list = ag::share(system, &fixed).scored;
        let draw = whole(system, &fixed, &Draw { most: 50, seed: 1 }).scored;
        assert!(!list.is_empty() && draw.len() == 50, "{name}: {parameter}");
        for (candidate, _) in list.iter().chain(&draw) {
            assert_eq!(candidate.params[short].to_string(), value, "{candidate}");
        }
    }
    let without = ag::share(system, &fixed("without", "early_division")).scored;
    assert_eq!(without.len(), share(system).scored.len());
    for (candidate, _) in &without {
        assert_eq!(candidate.text("without"), Some("early_division"));
        assert!(Scheme::of(candidate).is_some());
    }
}

#[test]
fn the_full_space_is_counted_exactly() {
    // Thresholds for 1, 2, 4 .. 32 subwarps: 0, infinity, and 6, 5, 4 .. 1 powers.
    let subwarps: u64 = (1..=6).map(|powers| powers + 2).sum();
    let variants = 6 * subwarps * 2;
    let graphs = 2 * 18;
    let schedules = 2 * 3 * (5 + 1);
    let space = Space::default();
    assert_eq!(space.count(), variants * graphs * schedules);
    assert!(space.count() >= 300_000, "the paper counts over 3.2e5");
    assert_eq!(space.nth(space.count()), None);
    // One number, one scheme, and back from its text.
    let mut seen = HashSet::new();
    for number in (0..space.count()).step_by(61) {
        let scheme = space.nth(number).expect("in the space");
        assert!(seen.insert(scheme), "{number}");
        assert_eq!(Scheme::of(&scheme.candidate()), Some(scheme));
    }
}

#[test]
fn unsupported_problems_are_refused_with_reasons() {
    let (_, system) = systems::systems(Dtype::F64).remove(12);
    let space = Space::default();
    let scheme = space.nth(0).expect("a scheme").candidate();
    let refusal = |candidate: &Candidate, system: &System| {
        AgLowerer::default().lower(candidate, system).expect_err("refused").to_string()
    };
    let several = System::of(
        &systems::matrices()[8].1,
        &sparsetune::domain::Sptrsv { rhs: 2, ..systems::problem(Dtype::F64) },
        &systems::gpu(),
    )
    .expect("a system");
    assert!(refusal(&scheme, &several).contains("one right-hand side"));
    assert!(share(&several).scored.is_empty());
    assert_eq!(share(&several).full, space.count());
    let unknown = scheme.clone().with("nw", 3);
    assert!(refusal(&unknown, &system).contains("is not a candidate"));
    let more = scheme.with("extra", 1);
    assert!(refusal(&more, &system).contains("is not a candidate"));
}
