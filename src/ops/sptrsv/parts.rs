//! What a scheme's predicted time is made of, which models read among its features.

/// The components of a prediction, in the words of windows: what waits for what came before, as a whole. A window of the family
/// `slices` is one of its rewriting, of `overlapped` one whose rows are computed without waiting in between, and of `chains` what lies between two waits on the
/// longest path. All zero where a family's model does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Windows of the whole system, and rows per window.
    pub windows: f64,
    pub rows_a_window: f64,
    /// Terms of an equation on average, and terms in unknowns of a window's longest equation.
    pub terms: f64,
    pub longest: f64,
    /// Lanes per equation, and steps that a window's longest equation takes on that many lanes.
    pub lanes: f64,
    pub steps: f64,
    /// Tasks of a window that a warp takes at a time (slices, groups or chains), and the warps available for them.
    pub slices: f64,
    pub warps: f64,
    /// Rounds that a window's tasks take on the available warps.
    pub rounds: f64,
    /// Microseconds of all windows in sequence, and of reading all terms.
    pub waiting_us: f64,
    pub bytes_us: f64,
    /// Microseconds of launches beyond the first.
    pub launches_us: f64,
}
