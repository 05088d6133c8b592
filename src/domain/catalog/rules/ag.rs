//! The rules behind `reduction` in the family `ag`, in the order in which they are judged: a search of the full space names the
//! first that a scheme breaks.

use super::{OWN, Rule, choice, words};

const PAPER: &str = "our own, for AG-SpTRSV's reduced space (section 4.5)";

pub const AG: [Rule; 10] = [
    choice(
        "ag_reorder",
        "Reordering that changes nothing",
        words(
            "Rows are not renumbered by level where their levels rise already.",
            "reorder = none if levels rise with the rows",
            "",
        ),
        OWN,
    ),
    choice(
        "ag_merge_near_mean",
        "Thresholds of merging",
        words(
            "Rows are merged by thresholds only next to their mean length.",
            "the powers of two on both sides of the mean row length",
            "entries a row",
        ),
        PAPER,
    ),
    choice(
        "ag_graphs_alike",
        "Graphs alike",
        words(
            "Computation graphs with the same nodes and levels are tried once.",
            "equal order, nodes, longest node and widths of levels",
            "",
        ),
        OWN,
    ),
    choice(
        "ag_lanes",
        "Lanes",
        words(
            "Lanes that share a row are half to twice as many as its mean length, or as many as the rows of the path are long; lanes \
             with a row each are no more than a node has rows, and no fewer than a quarter.",
            "shared: lanes ∈ {½, 1, 2} × mean length; each a row: ¼ ≤ lanes ÷ rows of a node ≤ 1",
            "lanes",
        ),
        PAPER,
    ),
    choice(
        "ag_threshold",
        "Two ways in one kernel",
        words(
            "Lanes share some rows and take others alone only where rows differ in length, divided at their mean length.",
            "σ ÷ μ of the row lengths > 0.5, and sw_rnnz next below μ",
            "",
        ),
        PAPER,
    ),
    choice(
        "ag_partitions",
        "Partitions alike",
        words(
            "Values of alpha that divide the levels into the same launches are tried once.",
            "equal launches and levels that wait",
            "",
        ),
        OWN,
    ),
    choice(
        "ag_warps",
        "Warps of a multiprocessor",
        words(
            "Warps per multiprocessor are as many as a mean level needs, four times as many, or 16.",
            "nw ∈ {w, 4w, 16}, w = nodes ÷ levels ÷ (ng × multiprocessors)",
            "warps",
        ),
        PAPER,
    ),
    choice(
        "ag_read",
        "Collaborative read",
        words(
            "Entries are read together only for lanes with a row each, rows of 4 entries on average, and at most 16 warps.",
            "sw_rnnz = inf, μ ≥ 4, nw ≤ 16",
            "",
        ),
        "our own, for AG-SpTRSV's collaborative read (section 4.2.2)",
    ),
    choice(
        "ag_grouping",
        "Balanced groups",
        words(
            "Nodes are grouped by their entries only where rows differ in length.",
            "σ ÷ μ of the row lengths > 0.25",
            "",
        ),
        "our own, for AG-SpTRSV's rg_balance (section 4.4)",
    ),
    choice(
        "ag_most",
        "The best predicted",
        words(
            "Of the schemes that pass all rules the 600 best predicted are listed, spread over the kinds of scheme.",
            "place ≤ 600",
            "schemes up to this one",
        ),
        OWN,
    ),
];
