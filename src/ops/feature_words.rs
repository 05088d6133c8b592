//! Features in words, for who reads which of them a model goes by.

/// What a feature is, in a few words; `None` for a name that no operation of this version gives.
pub fn words(name: &str) -> Option<String> {
    if let Some((_, words)) = WORDS.iter().find(|(known, _)| *known == name) {
        return Some((*words).to_owned());
    }
    let (_, before, after, rest) = PREFIXES.iter().find_map(|(prefix, before, after)| {
        let rest = name.strip_prefix(prefix).filter(|rest| !rest.is_empty())?;
        Some((prefix, before, after, rest))
    })?;
    Some(format!("{before}{}{after}", rest.replace('_', " ")))
}

/// Names that begin alike, with the words before and after what follows.
const PREFIXES: [(&str, &str, &str); 12] = [
    ("is_", "family ", ""),
    ("parameter_", "parameter ", ""),
    ("window_terms_", "terms of an equation with windows of ", " ns"),
    ("window_longest_", "longest equation with windows of ", " ns"),
    ("windows_", "windows of ", " ns"),
    ("rows_in_levels_to_", "share of rows in levels of at most ", " rows"),
    ("entries_in_rows_over_", "share of entries in rows longer than ", " times the mean"),
    ("overlap_", "overlap of the rows of panels of 8, order ", ""),
    ("rho_", "entries over distinct columns of panels of 64 rows (ρ), order ", ""),
    ("panel_reuse_", "overlap of the rows of panels of ", ""),
    ("lockstep_", "cost of unequal rows in groups of ", ""),
    ("row_cov_", "variation of the entries of groups of ", " rows"),
];

