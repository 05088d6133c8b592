//! SpTRSV: `T x = b`, T a triangle of A. The space joins AG-SpTRSV's schemes, ours beyond the paper, and the host's.

pub mod ag;
pub mod approximate;
pub mod chains;
mod families;
pub mod features;
pub mod host;
pub mod inverse;
mod kept;
mod operands;
mod operation;
pub mod overlapped;
mod parts;
pub mod progress;
pub mod slices;
pub mod streamed;
pub mod structure_features;
pub mod sweeps;

pub use operation::SptrsvOperation;
pub use parts::Parts;

use super::{Lowerer, Narrowing, Refusal, Space, Unsupported};
use crate::domain::candidate::VENDOR;
use crate::domain::recipe::{Program, Recipe};
use crate::domain::{
    Candidate, CandidateId, Device, DeviceKind, FunnelStep, Problem, Removal, Sptrsv, funnel,
};
use crate::search::{Draw, Pruned};
use crate::sparse::levels::Levels;
use crate::sparse::{Csr, Triangular};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// The system of a problem with the data that every stage needs.
pub struct System {
    pub triangular: Arc<Triangular>,
    pub levels: Levels,
    pub problem: Sptrsv,
    pub device: Device,
    /// Host time to extract the system from its matrix and find its levels, milliseconds: part of every scheme's preparation.
    pub ms: f64,
}

impl System {
    pub fn of(matrix: &Csr, problem: &Sptrsv, device: &Device) -> Result<Self, Unsupported> {
        let started = Instant::now();
        let triangular =
            Triangular::of(matrix, problem).map_err(|error| Unsupported(error.to_string()))?;
        let levels = triangular.levels();
        let (problem, device) = (*problem, device.clone());
        let ms = started.elapsed().as_secs_f64() * 1e3;
        Ok(Self { triangular: Arc::new(triangular), levels, problem, device, ms })
    }

    /// Why families whose schemes solve for one right-hand side in f32 or f64 have none for the system, if they have none.
    pub fn lacks_one_side(&self) -> Option<&'static str> {
        if self.problem.rhs != 1 {
            Some("its schemes solve for one right-hand side at a time")
        } else if self.problem.dtype.is_half() || self.triangular.rows() == 0 {
            Some("only for f32 and f64, and systems with rows")
        } else {
            None
        }
    }
}

/// What one family adds to the space.
#[derive(Default)]
pub struct Share {
    pub family: &'static str,
    /// Candidates of the reduced list with predicted microseconds.
    pub scored: Vec<(Candidate, f64)>,
    /// Schemes of the family's full space, before any rule.
    pub full: u64,
    /// The rules that reduced it, as sentences.
    pub rules: Vec<String>,
    /// If the rules leave nothing: the best predicted scheme that can run, for a request that asks for the family.
    pub spared: Option<(Candidate, f64)>,
    /// Of a full search: the first rule that each of the candidates breaks, for those that break one.
    ///
    /// `scored` then has schemes of the full space that can run and that the request's fixed values admit: all of them, or as
    /// many as [`Draw::most`], drawn by [`Draw::numbers`] where the space is too large to be listed. `full` counts them all.
    pub despite: HashMap<CandidateId, Removal>,
    /// What the predicted times are made of, of families whose models tell.
    pub parts: HashMap<Candidate, Parts>,
}

/// The model behind `Space::model`.
pub(super) const MODEL: &str = "sptrsv_levels_v3";

