//! What families, parameters and settings mean, in a line each. The kernels' headers have the whole of it.

use crate::domain::{L2Policy, Param, StoppedBy};

pub fn value(param: &Param) -> String {
    match param {
        Param::Int(value) => value.to_string(),
        Param::Text(text) => text.clone(),
    }
}

pub fn family(name: &str) -> &'static str {
    match name {
        "row_split" => "A group of threads, or a task of the host's, for each row.",
        "nnz_split" => {
            "Long rows are cut into segments of equal length; short ones as in row_split."
        }
        "row_panel" => "Rows packed into panels that share the rows of B they read.",
        "column_major" => "A subwarp for each row, with column-major B and C.",
        "condensed_tc" => "Panels of eight rows, condensed to full tiles for the tensor cores.",
        "tca" => "Rows in classes by length, multiplied on the tensor cores.",
        "resident" => "A tile of B stays in shared memory while all rows pass.",
        "tiled" => "Panels of rows gather what they need of B into shared memory.",
        "slices" => {
            "Levels rewritten away, equations split and packed into slices, the work of one warp."
        }
        "ag" => "Nodes of the dependency graph, grouped and scheduled to warps.",
        "levels" => "Level by level on the host's threads.",
        "merged" => "Groups of rows on the host's threads, each waiting for those it needs.",
        "serial" => "Row by row on one thread.",
        "vendor" => "The vendor's own routine: nothing else that was measured is faster.",
        _ => "",
    }
}

/// What a parameter of a family says; empty where nothing is known of it.
pub fn parameter(family: &str, name: &str) -> &'static str {
    match (family, name) {
        ("slices", name) => slices(name),
        ("ag", name) => ag(name),
        ("tca", "columns") | ("condensed_tc", "columns") => "columns of C a warp computes",
        ("tca", "thresholds") => "how rows are divided into classes by their length",
        ("tca", "feed") => "where operands of a product are put together",
        ("tca" | "condensed_tc", "warps") => "warps of a block",
        ("condensed_tc", "stages") => "tiles of B loaded ahead",
        ("condensed_tc", "residue") => {
            "columns with at most this many entries go to plain cores; 0: none"
        }
        ("row_panel", "m1") => "rows of a panel",
        ("tiled", "rows") => "rows of a block's panel",
        ("tiled", "buffer") => "rows of B gathered in shared memory at a time",
        ("tiled", "segment") => "whether long rows are cut",
        ("tiled", "split") => "blocks that share the stages of a panel",
        ("levels", "narrow") => "levels of fewer rows than this are left to one thread",
        ("levels" | "merged", "threads") => "threads of the host",
        ("merged", "rows") => "rows of a group",
        (_, name) => product(name),
    }
}

fn product(name: &str) -> &'static str {
    match name {
        "b" => "B is read as given, or staged in panels as wide as a tile first",
        "block" => "threads of a block",
        "chunk" => "entries of a segment of a long row",
        "cols" => "vectors of columns a lane computes",
        "fetch" => "entries are read by each lane, or once and shuffled between them",
        "lanes" => "threads side by side along a row's columns",
        "n1" => "columns of C in a tile",
        "order" => "order in which rows are taken",
        "r" => "columns a thread holds in registers",
        "rows_per_task" => "rows a thread takes at a time",
        "unroll" => "entries in flight at a time",
        "vec" => "elements of a vector load",
        "ways" => "parts of a row summed side by side, then added up",
        "algorithm" => "the vendor's name of the routine",
        _ => "",
    }
}

fn slices(name: &str) -> &'static str {
    match name {
        "window_ns" => {
            "assumed cost of a window of levels, ns; more rewrites more levels away, 0 none"
        }
        "terms" => "most terms of a rewritten equation",
        "lanes" => "lanes an equation; 0: chosen for each slice",
        "warps" => "solving warps a multiprocessor",
        "unroll" => "unknowns a lane loads before it looks at the first",
        "take" => {
            "how warps come by slices: dealt to blocks, spread over multiprocessors, or by ticket"
        }
        "sync" => "an unknown is there when it is no longer the sentinel, or by an epoch beside it",
        "scope" => {
            "where unknowns travel: global memory, or shared memory of a multiprocessor or cluster"
        }
        "pause" => "whether a waiting thread rests between looks",
        "alpha" => {
            "windows of more slices a warp than this are launches of their own; 0: one launch"
        }
        _ => "",
    }
}

fn ag(name: &str) -> &'static str {
    match name {
        "nw" => "warps of a block",
        "ng" => "nodes a warp solves at a time",
        "sw_rnnz" => "lanes share a row of more entries than this",
        "read" => "entries are read by each lane, or together into shared memory",
        "sync" => "an unknown is there when it is no longer the sentinel, or by an epoch beside it",
        "merge" => "how rows are merged into nodes",
        "reorder" => "whether rows are renumbered by level first",
        "rg" => "how nodes of a level become groups",
        "ws" => "how groups come to warps",
        "alpha" => {
            "levels of more groups than this times the resident warps are launches of their own"
        }
        _ => "",
    }
}

pub fn stopped_by(stopped: StoppedBy) -> &'static str {
    match stopped {
        StoppedBy::Completed => "every chosen candidate was tried",
        StoppedBy::Seconds => "ended by its budget of seconds: this is the best until then",
        StoppedBy::Trials => "ended by its budget of trials: this is the best until then",
        StoppedBy::Cancelled => "cancelled: this is the best until then",
    }
}

pub fn l2_policy(policy: L2Policy) -> &'static str {
    match policy {
        L2Policy::Warm => "calls follow each other on the same buffers",
        L2Policy::Cold => "the cache is swept before each call",
    }
}