const WORDS: [(&str, &str); 128] = [
    // The matrix.
    ("rows", "rows"),
    ("m", "rows"),
    ("cols", "columns"),
    ("nnz", "nonzeros"),
    ("density", "share of positions that are nonzero"),
    ("row_mean", "mean entries of a row"),
    ("row_longest", "entries of the longest row"),
    ("row_cov", "variation of row lengths"),
    ("longest_share", "share of entries in the longest row"),
    ("touched_cols", "share of columns that have entries"),
    ("gap", "mean distance between neighbouring entries of a row"),
    ("near", "entries over columns of 64 rows"),
    ("far", "entries over columns of 8192 rows"),
    ("near_by_length", "entries over columns of 64 rows, ordered by length"),
    ("far_by_length", "entries over columns of 8192 rows, ordered by length"),
    ("near_by_locality", "entries over columns of 64 rows, ordered by locality"),
    ("far_by_locality", "entries over columns of 8192 rows, ordered by locality"),
    ("locality_gain", "gain of an order by locality"),
    ("n", "columns of B"),
    ("n_divisor", "power of two that divides N"),
    ("element_bytes", "bytes of a value"),
    ("c_element_bytes", "bytes of a value of C"),
    ("column_major", "column-major operands"),
    ("tf32", "TF32 allowed"),
    ("accumulate", "adds to C"),
    ("work", "multiplications of a call"),
    ("b_over_l2", "size of B over the L2 cache"),
    ("c_over_l2", "size of C over the L2 cache"),
    ("a_over_l2", "size of the matrix over the L2 cache"),
    ("rows_a_multiprocessor", "rows for each multiprocessor"),
    // The device.
    ("device_multiprocessors", "multiprocessors of the device"),
    ("device_copy_gbps", "copy bandwidth of the device"),
    ("device_l2_bytes", "L2 cache of the device"),
    ("device_registers", "registers of a multiprocessor"),
    ("device_shared_bytes", "shared memory of a multiprocessor"),
    ("device_hop_ns", "hop latency of the device"),
    // A candidate.
    ("predicted_us", "time by the analytic model"),
    ("predicted_over_best", "time by the analytic model over the best of all"),
    ("predicted_over_family", "time by the analytic model over the best of the family"),
    ("tile_rows", "rows of a tile"),
    ("tile_columns", "columns of a tile"),
    ("threads", "threads of a block"),
    ("threads_a_tile", "threads of a tile"),
    ("tiles_a_block", "tiles of a block"),
    ("order", "order of the rows"),
    ("unroll", "entries in flight"),
    ("elements_an_entry", "elements of B that a thread loads for an entry"),
    ("registers", "registers of a thread"),
    ("balanced", "work split by entries"),
    ("shared_bytes", "shared memory of a block"),
    ("blocks", "blocks"),
    ("waves", "blocks for each multiprocessor"),
    ("fill", "stored over real entries"),
    ("columns_padded", "columns with padding over N"),
    ("entries", "entries walked for a column tile, over the nonzeros"),
    ("a_bytes", "bytes of the matrix for a column tile, over the nonzeros"),
    ("fetched", "bytes of B that an entry fetches"),
    ("fetched_over_width", "bytes of B that are fetched over those that are needed"),
    ("instructions", "instructions of a warp for an entry"),
    ("walks", "rows, panels or segments that are walked"),
    ("mean_walk", "entries that a thread walks in a mean tile"),
    ("longest_walk", "entries that a thread walks in the longest tile"),
    ("walk_unevenness", "longest over mean walk"),
    ("lockstep", "cost of unequal rows in a warp"),
    ("reuse", "entries that share a load in a tile"),
    ("near_in_order", "entries over columns of 64 rows, in its order"),
    ("far_in_order", "entries over columns of 8192 rows, in its order"),
    ("framed", "instructions of a tile beyond the fixed ones"),
    ("staged_bytes", "bytes of B copied before the walk"),
    ("c_again", "bytes of partial sums"),
    ("after_us", "time after the last entry"),
    ("memory_us", "share of the time for device memory"),
    ("cache_us", "share of the time for the cache"),
    ("in_flight_us", "share of the time that loads in flight bound"),
    ("issue_us", "share of the time that instructions bound"),
    ("chain_us", "share of the time of the longest chain"),
    // Tiled SpMM's model.
    ("tiled_described", "described by Tiled SpMM's model"),
    ("tiled_mu_segment", "mean entries of a segment (μ*)"),
    ("tiled_rho", "entries over distinct columns of a panel (ρ)"),
    ("tiled_z", "stored over real entries (Z)"),
    ("tiled_delta", "metadata of a thread, bytes (δ)"),
    ("tiled_c", "bytes touched over bytes needed by gathers (C)"),
    ("tiled_l", "rows of B that all blocks gather, over those that exist (L)"),
    ("tiled_gamma", "C over L (Γ)"),
    ("tiled_utilization", "blocks over multiprocessors (U)"),
    ("tiled_stages", "stages of a panel"),
    ("tiled_naive", "naive arithmetic intensity"),
    ("tiled_algorithmic", "algorithmic arithmetic intensity"),
    ("tiled_effective", "effective arithmetic intensity"),
    ("tiled_optimistic", "arithmetic intensity if the cache keeps rows"),
    // A triangular system.
    ("rnnz_avg", "mean entries of a row"),
    ("rnnz_max", "entries of the longest row"),
    ("rnnz_cov", "variation of row lengths"),
    ("lnnz_avg", "mean rows of a level"),
    ("lnnz_max", "rows of the widest level"),
    ("lnnz_cov", "variation of the widths of levels"),
    ("levels", "levels"),
    ("dep_dist", "nearness of the last dependency"),
    ("entries_on_path", "entries on the longest path"),
    ("rewritten", "equations are rewritten"),
    (
        "amplification",
        "sum of the terms of a row, the largest for a right-hand side within [-1, 1)",
    ),
    ("rhs", "right-hand sides"),
    ("unit_diagonal", "ones on the diagonal"),
    ("reversed", "solved from the last row"),
    ("unknowns_over_shared", "unknowns over shared memory"),
    ("system_over_l2", "size of the system over the L2 cache"),
    ("narrow_levels", "share of levels with at most 32 rows"),
    ("narrow_run", "longest run of levels with at most 32 rows"),
    ("entries_at_end", "share of entries in the last levels"),
    ("weight", "entries of a row over its diagonal"),
    ("heavy_rows", "share of rows whose entries outweigh the diagonal"),
    ("gap_median", "levels back to a dependency, median"),
    ("gap_most", "levels back to a dependency, 90th percentile"),
    ("gap_earliest", "levels back to the earliest dependency"),
    ("windows", "windows"),
    ("windows_over_levels", "windows over levels"),
    ("rows_a_window", "rows of a window"),
    ("terms_an_equation", "terms of an equation"),
    ("longest_equation", "unknowns that a window takes at a time"),
    ("rounds", "rounds of a window's tasks on the warps"),
    ("steps", "steps of a window one after another"),
    ("lanes_over_terms", "lanes of an equation over its terms"),
    ("slices_over_warps", "tasks of a window over warps"),
    ("waiting_us", "time of all windows in sequence"),
    ("bytes_us", "time of reading all terms"),
    ("launches_us", "time of launches beyond the first"),
    ("waiting_over_best", "time of all windows in sequence, over the best of all"),
    ("bytes_over_best", "time of reading all terms, over the best of all"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Op;
    use crate::ops::features::names;

    #[test]
    fn every_feature_has_words_and_no_words_are_for_none() {
        let all: Vec<String> = Op::ALL
            .into_iter()
            .flat_map(|op| {
                let (shared, own) = names(op);
                shared.into_iter().chain(own)
            })
            .collect();
        let without: Vec<&String> = all.iter().filter(|name| words(name).is_none()).collect();
        assert!(without.is_empty(), "{without:?}");
        let needless: Vec<&str> = WORDS
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| all.iter().all(|one| one != name))
            .collect();
        assert!(needless.is_empty(), "{needless:?}");
        assert_eq!(words("is_row_split").as_deref(), Some("family row split"));
        assert_eq!(words("parameter_"), None);
    }
}