/// Counts the full space, lists the reduced one, and predicts each scheme's time.
pub fn space(
    matrix: &Csr,
    problem: &Sptrsv,
    device: &Device,
    narrowing: &Narrowing,
) -> Result<Space, Unsupported> {
    let system = System::of(matrix, problem, device)?;
    let estimate = (device.kind == DeviceKind::Cuda).then(|| slices::Estimate::of(&system));
    let fixed = &narrowing.fixed;
    let mut shares = match (&estimate, &narrowing.full) {
        (Some(estimate), None) => shares_of([
            &|| slices::share(&system, estimate),
            &|| overlapped::share(&system),
            &|| chains::share(&system, estimate),
            &|| streamed::share(&system),
            &|| ag::share(&system, fixed),
        ]),
        (Some(estimate), Some(draw)) => shares_of([
            &|| slices::whole(&system, estimate, fixed, draw),
            &|| overlapped::whole(&system, fixed, draw),
            &|| chains::whole(&system, estimate, fixed, draw),
            &|| streamed::whole(&system, fixed, draw),
            &|| ag::whole(&system, fixed, draw),
        ]),
        (None, None) => host::shares(&system).into(),
        (None, Some(_)) => host::whole(&system).into(),
    };
    if device.kind == DeviceKind::Cuda {
        shares.extend(approximate_shares(matrix, &system, narrowing)?);
    }
    let (mut shares, mut steps) = requested(shares, &narrowing.families);
    let (mut despite, mut parts) = (HashMap::new(), HashMap::new());
    for share in &mut shares {
        despite.extend(std::mem::take(&mut share.despite));
        parts.extend(std::mem::take(&mut share.parts));
    }
    let full: u64 = shares.iter().map(|share| share.full).sum();
    if let Some(draw) = &narrowing.full {
        evened(&mut shares, full, draw);
    }
    let admitted: u64 = shares.iter().map(|share| admitted(share, &system, narrowing)).sum();
    let detail = reduction(&shares);
    let possible = shares.iter().any(|share| !is_lacking(share, &system));
    let mut scored: Vec<(Candidate, f64)> =
        shares.into_iter().flat_map(|share| share.scored).collect();
    let mut left = full;
    if narrowing.asks_for_values() {
        let listed = scored.len();
        scored.retain(|(candidate, _)| fixed.leaves(candidate, narrowing.exact));
        left = match narrowing.full {
            // Families whose schemes are not all listed count those with the values alone.
            Some(_) => full - (listed - scored.len()) as u64,
            None => admitted,
        };
        steps.push(FunnelStep {
            constraint: funnel::FIXED.to_owned(),
            removed: full - left,
            left,
            detail: Some(format!("the request fixes {fixed}")),
        });
    }
    if narrowing.full.is_none() {
        let before = std::mem::replace(&mut left, scored.len() as u64);
        // Were the values not fixed, there would be others.
        let hidden = !fixed.is_empty() && left == 0 && before > 0 && possible;
        let searched = "none with these values is in the reduced list; the strategy full searches the whole space";
        steps.push(FunnelStep {
            constraint: funnel::REDUCTION.to_owned(),
            removed: before.saturating_sub(left),
            left,
            detail: match detail {
                Some(rules) if hidden => Some(format!("{searched}; {rules}")),
                None if hidden => Some(searched.to_owned()),
                detail => detail,
            },
        });
    }
    if let Some(draw) = &narrowing.full {
        scored = draw.keep(scored, |(candidate, _)| candidate);
        let kept: HashSet<CandidateId> = scored.iter().map(|(c, _)| c.id()).collect();
        despite.retain(|id, _| kept.contains(id));
        steps.push(Draw::step(left, kept.len() as u64, (kept.len() - despite.len()) as u64));
    }
    let named = scored.iter().map(|(candidate, us)| (candidate, *us));
    let described = features::describe(named, &system, estimate.as_ref(), &parts);
    let kept = scored.iter().map(|(candidate, _)| candidate.clone()).collect();
    let pruned = Pruned { kept, removed: Vec::new(), funnel: steps };
    let vendor = vendor(problem, device);
    Ok(Space {
        scored,
        vendor,
        pruned,
        rules: Vec::new(),
        model: MODEL,
        described,
        intensities: Vec::new(),
        despite,
    })
}

/// What the approximate families add. Without consent nothing is said of one, unless somebody asks for it. Where the request is the first of
/// a pair, the other system is taken into account, since both solves are to make a symmetric map.
fn approximate_shares(
    matrix: &Csr,
    system: &System,
    narrowing: &Narrowing,
) -> Result<Vec<Share>, Unsupported> {
    let consents = system.problem.approximate;
    let named = |name: &str| narrowing.families.iter().any(|family| family == name);
    let asks = |name: &str| consents || named(name);
    let other = match narrowing.then {
        Some(Problem::Sptrsv(then)) if consents => {
            let other = Triangular::of(matrix, &then);
            Some(other.map_err(|error| Unsupported(error.to_string()))?)
        }
        _ => None,
    };
    let (fixed, other) = (&narrowing.fixed, other.as_ref());
    let mut shares = Vec::new();
    if asks(sweeps::scheme::FAMILY) {
        shares.push(match &narrowing.full {
            None => sweeps::share(system, fixed, other),
            Some(draw) => sweeps::whole(system, fixed, other, draw),
        });
    }
    if asks(inverse::scheme::FAMILY) {
        shares.push(match &narrowing.full {
            None => inverse::share(system, fixed, other),
            Some(draw) => inverse::whole(system, fixed, other, draw),
        });
    }
    Ok(shares)
}

