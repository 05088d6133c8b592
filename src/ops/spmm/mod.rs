//! SpMM: `C = A B`, A sparse (CSR), B dense.

pub mod column_major;
mod combinations;
pub mod condensed_tc;
pub mod constraints;
pub mod expanded_tc;
pub mod family;
pub mod features;
mod host;
pub mod inspect;
pub mod kept_rows;
pub mod lower;
pub mod model;
pub mod model_host;
pub mod nnz_split;
mod operation;
pub mod panel_columns;
pub mod panel_ways;
pub mod panels;
mod phrases;
pub mod radix;
pub mod resident;
pub mod row_panel;
pub mod row_split;
pub mod row_teams;
pub mod row_turns;
pub mod segments;
pub mod shared;
pub mod similarity;
pub mod space;
pub mod strips;
pub mod tca;
pub mod text;
pub mod tiled;
pub mod tiled_model;
pub mod tiled_row;
pub mod walk;

pub use lower::SpmmLowerer;
pub use operation::SpmmOperation;

use super::operation::TunableProblem;
use super::{Figures, Narrowing, Space};
use crate::domain::{
    Candidate, CandidateId, Device, DeviceKind, FunnelStep, Intensity, KernelFigures, Removal, Spmm,
};
use crate::search::{self, Draw, Pruned};
use crate::sparse::Csr;
use constraints::is_preference;
use inspect::Inspection;
use std::collections::{HashMap, HashSet};

/// The space of a matrix on a device: enumerated, pruned, predicted.
pub fn space(matrix: &Csr, problem: &Spmm, device: &Device, narrowing: &Narrowing) -> Space {
    let inspection = Inspection::of(matrix);
    let listed = space::listed(problem, device.kind);
    let never = combinations::step(&listed);
    let mut all: Vec<Candidate> = listed.into_iter().flat_map(|family| family.candidates).collect();
    if device.kind == DeviceKind::Cuda && matrix.has_equal_values() {
        walk::with_equal(&mut all);
    }
    if device.kind == DeviceKind::Cuda {
        // Values that are fixed may be those of the other form, and the full space has every form.
        let both = narrowing.asks_for_values() || narrowing.full.is_some();
        walk::with_near(&mut all, matrix, problem, both);
    }
    let never = never.map(|step| FunnelStep { left: all.len() as u64, ..step });
    let compiled = compiled(&all, problem, device, &narrowing.figures);
    let mut constraints = constraints::all(&inspection, problem, device, compiled);
    if narrowing.asks() {
        constraints = constraints::requested(constraints, narrowing);
    }
    let (mut pruned, despite) = match &narrowing.full {
        None => (search::prune(all, &constraints), HashMap::new()),
        Some(draw) => {
            let (mut pruned, mut despite) =
                search::prune_full(all, &constraints, |rule| is_preference(rule, device.kind));
            drawn(&mut pruned, &mut despite, draw);
            (pruned, despite)
        }
    };
    pruned.funnel.splice(0..0, never);
    let predict = |candidate| match device.kind {
        DeviceKind::Cuda => family::kernel(candidate, problem)
            .map_or(f64::INFINITY, |kernel| kernel.predict_us(&inspection, problem, device)),
        DeviceKind::Cpu => model_host::predict_us(candidate, &inspection, problem, device),
    };
    let scored: Vec<(Candidate, f64)> =
        pruned.kept.iter().map(|candidate| (candidate.clone(), predict(candidate))).collect();
    let named = scored.iter().map(|(candidate, us)| (candidate, *us));
    let described = features::describe(named, &inspection, problem, device);
    let model = problem.model_name(device.kind);
    let vendor = space::vendor(matrix, problem, device);
    let intensities = intensities(&scored, problem, &inspection, device);
    Space { scored, vendor, pruned, rules: constraints, model, described, intensities, despite }
}

/// Tiled SpMM's terms of the candidates that it describes.
fn intensities(
    scored: &[(Candidate, f64)],
    problem: &Spmm,
    inspection: &Inspection,
    device: &Device,
) -> Vec<(CandidateId, Intensity)> {
    if device.kind != DeviceKind::Cuda {
        return Vec::new();
    }
    let terms = |(candidate, us): &(Candidate, f64)| {
        let terms = family::kernel(candidate, problem)?.intensity(inspection, device, *us)?;
        Some((candidate.id(), terms))
    };
    scored.iter().filter_map(terms).collect()
}

/// Leaves of a full space what is drawn. The others are only counted.
fn drawn(pruned: &mut Pruned, despite: &mut HashMap<CandidateId, Removal>, draw: &Draw) {
    let all = pruned.kept.len() as u64;
    pruned.kept = draw.keep(std::mem::take(&mut pruned.kept), |candidate| candidate);
    let kept: HashSet<CandidateId> = pruned.kept.iter().map(Candidate::id).collect();
    despite.retain(|id, _| kept.contains(id));
    let (left, against) = (kept.len() as u64, despite.len() as u64);
    pruned.funnel.push(Draw::step(all, left, left - against));
}

/// The candidates whose kernels were compiled before, with what came of it.
fn compiled(
    candidates: &[Candidate],
    problem: &Spmm,
    device: &Device,
    figures: &Figures,
) -> HashMap<Candidate, KernelFigures> {
    if figures.is_empty() {
        return HashMap::new();
    }
    let known = |candidate: &Candidate| {
        let kernel = problem.kernel_identity(candidate, device)?;
        figures.get(&kernel).map(|figures| (candidate.clone(), *figures))
    };
    candidates.iter().filter_map(known).collect()
}
