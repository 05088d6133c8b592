//! Systems that amplify their right-hand side: rewritten, and refined in the kernels' own steps.

use super::*;
use crate::amplifying::amplifying;
use sparsetune::ops::sptrsv::slices::refine;
use sparsetune::sparse::tolerance::solution_tolerance;

/// b - T x with every operation in the type of the problem, as the kernel computes it.
fn residual(system: &System, x: &[f64], b: &[f64]) -> Vec<f64> {
    let t = &system.triangular;
    let rounded = |value: f64| match system.problem.dtype {
        Dtype::F64 => value,
        _ => f64::from(value as f32),
    };
    let mut left = vec![0.0; b.len()];
    for s in 0..t.rows() {
        let row = t.original(s);
        let terms = t.row(s).0.iter().zip(t.row(s).1);
        let sum = terms.fold(0.0, |sum, (&col, &value)| {
            rounded(value.mul_add(x[t.original(col as usize)], sum))
        });
        left[row] = rounded((-t.diagonal[s]).mul_add(x[row], rounded(b[row] - sum)));
    }
    left
}

/// The errors of the first solve and of the refined one, beside the tolerance of verification.
fn errors(system: &System, equations: &Equations, lanes: u32, b: &[f64]) -> (f64, f64) {
    let dtype = system.problem.dtype;
    let packed = pack(equations, dtype, packing(32, lanes)).expect("packs");
    let mut x = interpret(&packed, 32, b);
    let first = backward_error(system, &x, b);
    let more = interpret(&packed, 32, &residual(system, &x, b));
    let single = dtype == Dtype::F32;
    for (x, more) in x.iter_mut().zip(more) {
        *x = if single { f64::from((*x + more) as f32) } else { *x + more };
    }
    let tolerance = solution_tolerance(dtype);
    (first / tolerance, backward_error(system, &x, b) / tolerance)
}

#[test]
fn rows_are_stable_once_refined_where_the_right_hand_side_makes_x_grow() {
    for (rows, problem) in [
        (4500, LOWER),
        (4500, Sptrsv { transpose: true, ..LOWER }),
        (4500, Sptrsv { dtype: Dtype::F32, ..LOWER }),
    ] {
        let system = system(&amplifying(rows, 150, false), problem);
        // Sums of few of them are not exact.
        let rounded = |value: f64| match problem.dtype {
            Dtype::F64 => value,
            _ => f64::from(value as f32),
        };
        let b: Vec<f64> = (0..rows).map(|row| rounded(2.0 * unit(3, row) - 1.0)).collect();
        let (mut unrefined, mut windows): (f64, _) = (0.0, u32::MAX);
        for (window_ns, terms) in [(125, 64), (1000, 256), (4000, 1024)] {
            let how = Rewrite { refine: true, ..Rewrite::of(window_ns, terms) };
            let equations = split(rewrite(&system, how), Parts::of_slices(32));
            assert_in_order(&equations, rows);
            refine::tried(&system, &equations).expect("suffices");
            let tried = refine::errors(&system, &equations);
            assert!(tried.refined < 0.05 && tried.unrefined > tried.refined, "{tried:?}");
            windows = windows.min(equations.windows);
            for lanes in [0, 1, 32] {
                let (first, refined) = errors(&system, &equations, lanes, &b);
                // As substitution leaves it, whatever the first solve was off by.
                assert!(refined < 0.05, "{problem:?}, {how:?}: {first:e}, then {refined:e}");
                unrefined = unrefined.max(first);
            }
        }
        let levels = system.levels.widths.len() as u32;
        println!("{problem:?}: {windows} windows for {levels} levels, {unrefined:.1e} unrefined");
        assert!(windows * 8 < levels, "{windows} windows for {levels} levels");
        assert!(unrefined > 0.1, "this test has to fail without refinement: {unrefined:e}");
    }
}

/// Right-hand sides made of an x of ordinary size cancel what the system would amplify. A row is then off by more than substitution
/// leaves, but by little beside the largest term of its window.
#[test]
fn windows_are_stable_once_refined_where_the_right_hand_side_cancels() {
    let system = system(&amplifying(6000, 150, false), LOWER);
    let t = &system.triangular;
    let how = Rewrite { refine: true, ..Rewrite::of(1000, 256) };
    let equations = split(rewrite(&system, how), Parts::of_slices(32));
    let packed = pack(&equations, Dtype::F64, packing(32, 0)).expect("packs");
    let tolerance = solution_tolerance(Dtype::F64);
    let (mut by_row, mut by_window): (f64, f64) = (0.0, 0.0);
    for seed in 0..6 {
        let known: Vec<f64> = (0..t.rows()).map(|row| 2.0 * unit(20 + seed, row) - 1.0).collect();
        let b: Vec<f64> = residual(&system, &known, &vec![0.0; t.rows()]);
        let b: Vec<f64> = b.into_iter().map(|value| -value).collect();
        let mut x = interpret(&packed, 32, &b);
        let more = interpret(&packed, 32, &residual(&system, &x, &b));
        x.iter_mut().zip(more).for_each(|(x, more)| *x += more);
        by_row = by_row.max(backward_error(&system, &x, &b) / tolerance);
        // The terms that a window's rows were summed from.
        let mut largest = vec![0.0f64; equations.windows as usize];
        for at in 0..t.rows() {
            let sizes = |(columns, values): (&[u32], &[f64]), of: &dyn Fn(usize) -> f64| {
                let terms = columns.iter().zip(values);
                terms.map(|(&col, value)| (value * of(col as usize)).abs()).sum::<f64>()
            };
            let unknown = |s: usize| if s < t.rows() { x[t.original(s)] } else { 0.0 };
            let size =
                sizes(equations.known(at), &|row| b[row]) + sizes(equations.unknown(at), &unknown);
            let window = &mut largest[equations.window_of[at] as usize];
            *window = window.max(size);
        }
        for (s, left) in residual(&system, &x, &b).iter().enumerate() {
            by_window = by_window.max(left.abs() / largest[equations.window_of[s] as usize]);
        }
    }
    by_window /= tolerance;
    println!("{by_row:.1e} beside their own terms, {by_window:.1e} beside those of their windows");
    assert!(by_window < 0.25, "{by_window:e}");
}