/// What the families for GPUs add, at once: each has passes over the system that one thread makes.
fn shares_of(families: [&(dyn Fn() -> Share + Sync); 5]) -> Vec<Share> {
    kept::side_by_side(&families, |family| family())
}

/// How many schemes of a family's full space have the parameter values that the request fixes.
fn admitted(share: &Share, system: &System, narrowing: &Narrowing) -> u64 {
    match (share.family, &narrowing.fixed) {
        (_, fixed) if fixed.is_empty() => share.full,
        (ag::FAMILY, fixed) => ag::Space::admitted(fixed).count(),
        (slices::scheme::FAMILY, fixed) => slices::admitted(fixed),
        (overlapped::scheme::FAMILY, fixed) => overlapped::admitted(fixed),
        (chains::scheme::FAMILY, fixed) => chains::admitted(fixed),
        (streamed::scheme::FAMILY, fixed) => streamed::admitted(fixed),
        (sweeps::scheme::FAMILY, fixed) => sweeps::admitted(fixed),
        (inverse::scheme::FAMILY, fixed) => inverse::admitted(fixed),
        (family, fixed) => host::admitted(family, system, fixed),
    }
}

/// Whether a family has no schemes for the system, whatever their values.
fn is_lacking(share: &Share, system: &System) -> bool {
    let lacking = match share.family {
        ag::FAMILY
        | overlapped::scheme::FAMILY
        | chains::scheme::FAMILY
        | streamed::scheme::FAMILY => system.lacks_one_side(),
        sweeps::scheme::FAMILY | inverse::scheme::FAMILY => approximate::lacking(system),
        _ => None,
    };
    share.full == 0 || lacking.is_some()
}

/// The rules that reduced the shares, as one text.
fn reduction(shares: &[Share]) -> Option<String> {
    let mut rules: Vec<&str> =
        shares.iter().flat_map(|share| &share.rules).map(String::as_str).collect();
    rules.dedup();
    (!rules.is_empty()).then(|| rules.join("; "))
}

/// Leaves each family as large a part of a draw as it has of all `full` schemes that can run, so that every scheme has the same
/// chance and counts of the draw can be scaled up. Nothing to do where all schemes are there.
fn evened(shares: &mut [Share], full: u64, draw: &Draw) {
    if shares.iter().all(|share| share.scored.len() as u64 >= share.full) {
        return;
    }
    // The part of all that is drawn: no family has more of it than was drawn of its own.
    let part = |drawn: usize, of: u64| if of == 0 { 1.0 } else { drawn as f64 / of as f64 };
    let own = shares.iter().map(|share| part(share.scored.len(), share.full));
    let part = own.fold(part(draw.most, full), f64::min);
    for share in shares {
        let most = (part * share.full as f64).ceil() as usize;
        let own = Draw { most, ..*draw };
        share.scored = own.keep(std::mem::take(&mut share.scored), |(candidate, _)| candidate);
    }
}

/// The shares of the families that a request names, none of which the rules hide, and the step that counts the others;
/// everything if it names none.
fn requested(shares: Vec<Share>, families: &[String]) -> (Vec<Share>, Vec<FunnelStep>) {
    if families.is_empty() {
        return (shares, Vec::new());
    }
    let full = |shares: &[Share]| shares.iter().map(|share| share.full).sum::<u64>();
    let all = full(&shares);
    let named = |share: &Share| families.iter().any(|family| family == share.family);
    let mut shares: Vec<Share> = shares.into_iter().filter(named).collect();
    for share in shares.iter_mut().filter(|share| share.scored.is_empty()) {
        share.scored.extend(share.spared.take());
    }
    let left = full(&shares);
    let step = FunnelStep {
        constraint: funnel::REQUESTED.to_owned(),
        removed: all - left,
        left,
        detail: Some(format!("the request names {}", families.join(", "))),
    };
    (shares, vec![step])
}

