//! The perceptron as it is used: one probability for each scheme that it knows.

use serde::{Deserialize, Serialize};

/// Three hidden layers of 32 with ReLU, sigmoid outputs (AG-SpTRSV, section 6), over degree-2 polynomial features,
/// standardised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perceptron {
    /// Which of the shared features it reads.
    pub inputs: Vec<u16>,
    /// Of each polynomial term: mean, and 1 over the standard deviation (0 for a term that does not vary).
    pub mean: Vec<f32>,
    pub inverse_deviation: Vec<f32>,
    pub layers: Vec<Layer>,
    /// Texts of the candidates that the outputs stand for.
    pub schemes: Vec<String>,
}

/// A dense layer; `weights` has one row of inputs an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    pub weights: Vec<f32>,
    pub bias: Vec<f32>,
}
