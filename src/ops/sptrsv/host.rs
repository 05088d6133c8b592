//! SpTRSV on host threads: the schemes of the CPU engine, the rules that exclude some, and their predicted time.

use super::{Share, System, no_candidate};
use crate::domain::recipe::{HostProgram, Program, Recipe};
use crate::domain::{Candidate, CandidateId, Fixed, Removal, funnel};
use crate::ops::Refusal;
use crate::search::domain::Domain;
use std::collections::HashSet;

/// Levels with fewer rows are solved by one thread.
const NARROW: [u32; 6] = [8, 16, 32, 64, 128, 256];

/// Rows of a merged group.
const ROWS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Entries that the prediction of a merged scheme reads: the first ones of the system represent all.
const SAMPLE: usize = 1 << 19;

/// Nanoseconds per row and per entry when they come from the cache, with 64 bytes of right-hand sides at a time. Assumed,
/// like the next three.
const ROW_NS: f64 = 3.0;
const ENTRY_NS: f64 = 0.35;
/// From one row's x to that of the next row that needs it, on one thread.
const CHAIN_NS: f64 = 4.0;
/// Starting the other threads, while they are awake, and waiting for their end.
const START_US: f64 = 1.0;
/// A hop, if the device's was not measured.
const HOP_NS: f64 = 100.0;

/// The host's families: `serial{}`, `levels{threads, narrow}`, `merged{threads, rows}`.
pub fn shares(system: &System) -> [Share; 3] {
    let teams = teams(system.device.multiprocessors);
    let model = Model::of(system);
    let serial = vec![(Candidate::new("serial"), model.serial())];
    let serial = Share { family: "serial", scored: serial, full: 1, ..Share::default() };
    [serial, levels(&model, &teams), merged(&model, &teams)]
}

/// Schemes of a family's whole space with the fixed parameter values.
pub fn admitted(family: &str, system: &System, fixed: &Fixed) -> u64 {
    let (name, values): (&str, &[u32]) = match family {
        "levels" => ("narrow", &NARROW),
        "merged" => ("rows", &ROWS),
        _ => return 1,
    };
    let count = |name: &str, values: &[u32]| {
        let scheme = |value: &u32| Candidate::new(family).with(name, i64::from(*value));
        values.iter().filter(|value| fixed.admits(&scheme(value))).count()
    };
    let teams = teams(system.device.multiprocessors);
    (count("threads", &teams) * count(name, values)) as u64
}

/// The whole space of each family, in which the rules remove nothing.
pub fn whole(system: &System) -> [Share; 3] {
    let teams = teams(system.device.multiprocessors);
    let model = Model::of(system);
    let every = |name: &str, values: &[u32], predict: &dyn Fn(u32, u32) -> f64, family: &str| {
        let pairs = values.iter().flat_map(|&value| teams.iter().map(move |&team| (value, team)));
        let scheme = |(value, threads): (u32, u32)| {
            let candidate = Candidate::new(family).with("threads", i64::from(threads));
            (candidate.with(name, i64::from(value)), predict(threads, value))
        };
        pairs.map(scheme).collect::<Vec<_>>()
    };
    shares(system).map(|share| {
        let all = match share.family {
            "levels" => every("narrow", &NARROW, &|t, narrow| model.levels(t, narrow), "levels"),
            "merged" => every("rows", &ROWS, &|t, rows| model.merged(t, rows as usize), "merged"),
            _ => return share,
        };
        let listed: HashSet<CandidateId> = share.scored.iter().map(|(c, _)| c.id()).collect();
        let unlisted = all.iter().map(|(c, _)| c.id()).filter(|id| !listed.contains(id));
        let despite = unlisted.map(|id| (id, Removal::by(funnel::REDUCTION))).collect();
        Share { scored: all, rules: Vec::new(), spared: None, despite, ..share }
    })
}

fn levels(model: &Model<'_>, teams: &[u32]) -> Share {
    let of = |narrow: u32, threads: u32| {
        let candidate = Candidate::new("levels").with("threads", i64::from(threads));
        let candidate = candidate.with("narrow", i64::from(narrow));
        (candidate, model.levels(threads, narrow))
    };
    let mut scored = Vec::new();
    let mut before = None;
    for narrow in NARROW {
        let wide = model.wide(narrow);
        // Without wide levels this is the serial scheme; the same wide levels give the same schedule.
        if wide == 0 || before == Some(wide) {
            continue;
        }
        before = Some(wide);
        scored.extend(teams.iter().filter(|&&t| t <= narrow).map(|&threads| of(narrow, threads)));
    }
    let rules = rules(
        teams,
        &[
            "levels: a bound that no level reaches gives the serial scheme, and bounds that the same levels reach give one schedule: the least stays",
            "levels: a shared level has at least one row per thread",
        ],
    );
    let full = (teams.len() * NARROW.len()) as u64;
    let spared =
        best(NARROW.into_iter().flat_map(|narrow| teams.iter().map(move |&t| (narrow, t))), of);
    Share { family: "levels", scored, full, rules, spared, ..Share::default() }
}

