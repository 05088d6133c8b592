//! Trains the perceptron: binary cross-entropy over schemes, those that were not measured on a matrix left out.

/// How it is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    pub hidden: [usize; 3],
    pub epochs: usize,
    pub batch: usize,
    /// Adam's step, falling to nothing along a cosine.
    pub rate: f64,
    /// Decoupled weight decay.
    pub decay: f64,
    /// A scheme is satisfactory within this share of the best.
    pub satisfactory: f64,
    /// Count each scheme by what choosing it wrongly costs, instead of all alike.
    pub by_regret: bool,
    /// Groups in which a scheme was measured at least, to be among the outputs.
    pub min_groups: usize,
    pub seed: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            hidden: [32; 3],
            epochs: 400,
            batch: 32,
            rate: 3e-3,
            decay: 1e-3,
            satisfactory: 0.85,
            by_regret: false,
            min_groups: 8,
            seed: 1,
        }
    }
}
