//! Features of SpTRSV schemes: the ten of AG-SpTRSV (section 4.5 and Equation 1), computed on the system in solve
//! order; a scheme's parameters; the predictions of the analytic model; the device's facts.

use super::ag::model::entries_on_path;
use super::slices::Estimate;
use super::slices::rewrite::Rewrite;
use super::slices::survey::Reach;
use super::structure_features::{LONG, StructureFeatures, WIDTHS};
use super::{Parts, System};
use crate::domain::matrix::Spread;
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Candidate, Device, Dtype, Sptrsv};
use crate::ops::features::{Described, Numbers};
use crate::sparse::{Csr, features};
use std::borrow::Cow;
use std::collections::HashMap;

/// Version of these features: 2 has the widths of levels, long rows, coefficients and gaps between levels, and surveys by strata; 3 names
/// the families `overlapped`, `chains` and `sweeps` and their parameters, refinement and copying ahead; 4 has what the predictions of
/// `overlapped` and `chains` are made of, how a prediction compares with the best of its family, windows over levels, substituted and
/// staged chains, and how much a system amplifies.
pub const VERSION: u32 = 4;

/// The ten features of AG-SpTRSV (section 4.5) under their names here, and whether a feature is stored as log2(size + 1).
/// `lnnz` is the distribution of rows over levels, where the paper has that of entries: trials on record and models that ship have
/// these values, so they change only with [`VERSION`]. The paper's mean is `nnz` over `levels`, which are both among the ten.
pub const TEN: [(&str, bool); 10] = [
    ("m", true),
    ("nnz", true),
    ("rnnz_avg", true),
    ("rnnz_max", true),
    ("rnnz_cov", false),
    ("lnnz_avg", true),
    ("lnnz_max", true),
    ("lnnz_cov", false),
    ("levels", true),
    ("dep_dist", false),
];

/// Families that models of [`VERSION`] know by name. One that came later has none of these set, and of `sweeps` a model has seen no search,
/// since those of approximate solves are nothing to learn from (nor are those of `inverse`). What a model thinks of such a family is a guess:
/// it is the analytic model, which a search hears of every family, that gets it tried.
const FAMILY_NAMES: [&str; 9] =
    ["slices", "ag", "serial", "levels", "merged", "vendor", "overlapped", "chains", "sweeps"];

/// Parameters with the values of those that are texts.
const PARAMETERS: [(&str, &[&str]); 30] = [
    ("window_ns", &[]),
    ("terms", &[]),
    ("lanes", &[]),
    ("warps", &[]),
    ("unroll", &[]),
    ("take", &["block", "spread", "ticket"]),
    ("sync", &["sentinel", "packed"]),
    ("scope", &["global", "sm", "cluster8", "cluster16"]),
    ("pause", &[]),
    // A number in the family `slices`, a text in the paper's family.
    ("alpha", &["0", "1", "2", "4", "8", "16", "inf"]),
    ("nw", &[]),
    ("ng", &[]),
    ("sw_rnnz", &["0", "1", "2", "4", "8", "16", "32", "inf"]),
    ("read", &["direct", "shared"]),
    ("reorder", &["none", "level"]),
    ("rg", &["sequential", "balance"]),
    ("ws", &["rr", "balance", "locality"]),
    ("merge", &["fixed", "avg", "thresh"]),
    ("merge_size", &[]),
    ("threads", &[]),
    ("narrow", &[]),
    ("rows", &[]),
    ("refine", &[]),
    ("ahead", &[]),
    ("levels", &[]),
    ("awaited", &[]),
    ("sweeps", &[]),
    ("inner", &[]),
    ("substitute", &[]),
    ("staged", &[]),
];

/// More than any system amplifies whose solution float32 can hold.
const MOST_AMPLIFIED: f64 = 1e40;

