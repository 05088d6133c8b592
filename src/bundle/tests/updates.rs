//! New values in the arrays of GPU plans: by their maps, or made again.

use super::super::container;
use super::super::places::{divided, gathered};
use super::*;
use crate::domain::bundle::{ARRAYS, MANIFEST, PlacedValues};
use crate::domain::problem::Stability;
use crate::domain::recipe::{Array, ArrayData};
use crate::ops::sptrsv::streamed::scheme::Scheme;

/// The maps of a bundle, applied to other values, give what packing these values gives.
///
/// Returns how many words say whether all values are equal: whoever updates sets them.
fn check_maps(read: &Bundle, plan: &Plan, other: &Arc<Csr>) -> usize {
    let mut equalities = 0;
    let (problem, candidate) = (&plan.problem, &plan.candidate);
    let recipe = lowered(other, problem, &plan.device, candidate).unwrap();
    let form = match candidate.is_baseline() {
        true => operand::Form::Vendor,
        false => operand::Form::Kernel,
    };
    let operand = operand::arrays(other, problem, form).unwrap().into_iter();
    let fresh: Vec<Array> = operand.chain(recipe.arrays).collect();
    let map = |name: &String| match read.array_data(name) {
        Some(ArrayData::U32(map)) => map.to_vec(),
        other => panic!("{other:?}"),
    };
    for listed in &read.manifest().arrays {
        let old = read.array_data(&listed.name).unwrap();
        let expected = &fresh.iter().find(|array| array.name == listed.name).unwrap().data;
        let updated = match &listed.values {
            None if listed.equality => {
                equalities += 1;
                ArrayData::U32([other.has_equal_values().into()].into())
            }
            None => old,
            Some(PlacedValues { map: Some(above), divisors: Some(below) }) => {
                divided(&old, &map(above), &map(below), other.values()).unwrap()
            }
            Some(values) => {
                let map = values.map.as_ref().map(map);
                let map = map.unwrap_or_else(|| (0..other.nnz() as u32).collect());
                gathered(&old, &map, other.values(), problem.dtype()).unwrap()
            }
        };
        assert_eq!(updated.bytes(), expected.bytes(), "{problem} {candidate} {}", listed.name);
    }
    equalities
}

/// A bundle without values says nothing of them, and one that calls other values equal is refused.
fn words_are_checked(matrix: &Arc<Csr>, plan: &(Plan, BTreeMap<Digest, Vec<u8>>)) {
    let word = |values| {
        let read = Bundle::from_bytes(bundle(matrix, plan, values).unwrap()).unwrap();
        read.array("equal_values").unwrap().to_vec()
    };
    assert_eq!((word(Values::Included), word(Values::External)), (vec![1, 0, 0, 0], vec![0; 4]));
    // The word of this bundle over other values.
    let file = bundle(matrix, plan, Values::Included).unwrap();
    let read = Bundle::from_bytes(file.clone()).unwrap();
    let mut members: container::Members<'_> = container::read(&file)
        .unwrap()
        .into_iter()
        .map(|(path, place)| (path, file[place].to_vec().into()))
        .collect();
    let (arrays, values) = (read.place(ARRAYS).unwrap().start, read.tensor("values").unwrap());
    members.get_mut(ARRAYS).unwrap().to_mut()[values.start - arrays] ^= 1;
    let listed = super::super::build::member(&members[ARRAYS]);
    let mut manifest = serde_json::to_value(read.manifest()).unwrap();
    manifest["members"][ARRAYS] = serde_json::to_value(listed).unwrap();
    members.insert(MANIFEST.to_owned(), serde_json::to_vec(&manifest).unwrap().into());
    let mut forged = Cursor::new(Vec::new());
    container::write(&mut forged, &members).unwrap();
    let refused = Bundle::from_bytes(forged.into_inner()).err().map(|error| error.to_string());
    assert!(
        refused.is_some_and(|why| why.contains("other values are equal")),
        "{}",
        read.manifest().candidate
    );
}

