//! The `slices` family's predicted times: for the order of trials, not as promises.

use super::lower::term_bytes;
use super::rewrite::Rewrite;
use super::scheme::{Scheme, Scope, Sync, Take};
use super::survey::{LevelProfile, Reach, survey};
use crate::ops::sptrsv::{Parts, System};
use rayon::prelude::*;
use std::collections::HashMap;

/// Microseconds of a launch.
const LAUNCH_US: f64 = 3.0;

/// A coarse model: the effect of rewriting is estimated by rewriting some of the levels; the cost of a window follows from
/// the hop.
pub struct Estimate {
    levels: f64,
    rows: f64,
    /// Entries besides the diagonal.
    entries: f64,
    term_ns: f64,
    hop_ns: f64,
    multiprocessors: f64,
    reaches: HashMap<Rewrite, Reach>,
    amplification: f64,
}

impl Estimate {
    /// Surveys the rewritings that the space lists.
    pub fn of(system: &System) -> Self {
        let problem = &system.problem;
        let bytes = term_bytes(problem.dtype) as f64
            + 0.4 * (problem.dtype.bytes() * u64::from(problem.rhs)) as f64;
        let rate = system.device.copy_gbps.max(100.0);
        let hop_ns = if system.device.hop_ns > 0.0 { system.device.hop_ns } else { 300.0 };
        let profile = LevelProfile::of(system);
        let amplification = super::space::amplification(system);
        let surveyed = super::space::rewrites(system, amplification).into_par_iter();
        Self {
            levels: system.levels.widths.len().max(1) as f64,
            rows: system.triangular.rows().max(1) as f64,
            entries: system.triangular.nnz() as f64,
            term_ns: bytes / rate,
            hop_ns,
            multiprocessors: f64::from(system.device.multiprocessors.max(1)),
            reaches: surveyed.map(|how| (how, survey(&profile, how))).collect(),
            amplification,
        }
    }

    /// Whether rewriting loses more digits than it may, so that a rewritten system's solution has to be refined.
    pub const fn amplifies(&self) -> bool {
        self.amplification > super::space::AMPLIFIED
    }

    /// How large the terms of a row become for a right-hand side within [-1, 1); 0 where nothing may be or needs to be rewritten.
    pub const fn amplification(&self) -> f64 {
        self.amplification
    }

    /// The rewritings that were surveyed.
    pub fn rewrites(&self) -> impl Iterator<Item = Rewrite> {
        self.reaches.keys().copied()
    }

    /// The result of a rewriting; one that was surveyed neither with refinement nor without counts as no rewriting.
    pub fn reach(&self, how: Rewrite) -> Reach {
        let none = Reach { levels: 1.0, terms: 1.0, longest: 1.0 };
        let other = || self.reaches.get(&Rewrite { refine: !how.refine, ..how });
        self.reaches.get(&how).or_else(other).copied().unwrap_or(none)
    }

    /// Windows that a rewriting leaves.
    pub fn windows(&self, how: Rewrite) -> f64 {
        (self.levels / self.reach(how).levels).max(1.0)
    }

    pub fn parts(&self, scheme: &Scheme) -> Parts {
        let Reach { terms, longest, .. } = self.reach(scheme.rewrite);
        let windows = self.windows(scheme.rewrite);
        let rows_a_window = self.rows / windows;
        let lanes = match scheme.lanes {
            0 => terms.clamp(1.0, 32.0),
            lanes => f64::from(lanes),
        };
        let steps = (longest.max(terms) / lanes).max(1.0);
        let sms = match scheme.scope {
            Scope::Global => self.multiprocessors,
            Scope::Shared { blocks } => f64::from(blocks),
        };
        let warps = sms * f64::from(scheme.warps);
        let slices = rows_a_window * lanes / 32.0;
        let rounds = (slices / warps).max(1.0);
        let hop = match scheme.scope {
            Scope::Global => 1.6 * self.hop_ns,
            Scope::Shared { blocks: 1 } => 0.6 * self.hop_ns,
            Scope::Shared { .. } => 1.2 * self.hop_ns,
        };
        let group = f64::from(scheme.unroll);
        // What a slice waits for before it can ask for unknowns.
        let begin = if scheme.ahead { 100.0 } else { 250.0 };
        let a_window =
            hop + 40.0 * lanes.log2() + rounds * (begin + (steps / group).ceil() * 350.0);
        // Waiting warps slow each other down.
        let crowd = 1.0 + 0.01 * f64::from(scheme.warps);
        let aside = match (scheme.sync, scheme.take, scheme.pause) {
            (Sync::Sentinel, Take::Block | Take::Spread, 0) => 1.0,
            _ => 1.1,
        };
        // Windows of more than alpha x warps slices get a separate launch; each also ends a launch of other windows.
        let launches = match scheme.alpha {
            0 => 0.0,
            alpha => LAUNCH_US * windows.min(windows * slices / (f64::from(alpha) * warps)),
        };
        let bytes = self.rows * terms * self.term_ns * (self.multiprocessors / sms).sqrt();
        // Two solves and, between them, a pass over the entries.
        let (solves, between, more) = match scheme.rewrite.refine {
            true => (2.0, (self.entries + 3.0 * self.rows) * self.term_ns, 2.0 * LAUNCH_US),
            false => (1.0, 0.0, 0.0),
        };
        Parts {
            windows,
            rows_a_window,
            terms,
            longest,
            lanes,
            steps,
            slices,
            warps,
            rounds,
            waiting_us: solves * windows * a_window * crowd * aside / 1e3,
            bytes_us: (solves * bytes + between) / 1e3,
            launches_us: solves * launches + more,
        }
    }

    /// Predicted microseconds of one call.
    pub fn us(parts: &Parts) -> f64 {
        LAUNCH_US + parts.launches_us + parts.waiting_us + parts.bytes_us
    }
}
