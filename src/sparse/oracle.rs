//! The oracle: plain float64 SpMM that every kernel on every device must agree with.

/// What an output must be, elementwise in the problem's layout, with the scale that errors are measured by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Product {
    /// The exact product, in float64, of the operands as rounded to the problem's dtype.
    pub value: Vec<f64>,
    /// `(|A| |B|)` elementwise: the componentwise error is |c - value| / scale.
    pub scale: Vec<f32>,
}
