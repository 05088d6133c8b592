//! The perceptron for inference: a probability for each known scheme.

use super::polynomial;
use serde::{Deserialize, Serialize};

/// Hidden layers of 32 units with ReLU and sigmoid outputs on standardised degree-2 polynomial features (AG-SpTRSV, section
/// 4.5). An ensemble trained from different initial weights is averaged, which reduces the variance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perceptron {
    /// Indices of the shared features that it reads.
    pub inputs: Vec<u16>,
    /// Those of them that are sizes, stored as log2(size + 1), and that it reads as sizes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<u16>,
    /// For each polynomial term: the mean, and 1 / standard deviation (0 for a constant term).
    pub mean: Vec<f32>,
    pub inverse_deviation: Vec<f32>,
    /// Standardised terms are clipped to this many deviations, which bounds the extrapolation to unusual matrices.
    pub clip: f32,
    /// Layers from input to output for each ensemble member; the result is the mean over members.
    pub members: Vec<Vec<Layer>>,
    /// Texts of the candidates that the outputs correspond to, sorted.
    pub schemes: Vec<String>,
}

/// A dense layer; `weights` has one row of inputs per output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    pub weights: Vec<f32>,
    pub bias: Vec<f32>,
}

/// Dot product in eight lanes, always in this order, so that results are equal on all machines with the same `exp`.
pub(super) fn dot(left: &[f32], right: &[f32]) -> f32 {
    let (lefts, left_rest) = left.as_chunks::<8>();
    let (rights, right_rest) = right.as_chunks::<8>();
    let mut lanes = [0f32; 8];
    for (left, right) in lefts.iter().zip(rights) {
        for lane in 0..8 {
            lanes[lane] += left[lane] * right[lane];
        }
    }
    let rest: f32 = left_rest.iter().zip(right_rest).map(|(left, right)| left * right).sum();
    lanes.iter().sum::<f32>() + rest
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Layer {
    /// The weights of one output.
    pub(super) fn row(&self, output: usize) -> &[f32] {
        let inputs = self.weights.len() / self.bias.len();
        &self.weights[output * inputs..(output + 1) * inputs]
    }

    /// The layer's output for `input`, before the activation function.
    pub(super) fn apply(&self, input: &[f32]) -> Vec<f32> {
        let rows = self.weights.chunks_exact(input.len());
        rows.zip(&self.bias).map(|(row, bias)| bias + dot(row, input)).collect()
    }
}

/// The input followed by the outputs of all hidden layers; the last element is the input of the last layer.
pub(super) fn activations(layers: &[Layer], input: &[f32]) -> Vec<Vec<f32>> {
    let mut all = vec![input.to_vec()];
    for layer in layers.iter().take(layers.len().saturating_sub(1)) {
        let mut next = layer.apply(all.last().map_or(&[], Vec::as_slice));
        next.iter_mut().for_each(|x| *x = x.max(0.0));
        all.push(next);
    }
    all
}

impl Perceptron {
    /// The polynomial terms of a matrix. A missing feature counts as 0.
    pub(super) fn terms(&self, shared: &[f32]) -> Vec<f32> {
        let read = |input: &u16| {
            let value = shared.get(usize::from(*input)).copied().unwrap_or(0.0);
            if self.sizes.contains(input) { value.exp2() - 1.0 } else { value }
        };
        polynomial::terms(&self.inputs.iter().map(read).collect::<Vec<f32>>())
    }

    /// The standardised terms of a matrix, which the first layer reads.
    pub fn standardised(&self, shared: &[f32]) -> Vec<f32> {
        let terms = self.terms(shared);
        let scale = self.mean.iter().zip(&self.inverse_deviation);
        let standard = |(term, (mean, inverse)): (f32, (&f32, &f32))| {
            ((term - mean) * inverse).clamp(-self.clip, self.clip)
        };
        terms.into_iter().zip(scale).map(standard).collect()
    }

    /// The probability that each scheme is satisfactory on a matrix with these features, in the order of `schemes`.
    pub fn probabilities(&self, shared: &[f32]) -> Vec<f32> {
        mean_probabilities(&self.members, &self.standardised(shared), self.schemes.len())
    }

    /// The probabilities of candidates, given as text; `None` for unknown schemes.
    pub fn known<T: AsRef<str>>(&self, shared: &[f32], candidates: &[T]) -> Vec<Option<f32>> {
        let probabilities = self.probabilities(shared);
        let known = |text: &T| {
            let at = self.schemes.binary_search_by(|scheme| scheme.as_str().cmp(text.as_ref()));
            at.ok().map(|at| probabilities[at])
        };
        candidates.iter().map(known).collect()
    }

    /// Indices of candidates (text and analytic prediction) in the order in which to try them: by probability, unknown schemes
    /// last; ties are broken by the prediction.
    pub fn order<T: AsRef<str>>(&self, shared: &[f32], candidates: &[(T, f64)]) -> Vec<usize> {
        let texts: Vec<&str> = candidates.iter().map(|(text, _)| text.as_ref()).collect();
        let predicted: Vec<f64> = candidates.iter().map(|(_, us)| *us).collect();
        order(&self.known(shared, &texts), &predicted)
    }
}

/// The mean of the members' sigmoids; NaN counts as 0.
pub(super) fn mean_probabilities(
    members: &[Vec<Layer>],
    input: &[f32],
    outputs: usize,
) -> Vec<f32> {
    let mut sum = vec![0f32; outputs];
    for layers in members {
        let (Some(last), Some(top)) = (layers.last(), activations(layers, input).pop()) else {
            continue;
        };
        for (sum, logit) in sum.iter_mut().zip(last.apply(&top)) {
            *sum += sigmoid(logit);
        }
    }
    let share = 1.0 / members.len().max(1) as f32;
    sum.into_iter().map(|p| if p.is_finite() { p * share } else { 0.0 }).collect()
}

/// By probability, unknown schemes last; then by prediction, then by index.
pub(super) fn order(known: &[Option<f32>], predicted_us: &[f64]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..known.len()).collect();
    let rank = |&at: &usize| known[at].unwrap_or(-1.0);
    places.sort_by(|a, b| {
        let by_probability = rank(b).total_cmp(&rank(a));
        by_probability.then(predicted_us[*a].total_cmp(&predicted_us[*b])).then(a.cmp(b))
    });
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(weights: &[f32], bias: &[f32]) -> Layer {
        Layer { weights: weights.to_vec(), bias: bias.to_vec() }
    }

    /// One feature: terms x and x^2; probability of `b` is sigmoid(relu(x)), of `a` one half, of `c` 1 less b's.
    fn small() -> Perceptron {
        Perceptron {
            inputs: vec![1],
            sizes: Vec::new(),
            mean: vec![1.0, 0.0],
            inverse_deviation: vec![0.5, 0.0],
            clip: 2.0,
            members: vec![vec![layer(&[1.0, 3.0], &[0.0]), layer(&[0.0, 1.0, -1.0], &[0.0; 3])]],
            schemes: ["a", "b", "c"].map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn probabilities_match_the_manual_computation() {
        let model = small();
        // (3 - 1) / 2 = 1; the square is constant.
        assert_eq!(model.standardised(&[9.0, 3.0]), [1.0, 0.0]);
        let p = model.probabilities(&[9.0, 3.0]);
        let e = std::f32::consts::E;
        assert_eq!(p[0], 0.5);
        assert!((p[1] - e / (1.0 + e)).abs() < 1e-6 && (p[2] - 1.0 / (1.0 + e)).abs() < 1e-6);
        // Below zero the unit is inactive; far above, the term is clipped to two deviations.
        assert_eq!(model.probabilities(&[9.0, -3.0]), [0.5; 3]);
        assert_eq!(model.probabilities(&[9.0, 7.0]), model.probabilities(&[9.0, 1e9]));
        assert!((model.probabilities(&[0.0, 1e9])[1] - sigmoid(2.0)).abs() < 1e-6);
    }

    #[test]
    fn sizes_are_read_as_they_are() {
        let model = Perceptron { sizes: vec![1], ..small() };
        // A size of 7 is stored as 3: the terms are 7 and 49.
        assert_eq!(model.terms(&[9.0, 3.0]), [7.0, 49.0]);
        assert_eq!(model.standardised(&[9.0, 2.0]), [1.0, 0.0]);
    }

    #[test]
    fn the_mean_of_members() {
        let mut model = small();
        model.members.push(vec![layer(&[0.0; 2], &[0.0]), layer(&[0.0; 3], &[40.0, 40.0, -40.0])]);
        let p = model.probabilities(&[0.0, -3.0]);
        assert!((p[0] - 0.75).abs() < 1e-6 && (p[2] - 0.25).abs() < 1e-6, "{p:?}");
    }

    #[test]
    fn unknown_schemes_come_last_and_predictions_break_ties() {
        let model = small();
        let listed = [("x", 1.0), ("c", 9.0), ("b", 9.0), ("y", 0.5), ("a", 3.0)];
        assert_eq!(model.order(&[0.0, 3.0], &listed), [2, 4, 1, 3, 0]);
        assert_eq!(model.order(&[0.0, -3.0], &listed), [4, 1, 2, 3, 0]);
    }

    #[test]
    fn sums_in_lanes_are_sums() {
        let left: Vec<f32> = (0..21).map(|x| x as f32).collect();
        assert_eq!(dot(&left, &left), (0..21).map(|x| (x * x) as f32).sum::<f32>());
    }
}
