//! Features of SpMM candidates: schedule information, sparse attributes and tile size (LO-SpMM, section 3.5), the counts and
//! predictions of the analytic model, and the device's facts.

use super::family::{self, RowOrder};
use super::inspect::Inspection;
use super::model::Parts;
use super::tiled_model::Terms;
use crate::domain::{Candidate, Device, DeviceKind, Layout, Spmm};
use crate::ops::features::{Described, Numbers};

/// Version of these features: 6 has near columns and equal values.
pub const VERSION: u32 = 6;

/// These include the host's kernels: their families have the same names and parameters. `kept_rows` is not among them: it came when
/// models of this version were in use, and is told by `r` and `stages`, which no other family has both; what a thread keeps is the
/// tile's `unroll`.
const FAMILY_NAMES: [&str; 9] = [
    "row_panel",
    "row_split",
    "nnz_split",
    "tca",
    "condensed_tc",
    "expanded_tc",
    "tiled",
    "resident",
    "vendor",
];

/// Parameters that the tile does not determine, with the values of those that are texts.
const PARAMETERS: [(&str, &[&str]); 22] = [
    ("m1", &[]),
    ("n1", &[]),
    ("lanes", &[]),
    ("ways", &[]),
    ("vec", &[]),
    ("cols", &[]),
    ("r", &[]),
    ("chunk", &[]),
    ("stages", &[]),
    ("residue", &[]),
    ("buffer", &[]),
    ("split", &[]),
    ("rows_per_task", &[]),
    ("turns", &[]),
    ("team", &[]),
    ("heavy", &[]),
    ("fetch", &["direct", "shuffle", "ahead"]),
    ("b", &["given", "staged", "both"]),
    ("feed", &["registers", "shared"]),
    ("thresholds", &["paper", "double", "eightfold"]),
    ("near", &[]),
    ("equal", &[]),
];

/// The features of all candidates; `predicted` are their times by the analytic model, in the same order.
pub fn describe<'a>(
    candidates: impl Iterator<Item = (&'a Candidate, f64)>,
    seen: &Inspection,
    problem: &Spmm,
    device: &Device,
) -> Described {
    let candidates: Vec<_> = candidates.collect();
    let best = candidates.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
    let own = |(candidate, us): &(&Candidate, f64)| {
        let all = Numbers::unnamed();
        own(all, candidate, (*us, best), seen, problem, device).values
    };
    Described {
        shared: shared(seen, problem, device).values,
        own: candidates.iter().map(own).collect(),
    }
}

/// Names of the features in their order.
pub fn names() -> (Vec<String>, Vec<String>) {
    let (problem, device) = (Spmm::new(1, Default::default(), Default::default()), Device::NONE);
    let seen = Inspection::of(&crate::sparse::Csr::empty());
    let nothing = Candidate::new("");
    (
        shared(&seen, &problem, &device).names,
        own(Numbers::named(), &nothing, (1.0, 1.0), &seen, &problem, &device).names,
    )
}

fn shared(seen: &Inspection, problem: &Spmm, device: &Device) -> Numbers {
    let mut all = Numbers::named();
    let (rows, cols, nnz) = (seen.rows as f64, seen.cols as f64, seen.nnz as f64);
    let (n, element) = (f64::from(problem.n), problem.dtype.bytes() as f64);
    all.log("rows", rows);
    all.log("cols", cols);
    all.log("nnz", nnz);
    all.ratio("density", nnz, rows * cols);
    all.log("row_mean", seen.mean_row);
    all.log("row_longest", seen.longest_row as f64);
    all.put("row_cov", seen.groups(1, false).cov);
    all.put("row_cov_8", seen.groups(8, false).cov);
    all.put("row_cov_64", seen.groups(64, false).cov);
    all.ratio("lockstep_4", seen.groups(4, false).lockstep, 1.0);
    all.ratio("lockstep_32", seen.groups(32, false).lockstep, 1.0);
    all.ratio("longest_share", seen.longest_row as f64, nnz);
    all.ratio("touched_cols", seen.touched_cols as f64, cols);
    all.log("gap", seen.mean_gap);
    for (name, by_length) in [("", false), ("_by_length", true)] {
        all.ratio(&format!("near{name}"), seen.locality(by_length).near, 1.0);
        all.ratio(&format!("far{name}"), seen.locality(by_length).far, 1.0);
    }
    for (name, order) in [
        ("natural", RowOrder::Natural),
        ("length", RowOrder::Length),
        ("similar", RowOrder::Similarity),
        ("radix", RowOrder::Radix),
        ("locality", RowOrder::Locality),
    ] {
        all.ratio(&format!("overlap_{name}"), seen.overlap(order).reuse, 1.0);
        all.ratio(&format!("rho_{name}"), seen.rho(order), 1.0);
    }
    let by_locality = seen.locality_in(RowOrder::Locality);
    all.ratio("near_by_locality", by_locality.near, 1.0);
    all.ratio("far_by_locality", by_locality.far, 1.0);
    all.ratio("locality_gain", seen.locality_gain(), 1.0);
    for m1 in [4, 16] {
        all.ratio(&format!("panel_reuse_{m1}"), seen.panel(m1).reuse, 1.0);
    }
    all.log("n", n);
    all.put("n_divisor", problem.n.trailing_zeros().min(4).into());
    all.log("element_bytes", element);
    all.log("c_element_bytes", problem.result().bytes() as f64);
    all.flag("column_major", problem.layout == Layout::Col);
    all.flag("tf32", problem.tf32);
    all.flag("accumulate", problem.accumulate);
    all.log("work", nnz * n);
    let l2 = (device.l2_bytes as f64).max(1.0);
    all.ratio("b_over_l2", seen.touched_cols as f64 * n * element, l2);
    all.ratio("c_over_l2", rows * n * problem.result().bytes() as f64, l2);
    all.ratio("a_over_l2", nnz * (4.0 + element), l2);
    all.log("rows_a_multiprocessor", rows / f64::from(device.multiprocessors.max(1)));
    all.device(device);
    all
}