/// The features of all schemes: `candidates` with their times by the analytic model, `parts` with what these are made of.
pub fn describe<'a>(
    candidates: impl Iterator<Item = (&'a Candidate, f64)>,
    system: &System,
    estimate: Option<&Estimate>,
    parts: &HashMap<Candidate, Parts>,
) -> Described {
    let candidates: Vec<_> = candidates.collect();
    let best = candidates.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
    let rewritten = candidates.iter().any(|(c, _)| c.int("window_ns").is_some_and(|ns| ns > 0));
    let mut best_of: HashMap<&str, f64> = HashMap::new();
    for (candidate, us) in &candidates {
        let best = best_of.entry(&candidate.family).or_insert(f64::INFINITY);
        *best = us.min(*best);
    }
    let levels = system.levels.widths.len() as f64;
    let described = |candidate: &Candidate, us| {
        let of_family = best_of.get(candidate.family.as_str()).copied().unwrap_or(us);
        let parts = parts.get(candidate).copied().unwrap_or_default();
        own(Numbers::unnamed(), candidate, &Predicted { us, best, of_family, levels, parts }).values
    };
    Described {
        shared: shared(system, rewritten, estimate).values,
        own: candidates.iter().map(|(c, us)| described(c, *us)).collect(),
    }
}

/// Names of the features in their order.
pub fn names() -> (Vec<String>, Vec<String>) {
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::Unit);
    let problem =
        Sptrsv { rhs: 1, dtype: Dtype::F64, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN };
    let system = System::of(&Csr::empty(), &problem, &Device::NONE);
    let parts = Parts::default();
    let nothing = Predicted { us: 1.0, best: 1.0, of_family: 1.0, levels: 1.0, parts };
    let shared = system.map(|system| shared(&system, false, None).names).unwrap_or_default();
    (shared, own(Numbers::named(), &Candidate::new(""), &nothing).names)
}

/// Windows from whose surveys a perceptron, which sees no candidate's own features, learns the effect of rewriting the
/// system.
const SURVEYED_NS: [u32; 4] = [250, 500, 1000, 4000];
const SURVEYED_TERMS: u32 = 1024;

fn shared(system: &System, rewritten: bool, estimate: Option<&Estimate>) -> Numbers {
    let mut all = Numbers::named();
    let (triangular, problem) = (&system.triangular, &system.problem);
    let rows = triangular.rows() as f64;
    let lengths = triangular.indptr.windows(2).map(|ends| (ends[1] - ends[0] + 1) as u64);
    let rnnz: Spread = features::spread(lengths);
    let lnnz: Spread = features::spread(system.levels.widths.iter().map(|&width| width.into()));
    let levels = system.levels.widths.len() as f64;
    let nnz = triangular.nnz() as f64 + rows;
    all.log("m", rows);
    all.log("nnz", nnz);
    all.log("rnnz_avg", rnnz.mean);
    all.log("rnnz_max", rnnz.max as f64);
    all.put("rnnz_cov", rnnz.cov);
    all.log("lnnz_avg", lnnz.mean);
    all.log("lnnz_max", lnnz.max as f64);
    all.put("lnnz_cov", lnnz.cov);
    all.log("levels", levels);
    all.put("dep_dist", triangular.dep_dist());
    all.log("entries_on_path", entries_on_path(system));
    structure(&mut all, &StructureFeatures::of(system));
    all.flag("rewritten", rewritten);
    // Without bound where x overflows.
    let amplification = estimate.map_or(0.0, Estimate::amplification);
    all.log("amplification", amplification.min(MOST_AMPLIFIED));
    let unit = problem.diagonal == Diagonal::Unit;
    all.log("rhs", problem.rhs.into());
    all.log("element_bytes", problem.dtype.bytes() as f64);
    all.flag("unit_diagonal", unit);
    all.flag("reversed", triangular.reversed);
    let work_bytes = rows * f64::from(problem.rhs) * problem.dtype.bytes() as f64;
    let shared_bytes = (system.device.shared_bytes_per_block as f64).max(1.0);
    all.ratio("unknowns_over_shared", work_bytes, shared_bytes);
    let l2 = (system.device.l2_bytes as f64).max(1.0);
    all.ratio("system_over_l2", nnz * (4.0 + problem.dtype.bytes() as f64), l2);
    for window_ns in SURVEYED_NS {
        // Large systems are not rewritten in every way: the nearest survey stands in.
        let nearest = estimate.and_then(|estimate| {
            let known = estimate.rewrites().filter(|how| how.window_ns > 0);
            let away = |how: &Rewrite| {
                (
                    how.window_ns.abs_diff(window_ns),
                    how.terms.abs_diff(SURVEYED_TERMS),
                    how.window_ns,
                )
            };
            known.min_by_key(away).map(|how| (estimate.windows(how), estimate.reach(how)))
        });
        let (windows, reach) = nearest.unzip();
        let reach = reach.unwrap_or(Reach { levels: 1.0, terms: 1.0, longest: 1.0 });
        all.log(&format!("windows_{window_ns}"), windows.unwrap_or(levels));
        all.log(&format!("window_terms_{window_ns}"), reach.terms);
        all.log(&format!("window_longest_{window_ns}"), reach.longest);
    }
    all.device(&system.device);
    all
}

