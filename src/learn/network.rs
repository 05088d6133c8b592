//! Training of dense layers: loss, gradients by back-propagation, and Adam.

use super::perceptron::{Layer, activations, dot, sigmoid};
use crate::sparse::random::Stream;

/// The target of one output for a matrix, with its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    pub output: usize,
    /// 1 for a satisfactory scheme, 0 for an unsatisfactory one, in between for graded labels.
    pub label: f32,
    pub weight: f32,
}

/// Layers with the given widths and He initialisation (ICCV 2015): normal weights with variance 2 / inputs. The last bias is
/// `logits`.
pub(super) fn fresh(widths: &[usize], logits: &[f32], stream: &mut Stream) -> Vec<Layer> {
    let mut layers = Vec::new();
    for ends in widths.windows(2) {
        let deviation = (2.0 / ends[0].max(1) as f64).sqrt();
        let weights = (0..ends[0] * ends[1]).map(|_| (deviation * stream.normal()) as f32);
        layers.push(Layer { weights: weights.collect(), bias: vec![0.0; ends[1]] });
    }
    if let Some(last) = layers.last_mut() {
        // The outputs start at the average over all matrices, with small weights, so that differences are learned from there.
        last.weights.iter_mut().for_each(|weight| *weight *= 0.1);
        last.bias.copy_from_slice(logits);
    }
    layers
}

/// Layers of the same shapes, all zero.
pub(super) fn zeros(layers: &[Layer]) -> Vec<Layer> {
    let zero = |layer: &Layer| Layer {
        weights: vec![0.0; layer.weights.len()],
        bias: vec![0.0; layer.bias.len()],
    };
    layers.iter().map(zero).collect()
}

/// Weighted binary cross-entropy of a logit and a label, in nats.
pub(super) fn cross_entropy(logit: f32, target: &Target) -> f64 {
    let softplus = logit.max(0.0) + (-logit.abs()).exp().ln_1p();
    f64::from(target.weight) * f64::from(softplus - target.label * logit)
}

