//! Operations: their candidates, constraints and models, and how a candidate becomes a recipe.

pub mod admission;
pub mod family;
pub mod feature_words;
pub mod features;
pub mod limit;
pub mod operation;
pub mod program;
pub mod spmm;
pub mod sptrsv;
#[cfg(test)]
pub(crate) mod tests;
mod vendor;

pub use family::{Family, Kernels, catalog, family_names, has_own_family, kernel_headers};
pub use operation::{TunableOperation, TunableProblem, of, operation};

use crate::domain::candidate::VENDOR;
use crate::domain::recipe::Recipe;
use crate::domain::{
    Candidate, CandidateId, Device, Digest, Dtype, Fixed, FunnelStep, Intensity, JobRequest,
    Judged, KernelFigures, Matrix, Problem, Removal, SearchStrategy, funnel,
};
use crate::search::{self, Constraint, Draw, Pruned};
use crate::sparse::Csr;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Why this version cannot tune the problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Why the candidate cannot be lowered for this matrix, problem and device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Whether the problem can be tuned for a matrix with these facts, on some device. The diagonal of a triangular solve is
/// checked by `sparse::Triangular`, which has the entries.
pub fn check(matrix: &Matrix, problem: &Problem) -> Result<(), Unsupported> {
    if let Some((_, why)) = problem.out_of_tuned_range() {
        return Err(Unsupported(why));
    }
    if let Some(limit) = problem.limit(None) {
        return Err(Unsupported(limit.why.to_owned()));
    }
    of(problem).check(matrix)?;
    if matrix.nnz == 0 {
        return Err(Unsupported("the matrix has no entries: there is nothing to tune".to_owned()));
    }
    if matrix.nnz > u64::from(u32::MAX >> 1) {
        return Err(Unsupported(format!(
            "the matrix has {} entries; the kernels index them with 32 bits, so at most {} can be tuned",
            matrix.nnz,
            u32::MAX >> 1
        )));
    }
    Ok(())
}

/// Whether a problem that passes [`check`] has kernels on this device.
pub fn check_device(problem: &Problem, device: &Device) -> Result<(), Unsupported> {
    if let Some(limit) = problem.limit(Some(device.kind)) {
        return Err(Unsupported(limit.why.to_owned()));
    }
    // Rounding to bf16, and its products on tensor cores, are instructions from there on.
    match device.compute_major() {
        Some(major) if problem.dtype() == Dtype::Bf16 && major < 8 => Err(Unsupported(format!(
            "bf16 needs compute capability 8.0, and the device has {}",
            device.compute_capability
        ))),
        _ => Ok(()),
    }
}

/// The matrix that kernels work on, of the stored one: the transpose where the problem says so. Whoever reads a matrix for a
/// problem calls this, once; all behind it, from the search space to the vendor's routines, works on what it gives and takes
/// no notice of the transposition.
pub fn operand(matrix: Csr, problem: &Problem) -> Csr {
    if problem.works_on_transpose() { matrix.transposed() } else { matrix }
}

/// As [`operand`], of a matrix that is shared.
pub fn shared_operand(matrix: &Arc<Csr>, problem: &Problem) -> Arc<Csr> {
    if problem.works_on_transpose() { Arc::new(matrix.transposed()) } else { matrix.clone() }
}

/// Most candidates besides the winner whose terms of Tiled SpMM's model a plan keeps.
const MOST_INTENSITIES: usize = 7;

/// The candidates that survived, each with its predicted time, and what happened to the others.
pub struct Space {
    /// Candidates to search among, with predicted microseconds. Vendor routines are not here: they are always tried.
    pub scored: Vec<(Candidate, f64)>,
    pub vendor: Vec<Candidate>,
    pub pruned: Pruned,
    /// The rules that pruned it, in order; empty where a reduced list is made without enumerating the space.
    pub rules: Vec<Box<dyn Constraint>>,
    /// Name of the model that predicted.
    pub model: &'static str,
    /// Features of the candidates to search among, in their order.
    pub described: features::Described,
    /// Tiled SpMM's terms of those candidates to search among that its model describes.
    pub intensities: Vec<(CandidateId, Intensity)>,
    /// Of a full space: the rule that would have removed a candidate to search among, for each that a rule would have removed.
    pub despite: HashMap<CandidateId, Removal>,
}

/// The compiler's figures of kernels, by [`TunableProblem::kernel_identity`].
pub type Figures = HashMap<Digest, KernelFigures>;

/// Enumerates, prunes and predicts, without the compiler's figures of earlier runs, among all families.
pub fn space(matrix: &Csr, problem: &Problem, device: &Device) -> Result<Space, Unsupported> {
    of(problem).space(matrix, device, &Narrowing::default())
}

