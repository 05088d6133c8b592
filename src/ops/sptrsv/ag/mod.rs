//! AG-SpTRSV (TACO 2024) as a family: prepare, transform, schedule and select, each in a file; synchronisation by values.

pub mod assemble;
pub mod lower;
pub mod model;
mod placing;
pub mod prepare;
pub mod rules;
pub mod schedule;
pub mod select;
pub mod text;
pub mod transform;

pub use lower::AgLowerer;
pub use select::{Space, share, whole};

use crate::domain::Candidate;
use prepare::Variant;
use schedule::{Alpha, Grouping, Placement, ScheduleOptions};
use transform::Merge;

/// The family's name.
pub const FAMILY: &str = "ag";

/// `reorder` by value.
const fn order_name(reorder: bool) -> &'static str {
    if reorder { "level" } else { "none" }
}

/// A scheme: one point of the paper's space (section 4.5), with our synchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    pub variant: Variant,
    /// Rows renumbered by level before merging.
    pub reorder: bool,
    pub merge: Merge,
    pub grouping: Grouping,
    pub placement: Placement,
    pub alpha: Alpha,
}

impl Scheme {
    /// The scheme of a candidate; `None` if a parameter is missing or outside the space.
    pub fn of(candidate: &Candidate) -> Option<Self> {
        let text = |name| candidate.text(name);
        let scheme = Self {
            variant: Variant::of(candidate)?,
            reorder: [false, true].into_iter().find(|&r| Some(order_name(r)) == text("reorder"))?,
            merge: Merge::parse(text("merge")?)?,
            grouping: schedule::GROUPINGS.into_iter().find(|g| Some(g.name()) == text("rg"))?,
            placement: schedule::PLACEMENTS.into_iter().find(|p| Some(p.name()) == text("ws"))?,
            alpha: schedule::ALPHAS
                .into_iter()
                .find(|a| Some(a.name().as_str()) == text("alpha"))?,
        };
        (candidate.family == FAMILY && scheme.candidate() == *candidate).then_some(scheme)
    }

    pub fn candidate(&self) -> Candidate {
        let candidate = Candidate::new(FAMILY)
            .with_text("reorder", order_name(self.reorder))
            .with_text("merge", &self.merge.name())
            .with_text("rg", self.grouping.name())
            .with_text("ws", self.placement.name())
            .with_text("alpha", &self.alpha.name());
        self.variant.put(candidate)
    }

    pub fn options(&self) -> ScheduleOptions {
        ScheduleOptions {
            ng: self.variant.ng,
            nw: self.variant.nw,
            grouping: self.grouping,
            placement: self.placement,
            alpha: self.alpha,
        }
    }
}