/// Adds a candidate's own features; `us` is its predicted time, `best` the best predicted time of all.
fn own(
    mut all: Numbers,
    candidate: &Candidate,
    (us, best): (f64, f64),
    seen: &Inspection,
    problem: &Spmm,
    device: &Device,
) -> Numbers {
    all.log("predicted_us", us);
    all.ratio("predicted_over_best", us, best);
    all.family(&FAMILY_NAMES, candidate);
    for (name, texts) in PARAMETERS {
        all.parameter(name, texts, candidate);
    }
    let kernel = match device.kind {
        DeviceKind::Cuda => family::kernel(candidate, problem),
        DeviceKind::Cpu => None,
    };
    // The host's kernels have no such tile: their numbers are those of a tile of one.
    let kernel = kernel.as_deref();
    let tile = kernel.map_or(NO_TILE, |kernel| kernel.tile());
    all.log("tile_rows", tile.rows.into());
    all.log("tile_columns", tile.columns.into());
    all.log("threads", tile.threads.into());
    all.log("threads_a_tile", tile.threads_per_tile.into());
    all.log("tiles_a_block", tile.tiles_per_block.into());
    all.put(
        "order",
        match tile.order {
            RowOrder::Natural => 0.0,
            RowOrder::Length => 1.0,
            RowOrder::Similarity => 2.0,
            RowOrder::Radix => 3.0,
            RowOrder::Locality => 4.0,
        },
    );
    all.log("unroll", tile.unroll.into());
    all.log("elements_an_entry", tile.elements_an_entry.into());
    all.put("registers", tile.registers.into());
    all.flag("balanced", tile.balanced);
    let (blocks, shared_bytes, fill) = kernel.map_or((1, 0, 1.0), |kernel| {
        (kernel.blocks(seen, problem), kernel.shared_bytes(seen), kernel.fill(seen))
    });
    all.log("shared_bytes", shared_bytes as f64);
    all.log("blocks", blocks as f64);
    all.ratio("waves", blocks as f64, f64::from(device.multiprocessors.max(1)));
    all.ratio("fill", fill, 1.0);
    let columns = tile.columns.max(1);
    let padded = f64::from(problem.n.div_ceil(columns) * columns);
    all.ratio("columns_padded", padded, problem.n.into());
    let seen_or_one = |value: f64| if value.is_finite() { value } else { 0.0 };
    let (work, parts) = match kernel {
        None => (None, None),
        Some(kernel) => {
            let work = kernel.work(seen);
            let parts = Parts::of(&tile, &work, seen, problem, device);
            (Some(work), Some(parts))
        }
    };
    let of =
        |read: fn(&super::model::Work) -> f64| work.as_ref().map_or(0.0, |w| seen_or_one(read(w)));
    let nnz = (seen.nnz as f64).max(1.0);
    all.ratio("entries", of(|w| w.entries), nnz);
    all.ratio("a_bytes", of(|w| w.a_bytes), nnz);
    all.log("fetched", of(|w| w.fetched));
    all.ratio("fetched_over_width", of(|w| w.fetched), of(|w| w.width));
    all.put("instructions", of(|w| w.instructions));
    all.log("walks", of(|w| w.walks));
    all.log("mean_walk", of(|w| w.mean_walk));
    all.log("longest_walk", of(|w| w.longest_walk));
    all.ratio("walk_unevenness", of(|w| w.longest_walk), of(|w| w.mean_walk));
    all.ratio("lockstep", of(|w| w.lockstep), 1.0);
    all.ratio("reuse", of(|w| w.reuse), 1.0);
    all.ratio("near_in_order", of(|w| w.locality.near), 1.0);
    all.ratio("far_in_order", of(|w| w.locality.far), 1.0);
    all.put("framed", of(|w| w.framed));
    all.log("staged_bytes", of(|w| w.staged_bytes));
    all.log("c_again", of(|w| w.c_again));
    all.log("after_us", of(|w| w.after_us));
    tiled(&mut all, kernel.and_then(|kernel| kernel.tiled_terms(seen, device)).as_ref());
    let part = |read: fn(&Parts) -> f64| parts.as_ref().map_or(0.0, |p| seen_or_one(read(p)));
    all.ratio("memory_us", part(|p| p.memory), us);
    all.ratio("cache_us", part(|p| p.cache), us);
    all.ratio("in_flight_us", part(|p| p.in_flight), us);
    all.ratio("issue_us", part(|p| p.issue), us);
    all.ratio("chain_us", part(|p| p.chain), us);
    all
}

