//! A scheme of the `slices` family: its parameters as types, and the kernel text they name.

use super::pack::Packing;
use super::rewrite::Rewrite;
use super::text::Pass;
use crate::domain::Candidate;

/// Where the unknowns that warps wait for are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Global memory: the whole device works.
    Global,
    /// Shared memory of one cluster of this many blocks, each with a copy; 1 is a single multiprocessor.
    Shared { blocks: u32 },
}

/// How a warp gets its slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Take {
    /// Assigned in advance; neighbouring slices go to warps of one block.
    Block,
    /// Assigned in advance; neighbouring slices go to different multiprocessors.
    Spread,
    /// By an atomic counter.
    Ticket,
}

/// How an unknown is marked as available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sync {
    /// It differs from the sentinel.
    Sentinel,
    /// The epoch beside it is that of the call.
    Packed,
}

impl Scope {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Shared { blocks: 1 } => "sm",
            Self::Shared { blocks: 8 } => "cluster8",
            Self::Shared { .. } => "cluster16",
        }
    }
}

impl Take {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Spread => "spread",
            Self::Ticket => "ticket",
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

/// All parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    pub rewrite: Rewrite,
    /// Entry lanes per equation; 0 chooses for each slice.
    pub lanes: u32,
    /// Solving warps per multiprocessor.
    pub warps: u32,
    /// Unknowns that a lane loads before it examines the first.
    pub unroll: u32,
    pub take: Take,
    pub sync: Sync,
    pub scope: Scope,
    pub pause: u32,
    /// Windows of more than this many slices per resident warp get a separate launch, without waiting (the paper's
    /// alpha_level); 0: all windows in one launch.
    pub alpha: u32,
    /// The first terms of a warp's next slice are copied to shared memory while it waits for this one's.
    pub ahead: bool,
}

/// The family's name.
pub const FAMILY: &str = "slices";

impl Scheme {
    /// The shape that others differ from: one launch, eight warps, slices taken in turn, lanes chosen for each.
    pub const fn plain(rewrite: Rewrite) -> Self {
        Self {
            rewrite,
            lanes: 0,
            warps: 8,
            unroll: 8,
            take: Take::Block,
            sync: Sync::Sentinel,
            scope: Scope::Global,
            pause: 0,
            alpha: 0,
            ahead: false,
        }
    }

    /// The parameters of a candidate of this family; `None` if one is missing or has a value outside its domain.
    pub fn of(candidate: &Candidate) -> Option<Self> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        let (window_ns, terms) = (int("window_ns")?, int("terms")?);
        // What came later is a parameter of those candidates alone that have it.
        let flag = |name| match candidate.params.contains_key(name) {
            true => int(name).filter(|&value| value <= 1),
            false => Some(0),
        };
        let (refine, ahead) = (flag("refine")?, flag("ahead")?);
        let scheme = Self {
            rewrite: Rewrite { window_ns, terms, refine: refine == 1 },
            lanes: int("lanes")?,
            warps: int("warps")?,
            unroll: int("unroll")?,
            take: match candidate.text("take")? {
                "block" => Take::Block,
                "spread" => Take::Spread,
                "ticket" => Take::Ticket,
                _ => return None,
            },
            sync: match candidate.text("sync")? {
                "sentinel" => Sync::Sentinel,
                "packed" => Sync::Packed,
                _ => return None,
            },
            scope: match candidate.text("scope")? {
                "global" => Scope::Global,
                "sm" => Scope::Shared { blocks: 1 },
                "cluster8" => Scope::Shared { blocks: 8 },
                "cluster16" => Scope::Shared { blocks: 16 },
                _ => return None,
            },
            pause: int("pause")?,
            alpha: int("alpha")?,
            ahead: ahead == 1,
        };
        let lanes = scheme.lanes == 0 || scheme.lanes.is_power_of_two() && scheme.lanes <= 32;
        let warps = (1..=32).contains(&scheme.warps) && scheme.warps.is_power_of_two();
        let others = [4, 8].contains(&scheme.unroll) && scheme.pause <= 8;
        (lanes && warps && others).then_some(scheme)
    }

    /// Only schemes that are refined, or copy ahead, say so: others have the names that they had before there were any.
    pub fn candidate(&self) -> Candidate {
        let candidate = Candidate::new(FAMILY)
            .with("window_ns", i64::from(self.rewrite.window_ns))
            .with("terms", i64::from(self.rewrite.terms))
            .with("lanes", i64::from(self.lanes))
            .with("warps", i64::from(self.warps))
            .with("unroll", i64::from(self.unroll))
            .with_text("take", self.take.name())
            .with_text("sync", self.sync.name())
            .with_text("scope", self.scope.name())
            .with("pause", i64::from(self.pause))
            .with("alpha", i64::from(self.alpha));
        let with = |candidate: Candidate, name, flag| {
            if flag { candidate.with(name, 1) } else { candidate }
        };
        with(with(candidate, "refine", self.rewrite.refine), "ahead", self.ahead)
    }

    /// The solves of a call.
    pub const fn passes(&self) -> &'static [Pass] {
        if self.rewrite.refine { &[Pass::First, Pass::Again] } else { &[Pass::First] }
    }

    /// How equations share a warp for this many right-hand sides on this many multiprocessors.
    pub fn packing(&self, rhs: u32, multiprocessors: u32) -> Packing {
        let width = Columns::of(rhs).width();
        // Rounded to one of two values, so that schemes with different numbers of warps share their packed arrays.
        let warps = match self.scope {
            Scope::Global => multiprocessors * 2,
            Scope::Shared { .. } => 32,
        };
        Packing { width, lanes: self.lanes, steps: 4, warps }
    }
}

/// How right-hand sides are distributed over a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Lanes across right-hand sides.
    pub lanes: u32,
    /// Right-hand sides per lane.
    pub a_lane: u32,
}

impl Columns {
    pub fn of(rhs: u32) -> Self {
        let lanes = rhs.next_power_of_two().min(32);
        Self { lanes, a_lane: rhs.div_ceil(lanes) }
    }

    /// Lanes across the terms of equations: those that a warp has left.
    pub const fn width(self) -> u32 {
        32 / self.lanes
    }
}
