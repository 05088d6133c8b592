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
fn systems_that_amplify_are_stable_row_by_row_once_refined() {
    for (rows, problem) in [
        (4500, LOWER),
        (4500, Sptrsv { transpose: true, ..LOWER }),
        (4500, Sptrsv { dtype: Dtype::F32, ..LOWER }),
    ] {
        let system = system(&amplifying(rows, false), problem);
        // Sums of few of them are not exact.
        let rounded = |value: f64| match problem.dtype {
            Dtype::F64 => value,
            _ => f64::from(value as f32),
        };
        let b: Vec<f64> = (0..rows).map(|row| rounded(2.0 * unit(3, row) - 1.0)).collect();
        let (mut unrefined, mut windows): (f64, _) = (0.0, u32::MAX);
        for (window_ns, terms) in [(125, 64), (1000, 256), (4000, 1024)] {
            let how = Rewrite { refine: true, ..Rewrite::of(window_ns, terms) };
            let equations = split(rewrite(&system, how));
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

/// Right-hand sides that cancel cost digits where equations are rewritten, and refinement brings them back.
#[test]
fn right_hand_sides_that_cancel_cost_nothing_once_refined() {
    let system = system(&generated("ilu0_poisson2d:nx=60,ny=40,seed=1"), LOWER);
    let t = &system.triangular;
    let known: Vec<f64> = (0..t.rows()).map(|r| 10f64.powi((r % 13) as i32 - 6)).collect();
    let row = |s: usize| {
        let terms = t.row(s).0.iter().zip(t.row(s).1);
        let terms = terms.map(|(&col, value)| value * known[col as usize]);
        terms.sum::<f64>() + t.diagonal[s] * known[s]
    };
    let b: Vec<f64> = (0..t.rows()).map(row).collect();
    let how = Rewrite { refine: true, ..Rewrite::of(1000, 256) };
    let (first, refined) = errors(&system, &split(rewrite(&system, how)), 0, &b);
    assert!(first > 100.0 && refined < 0.05, "{first:e}, then {refined:e}");
}

#[test]
fn equations_that_refinement_does_not_make_good_for_are_refused() {
    let amplifies = system(&amplifying(4500, false), LOWER);
    let how = Rewrite { refine: true, ..Rewrite::of(1000, 256) };
    let mut equations = split(rewrite(&amplifies, how));
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
        let mut system = system(&amplifying(4500, false), Sptrsv { rhs, ..LOWER });
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
fn a_scheme_of_an_earlier_version_is_not_refined() {
    let scheme = Scheme::of(&share_of_a_chain()).expect("a scheme");
    let mut earlier = scheme.candidate();
    assert_eq!(earlier.int("refine"), Some(0));
    earlier.params.remove("refine");
    assert_eq!(Scheme::of(&earlier), Some(scheme));
    assert_eq!(Scheme::of(&earlier.clone().with("refine", 2)), None);
    assert_eq!(Scheme::of(&earlier.with_text("refine", "once")), None);
}

fn share_of_a_chain() -> sparsetune::domain::Candidate {
    let system = system(&chain(100), LOWER);
    share(&system, &Estimate::of(&system)).scored.swap_remove(0).0
}
