//! Bundles of approximate inverses: checked element by element, and computed anew for other values.

use super::super::check::{Inputs, MakeError};
use super::*;
use crate::domain::bundle::CheckKind;
use crate::domain::recipe::ArrayData;
use crate::ops::sptrsv::inverse::compute::Inverse;
use crate::ops::sptrsv::inverse::scheme::{Map, Scheme};

fn near(dtype: Dtype, triangle: Triangle) -> Sptrsv {
    Sptrsv { dtype, triangle, approximate: true, ..Sptrsv::PLAIN }
}

fn problems() -> [Sptrsv; 3] {
    let transposed = Sptrsv { transpose: true, ..near(Dtype::F64, Triangle::Lower) };
    [near(Dtype::F64, Triangle::Lower), near(Dtype::F32, Triangle::Upper), transposed]
}

fn candidate(power: u32, steps: u32) -> Candidate {
    Scheme { map: Map { power, steps }, lanes: 4 }.candidate()
}

/// What a map makes of b, both in the order of the matrix.
fn made(matrix: &Csr, solve: &Sptrsv, b: &ArrayData, power: u32, steps: u32) -> ArrayData {
    let system = Triangular::of(matrix, solve).unwrap();
    let wide = |row: usize| match b {
        ArrayData::F64(b) => b[row],
        ArrayData::F32(b) => b[row].into(),
        _ => panic!("solves are in f32 and f64"),
    };
    let ordered: Vec<f64> = (0..matrix.rows()).map(|s| wide(system.original(s))).collect();
    let inverse = Inverse::of(&system, solve.dtype, Map { power, steps }).unwrap();
    let (once, twice) = inverse.approximations(&ordered);
    let x = twice.unwrap_or(once);
    let mut out = vec![0.0; x.len()];
    (0..x.len()).for_each(|s| out[system.original(s)] = x[s]);
    match b {
        ArrayData::F64(_) => ArrayData::F64(out.into()),
        _ => ArrayData::F32(out.into_iter().map(|x| x as f32).collect()),
    }
}

#[test]
fn what_another_map_or_half_of_it_computes_does_not_pass() {
    let matrix = generated("poisson2d:nx=30,ny=20,seed=1").unwrap();
    for solve in problems() {
        let problem = Problem::Sptrsv(solve);
        for (power, steps) in [(3, 1), (2, 2)] {
            let plan = plan(&matrix, &problem, DeviceKind::Cuda, &candidate(power, steps)).unwrap();
            let file = bundle(&matrix, &plan, Values::Included).unwrap();
            let read = Bundle::from_bytes(file).unwrap();
            let check = &read.manifest().check;
            assert_eq!(check.kind, CheckKind::Product);
            let inputs = Inputs::draw(check, &problem, matrix.rows(), matrix.rows());
            let passes = |power, steps| {
                let x = made(&matrix, &solve, &inputs.b, power, steps);
                read.samples().compare(check, &inputs.b, &x, 1).passed()
            };
            assert!(passes(power, steps), "{solve:?} {power} {steps}");
            assert!(!passes(power, 3 - steps) && !passes(power + 1, steps));
            assert!(!passes(power - 1, steps), "a hop is missing");
        }
    }
}

/// What would be multiplied depends on all values of a neighbourhood, so the host computes it again.
#[test]
fn new_values_are_given_to_the_host() {
    let matrix = generated("poisson2d:nx=30,ny=20,seed=1").unwrap();
    for solve in problems() {
        for steps in [1, 2] {
            let problem = Problem::Sptrsv(solve);
            let plan = plan(&matrix, &problem, DeviceKind::Cuda, &candidate(2, steps)).unwrap();
            let read =
                Bundle::from_bytes(bundle(&matrix, &plan, Values::Included).unwrap()).unwrap();
            assert!(matches!(read.manifest().update_values, UpdateValues::Host(_)));
            let refused = bundle(&matrix, &plan, Values::External).unwrap_err();
            assert!(matches!(refused, BuildError::ValuesNeeded), "{refused}");
        }
    }
}

/// Of a row that needs the one before it by far more than its diagonal, in f32.
#[test]
fn a_map_that_cannot_be_computed_or_checked_has_no_bundle() {
    let coupled = |part: f64| {
        let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..400u32 {
            if row > 0 {
                indices.push(row - 1);
                values.push(-2.0 * part);
            }
            indices.push(row);
            values.push(2.0);
            indptr.push(indices.len());
        }
        Csr::new(400, 400, indptr, indices, values).unwrap()
    };
    let problem = Problem::Sptrsv(near(Dtype::F32, Triangle::Lower));
    let made = |part, power| check::make(&coupled(part), &problem, &candidate(power, 1), 1);
    assert!(made(0.5, 8).is_ok());
    let refused = made(1e30, 8).unwrap_err();
    assert!(matches!(refused, MakeError::Unknown(_)), "{refused}");
    assert!(refused.to_string().contains("outside the range"), "{refused}");
}
