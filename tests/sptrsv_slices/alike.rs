//! Rewritings that give the same equations, and schemes that are prepared side by side.

use super::{LOWER, generated, lower, system};
use crate::fixture::gpu;
use sparsetune::domain::recipe::Recipe;
use sparsetune::domain::{Candidate, Problem};
use sparsetune::ops;
use sparsetune::ops::sptrsv::slices::equations::Equations;
use sparsetune::ops::sptrsv::slices::rewrite::{Rewrite, rewrite};
use std::sync::Arc;

/// Terms as they are, with their bits.
type Terms = Vec<(u32, u64)>;

/// What an equation has in b and in unknowns, and its window.
fn read(equations: &Equations) -> Vec<(Terms, Terms, u32)> {
    let terms = |(cols, vals): (&[u32], &[f64])| -> Terms {
        cols.iter().zip(vals).map(|(&col, val)| (col, val.to_bits())).collect()
    };
    let of =
        |at| (terms(equations.known(at)), terms(equations.unknown(at)), equations.window_of[at]);
    (0..equations.len()).map(of).collect()
}

#[test]
fn rewritings_that_are_called_the_same_are() {
    // Windows that end by the length of their equations, by their cost, by both, and by cost in levels that several tasks share.
    for (spec, fewest) in [
        ("cholesky_banded:n=2000,half=1,seed=1", 20),
        ("lower_levels:n=5000,levels=20,per_row=8,seed=1", 20),
        ("ilu0_poisson2d:nx=60,ny=60,seed=1", 4),
        ("lower_levels:n=12000,levels=8,per_row=2,seed=1", 4),
        ("lower:growth=0.7,constraints=400,of=circuit:n=3000,hubs=3", 4),
    ] {
        let system = system(&generated(spec), LOWER);
        let mut all = Vec::new();
        for window_ns in [0, 100, 250, 1000, 4000, 40_000] {
            for terms in [16, 64, 256, 1024] {
                let how = Rewrite::of(window_ns, terms);
                let made = rewrite(&system, how);
                let equations = read(&made);
                all.push((how, made.alike, equations));
            }
        }
        let (mut same, mut others) = (0, 0);
        for (own, alike, equations) in &all {
            assert!(alike.covers(*own, *own));
            assert!(!alike.covers(*own, Rewrite { refine: true, ..*own }));
            for (other, _, theirs) in all.iter().filter(|(other, ..)| other != own) {
                if alike.covers(*own, *other) {
                    assert!(equations == theirs, "{spec}: {own:?} is not {other:?}");
                    same += 1;
                } else {
                    others += usize::from(equations != theirs);
                }
            }
        }
        assert!(
            same >= fewest && others > 0,
            "{spec}: {same} pairs are the same, {others} are not"
        );
    }
}

/// A level with fewer terms than the one before joins at any cost of a window but none.
#[test]
fn without_a_cost_of_windows_nothing_is_substituted() {
    let matrix =
        lower(1010, |row| if row < 1000 { vec![] } else { vec![(row as u32 - 1000, -0.5)] });
    let system = system(&matrix, LOWER);
    let (joined, plain) = (Rewrite::of(1000, 256), Rewrite::of(0, 64));
    let made = rewrite(&system, joined);
    assert_eq!((made.windows, rewrite(&system, plain).windows), (1, 2));
    assert!(made.alike.covers(joined, Rewrite::of(1, 64)) && !made.alike.covers(joined, plain));
    assert!(!rewrite(&system, plain).alike.covers(plain, joined));
}

#[test]
fn schemes_that_are_prepared_side_by_side_are_lowered_as_alone() {
    let problem = Problem::Sptrsv(LOWER);
    for spec in
        ["cholesky_poisson2d:nx=20,ny=20,seed=1", "lower:tail=60,growth=0.5,of=banded:n=900,half=1"]
    {
        let matrix = Arc::new(generated(spec));
        let space = ops::space(&matrix, &problem, &gpu()).expect("a space");
        let candidates: Vec<Candidate> =
            space.scored.iter().step_by(7).map(|(candidate, _)| candidate.clone()).collect();
        let mut together = ops::of(&problem).lowerer(matrix.clone(), &gpu()).expect("a lowerer");
        let mut alone = ops::of(&problem).lowerer(matrix.clone(), &gpu()).expect("a lowerer");
        let mut families = Vec::new();
        for portion in candidates.chunks(40) {
            together.prepare(portion);
            for candidate in portion {
                let prepared = together.lower(candidate).expect("lowers");
                let lowered = alone.lower(candidate).expect("lowers");
                // But for the host times.
                let parts = |recipe: Recipe| (recipe.program, recipe.arrays, recipe.scratch);
                assert!(parts(prepared) == parts(lowered), "{spec}: {candidate}");
                families.push(candidate.family.clone());
            }
        }
        families.sort();
        families.dedup();
        assert_eq!(families, ["ag", "chains", "overlapped", "slices"], "{spec}");
    }
}
