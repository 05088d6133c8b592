//! Bundles of approximate solves: what comes out of the sweeps is checked element by element, since equations hold only nearly.

use super::super::check::Inputs;
use super::*;
use crate::domain::bundle::CheckKind;
use crate::domain::recipe::ArrayData;
use crate::ops::sptrsv::sweeps::estimate::approximation;
use crate::ops::sptrsv::sweeps::scheme::Scheme;

fn near(dtype: Dtype, triangle: Triangle) -> Sptrsv {
    Sptrsv { dtype, triangle, approximate: true, ..Sptrsv::PLAIN }
}

/// Combined factors whose sweeps converge.
fn matrix() -> Arc<Csr> {
    generated("poisson2d:nx=30,ny=20,seed=1").unwrap()
}

/// The sweeps that are listed for a problem, of which there are some.
fn schemes(matrix: &Arc<Csr>, problem: &Sptrsv) -> Vec<Candidate> {
    let space = ops::space(matrix, &Problem::Sptrsv(*problem), &device(DeviceKind::Cuda)).unwrap();
    let all = space.scored.into_iter().map(|(candidate, _)| candidate);
    let all: Vec<_> = all.filter(|it| it.family == "sweeps").step_by(5).collect();
    assert!(!all.is_empty());
    all
}

fn opened(matrix: &Arc<Csr>, problem: &Sptrsv, candidate: &Candidate) -> Bundle {
    let plan = plan(matrix, &Problem::Sptrsv(*problem), DeviceKind::Cuda, candidate).unwrap();
    Bundle::from_bytes(bundle(matrix, &plan, Values::Included).unwrap()).unwrap()
}

/// A system, and b of its check in solve order.
fn asked(matrix: &Csr, problem: &Sptrsv, bundle: &Bundle) -> (Triangular, Inputs, Vec<f64>) {
    let system = Triangular::of(matrix, problem).unwrap();
    let check = &bundle.manifest().check;
    assert_eq!(check.kind, CheckKind::Product);
    let inputs = Inputs::draw(check, &Problem::Sptrsv(*problem), matrix.rows(), matrix.rows());
    let b = |s: usize| match &inputs.b {
        ArrayData::F64(b) => b[system.original(s)],
        ArrayData::F32(b) => b[system.original(s)].into(),
        _ => panic!("solves are in f32 and f64"),
    };
    let b = (0..matrix.rows()).map(b).collect();
    (system, inputs, b)
}

/// Whether the check passes with x, given in solve order.
fn passes(bundle: &Bundle, inputs: &Inputs, system: &Triangular, x: &[f64]) -> bool {
    let mut out = vec![0.0; x.len()];
    (0..x.len()).for_each(|s| out[system.original(s)] = x[s]);
    let out = match inputs.b {
        ArrayData::F64(_) => ArrayData::F64(out.into()),
        _ => ArrayData::F32(out.iter().map(|&x| x as f32).collect()),
    };
    let report = bundle.samples().compare(&bundle.manifest().check, &inputs.b, &out, 1);
    assert!(report.samples >= 3);
    report.passed()
}

#[test]
fn what_other_sweeps_or_an_exact_solve_compute_does_not_pass() {
    let matrix = matrix();
    for problem in [near(Dtype::F64, Triangle::Lower), near(Dtype::F32, Triangle::Upper)] {
        for candidate in schemes(&matrix, &problem) {
            let bundle = opened(&matrix, &problem, &candidate);
            let (system, inputs, b) = asked(&matrix, &problem, &bundle);
            let scheme = Scheme::of(&candidate).unwrap();
            let x = approximation(&system, &b, &scheme);
            assert!(passes(&bundle, &inputs, &system, &x), "{candidate}");
            let one_less = Scheme { sweeps: scheme.sweeps - 1, ..scheme };
            let one_more = Scheme { sweeps: scheme.sweeps + 1, ..scheme };
            for other in [one_less, one_more].map(|it| approximation(&system, &b, &it)) {
                assert!(!passes(&bundle, &inputs, &system, &other), "{candidate}");
            }
            let exact = oracle::sptrsv(&system, &inputs_in_order(&system, &b), 1);
            let exact: Vec<f64> = (0..b.len()).map(|s| exact[system.original(s)]).collect();
            assert!(!passes(&bundle, &inputs, &system, &exact), "{candidate}");
            let mut lost = x;
            *lost.last_mut().unwrap() = f64::NAN;
            assert!(!passes(&bundle, &inputs, &system, &lost), "the last row is a sample");
        }
    }
}

