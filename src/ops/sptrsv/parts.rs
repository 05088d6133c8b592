//! What a scheme's predicted time is made of, which models read among its features.

/// The components of a prediction. A window is what is computed between two waits on the longest path: rewritten levels of the family `slices`,
/// the levels of a group of `overlapped`, a chain of `chains`. All zero where a family's model does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Windows one after another, and rows per window.
    pub windows: f64,
    pub rows_a_window: f64,
    /// Terms of an equation on average, with those that are computed or stored more than once.
    pub terms: f64,
    /// Terms in unknowns of a window's longest equation (`slices`), that a group's lanes take in all its passes (`overlapped`), or columns
    /// of a chain on average.
    pub longest: f64,
    /// Lanes per equation.
    pub lanes: f64,
    /// Steps of a window one after another: those of its longest equation on that many lanes, passes of a group, or rows of a chain on
    /// average.
    pub steps: f64,
    /// Tasks of a window, each of which one warp takes (slices, groups or chains), and the warps there are for them.
    pub slices: f64,
    pub warps: f64,
    /// Rounds that a window's tasks take on these warps.
    pub rounds: f64,
    /// Microseconds of all windows in sequence.
    pub waiting_us: f64,
    /// Microseconds of what keeps the device busy beside that: reading all terms, or for `chains` its tasks in turn if they take longer.
    pub bytes_us: f64,
    /// Microseconds of launches beyond the first.
    pub launches_us: f64,
}