/// The terms of Tiled SpMM's model (Eq. 2 to 6) with its intensities, zero where it does not describe the kernel.
fn tiled(all: &mut Numbers, terms: Option<&Terms>) {
    let of = |read: fn(&Terms) -> f64| terms.map_or(0.0, read);
    let intensity = |at: usize| terms.map_or(0.0, |terms| terms.intensities()[at]);
    all.flag("tiled_described", terms.is_some());
    all.log("tiled_mu_segment", of(|it| it.mu_segment));
    all.log("tiled_rho", of(|it| it.rho));
    all.log("tiled_z", of(|it| it.z));
    all.log("tiled_delta", of(|it| it.delta));
    all.log("tiled_c", of(|it| it.c));
    all.log("tiled_l", of(|it| it.l));
    all.log("tiled_gamma", of(|it| it.gamma));
    all.log("tiled_utilization", of(|it| it.u));
    all.log("tiled_stages", of(|it| it.stages_per_panel));
    all.log("tiled_naive", intensity(0));
    all.log("tiled_algorithmic", intensity(1));
    all.log("tiled_effective", intensity(2));
    all.log("tiled_optimistic", intensity(3));
}

const NO_TILE: family::Tile = family::Tile {
    rows: 1,
    columns: 1,
    threads: 1,
    most_threads: 1,
    threads_per_tile: 1,
    tiles_per_block: 1,
    order: RowOrder::Natural,
    unroll: 1,
    elements_an_entry: 1,
    registers: 0,
    shared_bytes: 0,
    vector: 1,
    balanced: false,
    grid_y: 1,
    repeats: None,
};

#[cfg(test)]
mod tests {
    use super::super::family::{FAMILIES, SpmmFamily};
    use super::*;
    use crate::domain::Dtype;
    use crate::sparse::generate::Spec;

    #[test]
    fn names_are_distinct_and_every_family_and_parameter_has_one() {
        let (shared, own) = names();
        let mut all: Vec<&String> = shared.iter().chain(&own).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), shared.len() + own.len());
        let tile = ["block", "unroll", "keep", "columns", "rows", "order", "warps", "segment"];
        let has = |family: &dyn SpmmFamily, name| family.domains().iter().any(|it| it.name == name);
        for family in FAMILIES {
            let told = has(*family, "r") && has(*family, "stages");
            assert_eq!(FAMILY_NAMES.contains(&family.name()), !told, "{}", family.name());
            for domain in family.domains() {
                let listed = PARAMETERS.iter().any(|(name, _)| *name == domain.name);
                assert!(
                    listed || tile.contains(&domain.name),
                    "no feature describes {}",
                    domain.name
                );
            }
        }
    }

    #[test]
    fn every_candidate_is_described_alike() {
        let matrix = Spec::parse("rmat:scale=8,seed=1").unwrap().generate().unwrap();
        let seen = Inspection::of(&matrix);
        let (shared, own) = names();
        for layout in [Layout::Row, Layout::Col] {
            let problem = Spmm::new(32, Dtype::F32, layout);
            let all = super::super::space::enumerate(&problem, DeviceKind::Cuda);
            let device = Device { kind: DeviceKind::Cuda, ..Device::NONE };
            let described = describe(all.iter().map(|c| (c, 1.0)), &seen, &problem, &device);
            assert_eq!(described.shared.len(), shared.len());
            assert!(described.own.iter().all(|values| values.len() == own.len()));
            assert!(described.own.iter().flatten().all(|value| value.is_finite()));
        }
    }
}
