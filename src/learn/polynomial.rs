//! Degree-2 polynomial terms, which AG-SpTRSV's classifier reads instead of the plain features (section 4.5).

/// The number of terms of `inputs` features, without the constant.
pub const fn count(inputs: usize) -> usize {
    inputs + inputs * (inputs + 1) / 2
}

/// Each feature, then the product of each with itself and with all later ones.
pub fn terms(inputs: &[f32]) -> Vec<f32> {
    let mut terms = Vec::with_capacity(count(inputs.len()));
    terms.extend_from_slice(inputs);
    for (at, first) in inputs.iter().enumerate() {
        terms.extend(inputs[at..].iter().map(|second| first * second));
    }
    terms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_then_squares_and_products() {
        assert_eq!(terms(&[2.0, 3.0, 5.0]), [2.0, 3.0, 5.0, 4.0, 6.0, 10.0, 9.0, 15.0, 25.0]);
        for inputs in 0..20 {
            assert_eq!(terms(&vec![1.0; inputs]).len(), count(inputs));
        }
    }
}
