//! Pairs: both triangles of one matrix, from two plans to one file to one call.

use super::*;
use crate::domain::bundle::{MANIFEST, PARTS};

/// Combined factors: L strictly below the diagonal, U on and above it, with every diagonal entry stored.
fn factors(n: usize, entries: impl Fn(usize, usize) -> bool) -> Arc<Csr> {
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..n {
        for col in 0..n {
            if row == col || entries(row, col) {
                indices.push(col as u32);
                let at = (row * 31 + col * 17) as f64;
                values.push(if row == col { 2.0 + at.sin() } else { 0.4 * at.cos() });
            }
        }
        indptr.push(indices.len());
    }
    Arc::new(Csr::new(n, n, indptr, indices, values).unwrap())
}

/// With strict parts that are full, banded or empty, of even and odd orders, down to one row.
fn all_factors() -> Vec<Arc<Csr>> {
    vec![
        generated(GENERATED[0]).unwrap(),
        factors(1, |_, _| false),
        factors(2, |row, col| row > col),
        factors(37, |_, _| false),
        factors(41, |row, col| row > col && (row * 7 + col) % 5 == 0),
        factors(41, |row, col| row < col && (row * 3 + col) % 4 == 0),
        factors(29, |row, col| row.abs_diff(col) < 4),
    ]
}

fn both(rhs: u32, dtype: Dtype, diagonal: Diagonal, transpose: bool) -> Problem {
    let triangle = Triangle::Both;
    Problem::Sptrsv(Sptrsv { rhs, dtype, triangle, diagonal, transpose, ..Sptrsv::PLAIN })
}

fn problems() -> Vec<Problem> {
    let mut all = Vec::new();
    for diagonal in [Diagonal::Unit, Diagonal::NonUnit] {
        for transpose in [false, true] {
            all.extend([1, 3].map(|rhs| both(rhs, Dtype::F64, diagonal, transpose)));
        }
    }
    all
}

/// What both solves compute in float64, row by row.
fn expected(matrix: &Csr, problem: &Problem, b: &[f64]) -> Vec<f64> {
    problem.parts().unwrap().iter().fold(b.to_vec(), |b, part| {
        let Problem::Sptrsv(solve) = part else { unreachable!() };
        let system = Triangular::of(matrix, solve).unwrap();
        oracle::sptrsv(&system, &b, solve.rhs as usize)
    })
}

fn solved(loaded: &LoadedPlan, b: &[f64]) -> Vec<f64> {
    let mut x = vec![f64::NAN; b.len()];
    let (b, out) = (bytemuck::cast_slice(b), bytemuck::cast_slice_mut(&mut x));
    loaded.run_on_host(b, out, 1.0, 0.0).unwrap();
    x
}

fn right(matrix: &Csr, loaded: &LoadedPlan) {
    let rhs = loaded.problem().columns() as usize;
    let b = crate::sparse::operand::random_double(matrix.rows() * rhs, 5);
    let expected = expected(matrix, loaded.problem(), &b);
    let largest = expected.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
    for (x, expected) in solved(loaded, &b).iter().zip(&expected) {
        assert!((x - expected).abs() <= 1e-11 * largest, "{}: {x} {expected}", loaded.problem());
    }
}

/// The bundle of the `which`-th candidate that can be lowered.
fn part(
    matrix: &Arc<Csr>,
    problem: &Problem,
    kind: DeviceKind,
    which: usize,
    values: Values,
) -> Arc<Bundle> {
    let all = candidates(matrix, problem, kind);
    let mut plans = all.iter().filter_map(|candidate| plan(matrix, problem, kind, candidate));
    let mut plans: Vec<_> = plans.by_ref().collect();
    let plan = plans.swap_remove(which % plans.len());
    Arc::new(Bundle::from_bytes(bundle(matrix, &plan, values).unwrap()).unwrap())
}

fn pair(matrix: &Arc<Csr>, problem: &Problem, which: usize, values: Values) -> Pair {
    let [first, second] = problem.parts().unwrap();
    let part = |problem, which| part(matrix, problem, DeviceKind::Cpu, which, values);
    Pair::of(part(&first, which), part(&second, which + 1)).unwrap()
}

fn file(pair: &Pair) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    pair.write(&mut file).unwrap();
    file.into_inner()
}

fn reopened(pair: &Pair) -> Opened {
    let bytes = file(pair);
    assert_eq!(bytes, file(pair), "equal pairs have equal bytes");
    Opened::from_bytes(bytes).unwrap()
}