fn merged(model: &Model<'_>, teams: &[u32]) -> Share {
    let rows = model.system.triangular.rows();
    let widest = model.system.levels.widths.iter().copied().max().unwrap_or(0);
    let of = |height: u32, threads: u32| {
        let candidate = Candidate::new("merged").with("threads", i64::from(threads));
        let candidate = candidate.with("rows", i64::from(height));
        (candidate, model.merged(threads, height as usize))
    };
    let mut scored = Vec::new();
    for height in ROWS {
        let groups = rows.div_ceil(height as usize);
        let fitting = teams.iter().filter(|&&t| t as usize <= groups && t <= widest);
        scored.extend(fitting.map(|&threads| of(height, threads)));
    }
    let rules = rules(
        teams,
        &[
            "merged: each thread has at least one group, and there are no more threads than rows in the widest level",
        ],
    );
    let full = (teams.len() * ROWS.len()) as u64;
    let spared = best(ROWS.into_iter().flat_map(|rows| teams.iter().map(move |&t| (rows, t))), of);
    Share { family: "merged", scored, full, rules, spared, ..Share::default() }
}

/// The best predicted of all schemes of a family.
fn best(
    all: impl Iterator<Item = (u32, u32)>,
    of: impl Fn(u32, u32) -> (Candidate, f64),
) -> Option<(Candidate, f64)> {
    all.map(|(height, threads)| of(height, threads)).min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Values of the parameter of `levels` that does not depend on the device.
pub fn level_domains() -> [Domain; 1] {
    [Domain::ints("narrow", &NARROW)]
}

/// Likewise of `merged`.
pub fn merged_domains() -> [Domain; 1] {
    [Domain::ints("rows", &ROWS)]
}

/// The rules of a family whose schemes share the work.
fn rules(teams: &[u32], own: &[&str]) -> Vec<String> {
    let alone: &[&str] = &["with one thread only the serial scheme is left"];
    let rules = if teams.is_empty() { alone } else { own };
    rules.iter().map(|&rule| rule.to_owned()).collect()
}

/// Numbers of threads to try: powers of two, and all available threads.
fn teams(most: u32) -> Vec<u32> {
    let mut teams: Vec<u32> =
        (1..u32::BITS).map(|k| 1 << k).take_while(|&threads| threads <= most).collect();
    if most >= 2 && !most.is_power_of_two() {
        teams.push(most);
    }
    teams
}

/// Lowers a scheme of the host; the engine schedules the rows. Nothing depends on the values.
pub fn lower(candidate: &Candidate, system: &System) -> Result<Recipe, Refusal> {
    let int = |name: &str| {
        let value = candidate.int(name).and_then(|value| u32::try_from(value).ok());
        value.filter(|&value| value > 0).ok_or_else(|| no_candidate(candidate))
    };
    let threads = || {
        let (threads, most) = (int("threads")?, system.device.multiprocessors);
        if (2..=most).contains(&threads) {
            return Ok(threads);
        }
        Err(Refusal(format!(
            "{candidate}: a shared solve takes at least 2 threads, and this device has {most}"
        )))
    };
    let (program, params) = match candidate.family.as_str() {
        "serial" => (HostProgram::SolveSerial, 0),
        "levels" => (HostProgram::SolveLevels { threads: threads()?, narrow: int("narrow")? }, 2),
        "merged" => (HostProgram::SolveMerged { threads: threads()?, rows: int("rows")? }, 2),
        _ => return Err(no_candidate(candidate)),
    };
    if candidate.params.len() != params {
        return Err(no_candidate(candidate));
    }
    Ok(Recipe::bare(candidate, Program::Host(program)))
}

/// Analytic time of the host's schemes, microseconds: the larger of bytes over bandwidth and instructions over the threads,
/// plus the time that threads wait for one another. For ranking only; the constants above are not measured.
struct Model<'a> {
    system: &'a System,
    /// How many levels have each width.
    widths: Vec<(u32, u64)>,
    /// Nanoseconds of instructions per entry, and per row.
    entry_ns: f64,
    row_ns: f64,
    /// Bytes that all calls move.
    bytes: f64,
    hop_ns: f64,
}