#[test]
fn maps_lead_new_values_to_where_every_gpu_kernel_reads_them() {
    let problems = [
        spmm(32, Dtype::F32, Layout::Row),
        spmm(33, Dtype::F32, Layout::Col),
        spmm(16, Dtype::F32, Layout::Col),
        spmm(16, Dtype::F16, Layout::Row),
        spmm(16, Dtype::Bf16, Layout::Row),
        spmm(8, Dtype::F64, Layout::Row),
        Problem::Spmm(Spmm { transpose: true, ..Spmm::new(8, Dtype::F32, Layout::Row) }),
    ];
    let mut families: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let mut equal_seen = 0;
    let ones = |matrix: &Csr| {
        let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
        let values = vec![1.0; matrix.nnz()];
        Arc::new(Csr::new(matrix.rows(), matrix.cols(), indptr, indices, values).unwrap())
    };
    let mut all = matrices();
    all.push(ones(&all[1]));
    for matrix in all {
        let other = Arc::new(other_values(&matrix));
        for problem in &problems {
            for candidate in candidates(&matrix, problem, DeviceKind::Cuda) {
                let Some(plan) = plan(&matrix, problem, DeviceKind::Cuda, &candidate) else {
                    continue;
                };
                let file = bundle(&matrix, &plan, Values::Included).unwrap();
                let read =
                    Bundle::from_bytes(file).unwrap_or_else(|error| panic!("{candidate}: {error}"));
                let gathers = matches!(read.manifest().update_values, UpdateValues::Gather(_));
                families.entry(candidate.family.clone()).or_default()[usize::from(gathers)] += 1;
                if !gathers {
                    continue;
                }
                let words = check_maps(&read, &plan.0, &other);
                let equal = candidate.params.contains_key("equal");
                assert_eq!(words, usize::from(equal), "{candidate}");
                equal_seen += words;
                if equal {
                    words_are_checked(&matrix, &plan);
                }
            }
        }
    }
    assert!(equal_seen > 3, "{equal_seen}");
    for family in [
        "row_split",
        "row_panel",
        "nnz_split",
        "tiled",
        "resident",
        "tca",
        "condensed_tc",
        "vendor",
    ] {
        let counts = families.get(family).copied().unwrap_or_default();
        // Half precision keeps lone entries as f32, which is another type than the values'.
        assert!(
            counts[1] > 0 && (counts[0] == 0 || family == "condensed_tc"),
            "{family}: {counts:?}"
        );
    }
}

/// A solve whose equations may not be rewritten.
fn row_by_row(dtype: Dtype) -> Problem {
    let stability = Stability::RowWise;
    Problem::Sptrsv(Sptrsv { rhs: 1, dtype, stability, ..Sptrsv::PLAIN })
}

/// The values decide where chains end, so new ones may take arrays of other lengths.
fn rows_that_are_substituted_are_made_again() {
    let matrix = generated("cholesky_poisson2d:nx=24,ny=24,seed=1").unwrap();
    let problem = solve(1, Dtype::F64, Triangle::Lower, false);
    let candidate = |forms: &[&str]| {
        let candidate = Candidate::new("chains").with("rows", 32).with("terms", 1024);
        let candidate = candidate.with("unroll", 4).with("warps", 8);
        forms.iter().fold(candidate, |candidate, form| candidate.with(form, 1))
    };
    let forms: [&[&str]; 2] = [&["substitute"], &["substitute", "staged"]];
    let update = |forms: &[&str]| {
        let (plan, blobs) = plan(&matrix, &problem, DeviceKind::Cuda, &candidate(forms)).unwrap();
        let update = plan.launch.as_ref().unwrap().update.as_ref().unwrap();
        let divides = update.divides(&plan.candidate.family, &plan.candidate.params);
        let file = bundle(&matrix, &(plan, blobs), Values::Included).unwrap();
        (divides, Bundle::from_bytes(file).unwrap().manifest().update_values.clone())
    };
    assert!(matches!(update(&[]), (true, UpdateValues::Gather(_))));
    for form in forms {
        assert!(matches!(update(form), (false, UpdateValues::Host(_))), "{form:?}");
    }
    let device = device(DeviceKind::Cuda);
    let packed = |matrix: &Arc<Csr>, form| {
        let recipe = lowered(matrix, &problem, &device, &candidate(form)).unwrap();
        recipe.arrays.into_iter().map(|array| array.data.len()).collect::<Vec<_>>()
    };
    // Coefficients of a hundred: no row is substituted twice.
    let scaled = |(row, col): (usize, u32), value: f64| match col as usize == row {
        true => value,
        false => 100.0 * value.signum() + value,
    };
    let entries = (0..matrix.rows()).flat_map(|row| {
        let (cols, values) = matrix.row(row);
        cols.iter().zip(values).map(move |(&col, &value)| scaled((row, col), value))
    });
    let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let grown = Csr::new(rows, cols, indptr, indices, entries.collect()).unwrap();
    let grown = Arc::new(grown);
    for form in forms {
        assert_ne!(packed(&matrix, form), packed(&grown, form), "{form:?}");
    }
}