#[test]
fn both_triangles_are_solved_by_one_call_and_take_new_values_by_one() {
    for matrix in all_factors() {
        let other = other_values(&matrix);
        for (which, problem) in problems().into_iter().enumerate() {
            for values in [Values::Included, Values::External] {
                let opened = reopened(&pair(&matrix, &problem, which, values));
                assert_eq!(opened.parts().len(), 2);
                let mut loaded = LoadedPlan::open(&opened, &Place::Host).unwrap();
                assert_eq!((loaded.problem(), loaded.entries()), (&problem, matrix.nnz() as u64));
                if values == Values::Included {
                    let report = loaded.check().unwrap();
                    assert!(report.passed() && report.samples >= 2, "{report:?}");
                    right(&matrix, &loaded);
                } else {
                    let mut x = vec![0u8; matrix.rows() * problem.columns() as usize * 8];
                    let refused = loaded.run_on_host(&x.clone(), &mut x, 1.0, 0.0);
                    assert_eq!(refused, Err(RunError::NoValues));
                }
                loaded.update_values(other.values()).unwrap();
                right(&other, &loaded);
                assert!(loaded.check().is_err());
                // What one refuses, neither takes.
                let mut bad = matrix.values().to_vec();
                bad[0] = f64::INFINITY;
                assert!(loaded.update_values(&bad).is_err());
                assert!(loaded.update_values(&bad[1..]).is_err());
                right(&other, &loaded);
                loaded.update_values(matrix.values()).unwrap();
                right(&matrix, &loaded);
            }
        }
    }
}

#[test]
fn without_plans_both_triangles_are_solved_all_the_same() {
    for matrix in all_factors() {
        for problem in problems() {
            let mut untuned = LoadedPlan::untuned(&matrix, &problem).unwrap();
            right(&matrix, &untuned);
            let other = other_values(&matrix);
            untuned.update_values(other.values()).unwrap();
            right(&other, &untuned);
            assert!(untuned.pair().is_none() && untuned.check().is_err());
        }
    }
}

#[test]
fn a_zero_pivot_of_the_upper_factor_is_refused_by_its_row() {
    let matrix = factors(5, |row, col| row > col);
    let mut values = matrix.values().to_vec();
    let at = matrix.indptr()[3] + 3;
    values[at] = 0.0;
    let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
    let matrix = Arc::new(Csr::new(5, 5, indptr, indices, values).unwrap());
    for transpose in [false, true] {
        let problem = both(1, Dtype::F64, Diagonal::Unit, transpose);
        let refused = LoadedPlan::untuned(&matrix, &problem).err().unwrap().to_string();
        assert!(refused.contains("[3]"), "{refused}");
    }
}

/// What only the second plan refuses leaves the first as it was.
#[test]
fn new_values_that_one_of_the_two_refuses_are_taken_by_neither() {
    let matrix = factors(7, |_, _| true);
    for (dtype, pivot) in [(Dtype::F64, 0.0), (Dtype::F32, 1e-60)] {
        for transpose in [false, true] {
            let problem = both(1, dtype, Diagonal::Unit, transpose);
            let untuned = LoadedPlan::untuned(&matrix, &problem).unwrap();
            let opened = reopened(&pair(&matrix, &problem, 0, Values::Included));
            for mut loaded in [untuned, LoadedPlan::open(&opened, &Place::Host).unwrap()] {
                let element = problem.dtype();
                let run = |loaded: &LoadedPlan| {
                    let b: Vec<u8> = match element {
                        Dtype::F32 => (1..8).flat_map(|at| (at as f32).to_le_bytes()).collect(),
                        _ => (1..8).flat_map(|at| f64::from(at).to_le_bytes()).collect(),
                    };
                    let mut x = vec![0; b.len()];
                    loaded.run_on_host(&b, &mut x, 1.0, 0.0).unwrap();
                    x
                };
                let before = run(&loaded);
                let mut values: Vec<f64> = matrix.values().iter().map(|it| it * 1.5).collect();
                // The pivot of U; the diagonal of L is all ones.
                values[matrix.indptr()[3] + 3] = pivot;
                assert!(loaded.update_values(&values).is_err());
                assert_eq!(run(&loaded), before, "{problem}");
                values[matrix.indptr()[3] + 3] = 3.0;
                loaded.update_values(&values).unwrap();
                assert_ne!(run(&loaded), before);
            }
        }
    }
}

