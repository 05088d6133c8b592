//! The `slices` family's predicted times: for the order of trials, not for promises.

use super::lower::term_bytes;
use super::rewrite::Rewrite;
use super::scheme::{Scheme, Scope, Sync, Take};
use crate::ops::sptrsv::System;

/// A coarse model: how far a rewriting goes is guessed from the mean level; what a window costs, from the hop.
pub(super) struct Estimate {
    levels: f64,
    rows_a_level: f64,
    terms_a_row: f64,
    term_ns: f64,
    hop_ns: f64,
    multiprocessors: f64,
}

impl Estimate {
    pub(super) fn of(system: &System) -> Self {
        let rows = system.triangular.rows().max(1) as f64;
        let levels = system.levels.widths.len().max(1) as f64;
        let problem = &system.problem;
        let bytes = term_bytes(problem.dtype) as f64
            + 0.4 * (problem.dtype.bytes() * u64::from(problem.rhs)) as f64;
        let rate = system.device.copy_gbps.max(100.0);
        let hop_ns = if system.device.hop_ns > 0.0 { system.device.hop_ns } else { 300.0 };
        Self {
            levels,
            rows_a_level: rows / levels,
            terms_a_row: 1.0 + system.triangular.nnz() as f64 / rows,
            term_ns: bytes / rate,
            hop_ns,
            multiprocessors: f64::from(system.device.multiprocessors.max(1)),
        }
    }

    /// Terms of an equation whose window reaches `depth` levels back: a plane's worth in b, a line's in unknowns.
    fn terms_at(&self, depth: f64) -> f64 {
        self.terms_a_row * (1.0 + 0.5 * depth) + 0.5 * depth * depth
    }

    /// Levels a window, and terms of an equation in the mean, for a rewriting.
    fn reach(&self, rewrite: Rewrite) -> (f64, f64) {
        let (mut depth, mut spent, mut terms) = (0.0, f64::from(rewrite.window_ns), 0.0);
        loop {
            let own = self.terms_at(depth);
            let marginal = own * self.rows_a_level * self.term_ns;
            let stop = marginal * depth > spent || own > f64::from(rewrite.terms) || depth > 2048.0;
            if depth > 0.0 && (stop || rewrite.window_ns == 0) {
                return (depth, terms / depth);
            }
            spent += marginal;
            terms += own;
            depth += 1.0;
        }
    }

    pub(super) fn us(&self, scheme: &Scheme) -> f64 {
        let (depth, terms) = self.reach(scheme.rewrite);
        let windows = (self.levels / depth).max(1.0);
        let rows_a_window = self.rows_a_level * depth;
        let total_terms = self.levels * self.rows_a_level * terms;
        let lanes = match scheme.lanes {
            0 => terms.clamp(1.0, 32.0),
            lanes => f64::from(lanes),
        };
        let steps = (terms / lanes).max(1.0);
        let sms = match scheme.scope {
            Scope::Global => self.multiprocessors,
            Scope::Shared { blocks } => f64::from(blocks),
        };
        let warps = sms * f64::from(scheme.warps);
        let rounds = (rows_a_window * lanes / 32.0 / warps).max(1.0);
        let hop = match scheme.scope {
            Scope::Global => 1.6 * self.hop_ns,
            Scope::Shared { blocks: 1 } => 0.6 * self.hop_ns,
            Scope::Shared { .. } => 1.2 * self.hop_ns,
        };
        let group = f64::from(scheme.unroll);
        let a_window =
            hop + 40.0 * lanes.log2() + rounds * (250.0 + (steps / group).ceil() * 350.0);
        let bytes = total_terms * self.term_ns * (self.multiprocessors / sms).sqrt();
        // Waiting warps get into each other's way.
        let crowd = 1.0 + 0.01 * f64::from(scheme.warps);
        let aside = match (scheme.sync, scheme.take, scheme.pause) {
            (Sync::Sentinel, Take::Block | Take::Spread, 0) => 1.0,
            _ => 1.1,
        };
        // A launch of its own takes a window of more than alpha x warps slices; each ends a launch of others, too.
        let launches = match scheme.alpha {
            0 => 0.0,
            alpha => {
                let slices = rows_a_window * windows * lanes / 32.0;
                3.0 * windows.min(slices / (f64::from(alpha) * warps))
            }
        };
        3.0 + launches + (windows * a_window * crowd * aside + bytes) / 1e3
    }
}
