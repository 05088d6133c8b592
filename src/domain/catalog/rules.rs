//! The pruning rules in words: what each compares, with what, why, and which publication it comes from.

mod ag;

pub use ag::AG;

use crate::domain::DeviceKind;

/// What a rule may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Whoever breaks it is removed.
    Hard,
    /// It removes no family completely: those that break it least are kept.
    Soft,
    /// It does not judge a candidate by itself, but chooses among those that are left.
    Choice,
}

impl Force {
    /// `hard`, `soft` or `choice`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Soft => "soft",
            Self::Choice => "choice",
        }
    }
}

/// On which side of its limit a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    AtMost,
    AtLeast,
    /// The rule compares no numbers.
    Neither,
}

/// What a rule says, on one kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// One sentence.
    pub sentence: &'static str,
    pub formula: &'static str,
    /// What the value counts, as a noun in the plural; empty for a ratio.
    pub unit: &'static str,
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// As in `FunnelStep::constraint` and `Removal::pruned_by`.
    pub name: &'static str,
    /// A few words.
    pub title: &'static str,
    pub words: Words,
    /// Where the host's rule of this name is another.
    pub on_host: Option<Words>,
    pub side: Side,
    /// What the value is compared with, in words.
    pub limit: &'static str,
    pub force: Force,
    /// Paper and section, or that it is our own.
    pub source: &'static str,
}

impl Rule {
    pub fn words(&self, kind: DeviceKind) -> Words {
        match kind {
            DeviceKind::Cuda => self.words,
            DeviceKind::Cpu => self.on_host.unwrap_or(self.words),
        }
    }
}

/// Every rule: those of the funnel, and those that a step of it consists of.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().chain(&AG)
}

/// The rule of a name; `None` for names of other versions.
pub fn rule(name: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.name == name)
}

const OWN: &str = "our own";

const fn words(sentence: &'static str, formula: &'static str, unit: &'static str) -> Words {
    Words { sentence, formula, unit }
}

/// A rule that chooses among the candidates that are left.
const fn choice(name: &'static str, title: &'static str, of: Words, source: &'static str) -> Rule {
    let (on_host, side, limit) = (None, Side::Neither, "");
    Rule { name, title, words: of, on_host, side, limit, force: Force::Choice, source }
}