/// The vendor's routines, with the likely best first: every algorithm of SpSV for one right-hand side, SpSM for several. A version of
/// the library that lacks an algorithm says so when it is tried.
fn vendor(problem: &Sptrsv, device: &Device) -> Vec<Candidate> {
    let algorithms: &[&str] = match (device.kind, problem.rhs) {
        (DeviceKind::Cpu, _) if device.vendor.is_none() => &["plain_solve"],
        (DeviceKind::Cpu, 1) => &["mkl_trsv"],
        (DeviceKind::Cpu, _) => &["mkl_trsm"],
        (DeviceKind::Cuda, _) if device.vendor.is_none() => &[],
        (DeviceKind::Cuda, 1) => &["spsv_alg2", "spsv", "spsv_alg1"],
        (DeviceKind::Cuda, _) => &["spsm"],
    };
    algorithms.iter().map(|name| super::vendor::candidate(name)).collect()
}

/// Lowers schemes for one system; each family keeps what its schemes share.
pub struct SptrsvLowerer {
    system: System,
    slices: slices::SlicesLowerer,
    overlapped: overlapped::OverlappedLowerer,
    chains: chains::ChainsLowerer,
    streamed: streamed::StreamedLowerer,
    ag: ag::AgLowerer,
    inverse: inverse::InverseLowerer,
}

impl SptrsvLowerer {
    pub fn new(matrix: &Csr, problem: Sptrsv, device: Device) -> Result<Self, Unsupported> {
        let system = System::of(matrix, &problem, &device)?;
        let (slices, ag) = (slices::SlicesLowerer::default(), ag::AgLowerer::default());
        let overlapped = overlapped::OverlappedLowerer::default();
        let chains = chains::ChainsLowerer::default();
        let streamed = streamed::StreamedLowerer::default();
        let inverse = inverse::InverseLowerer::default();
        Ok(Self { system, slices, overlapped, chains, streamed, ag, inverse })
    }
}

impl Lowerer for SptrsvLowerer {
    /// The recipe, including the preparation of the system, just as the vendor's analysis is included.
    fn lower(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal> {
        let mut recipe = self.scheme(candidate)?;
        if !matches!(recipe.program, Program::Vendor { .. }) {
            recipe.lowering_ms += self.system.ms;
        }
        Ok(recipe)
    }

    /// What `ag` and the sweeps share takes little, or is one thing for all schemes.
    fn prepare(&mut self, candidates: &[Candidate]) {
        if self.system.device.kind == DeviceKind::Cuda {
            self.slices.prepare(candidates, &self.system);
            self.overlapped.prepare(candidates, &self.system);
            self.chains.prepare(candidates, &self.system);
            self.streamed.prepare(candidates, &self.system);
            self.inverse.prepare(candidates, &self.system);
        }
    }
}

impl SptrsvLowerer {
    fn scheme(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal> {
        match (candidate.family.as_str(), self.system.device.kind) {
            (VENDOR, _) => {
                let algorithm = candidate.text("algorithm");
                let algorithm = algorithm.ok_or_else(|| no_candidate(candidate))?.to_owned();
                Ok(Recipe::bare(candidate, Program::Vendor { algorithm }))
            }
            (ag::FAMILY, DeviceKind::Cuda) => self.ag.lower(candidate, &self.system),
            (slices::scheme::FAMILY, DeviceKind::Cuda) => {
                self.slices.lower(candidate, &self.system)
            }
            (overlapped::scheme::FAMILY, DeviceKind::Cuda) => {
                self.overlapped.lower(candidate, &self.system)
            }
            (chains::scheme::FAMILY, DeviceKind::Cuda) => {
                self.chains.lower(candidate, &self.system)
            }
            (streamed::scheme::FAMILY, DeviceKind::Cuda) => {
                self.streamed.lower(candidate, &self.system)
            }
            (sweeps::scheme::FAMILY, DeviceKind::Cuda) => sweeps::lower(candidate, &self.system),
            (inverse::scheme::FAMILY, DeviceKind::Cuda) => {
                self.inverse.lower(candidate, &self.system)
            }
            (_, DeviceKind::Cuda) => Err(no_candidate(candidate)),
            (_, DeviceKind::Cpu) => host::lower(candidate, &self.system),
        }
    }
}

pub(crate) fn no_candidate(candidate: &Candidate) -> Refusal {
    Refusal(format!("{candidate} is not a candidate of this problem"))
}