impl<'a> Model<'a> {
    fn of(system: &'a System) -> Self {
        let (triangular, problem) = (&system.triangular, &system.problem);
        let mut count = std::collections::BTreeMap::new();
        system.levels.widths.iter().for_each(|&width| *count.entry(width).or_insert(0u64) += 1);
        let element = problem.dtype.bytes() as f64;
        let side_bytes = f64::from(problem.rhs) * element;
        let blocks = (side_bytes / 64.0).max(1.0);
        let (rows, nnz) = (triangular.rows() as f64, triangular.nnz() as f64);
        let hop_ns = system.device.hop_ns;
        Self {
            system,
            widths: count.into_iter().collect(),
            entry_ns: ENTRY_NS * blocks,
            row_ns: ROW_NS * blocks,
            // Row pointers are 8 bytes; b is read, x written.
            bytes: nnz * (4.0 + element) + rows * (8.0 + element + 2.0 * side_bytes),
            hop_ns: if hop_ns > 0.0 { hop_ns } else { HOP_NS },
        }
    }

    /// Nanoseconds to stream all operands. A few threads cannot use the full bandwidth; the share is modelled as the square
    /// root of their number.
    fn stream_ns(&self, threads: u32) -> f64 {
        let device = &self.system.device;
        let enough = f64::from(device.multiprocessors.max(1)).sqrt();
        let drawn = (f64::from(threads) / enough).min(1.0);
        // If the operands fit the cache, warm calls read from it.
        let cached = if self.bytes < 0.5 * device.l2_bytes as f64 { 3.0 } else { 1.0 };
        self.bytes / (device.copy_gbps.max(0.1) * drawn * cached)
    }

    /// Nanoseconds of instructions of the whole system on one thread.
    fn work_ns(&self) -> f64 {
        let triangular = &self.system.triangular;
        triangular.nnz() as f64 * self.entry_ns + triangular.rows() as f64 * self.row_ns
    }

    fn serial(&self) -> f64 {
        let chain = self.system.levels.widths.len() as f64 * CHAIN_NS;
        self.stream_ns(1).max(self.work_ns()).max(chain) / 1e3
    }

    /// Levels that threads share.
    fn wide(&self, narrow: u32) -> u64 {
        let wide = self.widths.iter().filter(|(width, _)| *width >= narrow);
        wide.map(|(_, levels)| levels).sum()
    }

    fn levels(&self, threads: u32, narrow: u32) -> f64 {
        let rows = self.system.triangular.rows().max(1) as f64;
        let (mut shared, mut alone) = (0.0, 0.0);
        for &(width, levels) in &self.widths {
            let levels = levels as f64;
            if width >= narrow {
                shared += levels * f64::from(width.div_ceil(threads));
            } else {
                alone += levels * f64::from(width);
            }
        }
        let (one, all) = (self.stream_ns(1), self.stream_ns(threads) * f64::from(threads));
        let work = self.work_ns();
        let solving = (work.max(all) * shared + work.max(one) * alone) / rows;
        // Arrivals at a barrier are serialised on one word. Narrow runs lie between wide levels: at most one more each.
        let wide = self.wide(narrow) as f64;
        let narrow_levels = self.system.levels.widths.len() as f64 - wide;
        let barriers = wide + wide.min(narrow_levels);
        let barrier = self.hop_ns * (1.0 + f64::from(threads) / 2.0);
        START_US + (solving + barriers * barrier) / 1e3
    }