fn structure(all: &mut Numbers, structure: &StructureFeatures) {
    for (width, share) in WIDTHS.iter().zip(structure.rows_in_narrow) {
        all.put(&format!("rows_in_levels_to_{width}"), share);
    }
    all.put("narrow_levels", structure.narrow_levels);
    all.log("narrow_run", structure.narrow_run as f64);
    for (times, share) in LONG.iter().zip(structure.entries_in_long) {
        all.put(&format!("entries_in_rows_over_{times}"), share);
    }
    all.put("entries_at_end", structure.entries_at_end);
    all.log("weight", structure.weight);
    all.put("heavy_rows", structure.heavy_rows);
    all.log("gap_median", structure.gap_median as f64);
    all.log("gap_most", structure.gap_most as f64);
    all.log("gap_earliest", structure.gap_earliest);
}

/// What the analytic model says of a candidate.
struct Predicted {
    us: f64,
    /// The best predicted time of all, and of the candidate's family.
    best: f64,
    of_family: f64,
    /// Levels of the system as given.
    levels: f64,
    parts: Parts,
}

/// Adds a candidate's own features.
fn own(mut all: Numbers, candidate: &Candidate, predicted: &Predicted) -> Numbers {
    let &Predicted { us, best, of_family, levels, parts } = predicted;
    all.log("predicted_us", us);
    all.ratio("predicted_over_best", us, best);
    all.ratio("predicted_over_family", us, of_family);
    all.family(&FAMILY_NAMES, candidate);
    let candidate = split_merge(candidate);
    for (name, texts) in PARAMETERS {
        all.parameter(name, texts, &candidate);
    }
    all.log("windows", parts.windows);
    all.ratio("windows_over_levels", parts.windows, levels);
    all.log("rows_a_window", parts.rows_a_window);
    all.log("terms_an_equation", parts.terms);
    all.log("longest_equation", parts.longest);
    all.log("rounds", parts.rounds);
    all.log("steps", parts.steps);
    all.ratio("lanes_over_terms", parts.lanes, parts.terms);
    all.ratio("slices_over_warps", parts.slices, parts.warps);
    all.log("waiting_us", parts.waiting_us);
    all.log("bytes_us", parts.bytes_us);
    all.log("launches_us", parts.launches_us);
    all.ratio("waiting_over_best", parts.waiting_us, best);
    all.ratio("bytes_over_best", parts.bytes_us, best);
    all
}

