//! A digest of every kernel's answers about its candidates. The answers decide which candidates are tried and which wins a
//! tie, so none may change unnoticed.

use super::{Kernels, Narrowing, Space, family_names, kernel_headers, of, space};
use crate::domain::catalog::rules::{self, Force, Side};
use crate::domain::problem::{Diagonal, Stability, Triangle};
use crate::domain::{
    Candidate, Device, DeviceKind, Digest, Dtype, Fixed, FunnelStep, Layout, Param, Problem, Spmm,
    Sptrsv, funnel,
};
use crate::ops::sptrsv::ag;
use crate::search::Draw;
use crate::sparse::Csr;
use crate::sparse::generate::Spec;
use std::collections::HashMap;

fn products() -> Vec<Spmm> {
    let mut all = Vec::new();
    for dtype in [Dtype::F16, Dtype::F32, Dtype::F64] {
        for layout in [Layout::Row, Layout::Col] {
            all.extend([1, 8, 32, 33, 128].map(|n| Spmm::new(n, dtype, layout)));
        }
    }
    all.push(Spmm { tf32: true, ..Spmm::new(32, Dtype::F32, Layout::Row) });
    all.push(Spmm { accumulate: true, ..Spmm::new(32, Dtype::F32, Layout::Row) });
    all
}

pub fn device(kind: DeviceKind) -> Device {
    let line = include_str!("../../tests/pool/recording.jsonl").lines().next().unwrap();
    let header: serde_json::Value = serde_json::from_str(line).unwrap();
    let device: Device = serde_json::from_value(header["device"].clone()).unwrap();
    Device { kind, multiprocessors: 64, hop_ns: 600.0, copy_gbps: 2000.0, ..device }
}

fn routine(name: &str) -> Candidate {
    Candidate::new("vendor").with_text("algorithm", name)
}

