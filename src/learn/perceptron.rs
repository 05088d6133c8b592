//! The perceptron as it is used: one probability for each scheme that it knows.

use super::polynomial;
use serde::{Deserialize, Serialize};

/// Three hidden layers of 32 with ReLU, sigmoid outputs (AG-SpTRSV, section 6), over degree-2 polynomial features,
/// standardised. A few of them, begun from different weights, are asked together: what one overdoes, the mean does not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Perceptron {
    /// Which of the shared features it reads.
    pub inputs: Vec<u16>,
    /// Of each polynomial term: mean, and 1 over the standard deviation (0 for a term that does not vary).
    pub mean: Vec<f32>,
    pub inverse_deviation: Vec<f32>,
    /// Standardised terms are cut off at so many deviations: a matrix unlike all others is taken for the nearest extreme.
    pub clip: f32,
    /// Layers from input to output, for each member; the answer is the mean of theirs.
    pub members: Vec<Vec<Layer>>,
    /// Texts of the candidates that the outputs stand for, sorted.
    pub schemes: Vec<String>,
}

/// A dense layer; `weights` has one row of inputs an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    pub weights: Vec<f32>,
    pub bias: Vec<f32>,
}

/// Sum of products in eight lanes: always in this order, so equal on all machines that have the same exponential.
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

    /// What it makes of `input`, before any bend.
    pub(super) fn apply(&self, input: &[f32]) -> Vec<f32> {
        let rows = self.weights.chunks_exact(input.len());
        rows.zip(&self.bias).map(|(row, bias)| bias + dot(row, input)).collect()
    }
}

/// The outputs of all hidden layers, the input before them: what the last layer reads stands last.
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
    /// The terms of a matrix as the first layer reads them. A feature that is not there counts as 0.
    pub fn standardised(&self, shared: &[f32]) -> Vec<f32> {
        let read = |&input: &u16| shared.get(usize::from(input)).copied().unwrap_or(0.0);
        let terms = polynomial::terms(&self.inputs.iter().map(read).collect::<Vec<f32>>());
        let scale = self.mean.iter().zip(&self.inverse_deviation);
        let standard = |(term, (mean, inverse)): (f32, (&f32, &f32))| {
            ((term - mean) * inverse).clamp(-self.clip, self.clip)
        };
        terms.into_iter().zip(scale).map(standard).collect()
    }

    /// The probability of each scheme to be satisfactory on a matrix with these features, in the order of `schemes`.
    pub fn probabilities(&self, shared: &[f32]) -> Vec<f32> {
        mean_probabilities(&self.members, &self.standardised(shared), self.schemes.len())
    }

    /// The probabilities of candidates by their texts; none for those that it does not know.
    pub fn known<T: AsRef<str>>(&self, shared: &[f32], candidates: &[T]) -> Vec<Option<f32>> {
        let probabilities = self.probabilities(shared);
        let known = |text: &T| {
            let at = self.schemes.binary_search_by(|scheme| scheme.as_str().cmp(text.as_ref()));
            at.ok().map(|at| probabilities[at])
        };
        candidates.iter().map(known).collect()
    }

    /// Places of candidates (text and analytic prediction) in the order in which to try them: by probability, those that it
    /// does not know after all others; among equals by the prediction.
    pub fn order<T: AsRef<str>>(&self, shared: &[f32], candidates: &[(T, f64)]) -> Vec<usize> {
        let texts: Vec<&str> = candidates.iter().map(|(text, _)| text.as_ref()).collect();
        let predicted: Vec<f64> = candidates.iter().map(|(_, us)| *us).collect();
        order(&self.known(shared, &texts), &predicted)
    }
}

/// The mean of the members' sigmoids; whatever is no number counts as 0.
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

/// By probability, the unknown last; then by prediction, then by place.
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
            mean: vec![1.0, 0.0],
            inverse_deviation: vec![0.5, 0.0],
            clip: 2.0,
            members: vec![vec![layer(&[1.0, 3.0], &[0.0]), layer(&[0.0, 1.0, -1.0], &[0.0; 3])]],
            schemes: ["a", "b", "c"].map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn probabilities_by_hand() {
        let model = small();
        // (3 - 1) / 2 = 1; the square does not vary.
        assert_eq!(model.standardised(&[9.0, 3.0]), [1.0, 0.0]);
        let p = model.probabilities(&[9.0, 3.0]);
        let e = std::f32::consts::E;
        assert_eq!(p[0], 0.5);
        assert!((p[1] - e / (1.0 + e)).abs() < 1e-6 && (p[2] - 1.0 / (1.0 + e)).abs() < 1e-6);
        // Below zero the unit is silent, far above it is cut off at two deviations.
        assert_eq!(model.probabilities(&[9.0, -3.0]), [0.5; 3]);
        assert_eq!(model.probabilities(&[9.0, 7.0]), model.probabilities(&[9.0, 1e9]));
        assert!((model.probabilities(&[0.0, 1e9])[1] - sigmoid(2.0)).abs() < 1e-6);
    }

    #[test]
    fn the_mean_of_members() {
        let mut model = small();
        model.members.push(vec![layer(&[0.0; 2], &[0.0]), layer(&[0.0; 3], &[40.0, 40.0, -40.0])]);
        let p = model.probabilities(&[0.0, -3.0]);
        assert!((p[0] - 0.75).abs() < 1e-6 && (p[2] - 0.25).abs() < 1e-6, "{p:?}");
    }

    #[test]
    fn the_unknown_come_last_and_predictions_break_ties() {
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