/// What narrows a search space in addition to matrix, problem and device.
#[derive(Clone, Debug, Default)]
pub struct Narrowing {
    /// The compiler's figures of kernels that were compiled before.
    pub figures: Figures,
    /// The families that candidates are restricted to, by name; empty for all.
    pub families: Vec<String>,
    /// Parameter values that candidates must have; a rule that only prefers does not hide what was asked for.
    pub fixed: Fixed,
    /// Candidates must have these parameters and no others.
    pub exact: bool,
    /// The space is full: it has every candidate that can run, whatever the rules prefer, or as many of them as this draws at
    /// random, and [`Space::despite`] tells the rules. Its last step is [`Draw::step`].
    pub full: Option<Draw>,
    /// The problem of the other solve of a pair: what is approximate here is to suffice for it, too.
    pub then: Option<Problem>,
}

impl Narrowing {
    /// What a job's request asks for.
    pub fn of(request: &JobRequest, figures: Figures) -> Self {
        let search = &request.search;
        let most = search.trials.map_or(usize::MAX, |trials| trials as usize);
        let full = search.strategy == SearchStrategy::Full;
        Self {
            figures,
            families: search.families.clone(),
            fixed: search.fixed.clone(),
            exact: search.exact,
            full: full.then(|| Draw::of(&request.matrix, search.seed, most)),
            then: search.then,
        }
    }

    /// Whether the request asks for some of the candidates by family or parameter.
    pub fn asks(&self) -> bool {
        !self.families.is_empty() || self.asks_for_values()
    }

    /// Whether it asks for some of them by parameter.
    pub fn asks_for_values(&self) -> bool {
        self.exact || !self.fixed.is_empty()
    }
}

impl Space {
    /// What each rule computes for one candidate; nothing for vendor routines, which no rule judges.
    pub fn judged(&self, candidate: &Candidate) -> Vec<Judged> {
        if candidate.family == VENDOR {
            return Vec::new();
        }
        search::judged(candidate, &self.rules)
    }

    /// Tiled SpMM's terms of `winner`, if it has any, and then of the best candidate for each order and length of segments by the
    /// model's time, best first.
    pub fn intensity(&self, winner: &Candidate) -> Vec<Intensity> {
        let id = winner.id();
        let own = self.intensities.iter().find(|(of, _)| *of == id).map(|(_, terms)| terms);
        let mut sorted: Vec<&Intensity> = self.intensities.iter().map(|(_, terms)| terms).collect();
        sorted.sort_by(|a, b| a.predicted_us.total_cmp(&b.predicted_us));
        let mut all: Vec<Intensity> =
            own.map(|terms| Intensity { winner: true, ..terms.clone() }).into_iter().collect();
        let mut seen = HashSet::new();
        let distinct =
            sorted.into_iter().filter(|terms| seen.insert((&terms.order, terms.segment)));
        all.extend(distinct.filter(|terms| Some(*terms) != own).take(MOST_INTENSITIES).cloned());
        all
    }

    /// Why nothing that was asked for can be tried: a sentence with the rule that removed the last candidates. `None` if there
    /// are candidates, or if a vendor's routine is asked for and there is one.
    pub fn nothing_of(&self, families: &[String], fixed: &Fixed) -> Option<String> {
        let vendor = families.iter().any(|family| family == VENDOR) && !self.vendor.is_empty();
        let asks = !families.is_empty() || !fixed.is_empty();
        if !asks || vendor || !self.scored.is_empty() {
            return None;
        }
        let empty = || self.pruned.funnel.iter().filter(|step| step.left == 0);
        // The rules of a reduction say why a family has no schemes at all, unless there are some with other values.
        let fixes = |step: &&FunnelStep| step.constraint == funnel::FIXED && step.removed > 0;
        let reduction = || empty().find(|step| step.constraint == funnel::REDUCTION);
        let last = empty().find(fixes).or_else(reduction).or_else(|| empty().next());
        let why = match last {
            None => "there is none for this device".to_owned(),
            Some(step) => match &step.detail {
                _ if [funnel::REQUESTED, funnel::FIXED].contains(&step.constraint.as_str()) => {
                    "there is none for this problem".to_owned()
                }
                Some(detail) => format!("the rule {} leaves none ({detail})", step.constraint),
                None => format!("the rule {} leaves none", step.constraint),
            },
        };
        let of = match families.is_empty() {
            true => String::new(),
            false => format!(" of {}", families.join(", ")),
        };
        let with = match fixed.is_empty() {
            true => String::new(),
            false => format!(" with {fixed}"),
        };
        Some(format!("the request asks for candidates{of}{with} alone, and none can run: {why}"))
    }
}

/// Lowers candidates for one matrix; keeps what several of them share (row orders, packed panels, transforms).
pub trait Lowerer: Send {
    fn lower(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal>;

    /// Makes what these candidates need and others share, several results side by side where each takes long and is hardly parallel in
    /// itself. Lowering them finds it afterwards, or says what is wrong.
    fn prepare(&mut self, _: &[Candidate]) {}
}

/// Candidates that hang and fault on purpose, for a device whose evaluator accepts them: they show that a job survives both.
pub fn hostile_candidates(device: &Device) -> Vec<Candidate> {
    let accepted = device.kernels.contains_key("hostile");
    let kinds: &[&str] = if accepted { &["hang", "fault"] } else { &[] };
    kinds.iter().map(|kind| Candidate::new("hostile").with_text("kind", kind)).collect()
}