/// Every candidate of several problems, on both kinds of device, and every routine of the vendors.
pub fn everything() -> Vec<(Problem, DeviceKind, Candidate)> {
    let mut all = Vec::new();
    let mut add = |problem: Problem, kind, candidates: Vec<Candidate>| {
        all.extend(candidates.into_iter().map(|candidate| (problem, kind, candidate)));
    };
    for product in products() {
        for kind in [DeviceKind::Cuda, DeviceKind::Cpu] {
            add(Problem::Spmm(product), kind, super::spmm::space::enumerate(&product, kind));
        }
        let gpu = ["csr_alg1", "csr_alg2", "csr_alg3", "cublas_dense", "cublas_dense_tf32"];
        add(Problem::Spmm(product), DeviceKind::Cuda, gpu.map(routine).to_vec());
        let host = ["mkl_mm", "mkl_mv", "plain_csr", "sprs"];
        add(Problem::Spmm(product), DeviceKind::Cpu, host.map(routine).to_vec());
    }
    // A factor, whose rows need each other as those of a grid do not, and a family that only very wide levels are for.
    let factor = Spec::parse("cholesky_poisson2d:nx=30,ny=30,seed=1").unwrap().generate().unwrap();
    for family in ["chains", "streamed"] {
        let problem = Problem::Sptrsv(Sptrsv::PLAIN);
        let listed = among(&factor, &problem, &device(DeviceKind::Cuda), &[family]).scored;
        let mut listed: Vec<Candidate> =
            listed.into_iter().map(|(candidate, _)| candidate).collect();
        listed.sort();
        add(problem, DeviceKind::Cuda, listed);
    }
    let matrix = Spec::parse("poisson2d:nx=200,ny=100,seed=1").unwrap().generate().unwrap();
    for (rhs, dtype) in [(1, Dtype::F64), (1, Dtype::F32), (3, Dtype::F64)] {
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let solve = Sptrsv { rhs, dtype, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
        let problem = Problem::Sptrsv(solve);
        for kind in [DeviceKind::Cuda, DeviceKind::Cpu] {
            let mut listed: Vec<Candidate> = space(&matrix, &problem, &device(kind))
                .unwrap()
                .scored
                .into_iter()
                .map(|(candidate, _)| candidate)
                .collect();
            // Their order is that of predicted times, which is not what is pinned here.
            listed.sort();
            add(problem, kind, listed);
        }
        add(
            problem,
            DeviceKind::Cuda,
            ["spsv_alg2", "spsv", "spsv_alg1", "spsm"].map(routine).to_vec(),
        );
        let host = ["mkl_trsv", "mkl_trsm", "plain_solve", "sprs"];
        add(problem, DeviceKind::Cpu, host.map(routine).to_vec());
    }
    let near = Problem::Sptrsv(Sptrsv { approximate: true, ..Sptrsv::PLAIN });
    let nearly = among(&matrix, &near, &device(DeviceKind::Cuda), &["sweeps", "inverse"]).scored;
    let mut nearly: Vec<Candidate> = nearly.into_iter().map(|(candidate, _)| candidate).collect();
    nearly.sort();
    add(near, DeviceKind::Cuda, nearly);
    all
}

#[derive(Default)]
struct Classes(HashMap<String, usize>);

impl Classes {
    /// The index of a name among the distinct names, in order of first appearance.
    fn of(&mut self, name: String) -> usize {
        let next = self.0.len();
        *self.0.entry(name).or_insert(next)
    }
}

#[test]
fn decisions_about_candidates_stay() {
    let mut text = String::new();
    let (mut preparations, mut varieties) = (Classes::default(), Classes::default());
    let mut before = None;
    for (problem, kind, candidate) in everything() {
        if before != Some((problem, kind)) {
            before = Some((problem, kind));
            (preparations, varieties) = (Classes::default(), Classes::default());
        }
        let kernels = Kernels::of(&problem, kind);
        let line = format!(
            "{problem} {kind:?} {candidate} {} {} {} {} {} {}\n",
            preparations.of(kernels.preparation(&candidate)),
            varieties.of(kernels.variety(&candidate)),
            kernels.complexity(&candidate),
            kernels.needs_finite_dense(&candidate),
            candidate.is_baseline(),
            candidate.is_densified(),
        );
        text.push_str(&line);
    }
    let mut headers = kernel_headers();
    headers.sort_unstable();
    text.push_str(&format!("{headers:?}"));
    let lines = text.lines().count();
    let expected = "3a25c6c4bfb2fb0d63fa7ce690852784cd9bd0ac6877927c7c58478221a9434f";
    assert_eq!((lines, Digest::of(text.as_bytes()).to_string()), (62784, expected.to_owned()));
}

#[test]
fn a_draw_from_several_families_has_as_much_of_each_as_there_is() {
    let matrix = Spec::parse("poisson2d:nx=30,ny=20,seed=1").unwrap().generate().unwrap();
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    let single =
        Sptrsv { rhs: 1, dtype: Dtype::F64, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
    let draw = |solve: Sptrsv, families: &[&str]| {
        let families = families.iter().map(|&family| family.to_owned()).collect();
        let full = Some(Draw { most: 400, seed: 1 });
        let narrowing = Narrowing { families, full, ..Narrowing::default() };
        of(&Problem::Sptrsv(solve)).space(&matrix, &device(DeviceKind::Cuda), &narrowing).unwrap()
    };
    let counted = |space: Space| space.pruned.funnel.last().map(|step| step.left + step.removed);
    let [own, overlapped, chains, streamed, other] =
        ["slices", "overlapped", "chains", "streamed", "ag"]
            .map(|family| counted(draw(single, &[family])).unwrap() as f64);
    let all = draw(single, &[]);
    let slices = all.scored.iter().filter(|(one, _)| one.family == "slices").count();
    assert_eq!(all.scored.len(), 400);
    let expected = 400.0 * own / (own + overlapped + chains + streamed + other);
    assert!((slices as f64 - expected).abs() <= 2.0, "{slices}: {expected}");
    // None of the other families can run.
    let several = draw(Sptrsv { rhs: 2, ..single }, &[]);
    assert_eq!((several.scored.len(), counted(several)), (400, Some(own as u64)));
}

fn with_vendor(kind: DeviceKind) -> Device {
    Device { vendor: Some("library".to_owned()), ..device(kind) }
}

/// The space of a problem among these families.
fn among(matrix: &Csr, problem: &Problem, device: &Device, families: &[&str]) -> Space {
    let families: Vec<String> = families.iter().map(|&family| family.to_owned()).collect();
    let narrowing = Narrowing { families, ..Narrowing::default() };
    super::of(problem).space(matrix, device, &narrowing).unwrap()
}

/// Whatever a funnel or a removal names has words, and what is left can be told by its numbers.
#[test]
fn rules_have_words_and_the_candidates_that_are_left_have_numbers() {
    let matrix = Spec::parse("poisson2d:nx=40,ny=40").unwrap().generate().unwrap();
    for kind in [DeviceKind::Cuda, DeviceKind::Cpu] {
        let plain = Problem::Spmm(Spmm::new(33, Dtype::F32, Layout::Row));
        let space = space(&matrix, &plain, &with_vendor(kind)).unwrap();
        let steps = space.pruned.funnel.iter().map(|step| step.constraint.clone());
        let removals = space.pruned.removed.iter().map(|removed| removed.removal().pruned_by);
        for name in steps.chain(removals) {
            assert!(rules::rule(&name).is_some(), "{name}");
        }
        for (candidate, _) in &space.scored {
            let judged = space.judged(candidate);
            assert!(judged.len() >= 3, "{candidate}: {judged:?}");
            for own in judged {
                let rule = rules::rule(&own.constraint).unwrap();
                assert_ne!(rule.side, Side::Neither, "{candidate}: {own:?}");
                assert!(own.kept || rule.force == Force::Soft, "{candidate}: {own:?}");
                let within = match rule.side {
                    Side::AtMost => own.value <= own.limit,
                    _ => own.value >= own.limit,
                };
                assert_eq!(own.kept, within, "{candidate}: {own:?}");
            }
        }
        assert!(space.judged(&routine("csr_alg2")).is_empty());
    }
}

#[test]
fn a_search_among_one_family_finds_it_or_says_why_not() {
    // Rows of one entry each, far apart: packed panels are nearly empty, and no row is long.
    let rows = 4000;
    let columns = (0..rows as u32).map(|row| row * 31 % rows as u32).collect();
    let scattered = Csr::new(rows, rows, (0..=rows).collect(), columns, vec![1.0; rows]).unwrap();
    let plain = Problem::Spmm(Spmm::new(32, Dtype::F32, Layout::Row));
    let mut spared = 0;
    for kind in [DeviceKind::Cuda, DeviceKind::Cpu] {
        let device = with_vendor(kind);
        let whole = space(&scattered, &plain, &device).unwrap();
        for family in family_names(plain.op(), kind) {
            let space = among(&scattered, &plain, &device, &[family]);
            assert!(space.scored.iter().all(|(candidate, _)| candidate.family == family));
            let first = funnel::of_candidates(&space.pruned.funnel).next().unwrap();
            let all = whole.pruned.kept.len() + whole.pruned.removed.len();
            assert_eq!(
                (&*first.constraint, (first.removed + first.left) as usize),
                ("requested", all)
            );
            let why = space.nothing_of(&[family.to_owned()], &Fixed::default());
            assert_eq!(why.is_some(), space.scored.is_empty() && family != "vendor", "{why:?}");
            let hidden = whole.scored.iter().all(|(candidate, _)| candidate.family != family);
            spared += usize::from(hidden && !space.scored.is_empty());
        }
    }
    assert!(spared > 0, "no preference hides a family of this matrix");
}

#[test]
fn a_solve_among_one_family_finds_it_or_says_why_not() {
    let indptr = (0..=50).map(|row| (2 * row as usize).saturating_sub(1)).collect();
    let indices = (0..50).flat_map(|row: u32| row.saturating_sub(1)..=row).collect();
    let chain = Csr::new(50, 50, indptr, indices, vec![1.0; 99]).unwrap();
    let solve = |rhs| {
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let dtype = Dtype::F64;
        Problem::Sptrsv(Sptrsv {
            rhs,
            dtype,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        })
    };
    let (gpu, host) = (with_vendor(DeviceKind::Cuda), with_vendor(DeviceKind::Cpu));
    // On a chain the rules leave the serial scheme alone.
    let space = among(&chain, &solve(1), &host, &["levels"]);
    assert_eq!((space.scored.len(), &*space.scored[0].0.family), (1, "levels"));
    let steps: Vec<&str> = space.pruned.funnel.iter().map(|step| &*step.constraint).collect();
    assert_eq!(steps, ["requested", "reduction"]);
    assert_eq!(space.described.own.len(), 1);
    let both =
        among(&chain, &solve(1), &gpu, &["ag", "chains", "overlapped", "slices", "streamed"]);
    assert_eq!(both.pruned.funnel[0].removed, 0);
    let ag = among(&chain, &solve(1), &gpu, &["ag"]);
    assert!(ag.scored.iter().all(|(candidate, _)| candidate.family == "ag"));
    assert!(
        !ag.scored.is_empty() && ag.nothing_of(&["ag".to_owned()], &Fixed::default()).is_none()
    );
    let none = among(&chain, &solve(3), &gpu, &["ag"]);
    let why = none.nothing_of(&["ag".to_owned()], &Fixed::default()).unwrap();
    assert!(why.contains("one right-hand side at a time"), "{why}");
    // The vendor's routine is no reason to fail if it is asked for.
    assert_eq!(none.nothing_of(&["ag".to_owned(), "vendor".to_owned()], &Fixed::default()), None);
}

#[test]
fn values_that_a_solve_does_not_ask_for_go_before_the_reduction() {
    let matrix = Spec::parse("ilu0_poisson2d:nx=40,ny=40,seed=1").unwrap().generate().unwrap();
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    let single =
        Sptrsv { rhs: 1, dtype: Dtype::F64, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
    let asked = |kind, rhs, families: &[&str], (name, value): (&str, i64)| {
        let families: Vec<String> = families.iter().map(|&family| family.to_owned()).collect();
        let fixed = Fixed([(name.to_owned(), Param::Int(value))].into());
        let narrowing = Narrowing { families, fixed, ..Narrowing::default() };
        let solve = Problem::Sptrsv(Sptrsv { rhs, ..single });
        let space = of(&solve).space(&matrix, &device(kind), &narrowing).unwrap();
        let scored = space.scored.iter();
        assert!(scored.clone().all(|(candidate, _)| narrowing.fixed.admits(candidate)));
        let steps: Vec<&FunnelStep> =
            space.pruned.funnel.iter().filter(|step| step.constraint != "requested").collect();
        assert_eq!(steps[0].constraint, "fixed");
        assert_eq!((&*steps[1].constraint, steps.len()), ("reduction", 2));
        assert_eq!(steps[0].left, steps[1].removed + steps[1].left);
        assert_eq!(steps[1].left, scored.len() as u64);
        let why = space.nothing_of(&narrowing.families, &narrowing.fixed).unwrap_or_default();
        (steps[0].removed, steps[0].left, why)
    };
    let gpu = |rhs, fixed| asked(DeviceKind::Cuda, rhs, &["ag"], fixed);
    // One of ag's numbers of warps.
    let all = ag::Space::default().count();
    let one = all / ag::prepare::NW.len() as u64;
    assert_eq!(gpu(1, ("nw", 8)), (all - one, one, String::new()));
    let both = asked(DeviceKind::Cuda, 1, &[], ("nw", 8));
    assert_eq!(
        (both.0, both.2),
        (all - one, String::new()),
        "no other family has such a parameter"
    );
    let (_, left, why) = gpu(3, ("nw", 8));
    assert!(left == one && why.contains("one right-hand side at a time"), "{why}");
    let (_, left, why) = gpu(1, ("nw", 3));
    assert!(left == 0 && why.ends_with("there is none for this problem"), "{why}");
    let slices = asked(DeviceKind::Cuda, 1, &["slices"], ("warps", 32));
    assert_eq!((slices.1, slices.2), ((slices.0 + slices.1) / 6, String::new()));
    let host = asked(DeviceKind::Cpu, 1, &["merged"], ("threads", 64));
    assert_eq!(host.0, 5 * host.1);
    assert!(host.1 > 0 && host.2.contains("the strategy full searches the whole space"));
}

/// A candidate is measured alone by asking for its family and for its parameters, all of them and no others.
#[test]
fn a_family_and_all_values_of_a_candidate_leave_it_alone() {
    let grid = Spec::parse("ilu0_poisson2d:nx=20,ny=20,seed=1").unwrap().generate().unwrap();
    let product = Problem::Spmm(Spmm::new(33, Dtype::F32, Layout::Row));
    let solve = |rhs, approximate| Problem::Sptrsv(Sptrsv { rhs, approximate, ..Sptrsv::PLAIN });
    // With and without near columns.
    let narrow = Problem::Spmm(Spmm::new(8, Dtype::F32, Layout::Row));
    let usual = [product, narrow, solve(1, true), solve(3, false)];
    let kinds = [DeviceKind::Cuda, DeviceKind::Cpu];
    for (problem, kind) in usual.iter().flat_map(|problem| kinds.map(|kind| (*problem, kind))) {
        let device = with_vendor(kind);
        let all = space(&grid, &problem, &device).unwrap().scored;
        // The first and the last of each family: models choose any.
        let mut ends: HashMap<&str, [&Candidate; 2]> = HashMap::new();
        for (candidate, _) in &all {
            ends.entry(&candidate.family).or_insert([candidate; 2])[1] = candidate;
        }
        assert!(!ends.is_empty(), "{problem} {kind:?}");
        for candidate in ends.into_values().flatten() {
            let fixed = Fixed(candidate.params.clone());
            let families = vec![candidate.family.clone()];
            let narrowing = Narrowing { families, fixed, exact: true, ..Narrowing::default() };
            let left = of(&problem).space(&grid, &device, &narrowing).unwrap().scored;
            let left: Vec<&Candidate> = left.iter().map(|(candidate, _)| candidate).collect();
            assert_eq!(left, [candidate], "{problem} {kind:?}");
        }
    }
}

/// The stricter stability leaves no scheme that rewrites, in lists and in draws of the full space, and has a key of its own.
#[test]
fn a_solve_that_is_stable_row_by_row_is_never_rewritten() {
    let matrix = Spec::parse("cholesky_poisson2d:nx=40,ny=40,seed=1").unwrap().generate().unwrap();
    let rewritten = |stability, full| {
        let narrowing = Narrowing { full, ..Narrowing::default() };
        let solve = Problem::Sptrsv(Sptrsv { stability, ..Sptrsv::PLAIN });
        let space = of(&solve).space(&matrix, &device(DeviceKind::Cuda), &narrowing).unwrap();
        let count = |rewrites: &dyn Fn(&Candidate) -> bool| {
            space.scored.iter().filter(|(candidate, _)| rewrites(candidate)).count()
        };
        [
            count(&|c| c.int("window_ns").is_some_and(|ns| ns > 0)),
            count(&|c| c.int("substitute") == Some(1)),
            count(&|c| ["slices", "chains"].contains(&c.family.as_str())),
        ]
    };
    for full in [None, Some(Draw { most: 4000, seed: 1 })] {
        let [windows, chains, all] = rewritten(Stability::RowWise, full);
        assert!(windows == 0 && chains == 0 && all > 10, "{windows} {chains} {all}");
        let [windows, chains, all] = rewritten(Stability::Windowed, full);
        assert!(windows > 10 && chains > 0 && all > windows + chains, "{windows} {chains} {all}");
    }
    let named = |stability| {
        let solve = Problem::Sptrsv(Sptrsv { stability, ..Sptrsv::PLAIN });
        solve.key_fields().any(|(field, _)| field.name == "stability")
    };
    assert!(named(Stability::RowWise));
    assert!(!named(Stability::Windowed), "plans from before are found");
}

/// Only by consent, with as many sweeps as the system needs, and with a key of its own.
#[test]
fn sweeps_are_for_those_who_consent_to_an_approximate_solve() {
    let matrix = Spec::parse("ilu0_poisson2d:nx=40,ny=40,seed=1").unwrap().generate().unwrap();
    let of_sweeps = |approximate, kind, full, families: &[&str]| {
        let families = families.iter().map(|&family| family.to_owned()).collect();
        let narrowing = Narrowing { full, families, ..Narrowing::default() };
        let solve = Problem::Sptrsv(Sptrsv { approximate, ..Sptrsv::PLAIN });
        let space = of(&solve).space(&matrix, &device(kind), &narrowing).unwrap();
        let swept: Vec<i64> = space
            .scored
            .iter()
            .filter(|(candidate, _)| candidate.family == "sweeps")
            .map(|(candidate, _)| candidate.int("sweeps").unwrap())
            .collect();
        let others = space.scored.len() - swept.len();
        (swept, others, space.nothing_of(&narrowing.families, &narrowing.fixed))
    };
    for full in [None, Some(Draw { most: 2000, seed: 1 })] {
        let (swept, others, _) = of_sweeps(true, DeviceKind::Cuda, full, &[]);
        assert!(!swept.is_empty() && others > 10, "exact schemes are tried beside them");
        assert!(of_sweeps(false, DeviceKind::Cuda, full, &[]).0.is_empty());
        assert!(of_sweeps(true, DeviceKind::Cpu, full, &[]).0.is_empty());
    }
    let (swept, ..) = of_sweeps(true, DeviceKind::Cuda, None, &["sweeps"]);
    // One sweep is b over the diagonal, which is not near.
    assert!(swept.iter().all(|&sweeps| sweeps > 1), "{swept:?}");
    // As many as both triangles of a preconditioner are to have, if asked for, though fewer suffice.
    let fixed = Fixed([("sweeps".to_owned(), Param::Int(24))].into());
    let solve = Problem::Sptrsv(Sptrsv { approximate: true, ..Sptrsv::PLAIN });
    let narrowing = Narrowing { fixed, ..Narrowing::default() };
    let space = of(&solve).space(&matrix, &device(DeviceKind::Cuda), &narrowing).unwrap();
    let mut fixed = space.scored.iter().filter(|(candidate, _)| candidate.family == "sweeps");
    assert!(!swept.contains(&24) && fixed.clone().count() > 0);
    assert!(fixed.all(|(candidate, _)| candidate.int("sweeps") == Some(24)));
    // Fewer than suffice are refused with the number that does.
    let fixed = Fixed([("sweeps".to_owned(), Param::Int(1))].into());
    let families = vec!["sweeps".to_owned()];
    let narrowing = Narrowing { fixed: fixed.clone(), families, ..Narrowing::default() };
    let space = of(&solve).space(&matrix, &device(DeviceKind::Cuda), &narrowing).unwrap();
    let why = space.nothing_of(&narrowing.families, &fixed).unwrap();
    let least = swept.iter().min().unwrap();
    let needs = format!(
        "the request fixes sweeps=1, but the system's equations need sweeps={least} at least"
    );
    assert!(why.contains(&needs), "{why}");
    for family in ["sweeps", "inverse"] {
        let why = of_sweeps(false, DeviceKind::Cuda, None, &[family]).2.unwrap();
        assert!(why.contains("only for problems with `approximate`"), "{why}");
    }
    let named = |approximate| {
        let solve = Problem::Sptrsv(Sptrsv { approximate, ..Sptrsv::PLAIN });
        solve.key_fields().any(|(field, _)| field.name == "approximate")
    };
    assert!(named(true) && !named(false), "plans from before are found");
}