/// The space lists the rewritings that a refined solution makes good for, and no others.
#[test]
fn rewritings_are_listed_if_a_trial_finds_them_good_enough() {
    let mut kinds = [0, 0];
    for rows in [4500, 9000] {
        let system = system(&amplifying(rows, 150, false), LOWER);
        let estimate = Estimate::of(&system);
        for window_ns in [125, 250, 500, 1000, 2000, 4000] {
            for terms in [64, 256, 1024] {
                let how = Rewrite { refine: true, ..Rewrite::of(window_ns, terms) };
                let good = refine::tried(&system, &rewrite(&system, how)).is_ok();
                assert_eq!(
                    estimate.rewrites().any(|listed| listed == how),
                    good,
                    "{rows}: {how:?}"
                );
                kinds[usize::from(good)] += 1;
            }
        }
    }
    assert!(kinds.iter().all(|&count| count > 0), "{kinds:?}");
}

#[test]
fn equations_that_refinement_does_not_make_good_for_are_refused() {
    let amplifies = system(&amplifying(4500, 150, false), LOWER);
    let how = Rewrite { refine: true, ..Rewrite::of(1000, 256) };
    let mut equations = split(rewrite(&amplifies, how), Parts::of_slices(32));
    assert!(refine::errors(&amplifies, &equations).refined < 0.05);
    // Far more than half of the digits are gone.
    for value in equations.segments.iter_mut().flat_map(|segment| &mut segment.known.vals) {
        *value *= 1.0 + 1e-3;
    }
    let why = refine::tried(&amplifies, &equations).expect_err("too far off").to_string();
    assert!(why.contains("lose too many digits"), "{why}");
}

/// The first solve fills what the second clears, so that each call finds the same.
#[test]
fn every_listed_scheme_of_a_system_that_amplifies_is_lowered() {
    for rhs in [1, 3] {
        let mut system = system(&amplifying(4500, 150, false), Sptrsv { rhs, ..LOWER });
        system.device.multiprocessors = 1;
        let mut lowerer = SlicesLowerer::default();
        let mut refined = 0;
        for (candidate, _) in share(&system, &Estimate::of(&system)).scored {
            let scheme = Scheme::of(&candidate).expect("a scheme");
            assert_eq!(scheme.rewrite.refine, scheme.rewrite.window_ns > 0, "{candidate}");
            let recipe = lowerer.lower(&candidate, &system).expect("lowers");
            assert_launches_all(&recipe);
            if !scheme.rewrite.refine {
                continue;
            }
            refined += 1;
            let Program::Cuda(program) = &recipe.program else { panic!("not for this device") };
            let at = program.steps.iter().position(|step| step.entry == "residual_of");
            let (first, rest) = program.steps.split_at(at.expect("a residual"));
            let left = recipe.scratch.len() - 1;
            assert_eq!(rest[0].args[6], Arg::Scratch(left));
            assert_eq!(recipe.scratch[left].bytes, 4500 * u64::from(rhs) * 8);
            for (steps, b, work) in
                [(first, Arg::B, [0, 1]), (&rest[1..], Arg::Scratch(left), [1, 0])]
            {
                for step in steps {
                    assert_eq!(step.args[4..6], [b, Arg::C]);
                    if scheme.scope == Scope::Global {
                        assert_eq!(step.args[9..11], work.map(Arg::Scratch), "{step:?}");
                    }
                }
            }
        }
        assert!(refined > 50, "{refined}");
    }
}

#[test]
fn only_refined_schemes_say_whether_they_are() {
    let scheme = Scheme::of(&share_of_a_chain()).expect("a scheme");
    let plain = scheme.candidate();
    assert!(!plain.params.contains_key("refine"));
    let how = Rewrite { refine: true, ..scheme.rewrite };
    let refined = Scheme { rewrite: how, ..scheme };
    assert_eq!(refined.candidate(), plain.clone().with("refine", 1));
    assert_eq!(Scheme::of(&refined.candidate()), Some(refined));
    assert_eq!(Scheme::of(&plain.clone().with("refine", 0)), Some(scheme));
    assert_eq!(Scheme::of(&plain.clone().with("refine", 2)), None);
    assert_eq!(Scheme::of(&plain.with_text("refine", "once")), None);
}

fn share_of_a_chain() -> sparsetune::domain::Candidate {
    let system = system(&chain(100), LOWER);
    share(&system, &Estimate::of(&system)).scored.swap_remove(0).0
}