type Files = BTreeMap<String, Vec<u8>>;

#[test]
fn what_is_no_pair_is_refused() {
    let matrix = generated(GENERATED[0]).unwrap();
    let problem = both(1, Dtype::F64, Diagonal::Unit, false);
    let whole = pair(&matrix, &problem, 0, Values::Included);
    let [first, second] = whole.parts().clone();
    let of = |first: &Arc<Bundle>, second: &Arc<Bundle>| {
        Pair::of(first.clone(), second.clone()).err().map(|error| error.to_string())
    };
    assert_eq!(of(&first, &second), None);
    assert!(of(&second, &first).unwrap().contains("in their order"));
    assert!(of(&first, &first).unwrap().contains("in their order"));
    let several = pair(&matrix, &both(3, Dtype::F64, Diagonal::Unit, false), 0, Values::Included);
    assert!(of(&first, &several.parts()[1]).unwrap().contains("in their order"));
    let smaller = pair(&factors(9, |_, _| true), &problem, 0, Values::Included);
    assert!(of(&first, &smaller.parts()[1]).unwrap().contains("different matrices"));
    let upper = problem.parts().unwrap()[1];
    let gpu = part(&matrix, &upper, DeviceKind::Cuda, 0, Values::Included);
    assert!(of(&first, &gpu).unwrap().contains("different devices"));
    // A pair is no bundle, and a bundle no pair.
    let bytes = file(&whole);
    let refused = Bundle::from_bytes(bytes.clone()).err().unwrap().to_string();
    assert!(refused.contains("pair of bundles"), "{refused}");
    assert!(matches!(Opened::from_bytes(first.bytes().to_vec()), Ok(Opened::One(_))));
    let said = |change: &dyn Fn(&mut Files)| {
        let places = container::read(&bytes).unwrap();
        let mut members: Files =
            places.into_iter().map(|(path, place)| (path, bytes[place].to_vec())).collect();
        change(&mut members);
        let borrowed = members.iter().map(|(path, bytes)| (path.clone(), bytes.as_slice().into()));
        let mut file = Cursor::new(Vec::new());
        container::write(&mut file, &borrowed.collect()).unwrap();
        Opened::from_bytes(file.into_inner()).err().map(|error| error.to_string())
    };
    assert_eq!(said(&|_| {}), None);
    let manifest = |from: &'static str, to: &'static str| {
        said(&move |members| {
            let text = String::from_utf8(members[MANIFEST].clone()).unwrap();
            assert!(text.contains(from), "{text}");
            members.insert(MANIFEST.to_owned(), text.replacen(from, to, 1).into_bytes());
        })
        .unwrap()
    };
    assert!(manifest("sparsetune pair", "sparsetune bundle").contains("its format"));
    assert!(manifest("\"version\": 1", "\"version\": 2").contains("up to 1"));
    assert!(manifest("\"both\"", "\"upper\"").contains("not that of its bundles"));
    assert!(manifest("\"problem\"", "\"problems\"").contains("unknown field"));
    let damaged = said(&|members| members.get_mut(PARTS[0]).unwrap()[200] ^= 1);
    assert!(damaged.unwrap().contains("damaged"));
    let more = said(&|members| drop(members.insert("more".to_owned(), Vec::new())));
    assert!(more.unwrap().contains("does not list"));
    let swapped = said(&|members| {
        let [first, second] = PARTS.map(|part| members[part].clone());
        members.insert(PARTS[0].to_owned(), second);
        members.insert(PARTS[1].to_owned(), first);
    });
    assert!(swapped.unwrap().contains("damaged"));
    for end in (0..bytes.len()).step_by(211) {
        assert!(Opened::from_bytes(bytes[..end].to_vec()).is_err());
    }
}

#[test]
fn a_pair_says_what_both_say() {
    let matrix = generated(GENERATED[0]).unwrap();
    let problem = both(1, Dtype::F64, Diagonal::Unit, true);
    let whole = pair(&matrix, &problem, 0, Values::Included);
    let summary = serde_json::to_value(whole.summary()).unwrap();
    assert_eq!(summary["promise"]["median_us"], 20.0);
    assert_eq!(summary["problem"]["triangle"], "both");
    assert_eq!(summary["update_values"]["kind"], "gather");
    assert_eq!(summary["parts"][0]["problem"]["triangle"], "upper");
    assert_eq!(summary["parts"][1]["problem"]["triangle"], "lower");
}