/// From solve order to the matrix's.
fn inputs_in_order(system: &Triangular, b: &[f64]) -> Vec<f64> {
    let mut ordered = vec![0.0; b.len()];
    (0..b.len()).for_each(|s| ordered[system.original(s)] = b[s]);
    ordered
}

/// The same sweeps in f32, each sum in another order than that of the reference.
#[test]
fn the_rounding_of_f32_passes() {
    let matrix = matrix();
    let problem = near(Dtype::F32, Triangle::Lower);
    for candidate in schemes(&matrix, &problem) {
        let scheme = Scheme::of(&candidate).unwrap();
        if scheme.blocking.inner > 1 {
            continue;
        }
        let bundle = opened(&matrix, &problem, &candidate);
        let (system, inputs, b) = asked(&matrix, &problem, &bundle);
        let mut x = vec![0f32; b.len()];
        for _ in 0..scheme.sweeps {
            let row = |s: usize| {
                let (columns, values) = system.row(s);
                let terms = columns.iter().zip(values);
                let terms = terms.map(|(&col, &value)| value as f32 * x[col as usize]);
                (b[s] as f32 - terms.rev().sum::<f32>()) / system.diagonal[s] as f32
            };
            x = (0..b.len()).map(row).collect();
        }
        let x: Vec<f64> = x.into_iter().map(f64::from).collect();
        assert!(passes(&bundle, &inputs, &system, &x), "{candidate}");
    }
}

/// Rows that each need the one before them, by this part of their diagonals, and some that need none.
fn coupled(part: f64) -> Arc<Csr> {
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..400 {
        // The first rows have settled after few sweeps.
        if (1..40).contains(&row) {
            indices.push(row - 1);
            values.push(-2.0 * part);
        }
        indices.push(row);
        values.push(2.0);
        indptr.push(indices.len());
    }
    Arc::new(Csr::new(400, 400, indptr, indices, values).unwrap())
}

fn checked(matrix: &Csr, dtype: Dtype, sweeps: u32) -> Result<(Vec<u8>, u32), check::MakeError> {
    let candidate = Candidate::new("sweeps").with("sweeps", sweeps.into()).with("inner", 1);
    let candidate = candidate.with("rows", 64).with("lanes", 1);
    let problem = Problem::Sptrsv(near(dtype, Triangle::Lower));
    let (check, file) = check::make(matrix, &problem, &candidate, 1)?;
    Ok((file, check.samples))
}

/// Though most rows are done after one sweep, some samples are of those that the last one changed.
#[test]
fn a_lost_sweep_is_found_where_most_rows_have_settled() {
    let matrix = coupled(0.5);
    let problem = near(Dtype::F64, Triangle::Lower);
    for sweeps in [1, 8, 32] {
        let (file, count) = checked(&matrix, Dtype::F64, sweeps).unwrap();
        assert!(count >= 4);
        let candidate = Candidate::new("sweeps").with("sweeps", i64::from(sweeps));
        let candidate = candidate.with("inner", 1).with("rows", 64).with("lanes", 1);
        let (check, _) = check::make(&matrix, &Problem::Sptrsv(problem), &candidate, 1).unwrap();
        let samples = check::Samples::read(&file, &check, 400, 400, 1).unwrap();
        let inputs = Inputs::draw(&check, &Problem::Sptrsv(problem), 400, 400);
        let ArrayData::F64(b) = &inputs.b else { panic!("{:?}", inputs.b) };
        let system = Triangular::of(&matrix, &problem).unwrap();
        let scheme = Scheme::of(&candidate).unwrap();
        let passes = |scheme: &Scheme| {
            let x = approximation(&system, b, scheme);
            samples.compare(&check, &inputs.b, &ArrayData::F64(x.into()), 1).passed()
        };
        assert!(passes(&scheme));
        if sweeps > 1 {
            assert!(!passes(&Scheme { sweeps: sweeps - 1, ..scheme }), "{sweeps}");
        }
    }
}

