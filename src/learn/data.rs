//! What models are trained on: groups of candidates, each measured on one matrix for one problem.

/// All groups of one scope, described alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dataset {
    /// Names of the features that all candidates of a group have in common, then of a candidate's own.
    pub shared: Vec<String>,
    pub own: Vec<String>,
    pub groups: Vec<Group>,
}

/// One list to be ranked: the candidates measured on one matrix for one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What must not be split: groups of one pattern are all trained on, or all left out.
    pub pattern: String,
    pub shared: Vec<f32>,
    pub rows: Vec<Row>,
}

/// One candidate that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The candidate's text, by which a perceptron knows schemes.
    pub candidate: String,
    pub own: Vec<f32>,
    /// Measured microseconds; infinite for one that was given up, or failed.
    pub us: f64,
    /// What the analytic model predicted.
    pub predicted_us: f64,
}

impl Group {
    /// The best time of the group; infinite where nothing was measured.
    pub fn best_us(&self) -> f64 {
        self.rows.iter().map(|row| row.us).fold(f64::INFINITY, f64::min)
    }
}
