//! The space of the `slices` family: every scheme counted, those worth trying listed by stated rules, each with a time.

use super::lower::term_bytes;
use super::rewrite::Rewrite;
use super::scheme::{Scheme, Scope, Sync, Take};
use crate::ops::sptrsv::{Share, System};

const WINDOW_NS: [u32; 7] = [0, 125, 250, 500, 1000, 2000, 4000];
const TERMS: [u32; 3] = [64, 256, 1024];
const LANES: [u32; 7] = [0, 1, 2, 4, 8, 16, 32];
const WARPS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const UNROLL: [u32; 2] = [4, 8];
const TAKES: [Take; 3] = [Take::Block, Take::Spread, Take::Ticket];
const SYNCS: [Sync; 2] = [Sync::Sentinel, Sync::Packed];
const SHARED_BLOCKS: [u32; 3] = [1, 8, 16];
const PAUSES: [u32; 2] = [0, 1];
const ALPHAS: [u32; 3] = [0, 8, 2];

/// Rows a level up to which a single multiprocessor or a cluster may keep up.
const NARROW: f64 = 64.0;

/// Entries from which a system is large: rewriting it takes long enough to be done for few schemes only.
const LARGE: usize = 1_000_000;
const LARGE_WINDOW_NS: [u32; 4] = [250, 500, 1000, 2000];

/// Entries a row from which rows are long.
const LONG_ROWS: f64 = 32.0;

/// Schemes of the whole product, whether legal or not.
fn full() -> u64 {
    let product = |lengths: &[usize]| lengths.iter().product::<usize>() as u64;
    let common = product(&[LANES.len(), WARPS.len(), UNROLL.len(), PAUSES.len()]);
    let global = product(&[TAKES.len(), SYNCS.len(), ALPHAS.len()]);
    let rewrites = product(&[WINDOW_NS.len(), TERMS.len()]);
    rewrites * common * (global + SHARED_BLOCKS.len() as u64)
}

/// Why a scheme cannot run for this system, whatever its arrays.
pub fn legal(scheme: &Scheme, system: &System) -> Result<(), String> {
    if scheme.warps > 16 && scheme.unroll > 4 {
        return Err("eight loads in flight need more than the 64 registers of 32 warps".to_owned());
    }
    let Scope::Shared { blocks } = scheme.scope else {
        return match (scheme.sync, scheme.take, scheme.alpha) {
            // A graph's arguments are fixed when it is made: no epoch can change in it.
            (Sync::Packed, _, 1..) => {
                Err("an epoch cannot change within a graph of several launches".to_owned())
            }
            // Its one counter would go on where the launch before has left it.
            (_, Take::Ticket, 1..) => Err("tickets are of a single launch".to_owned()),
            _ => Ok(()),
        };
    };
    let work = system.triangular.rows() as u64
        * u64::from(system.problem.rhs)
        * system.problem.dtype.bytes();
    let most = system.device.shared_bytes_per_block;
    if work > most {
        return Err(format!("the unknowns take {work} bytes of shared memory, at most {most}"));
    }
    let capability =
        system.device.compute_capability.split('.').next().and_then(|s| s.parse().ok());
    if blocks > 1 && capability.unwrap_or(0) < 9 {
        return Err("the device has no clusters".to_owned());
    }
    let plain = scheme.sync == Sync::Sentinel && scheme.take == Take::Spread && scheme.alpha == 0;
    if plain { Ok(()) } else { Err("shared memory needs no tickets, epochs or graphs".to_owned()) }
}

/// The family's part of the space.
pub fn share(system: &System) -> Share {
    let estimate = Estimate::of(system);
    let mut scored: Vec<_> = listed(system)
        .into_iter()
        .filter(|scheme| legal(scheme, system).is_ok())
        .map(|scheme| (scheme.candidate(), estimate.us(&scheme)))
        .collect();
    scored.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    scored.dedup_by(|a, b| a.0 == b.0);
    let rules = [
        "slices: the most terms matter only where equations are rewritten; above 1,000,000 entries four windows, the most \
         terms by the mean row, and two numbers of lanes",
        "slices: lanes are chosen a slice, or 1, 4 or 32 with 2 to 16 warps",
        "slices: epochs, tickets and pauses are tried on the plain shape alone",
        "slices: one multiprocessor or one cluster only where levels are narrow and the unknowns fit its shared memory",
        "slices: launches of their own only where a level has more rows than there are warps",
    ];
    Share { scored, full: full(), rules: rules.map(str::to_owned).to_vec() }
}

