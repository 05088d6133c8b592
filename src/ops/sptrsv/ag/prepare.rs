//! AG-SpTRSV's first stage (section 4.2): code variants, which say how a warp processes its task.

use crate::domain::Candidate;
use crate::domain::candidate::WITHOUT;

/// Warps that solve on one multiprocessor, in one block that has it for itself.
pub const NW: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Subwarps of a warp, each of which solves a node.
pub const NG: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// When the lanes of a subwarp share a row: if a node's rows have more entries than this on average, including the diagonal;
/// otherwise each lane takes a separate row (section 4.2.1, `sw_rnnz`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shared {
    /// More than this many entries; 0 shares every row.
    Above(u32),
    /// Infinity: always one row per lane.
    Never,
}

/// How a warp reads the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Read {
    Direct,
    /// All lanes first read all of the group's entries into shared memory, where they fit (collaborative read).
    Shared,
}

/// How a value is published with the mark that it is available; `kernels/sptrsv/wait.cuh`. Not as in the paper, which has
/// flags and fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sync {
    Sentinel,
    Packed,
}

impl Read {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Shared => "shared",
        }
    }
}

impl Sync {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sentinel => "sentinel",
            Self::Packed => "packed",
        }
    }
}

pub const READS: [Read; 2] = [Read::Direct, Read::Shared];

/// A technique of section 4.2 that no scheme of the space is without, because it should never cost anything. A study leaves
/// it out to learn what it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Technique {
    /// A multiprocessor runs one block of a launch that waits, so that `nw` is the number of its warps (section 4.2.1).
    Exclusive,
    /// Only nodes that a waiting node reads publish their values (section 4.2.2, elimination of synchronisation).
    Elimination,
    /// The reciprocal of the diagonal is computed before the wait (section 4.2.2, early division).
    EarlyDivision,
}

pub const TECHNIQUES: [Technique; 3] =
    [Technique::Exclusive, Technique::Elimination, Technique::EarlyDivision];

impl Technique {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Elimination => "elimination",
            Self::EarlyDivision => "early_division",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        TECHNIQUES.into_iter().find(|technique| technique.name() == text)
    }
}

/// One code variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant {
    pub nw: u32,
    pub ng: u32,
    pub sw_rnnz: Shared,
    pub read: Read,
    pub sync: Sync,
    /// Left out, for a study; `None` in the space.
    pub without: Option<Technique>,
}

/// The thresholds that `ng` subwarps allow: 0, infinity, and powers of two up to the lanes of a subwarp.
pub fn thresholds(ng: u32) -> Vec<Shared> {
    let lanes = 32 / ng;
    let powers = (0..=lanes.ilog2()).map(|i| Shared::Above(1 << i));
    [Shared::Above(0), Shared::Never].into_iter().chain(powers).collect()
}

impl Shared {
    /// Whether lanes share the rows of a node with `entries` in `rows`.
    pub fn shares(self, entries: usize, rows: usize) -> bool {
        match self {
            Self::Above(most) => entries > most as usize * rows,
            Self::Never => false,
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Above(most) => most.to_string(),
            Self::Never => "inf".to_owned(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if text == "inf" { Some(Self::Never) } else { text.parse().ok().map(Self::Above) }
    }
}

impl Variant {
    /// The variant of a candidate; `None` if a parameter is missing or outside the space.
    pub fn of(candidate: &Candidate) -> Option<Self> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        let (nw, ng) = (int("nw")?, int("ng")?);
        let known = NW.contains(&nw) && NG.contains(&ng);
        let sw_rnnz = Shared::parse(candidate.text("sw_rnnz")?)?;
        if !known || !thresholds(ng).contains(&sw_rnnz) {
            return None;
        }
        let read = match candidate.text("read")? {
            "direct" => Read::Direct,
            "shared" => Read::Shared,
            _ => return None,
        };
        let sync = match candidate.text("sync")? {
            "sentinel" => Sync::Sentinel,
            "packed" => Sync::Packed,
            _ => return None,
        };
        let without = match candidate.params.get(WITHOUT) {
            None => None,
            Some(_) => Some(Technique::parse(candidate.text(WITHOUT)?)?),
        };
        Some(Self { nw, ng, sw_rnnz, read, sync, without })
    }

    /// The candidate with this variant's parameters.
    pub fn put(self, candidate: Candidate) -> Candidate {
        let candidate = candidate
            .with("nw", i64::from(self.nw))
            .with("ng", i64::from(self.ng))
            .with_text("sw_rnnz", &self.sw_rnnz.name())
            .with_text("read", self.read.name())
            .with_text("sync", self.sync.name());
        match self.without {
            None => candidate,
            Some(technique) => candidate.with_text(WITHOUT, technique.name()),
        }
    }

    /// Whether the technique is in this variant.
    pub fn has(self, technique: Technique) -> bool {
        self.without != Some(technique)
    }
}
