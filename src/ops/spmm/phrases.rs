//! What the parameters that several SpMM kernels share mean, as phrases.

use crate::ops::family::Meaning;

pub const BLOCK: Meaning = ("block", "threads per block");
pub const COLUMNS_A_WARP: Meaning = ("columns", "columns of C that a warp computes");
pub const N1: Meaning = ("n1", "columns of C in a tile");
pub const ORDER: Meaning = ("order", "order in which the rows are processed");
pub const R: Meaning = ("r", "columns of C that a thread keeps in registers");
pub const STORES: Meaning = (
    "stores",
    "whether C is written through the caches, or past them where its rows are whole cache lines",
);
pub const UNROLL: Meaning = ("unroll", "entries that a thread has in flight");
pub const VEC: Meaning = ("vec", "elements per vector load");
pub const WARPS: Meaning = ("warps", "warps per block");

/// Phrases of the kernels that walk the entries of rows.
pub const WALK: [Meaning; 9] = [
    ("lanes", "adjacent threads that share the columns of a row"),
    ("ways", "parts of a row that are summed in parallel and then added"),
    VEC,
    ("cols", "vectors of columns that a lane computes"),
    UNROLL,
    BLOCK,
    (
        "fetch",
        "whether each lane reads the entries itself, the same a step ahead, or lanes share them by shuffling",
    ),
    ORDER,
    (
        "b",
        "whether B is read as given, first staged in panels as wide as a tile, or so and C computed by rows and then turned",
    ),
];