/// The reduced list, before legality.
fn listed(system: &System) -> Vec<Scheme> {
    let levels = system.levels.widths.len().max(1);
    let width = system.triangular.rows() as f64 / levels as f64;
    let widest = system.levels.widths.iter().max().copied().unwrap_or(0);
    let large = system.triangular.nnz() > LARGE;
    let mut list = Vec::new();
    for rewrite in rewrites(system) {
        let plain = Scheme {
            rewrite,
            lanes: 0,
            warps: 8,
            unroll: 8,
            take: Take::Block,
            sync: Sync::Sentinel,
            scope: Scope::Global,
            pause: 0,
            alpha: 0,
        };
        let lanes: &[u32] = match (large, mean_terms(system) > LONG_ROWS) {
            (false, _) => &[0, 1, 4, 32],
            (true, false) => &[0, 4],
            (true, true) => &[0, 32],
        };
        for &lanes in lanes {
            // One warp a multiprocessor, or all that fit, on the plain shape alone.
            let ends = |warps: &u32| lanes == 0 || (2..=16).contains(warps);
            for warps in WARPS.into_iter().filter(ends) {
                list.push(Scheme { lanes, warps, ..plain });
            }
            list.push(Scheme { lanes, unroll: 4, ..plain });
            list.push(Scheme { lanes, unroll: 4, warps: 4, ..plain });
            list.push(Scheme { lanes, take: Take::Spread, ..plain });
        }
        for warps in [2, 8] {
            list.push(Scheme { warps, sync: Sync::Packed, unroll: 4, ..plain });
            list.push(Scheme { warps, take: Take::Ticket, ..plain });
        }
        list.push(Scheme { pause: 1, ..plain });
        list.push(Scheme { pause: 1, warps: 2, unroll: 4, ..plain });
        list.push(Scheme { warps: 16, take: Take::Spread, ..plain });
        if widest > system.device.multiprocessors * 8 {
            for (warps, alpha) in [(8, 8), (8, 2), (16, 2)] {
                list.push(Scheme { warps, alpha, ..plain });
            }
        }
        if width < NARROW {
            let take = Take::Spread;
            for blocks in SHARED_BLOCKS {
                let scope = Scope::Shared { blocks };
                list.extend([4, 16, 32].map(|warps| Scheme { scope, warps, take, ..plain }));
                list.push(Scheme { scope, warps: 16, take, lanes: 32, ..plain });
            }
        }
    }
    list
}

/// Entries a row, the diagonal counted.
fn mean_terms(system: &System) -> f64 {
    1.0 + system.triangular.nnz() as f64 / system.triangular.rows().max(1) as f64
}

/// Rewritings worth a try; a system of one level has nothing to rewrite.
fn rewrites(system: &System) -> Vec<Rewrite> {
    let mut all = vec![Rewrite { window_ns: 0, terms: TERMS[0] }];
    if system.levels.widths.len() <= 1 {
        return all;
    }
    let of = |window_ns, terms| Rewrite { window_ns, terms };
    if system.triangular.nnz() > LARGE {
        let terms = if mean_terms(system) > LONG_ROWS { TERMS[2] } else { TERMS[1] };
        all.extend(LARGE_WINDOW_NS.map(|window_ns| of(window_ns, terms)));
        return all;
    }
    let windows = WINDOW_NS.into_iter().filter(|&ns| ns > 0);
    all.extend(windows.flat_map(|window_ns| TERMS.map(|terms| of(window_ns, terms))));
    all
}

/// A coarse model: how far a rewriting goes is guessed from the mean level; what a window costs, from the hop.
struct Estimate {
    levels: f64,
    rows_a_level: f64,
    terms_a_row: f64,
    term_ns: f64,
    hop_ns: f64,
    multiprocessors: f64,
}

