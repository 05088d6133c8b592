//! Training data: groups of candidates, each group measured on one matrix for one problem.

/// All groups of one scope, described by the same features.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// Names of the features that all candidates of a group share, and of those that each candidate has of its own.
    pub shared: Vec<String>,
    pub own: Vec<String>,
    pub groups: Vec<Group>,
}

/// One list to be ranked: the candidates measured on one matrix for one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The matrix's pattern. Groups of one pattern must not be split between training and evaluation.
    pub pattern: String,
    pub shared: Vec<f32>,
    pub rows: Vec<Row>,
}

/// One candidate that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The candidate as text; perceptrons identify schemes by it.
    pub candidate: String,
    pub own: Vec<f32>,
    /// Measured microseconds; infinite if it was stopped or failed.
    pub us: f64,
    /// Prediction of the analytic model.
    pub predicted_us: f64,
}

impl Group {
    /// The best time of the group; infinite if nothing was measured.
    pub fn best_us(&self) -> f64 {
        self.rows.iter().map(|row| row.us).fold(f64::INFINITY, f64::min)
    }
}