/// Every rule of the funnel, in the order in which they apply.
pub const RULES: &[Rule] = &[
    Rule {
        name: "combinations",
        title: "Combinations with a kernel",
        words: words(
            "Of all combinations of the families' parameter values, most are no candidates for this problem: the family has no kernel \
             for it, the problem determines the value, the kernel does not take them together, or another combination does the same.",
            "the product of the numbers of values of every family's parameters",
            "",
        ),
        on_host: None,
        side: Side::Neither,
        limit: "",
        force: Force::Hard,
        source: OWN,
    },
    choice(
        "requested",
        "Families asked for",
        words(
            "The request names the families to search, and all others are left out.",
            "family ∈ families of the request",
            "",
        ),
        "the request",
    ),
    choice(
        "fixed",
        "Parameters asked for",
        words(
            "The request gives some parameters their values, and candidates with other values are left out.",
            "parameter = value of the request",
            "",
        ),
        "the request",
    ),
    Rule {
        name: "duplicates",
        title: "One of each kind",
        words: words(
            "No other candidate does the same, as one does if a thread has columns beyond the last of B, or a panel has one row.",
            "columns that a setting reaches ≤ columns that there are; else, other candidates that do the same ≤ 0",
            "",
        ),
        on_host: Some(words(
            "No other candidate does the same, as one does that would write C past the caches where its rows are no whole cache lines.",
            "other candidates that do the same ≤ 0",
            "",
        )),
        side: Side::AtMost,
        limit: "where the setting begins to repeat another",
        force: Force::Hard,
        source: OWN,
    },
    Rule {
        name: "register_resource",
        title: "Registers",
        words: words(
            "The registers of a thread and of a block fit the device: by the compiler's figures if the kernel was compiled before, \
             and by a count of its variables otherwise.",
            "registers ≤ 255 a thread, and registers × threads ≤ registers of a block",
            "registers",
        ),
        on_host: Some(words(
            "The M1 × N1 sums of a tile stay in the processor's vector registers.",
            "⌈M1 × N1 ÷ lanes⌉ ≤ vector registers",
            "vector registers",
        )),
        side: Side::AtMost,
        limit: "what the device has",
        force: Force::Hard,
        source: "LO-SpMM, section 3.2",
    },
    Rule {
        name: "local_memory",
        title: "Spills",
        words: words(
            "A kernel that spilled registers to local memory when it was compiled before has more sums than registers, and a narrower \
             tile of its family does the same work without spills.",
            "spilled bytes ≤ 64",
            "bytes a thread",
        ),
        on_host: None,
        side: Side::AtMost,
        limit: "64",
        force: Force::Soft,
        source: "our own, after LO-SpMM, section 3.2",
    },
    Rule {
        name: "launch_limits",
        title: "Limits of a launch",
        words: words(
            "The threads of a block, and the blocks along the second dimension of the grid, are no more than kernel and device allow.",
            "threads of a block ≤ 1,024, and blocks along y ≤ 65,535",
            "",
        ),
        on_host: None,
        side: Side::AtMost,
        limit: "what kernel and device allow",
        force: Force::Hard,
        source: OWN,
    },
    Rule {
        name: "whole_warps",
        title: "Whole warps",
        words: words(
            "A block consists of whole warps and whole tiles, because lanes outside of them take resources and do nothing.",
            "threads of a block mod (warp size, threads of a tile) = 0",
            "threads outside",
        ),
        on_host: None,
        side: Side::AtMost,
        limit: "0",
        force: Force::Hard,
        source: "LO-SpMM, section 3.3",
    },
    Rule {
        name: "capability",
        title: "Compute capability",
        words: words(
            "Some kernels consist of instructions that only devices of one compute capability have.",
            "the device has the kernel's instructions",
            "",
        ),
        on_host: None,
        side: Side::AtMost,
        limit: "what the device has",
        force: Force::Hard,
        source: OWN,
    },
    Rule {
        name: "row_order",
        title: "A gain from reordering",
        words: words(
            "Rows are ordered by similarity or radix only where their panels then share more columns than in the better of the other \
             orders; the column-major tiled kernel orders rows, or the segments they are cut into, where its model predicts fewer bytes. \
             By locality the rows of other kernels are ordered only where columns then recur clearly more often among the rows that share L1 or L2, \
             as seen from samples before any order is computed.",
            "ρ of the order ÷ ρ of the best other order ≥ 1.05; tiled, column-major: bytes in natural order ÷ bytes in this one ≥ 1.05, \
             by locality ≥ 1.25; else by locality: reuse among 64 or 8192 rows ÷ the same in the best other order ≥ 1.25",
            "",
        ),
        on_host: Some(words(
            "Rows are ordered by locality only where columns then recur clearly more often among the rows that share a cache, as seen \
             from samples before any order is computed.",
            "reuse among 64 or 8192 rows ÷ the same in the best other order ≥ 1.25",
            "",
        )),
        side: Side::AtLeast,
        limit: "1.05, by locality 1.25",
        force: Force::Hard,
        source: "Tiled SpMM, sections 4.2 and 5.3",
    },
    Rule {
        name: "panel_fill",
        title: "Padding of panels",
        words: words(
            "Rows are packed into panels only where that does not store many times as many values as the matrix has.",
            "stored values ÷ entries ≤ 8",
            "",
        ),
        on_host: None,
        side: Side::AtMost,
        limit: "8",
        force: Force::Hard,
        source: "our own, after the term Z of Tiled SpMM, section 3",
    },
    Rule {
        name: "applicability",
        title: "The family's own rules",
        words: words(
            "A family says whether it has anything to offer for this matrix: a split needs a row to split, several groups of \
             threads a panel need few and wide panels, and tiled kernels follow the decision chart of Tiled SpMM.",
            "tiled: segments if blocks ÷ multiprocessors < 0.65 or σ ÷ μ > 1 of the row lengths, and none otherwise",
            "",
        ),
        on_host: None,
        side: Side::Neither,
        limit: "",
        force: Force::Hard,
        source: "Tiled SpMM, section 4.1, and our own",
    },
    Rule {
        name: "hardware_utilization",
        title: "Enough blocks",
        words: words(
            "There are blocks for at least half of the multiprocessors, so that few of them are idle; or a block is done within a microsecond.",
            "blocks = ⌈M ÷ M1⌉ × ⌈N ÷ N1⌉ ≥ multiprocessors ÷ 2",
            "blocks",
        ),
        on_host: Some(words(
            "There are tasks for at least half of the threads.",
            "tasks = ⌈M ÷ rows of a task⌉ ≥ threads ÷ 2",
            "tasks",
        )),
        side: Side::AtLeast,
        limit: "half the multiprocessors",
        force: Force::Soft,
        source: "LO-SpMM, section 3.3, Eq. 1",
    },
    Rule {
        name: "load_balance",
        title: "Balanced tiles",
        words: words(
            "Tiles of A have about equally many entries (panels in natural order are judged as those by length), and little of the last tile \
             of columns is padding.",
            "COV_row = σ ÷ μ of the entries of tiles ≤ 0.25, and WASTE_col = 1 − N ÷ (⌈N ÷ N1⌉ × N1) ≤ 0.25",
            "",
        ),
        on_host: Some(words(
            "Little of the last tile of columns is padding; tasks are balanced by their entries.",
            "WASTE_col = 1 − N ÷ (⌈N ÷ N1⌉ × N1) ≤ 0.25",
            "",
        )),
        side: Side::AtMost,
        limit: "0.25",
        force: Force::Soft,
        source: "LO-SpMM, section 3.4",
    },
    Rule {
        name: "shared_memory",
        title: "Shared memory",
        words: words(
            "The shared memory of a block does not exceed what the device gives to one.",
            "bytes of a block ≤ bytes of the device",
            "bytes",
        ),
        on_host: None,
        side: Side::AtMost,
        limit: "what the device has",
        force: Force::Hard,
        source: OWN,
    },
    Rule {
        name: "alignment",
        title: "Whole vectors",
        words: words(
            "The columns of row-major B and C are read in whole vectors.",
            "N mod elements of a vector = 0",
            "columns too many",
        ),
        on_host: None,
        side: Side::AtMost,
        limit: "0",
        force: Force::Hard,
        source: OWN,
    },
    choice(
        "reduction",
        "The reduced list",
        words(
            "The full space is counted but not listed: rules that look at the levels and rows of this system leave the schemes that are \
             worth a prediction.",
            "schemes of the list out of all combinations",
            "",
        ),
        "AG-SpTRSV, section 4.5, and our own",
    ),
    choice(
        "rank",
        "Ranking",
        words(
            "A model orders the candidates that are left, and only the first K are compiled and timed.",
            "the K best predicted",
            "",
        ),
        "LO-SpMM, section 3.5",
    ),
    choice(
        "halving",
        "Successive halving",
        words(
            "Up to 64 schemes are timed with few samples each: most by prediction and diversity, the others next to the best so far.",
            "predicted, different, or near the best observed",
            "",
        ),
        "our own, for AG-SpTRSV's stage Select (section 4.5)",
    ),
    choice(
        "sample",
        "A sample for training",
        words(
            "Candidates are drawn over the whole list, good and bad, because a model learns from both.",
            "a quarter spread, a quarter predicted, half at random",
            "",
        ),
        OWN,
    ),
    choice(
        "draw",
        "A draw from the full space",
        words(
            "All that can run is left in the space, and candidates are drawn at random as far as the budget goes: what a rule would \
             have removed is tried all the same, to see what the rule costs.",
            "as many as the budget, at random",
            "",
        ),
        OWN,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::funnel;

    #[test]
    fn every_step_of_the_funnel_is_explained() {
        for name in funnel::ORDER {
            let rule = rule(name).unwrap_or_else(|| panic!("{name} has no words"));
            for words in [Some(rule.words), rule.on_host].into_iter().flatten() {
                assert!(words.sentence.ends_with('.') && !words.formula.is_empty(), "{name}");
            }
            assert!(!rule.title.is_empty() && !rule.source.is_empty(), "{name}");
            assert_eq!(rule.side == Side::Neither, rule.limit.is_empty(), "{name}");
        }
        let names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        assert_eq!(names, funnel::ORDER, "in the same order");
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = all().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
    }
}