/// `merge=avg8` as a kind and a size.
fn split_merge(candidate: &Candidate) -> Cow<'_, Candidate> {
    let Some(merge) = candidate.text("merge") else { return Cow::Borrowed(candidate) };
    let (kind, size) =
        merge.split_at(merge.find(|c: char| c.is_ascii_digit()).unwrap_or(merge.len()));
    let (kind, size) = (kind.to_owned(), size.parse().unwrap_or(0));
    Cow::Owned(candidate.clone().with_text("merge", &kind).with("merge_size", size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::sptrsv::space;
    use crate::sparse::generate::Spec;

    fn gpu() -> Device {
        Device {
            kind: crate::domain::DeviceKind::Cuda,
            compute_capability: "9.0".to_owned(),
            multiprocessors: 132,
            shared_bytes_per_block: 232_448,
            max_threads_per_multiprocessor: 2048,
            ..Device::NONE
        }
    }

    #[test]
    fn names_are_distinct_and_the_ten_come_first() {
        let (shared, own) = names();
        assert!(shared.iter().zip(TEN).all(|(name, (ten, _))| name == ten));
        let mut all: Vec<&String> = shared.iter().chain(&own).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), shared.len() + own.len());
    }

    #[test]
    fn the_ten_are_those_of_the_matrix() {
        let matrix = Spec::parse("ilu0_poisson2d:nx=30,ny=20,seed=1").unwrap().generate().unwrap();
        let lower = features::features(&matrix).lower.unwrap();
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem = Sptrsv {
            rhs: 1,
            dtype: Dtype::F64,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        };
        let system = System::of(&matrix, &problem, &Device::NONE).unwrap();
        let found = shared(&system, false, None);
        let values = [
            600.0,
            lower.nnz as f64,
            lower.rnnz.mean,
            lower.rnnz.max as f64,
            lower.rnnz.cov,
            lower.lnnz.mean,
            lower.lnnz.max as f64,
            lower.lnnz.cov,
            lower.levels as f64,
            lower.dep_dist,
        ];
        let stored = |(value, (_, log)): (f64, (&str, bool))| match log {
            true => (value + 1.0).log2() as f32,
            false => value as f32,
        };
        let expected: Vec<f32> = values.into_iter().zip(TEN).map(stored).collect();
        assert_eq!(found.values[..10], expected);
    }

    #[test]
    fn every_parameter_of_every_scheme_of_these_families_is_described() {
        let matrix = Spec::parse("ilu0_poisson2d:nx=40,ny=40,seed=1").unwrap().generate().unwrap();
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem = Sptrsv {
            rhs: 1,
            dtype: Dtype::F64,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        };
        let mut device = gpu();
        for kind in [crate::domain::DeviceKind::Cuda, crate::domain::DeviceKind::Cpu] {
            device.kind = kind;
            let space = space(&matrix, &problem, &device, &Default::default()).unwrap();
            assert!(space.scored.len() > 5);
            for (candidate, _) in &space.scored {
                assert!(FAMILY_NAMES.contains(&candidate.family.as_str()));
                let described = split_merge(candidate);
                for (name, value) in &described.params {
                    let listed = PARAMETERS.iter().find(|(known, _)| known == name);
                    let texts = listed.unwrap_or_else(|| panic!("no feature describes {name}")).1;
                    if let crate::domain::Param::Text(text) = value {
                        assert!(texts.contains(&text.as_str()), "{name}={text}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_candidate_of_a_gpu_is_described_alike_by_finite_numbers() {
        let device = gpu();
        let (shared, own) = names();
        let windows = own.iter().position(|name| name == "windows").unwrap();
        for spec in ["ilu0_poisson2d:nx=40,ny=40,seed=1", "cholesky_poisson2d:nx=30,ny=30,seed=1"] {
            let matrix = Spec::parse(spec).unwrap().generate().unwrap();
            let problem =
                Sptrsv { dtype: Dtype::F64, diagonal: Diagonal::NonUnit, ..Sptrsv::PLAIN };
            let space = space(&matrix, &problem, &device, &Default::default()).unwrap();
            assert_eq!(space.described.shared.len(), shared.len());
            let families: std::collections::HashSet<&str> =
                space.scored.iter().map(|(candidate, _)| candidate.family.as_str()).collect();
            assert!(families.contains("slices") && families.contains("overlapped"));
            assert_eq!(families.contains("chains"), spec.starts_with("cholesky"));
            for ((candidate, _), values) in space.scored.iter().zip(&space.described.own) {
                assert_eq!(values.len(), own.len());
                assert!(values.iter().all(|value| value.is_finite()), "{candidate}");
                // Only the paper's family does not tell what its predictions are made of.
                assert_eq!(values[windows] > 0.0, candidate.family != "ag", "{candidate}");
            }
        }
    }
}