    /// Simulates the schedule on the system's first rows; the clocks of the threads follow the rows' finishing times.
    fn merged(&self, threads: u32, height: usize) -> f64 {
        let triangular = &self.system.triangular;
        let rows = triangular.rows();
        let groups = rows.div_ceil(height);
        let mut clocks = vec![0f64; threads as usize];
        let mut finished: Vec<f64> = Vec::new();
        let mut played = 0.0;
        for group in 0..groups {
            let (first, end) = (group * height, rows.min((group + 1) * height));
            let entries = triangular.indptr[first]..triangular.indptr[end];
            let me = group % clocks.len();
            let mut start = clocks[me];
            for &column in &triangular.indices[entries.clone()] {
                let from = column as usize / height;
                if from < group && from % clocks.len() != me {
                    start = start.max(finished[from] + self.hop_ns);
                }
            }
            let work = entries.len() as f64 * self.entry_ns + (end - first) as f64 * self.row_ns;
            clocks[me] = start + work;
            finished.push(clocks[me]);
            played += work;
            if entries.end > SAMPLE {
                break;
            }
        }
        let last = clocks.into_iter().fold(0.0, f64::max);
        let whole = if played > 0.0 { last * self.work_ns() / played } else { 0.0 };
        START_US + whole.max(self.stream_ns(threads)) / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::problem::{Diagonal, Triangle};
    use crate::domain::{Device, Dtype, Sptrsv};
    use crate::sparse::Csr;
    use crate::sparse::generate::Spec;

    fn device(threads: u32) -> Device {
        let line = include_str!("../../../tests/pool/recording.jsonl").lines().next().unwrap();
        let header: serde_json::Value = serde_json::from_str(line).unwrap();
        let device: Device = serde_json::from_value(header["device"].clone()).unwrap();
        let kind = crate::domain::DeviceKind::Cpu;
        Device { kind, multiprocessors: threads, hop_ns: 90.0, copy_gbps: 40.0, ..device }
    }

    fn system(matrix: &Csr, threads: u32) -> System {
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem = Sptrsv {
            rhs: 1,
            dtype: Dtype::F64,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        };
        System::of(matrix, &problem, &device(threads)).unwrap()
    }

    fn grid() -> Csr {
        Spec::parse("poisson2d:nx=200,ny=100,seed=1").unwrap().generate().unwrap()
    }

    #[test]
    fn every_candidate_lowers_and_has_a_time() {
        for threads in [1, 2, 6, 64] {
            let system = system(&grid(), threads);
            let shares = shares(&system);
            let full: u64 = shares.iter().map(|share| share.full).sum();
            assert_eq!(full, 1 + teams(threads).len() as u64 * 15);
            assert!(shares[1..].iter().all(|share| !share.rules.is_empty()));
            for share in &shares {
                assert!(share.scored.len() as u64 <= share.full);
                for (candidate, us) in share.scored.iter().chain(&share.spared) {
                    assert!(us.is_finite() && *us > 0.0, "{candidate}: {us}");
                    assert!(lower(candidate, &system).is_ok(), "{candidate}");
                    assert_eq!(candidate.family, share.family);
                }
                let distinct: std::collections::BTreeSet<_> =
                    share.scored.iter().map(|(candidate, _)| candidate).collect();
                assert_eq!(distinct.len(), share.scored.len());
            }
        }
        assert_eq!(teams(6), [2, 4, 6]);
        assert!(teams(1).is_empty());
    }

    #[test]
    fn one_thread_and_a_chain_leave_the_serial_scheme() {
        let only = |system: &System| {
            shares(system).iter().map(|share| share.scored.len()).sum::<usize>() == 1
        };
        assert!(only(&system(&grid(), 1)));
        let indptr = (0..=50).map(|row| (2 * row as usize).saturating_sub(1)).collect();
        let indices = (0..50).flat_map(|row: u32| row.saturating_sub(1)..=row).collect();
        let chain = Csr::new(50, 50, indptr, indices, vec![1.0; 99]).unwrap();
        let chained = system(&chain, 8);
        assert!(only(&chained));
        // A request for the others finds the best of those that can run.
        assert!(shares(&chained)[1..].iter().all(|share| share.spared.is_some()));
        assert!(shares(&system(&chain, 1))[1..].iter().all(|share| share.spared.is_none()));
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        assert!(only(&system(&empty, 8)));
    }

    #[test]
    fn wide_levels_are_predicted_to_gain_from_threads() {
        let diagonal: Vec<u32> = (0..100_000).collect();
        let indptr = (0..=100_000).collect();
        let matrix = Csr::new(100_000, 100_000, indptr, diagonal, vec![1.0; 100_000]).unwrap();
        let shares = shares(&system(&matrix, 8));
        let scored = shares.iter().flat_map(|share| &share.scored);
        let (best, _) = scored.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        assert_eq!(best.int("threads"), Some(8), "{best}");
    }

    #[test]
    fn refuses_candidates_that_are_no_schemes() {
        let two = system(&grid(), 2);
        let levels = |threads, narrow| {
            Candidate::new("levels").with("threads", threads).with("narrow", narrow)
        };
        assert!(lower(&levels(2, 8), &two).is_ok());
        for bad in [
            levels(1, 8),
            levels(4, 8),
            levels(2, 0),
            levels(-2, 8),
            Candidate::new("levels").with("threads", 2),
            Candidate::new("serial").with("threads", 2),
            Candidate::new("merged").with("threads", 2).with("rows", 0),
            Candidate::new("slices"),
        ] {
            assert!(lower(&bad, &two).is_err(), "{bad}");
        }
    }
}