/// `to += factor * from`.
fn add(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

/// Adds `scale` times the gradient of one matrix's loss to `gradient`, and returns the loss. Outputs without a target do not
/// contribute.
pub(super) fn back_propagate(
    layers: &[Layer],
    input: &[f32],
    targets: &[Target],
    scale: f32,
    gradient: &mut [Layer],
) -> f64 {
    let activations = activations(layers, input);
    let (Some((last, hidden)), Some((last_gradient, gradient)), Some(top)) =
        (layers.split_last(), gradient.split_last_mut(), activations.last())
    else {
        return 0.0;
    };
    let mut loss = 0.0;
    let mut back = vec![0f32; top.len()];
    for target in targets {
        let row = last.row(target.output);
        let logit = last.bias[target.output] + dot(row, top);
        loss += cross_entropy(logit, target);
        let slope = scale * target.weight * (sigmoid(logit) - target.label);
        let at = target.output * top.len();
        add(&mut last_gradient.weights[at..at + top.len()], slope, top);
        last_gradient.bias[target.output] += slope;
        add(&mut back, slope, row);
    }
    for ((layer, gradient), ends) in
        hidden.iter().zip(gradient.iter_mut()).zip(activations.windows(2)).rev()
    {
        let (input, output) = (&ends[0], &ends[1]);
        let mut below = vec![0f32; input.len()];
        for (at, slope) in back.iter().enumerate() {
            // An inactive ReLU unit propagates no gradient.
            if output[at] > 0.0 {
                let row = at * input.len()..(at + 1) * input.len();
                add(&mut gradient.weights[row.clone()], *slope, input);
                gradient.bias[at] += slope;
                add(&mut below, *slope, &layer.weights[row]);
            }
        }
        back = below;
    }
    loss
}

/// Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019).
pub(super) struct Adam {
    first: Vec<Layer>,
    second: Vec<Layer>,
    steps: i32,
}

const FIRST: f32 = 0.9;
const SECOND: f32 = 0.999;

impl Adam {
    pub fn new(layers: &[Layer]) -> Self {
        Self { first: zeros(layers), second: zeros(layers), steps: 0 }
    }

    /// One step against the gradient, which is then reset to zero. Biases do not decay.
    pub fn step(&mut self, layers: &mut [Layer], gradient: &mut [Layer], rate: f32, decay: f32) {
        self.steps = self.steps.saturating_add(1);
        let (one, two) = (1.0 - FIRST.powi(self.steps), 1.0 - SECOND.powi(self.steps));
        let step = |x: &mut [f32], slope: &mut [f32], m: &mut [f32], v: &mut [f32], keep: f32| {
            for (((x, slope), m), v) in x.iter_mut().zip(slope).zip(m).zip(v) {
                *m = FIRST * *m + (1.0 - FIRST) * *slope;
                *v = SECOND * *v + (1.0 - SECOND) * *slope * *slope;
                *x = keep * *x - rate * (*m / one) / ((*v / two).sqrt() + 1e-8);
                *slope = 0.0;
            }
        };
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((layer, slope), (m, v)) in layers.iter_mut().zip(gradient).zip(moments) {
            let keep = 1.0 - rate * decay;
            step(&mut layer.weights, &mut slope.weights, &mut m.weights, &mut v.weights, keep);
            step(&mut layer.bias, &mut slope.bias, &mut m.bias, &mut v.bias, 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain reference implementation of the loss in double precision.
    fn loss(layers: &[Layer], input: &[f32], targets: &[Target]) -> f64 {
        let mut x: Vec<f64> = input.iter().map(|&x| x.into()).collect();
        for (at, layer) in layers.iter().enumerate() {
            let rows = layer.weights.chunks(x.len()).zip(&layer.bias);
            let sum = |row: &[f32]| row.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
            let next: Vec<f64> = rows.map(|(row, b)| f64::from(*b) + sum(row)).collect();
            let bent = at + 1 < layers.len();
            x = next.into_iter().map(|x| if bent { x.max(0.0) } else { x }).collect();
        }
        let part = |t: &Target| {
            let p = 1.0 / (1.0 + (-x[t.output]).exp());
            let likely = if t.label > 0.5 { p } else { 1.0 - p };
            -f64::from(t.weight) * likely.ln()
        };
        targets.iter().map(part).sum()
    }

    fn small() -> (Vec<Layer>, Vec<f32>, Vec<Target>) {
        let mut stream = Stream::new(5, 0);
        let mut layers = fresh(&[9, 7, 6, 5, 4], &[0.3, -0.2, 0.1, 0.7], &mut stream);
        for layer in &mut layers {
            layer.bias.iter_mut().for_each(|b| *b += 0.2 * stream.normal() as f32);
        }
        layers[3].weights.iter_mut().for_each(|w| *w *= 10.0);
        let input = (0..9).map(|_| stream.normal() as f32).collect();
        let targets = [(0, 1.0, 0.7), (1, 0.0, 1.3), (3, 1.0, 0.4)];
        let target = |(output, label, weight)| Target { output, label, weight };
        (layers, input, targets.map(target).to_vec())
    }

    #[test]
    fn gradients_match_finite_differences_in_all_layers() {
        let (layers, input, targets) = small();
        let mut gradient = zeros(&layers);
        let found = back_propagate(&layers, &input, &targets, 2.0, &mut gradient);
        assert!((found - loss(&layers, &input, &targets)).abs() < 1e-5);
        let h = 1e-3f32;
        let difference = |change: &dyn Fn(&mut [Layer], f32)| {
            let moved = |by: f32| {
                let mut layers = layers.clone();
                change(&mut layers, by);
                loss(&layers, &input, &targets)
            };
            2.0 * (moved(h) - moved(-h)) / (2.0 * f64::from(h))
        };
        for at in 0..layers.len() {
            let mut moving = 0;
            for i in 0..layers[at].weights.len() {
                let expected = difference(&|layers, by| layers[at].weights[i] += by);
                let found = f64::from(gradient[at].weights[i]);
                assert!((found - expected).abs() < 2e-3, "w{at}[{i}]: {found} {expected}");
                moving += usize::from(expected.abs() > 1e-2);
            }
            assert!(moving > 3, "layer {at} has almost no gradient");
            for i in 0..layers[at].bias.len() {
                let expected = difference(&|layers, by| layers[at].bias[i] += by);
                let found = f64::from(gradient[at].bias[i]);
                assert!((found - expected).abs() < 2e-3, "b{at}[{i}]: {found} {expected}");
            }
        }
    }

    #[test]
    fn outputs_without_a_target_do_not_change() {
        let (mut layers, input, targets) = small();
        let (before, mut gradient) = (layers.clone(), zeros(&layers));
        back_propagate(&layers, &input, &targets, 1.0, &mut gradient);
        assert!(gradient[3].weights[10..15].iter().all(|&slope| slope == 0.0));
        assert_eq!(gradient[3].bias[2], 0.0);
        let mut adam = Adam::new(&layers);
        adam.step(&mut layers, &mut gradient, 0.01, 0.0);
        assert_eq!(layers[3].row(2), before[3].row(2));
        assert_ne!(layers[3].row(1), before[3].row(1));
        assert!(gradient.iter().all(|layer| layer.bias.iter().all(|&slope| slope == 0.0)));
    }

    #[test]
    fn the_first_step_has_the_length_of_the_rate() {
        let mut layers = vec![Layer { weights: vec![1.0, 1.0], bias: vec![1.0] }];
        let mut gradient = vec![Layer { weights: vec![5.0, -0.01], bias: vec![0.0] }];
        Adam::new(&layers).step(&mut layers, &mut gradient, 0.1, 0.5);
        let expected = [0.95 - 0.1, 0.95 + 0.1];
        assert!(layers[0].weights.iter().zip(expected).all(|(w, e)| (w - e).abs() < 1e-5));
        assert_eq!(layers[0].bias, [1.0]);
    }
}