#[test]
fn a_check_that_would_find_nothing_is_not_made() {
    // What a sweep changes has the size of x, and so has the bound where terms are as large as these in f32.
    for part in [1e3, 1e30] {
        let matrix = coupled(part);
        let refused = |dtype, sweeps| match checked(&matrix, dtype, sweeps) {
            Err(check::MakeError::Vague { steps }) => steps == format!("{sweeps} sweeps"),
            _ => false,
        };
        // All numbers have one sign but those of b, so that the bound is one that tells.
        assert!(!refused(Dtype::F64, 2), "{part}");
        assert_eq!(refused(Dtype::F64, 32), part > 1e4, "{part}");
    }
    let matrix = generated("poisson2d:nx=9,ny=9,seed=1").unwrap();
    // All rows have settled: a sweep more or less is the same, and samples are of values.
    assert!(checked(&matrix, Dtype::F64, 32).unwrap().1 > 4);
    // Of f32 the sums of many sweeps are rounded too much to tell the last one.
    let slow = generated("poisson2d:nx=40,ny=40,seed=1").unwrap();
    let refused = checked(&slow, Dtype::F32, 32).unwrap_err().to_string();
    assert!(refused.contains("no check could tell"), "{refused}");
}

#[test]
fn new_values_of_sweeps_are_put_in_place() {
    let matrix = matrix();
    let problem = near(Dtype::F64, Triangle::Upper);
    let candidate = &schemes(&matrix, &problem)[0];
    let read = opened(&matrix, &problem, candidate);
    assert!(matches!(read.manifest().update_values, UpdateValues::Gather(_)));
    let plan = plan(&matrix, &Problem::Sptrsv(problem), DeviceKind::Cuda, candidate).unwrap();
    assert!(bundle(&matrix, &plan, Values::External).is_ok());
}

/// Exact schemes of the same problem are held to what every exact scheme is.
#[test]
fn an_exact_plan_of_an_approximate_problem_is_checked_as_one() {
    let matrix = matrix();
    let other = Arc::new(other_values(&matrix));
    let problem = Problem::Sptrsv(near(Dtype::F64, Triangle::Lower));
    for candidate in candidates(&matrix, &problem, DeviceKind::Cpu) {
        let plan = plan(&matrix, &problem, DeviceKind::Cpu, &candidate).unwrap();
        let file = bundle(&matrix, &plan, Values::Included).unwrap();
        let read = Arc::new(Bundle::from_bytes(file).unwrap());
        assert_eq!(read.manifest().check.kind, CheckKind::Equations);
        let mut loaded = LoadedPlan::load(read, &Place::Host).unwrap();
        assert!(loaded.check().unwrap().passed(), "{candidate}");
        loaded.update_values(other.values()).unwrap();
    }
}

/// Two plans of one consent are a pair, and two of different ones are none.
#[test]
fn both_triangles_are_of_one_consent() {
    let stencil = matrix();
    // Beside ones on the diagonal, L of the stencil would make more of b at every step.
    let values: Vec<f64> =
        stencil.values().iter().map(|it| if *it < 0.0 { it / 4.0 } else { *it }).collect();
    let (indptr, indices) = (stencil.indptr().to_vec(), stencil.indices().to_vec());
    let (rows, cols) = (stencil.rows(), stencil.cols());
    let matrix = Arc::new(Csr::new(rows, cols, indptr, indices, values).unwrap());
    let lower = |approximate| Sptrsv {
        diagonal: Diagonal::Unit,
        approximate,
        ..near(Dtype::F64, Triangle::Lower)
    };
    let part = |problem: &Sptrsv| Arc::new(opened(&matrix, problem, &schemes(&matrix, problem)[0]));
    let second = part(&near(Dtype::F64, Triangle::Upper));
    let pair = Pair::of(part(&lower(true)), second.clone()).unwrap();
    let mut file = Cursor::new(Vec::new());
    pair.write(&mut file).unwrap();
    let opened = Opened::from_bytes(file.into_inner()).unwrap();
    assert_eq!(opened.parts().len(), 2);
    let exact = Problem::Sptrsv(lower(false));
    let candidate = &candidates(&matrix, &exact, DeviceKind::Cuda)[0];
    let plan = plan(&matrix, &exact, DeviceKind::Cuda, candidate).unwrap();
    let exact = Bundle::from_bytes(bundle(&matrix, &plan, Values::Included).unwrap()).unwrap();
    assert!(Pair::of(Arc::new(exact), second).is_err());
}