impl Estimate {
    fn of(system: &System) -> Self {
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

    fn us(&self, scheme: &Scheme) -> f64 {
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
        let launches = if scheme.alpha > 0 { 1.5 * self.levels.min(64.0) } else { 0.0 };
        3.0 + launches + (windows * a_window * crowd * aside + bytes) / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::problem::{Diagonal, Triangle};
    use crate::domain::{Device, Dtype, Sptrsv};
    use crate::sparse::generate::Spec;
    use std::collections::HashSet;

    fn device() -> Device {
        let facts = serde_json::json!({
            "id": "cuda:0", "kind": "cuda", "name": "imagined", "compute_capability": "9.0",
            "multiprocessors": 132, "warp_size": 32, "max_threads_per_block": 1024,
            "max_threads_per_multiprocessor": 2048, "max_blocks_per_multiprocessor": 32,
            "registers_per_thread": 255, "registers_per_block": 65536,
            "registers_per_multiprocessor": 65536, "shared_bytes_per_block": 232448,
            "shared_bytes_per_multiprocessor": 233472, "l2_bytes": 52428800,
            "memory_bytes": 85899345920u64, "copy_gbps": 3000.0, "hop_ns": 263.0,
            "driver": "", "compiler": "", "vendor": null
        });
        serde_json::from_value(facts).unwrap()
    }

    fn system(spec: &str, rhs: u32) -> System {
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem = Sptrsv { rhs, dtype: Dtype::F64, triangle, diagonal, transpose: false };
        let matrix = Spec::parse(spec).unwrap().generate().unwrap();
        System::of(&matrix, &problem, &device()).unwrap()
    }

    /// The whole product, one by one.
    fn every() -> Vec<Scheme> {
        let mut scopes = Vec::new();
        for take in TAKES {
            for sync in SYNCS {
                scopes.extend(ALPHAS.map(|alpha| (Scope::Global, take, sync, alpha)));
            }
        }
        let shared = |blocks| (Scope::Shared { blocks }, Take::Spread, Sync::Sentinel, 0);
        scopes.extend(SHARED_BLOCKS.map(shared));
        let mut all = Vec::new();
        for window_ns in WINDOW_NS {
            for terms in TERMS {
                let rewrite = Rewrite { window_ns, terms };
                for lanes in LANES {
                    for warps in WARPS {
                        for (unroll, pause) in
                            UNROLL.map(|unroll| PAUSES.map(|p| (unroll, p))).concat()
                        {
                            all.extend(scopes.iter().map(|&(scope, take, sync, alpha)| Scheme {
                                rewrite,
                                lanes,
                                warps,
                                unroll,
                                take,
                                sync,
                                scope,
                                pause,
                                alpha,
                            }));
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn the_full_space_is_counted_right_and_holds_what_is_listed() {
        let every = every();
        let whole: HashSet<Scheme> = every.iter().copied().collect();
        assert_eq!((whole.len(), every.len() as u64), (every.len(), full()));
        for (spec, rhs, most) in [
            // Narrow levels, unknowns that fit a multiprocessor; wide ones; neither; one level of one row; a level.
            ("ilu0_poisson2d:nx=100,ny=100,seed=1", 1, 900),
            ("ilu0_poisson3d:nx=70,ny=70,nz=70,seed=1", 16, 900),
            ("ilu0_random:n=20000,per_row=5,seed=1", 3, 900),
            ("banded:n=1,half=0", 64, 60),
            ("banded:n=5000,half=0", 1, 60),
        ] {
            let system = system(spec, rhs);
            let share = share(&system);
            assert!((20..=most).contains(&share.scored.len()), "{spec}: {}", share.scored.len());
            assert_eq!(share.full, full());
            let unique: HashSet<String> = share.scored.iter().map(|(c, _)| c.to_string()).collect();
            assert_eq!(unique.len(), share.scored.len());
            for (candidate, us) in &share.scored {
                let scheme = Scheme::of(candidate).unwrap();
                assert!(us.is_finite() && *us > 0.0, "{candidate}: {us} us");
                assert_eq!(&scheme.candidate(), candidate);
                assert_eq!(legal(&scheme, &system), Ok(()), "{candidate}");
                assert!(whole.contains(&scheme), "{candidate}");
            }
        }
    }

    #[test]
    fn what_cannot_run_is_refused() {
        let system = system("ilu0_poisson2d:nx=100,ny=100,seed=1", 1);
        let all = every();
        let refused = |why: &str| {
            all.iter()
                .filter(|scheme| legal(scheme, &system).is_err_and(|e| e.contains(why)))
                .count()
        };
        assert!(["registers", "epoch", "tickets"].map(refused).iter().all(|&count| count > 0));
        let narrow =
            System { device: Device { compute_capability: "8.0".into(), ..device() }, ..system };
        let cluster = |scheme: &&Scheme| matches!(scheme.scope, Scope::Shared { blocks: 2.. });
        assert!(all.iter().filter(cluster).all(|scheme| legal(scheme, &narrow).is_err()));
    }
}