const DENSE: &str = "cholesky_banded:n=200,half=199";

#[test]
fn solves_are_updated_in_place_or_made_again() {
    let mut kinds: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let problems = [
        (GENERATED[0], solve(1, Dtype::F64, Triangle::Lower, false)),
        (GENERATED[0], solve(3, Dtype::F32, Triangle::Lower, false)),
        (GENERATED[0], solve(1, Dtype::F32, Triangle::Upper, true)),
        (GENERATED[2], row_by_row(Dtype::F64)),
        (GENERATED[2], row_by_row(Dtype::F32)),
        // Rows of up to 200 terms, which are summed in parts.
        (DENSE, row_by_row(Dtype::F64)),
    ];
    // For levels far wider than these.
    let streams = [(4, 8), (8, 16)].map(|(entries, warps)| Scheme { entries, warps }.candidate());
    for (spec, problem) in problems {
        let matrix = generated(spec).unwrap();
        let other = Arc::new(other_values(&matrix));
        let streams = streams.iter().filter(|_| problem.columns() == 1).cloned();
        for candidate in candidates(&matrix, &problem, DeviceKind::Cuda).into_iter().chain(streams)
        {
            let Some(plan) = plan(&matrix, &problem, DeviceKind::Cuda, &candidate) else {
                continue;
            };
            let read =
                Bundle::from_bytes(bundle(&matrix, &plan, Values::Included).unwrap()).unwrap();
            let gathers = matches!(read.manifest().update_values, UpdateValues::Gather(_));
            kinds.entry(candidate.family.clone()).or_default()[usize::from(gathers)] += 1;
            let pattern = read.array("matrix.row_ptr").is_some();
            assert_eq!(pattern, !gathers, "{candidate}");
            let external = bundle(&matrix, &plan, Values::External);
            // What an earlier version stored has its clusters in the launch alone, which a plain launch would not have.
            let mut earlier = plan.clone();
            let launch = earlier.0.launch.as_mut().unwrap();
            launch.compiler = None;
            let clusters = launch.steps.iter().any(|step| step.cluster > 1);
            let refused = bundle(&matrix, &earlier, Values::Included).is_err();
            assert_eq!(refused, clusters && !candidate.is_baseline(), "{candidate}");
            // Its only array of values has ones, too, for partial sums and for b over a unit diagonal, and so cannot be left out.
            let unit = matches!(problem, Problem::Sptrsv(it) if it.diagonal == Diagonal::Unit);
            let split = spec == DENSE && candidate.int("entries") == Some(4);
            let mixed = candidate.family == "streamed" && (split || unit);
            assert_eq!(external.is_ok(), gathers && !mixed, "{spec} {problem} {candidate}");
            if !gathers {
                continue;
            }
            check_maps(&read, &plan.0, &other);
            // A plan of an earlier version has no kernel that divides: the host makes such arrays again.
            let divides = read.manifest().arrays.iter().any(|array| array.divisors().is_some());
            let mut earlier = plan.clone();
            if let Some(update) = &mut earlier.0.launch.as_mut().unwrap().update {
                update.quotients = None;
            }
            let earlier = bundle(&matrix, &earlier, Values::Included).unwrap();
            let update = Bundle::from_bytes(earlier).unwrap().manifest().update_values.clone();
            assert_eq!(divides, matches!(update, UpdateValues::Host(_)), "{candidate}");
        }
    }
    for family in ["ag", "overlapped", "chains", "streamed"] {
        assert!(kinds[family][1] > 0 && kinds[family][0] == 0, "{family}: {kinds:?}");
    }
    rows_that_are_substituted_are_made_again();
    // Rewritten, and as they are.
    assert!(kinds["slices"].iter().all(|&count| count > 0), "{kinds:?}");
    assert!(kinds["vendor"][1] > 0, "{kinds:?}");
}
