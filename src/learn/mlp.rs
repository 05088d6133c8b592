//! Trains the perceptron with binary cross-entropy over schemes; schemes that were not measured on a matrix are masked out
//! (AG-SpTRSV, section 4.5).

use super::curve::Curve;
use super::network::{Adam, Target, back_propagate, cross_entropy, fresh, zeros};
use super::perceptron::{Layer, activations, mean_probabilities, order};
use super::{Dataset, Group, Perceptron, polynomial};
use crate::sparse::random::Stream;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Hyperparameters of the training.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Widths of the hidden layers.
    pub hidden: Vec<usize>,
    pub epochs: usize,
    pub batch: usize,
    /// Adam's learning rate, with cosine decay to zero.
    pub rate: f64,
    /// Decoupled weight decay.
    pub decay: f64,
    /// A scheme is satisfactory from this share of the best performance on.
    pub satisfactory: f64,
    pub labels: Labels,
    /// Minimum number of groups in which a scheme must have been measured to become an output.
    pub min_groups: usize,
    /// Size of the ensemble: perceptrons trained from different initial weights, whose outputs are averaged.
    pub members: usize,
    /// Standardised terms are clipped to this many standard deviations.
    pub clip: f32,
    /// Those of the inputs that are stored as log2(size + 1) and read as sizes.
    pub sizes: Vec<u16>,
    pub seed: u64,
}

/// How a scheme's time becomes a training label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// Satisfactory or not, with equal weights (AG-SpTRSV, section 4.5).
    Plain,
    /// The same, with each scheme weighted by the cost of misclassifying it.
    ByRegret,
    /// A graded label: the logistic function of the logarithm of the threshold divided by the time. Times near the threshold,
    /// which noise can put on either side, get labels near one half; satisfactory schemes are still distinguished.
    Graded,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            hidden: vec![32; 3],
            epochs: 400,
            batch: 32,
            rate: 3e-3,
            decay: 1e-3,
            satisfactory: 0.85,
            labels: Labels::Plain,
            min_groups: 8,
            members: 8,
            clip: 5.0,
            sizes: Vec::new(),
            seed: 1,
        }
    }
}

impl Params {
    /// AG-SpTRSV's own chooser (section 4.5): features as they are, not as logarithms, and not clipped; a perceptron of three
    /// layers, of which the two hidden ones have 32 units; labels of equal weight. It is one network, where ours are ensembles.
    ///
    /// What the paper does not say is as in ours: the optimiser, without weight decay; the number of epochs from held-out
    /// matrices; schemes that were not measured on a matrix are masked out. Its outputs are the schemes of the trials that were
    /// measured on at least `min_groups` of the training's groups, where the paper has its reduced list, all of it measured on
    /// every matrix.
    pub fn of_the_paper(sizes: Vec<u16>, seed: u64) -> Self {
        let ours = Self::default();
        Self { hidden: vec![32; 2], decay: 0.0, members: 1, clip: f32::MAX, sizes, seed, ..ours }
    }
}

/// Slope of graded labels per neper: the best scheme has 0.84, one that takes twice the time 0.005.
const SLOPE: f64 = 10.0;

/// Regret in nepers beyond which all misclassified schemes weigh the same: a factor of 2 in time.
const WORST: f64 = std::f64::consts::LN_2;

/// Weight of the held-out loss (in nats) relative to the mean share of the first choices when the best epoch is chosen. With
/// few matrices the shares change in steps; the loss is continuous and distinguishes epochs within a step.
const LOSS_WEIGHT: f64 = 0.25;

/// One group as a training example.
struct Example {
    input: Vec<f32>,
    targets: Vec<Target>,
}

/// An ensemble member during training.
struct Member {
    layers: Vec<Layer>,
    gradient: Vec<Layer>,
    adam: Adam,
    stream: Stream,
    order: Vec<usize>,
}

/// Trains on the groups `train` to find the number of epochs after which first choices are best on `held_out`, then retrains on
/// all groups for that many epochs; if nothing is held out, for all epochs. `inputs` are indices of shared features. `progress`
/// receives the share done and cancels by returning `false`.
///
/// `None` if cancelled, or if there is nothing to learn: no inputs, or no scheme measured in enough groups. The model depends
/// only on data and seed, not on the number of threads.
pub fn train(
    data: &Dataset,
    train: &[usize],
    held_out: &[usize],
    inputs: &[u16],
    params: &Params,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Option<Perceptron> {
    if held_out.is_empty() {
        return fit(data, train, held_out, inputs, params, progress).map(|(model, _)| model);
    }
    let (_, epochs) =
        fit(data, train, held_out, inputs, params, &mut |share| progress(0.5 * share))?;
    let mut all: Vec<usize> = train.iter().chain(held_out).copied().collect();
    all.sort_unstable();
    // Without informative held-out groups, all epochs.
    let epochs = if epochs == 0 { params.epochs } else { epochs };
    let params = Params { epochs, ..params.clone() };
    let mut progress = |share: f64| progress(0.5 + 0.5 * share);
    fit(data, &all, &[], inputs, &params, &mut progress).map(|(model, _)| model)
}

/// Trains for all epochs; also returns the number of epochs after which it was best on the held-out groups.
fn fit(
    data: &Dataset,
    train: &[usize],
    held_out: &[usize],
    inputs: &[u16],
    params: &Params,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Option<(Perceptron, usize)> {
    let schemes = schemes(data, train, params.min_groups);
    if schemes.is_empty() || inputs.is_empty() {
        return None;
    }
    let mut model = Perceptron { schemes, ..standard(data, train, inputs, params) };
    let example = |&at: &usize| {
        let group = &data.groups[at];
        let targets = targets(group, &model.schemes, params);
        let input = model.standardised(&group.shared);
        (!targets.is_empty()).then_some(Example { input, targets })
    };
    let examples: Vec<Example> = train.iter().filter_map(example).collect();
    let held_out: Vec<HeldOut> =
        held_out.iter().filter_map(|&at| HeldOut::of(&data.groups[at], &model, params)).collect();

    let mut members = begin(&examples, &model, params);
    let mut curve = Curve::default();
    for epoch in 0..params.epochs {
        let turn = std::f64::consts::PI * epoch as f64 / params.epochs as f64;
        let rate = (params.rate * 0.5 * (1.0 + turn.cos())) as f32;
        members.par_iter_mut().for_each(|member| member.epoch(&examples, rate, params));
        if !held_out.is_empty() {
            let layers: Vec<Vec<Layer>> = members.iter().map(|m| m.layers.clone()).collect();
            curve.push(epoch + 1, merit(&held_out, &layers, model.schemes.len()));
        }
        if !progress((epoch + 1) as f64 / params.epochs as f64) {
            return None;
        }
    }
    model.members = members.into_iter().map(|member| member.layers).collect();
    Some((model, curve.top()))
}

/// Texts of the candidates that ran in at least `min_groups` groups, sorted.
fn schemes(data: &Dataset, train: &[usize], min_groups: usize) -> Vec<String> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for &at in train {
        for row in data.groups[at].rows.iter().filter(|row| row.us.is_finite()) {
            let (groups, last) = counts.entry(&row.candidate).or_insert((0, usize::MAX));
            // A candidate that was measured twice in a group counts once.
            if *last != at {
                (*groups, *last) = (*groups + 1, at);
            }
        }
    }
    let enough = counts.into_iter().filter(|(_, (groups, _))| *groups >= min_groups.max(1));
    enough.map(|(text, _)| text.to_owned()).collect()
}

/// A perceptron without layers yet: only the mean and deviation of each term over the groups.
fn standard(data: &Dataset, train: &[usize], inputs: &[u16], params: &Params) -> Perceptron {
    let mut model = Perceptron {
        inputs: inputs.to_vec(),
        sizes: params.sizes.clone(),
        mean: Vec::new(),
        inverse_deviation: Vec::new(),
        clip: params.clip,
        members: Vec::new(),
        schemes: Vec::new(),
    };
    let terms: Vec<Vec<f32>> =
        train.iter().map(|&at| model.terms(&data.groups[at].shared)).collect();
    let count = terms.len().max(1) as f64;
    for at in 0..polynomial::count(inputs.len()) {
        let values = || terms.iter().map(|terms| f64::from(terms[at]));
        let middle = values().sum::<f64>() / count;
        let deviation = (values().map(|x| (x - middle).powi(2)).sum::<f64>() / count).sqrt();
        // A variation below single precision counts as none.
        let varies = deviation > 1e-6 * middle.abs().max(1e-6);
        model.mean.push(middle as f32);
        model.inverse_deviation.push(if varies { (1.0 / deviation) as f32 } else { 0.0 });
    }
    model
}

/// Training targets from a group; its weights sum to 1, so that all matrices count equally.
///
/// All targets of a group have equal weights, or weights by regret: with `r = ln(us / best)` and the threshold
/// `t = -ln(satisfactory)`, a target has weight `|r - t|`, at most ln 2. That is the cost of misclassifying it, which is zero at
/// the threshold. Satisfactory and unsatisfactory schemes of a group each weigh one half in total, so that neither class
/// dominates. A failed scheme is unsatisfactory, with the largest weight.
///
/// Graded labels are `1 / (1 + exp(SLOPE (r - t)))`.
fn targets(group: &Group, schemes: &[String], params: &Params) -> Vec<Target> {
    let best = group.best_us();
    if !best.is_finite() || best <= 0.0 {
        return Vec::new();
    }
    let mut times: BTreeMap<usize, f64> = BTreeMap::new();
    for row in &group.rows {
        if let Ok(output) = schemes.binary_search(&row.candidate) {
            let us = times.entry(output).or_insert(f64::INFINITY);
            *us = us.min(row.us);
        }
    }
    let threshold = -params.satisfactory.ln();
    let by_regret = params.labels == Labels::ByRegret;
    let target = |(output, us): (usize, f64)| {
        let regret = (us / best).ln();
        let label = match params.labels {
            Labels::Graded => 1.0 / (1.0 + (SLOPE * (regret - threshold)).exp()),
            Labels::Plain | Labels::ByRegret => f64::from(u8::from(regret <= threshold)),
        };
        let cost = (regret - threshold).abs().min(WORST) as f32;
        Target { output, label: label as f32, weight: if by_regret { cost } else { 1.0 } }
    };
    let mut targets: Vec<Target> = times.into_iter().map(target).collect();
    let all: f32 = targets.iter().map(|t| t.weight).sum();
    let good: f32 = targets.iter().filter(|t| t.label > 0.5).map(|t| t.weight).sum();
    let bad: f32 = targets.iter().filter(|t| t.label <= 0.5).map(|t| t.weight).sum();
    let halved = by_regret && good > 0.0 && bad > 0.0;
    for target in &mut targets {
        let side = if target.label > 0.5 { good } else { bad };
        let whole = if halved { 2.0 * side } else { all };
        target.weight = if whole > 0.0 { target.weight / whole } else { 0.0 };
    }
    targets
}

/// Initial ensemble members; each output's bias is the logarithm of its odds over all groups.
fn begin(examples: &[Example], model: &Perceptron, params: &Params) -> Vec<Member> {
    let outputs = model.schemes.len();
    let (mut good, mut bad) = (vec![0f64; outputs], vec![0f64; outputs]);
    let (mut total, mut count) = (0.0, 0usize);
    for target in examples.iter().flat_map(|example| &example.targets) {
        good[target.output] += f64::from(target.weight * target.label);
        bad[target.output] += f64::from(target.weight * (1.0 - target.label));
        (total, count) = (total + f64::from(target.weight), count + 1);
    }
    // One pseudo-count for and one against, in addition to the observations.
    let one = if total > 0.0 { total / count as f64 } else { 1.0 };
    let odds = good.iter().zip(&bad).map(|(good, bad)| ((good + one) / (bad + one)).ln() as f32);
    let logits: Vec<f32> = odds.collect();
    let mut widths = vec![model.mean.len()];
    widths.extend(params.hidden.iter().map(|width| (*width).max(1)));
    widths.push(outputs);
    let member = |which: usize| {
        let mut stream = Stream::new(params.seed, which as u64);
        let layers = fresh(&widths, &logits, &mut stream);
        let (gradient, adam) = (zeros(&layers), Adam::new(&layers));
        Member { layers, gradient, adam, stream, order: (0..examples.len()).collect() }
    };
    (0..params.members.max(1)).map(member).collect()
}

impl Member {
    /// Trains on all examples once, in a random order of this member's own.
    fn epoch(&mut self, examples: &[Example], rate: f32, params: &Params) {
        for last in (1..self.order.len()).rev() {
            self.order.swap(last, self.stream.below(last as u64 + 1) as usize);
        }
        for batch in self.order.chunks(params.batch.max(1)) {
            let scale = 1.0 / batch.len() as f32;
            for &at in batch {
                let Example { input, targets } = &examples[at];
                back_propagate(&self.layers, input, targets, scale, &mut self.gradient);
            }
            self.adam.step(&mut self.layers, &mut self.gradient, rate, params.decay as f32);
        }
    }
}

/// A held-out group: the input and the data to evaluate the answers.
struct HeldOut {
    input: Vec<f32>,
    targets: Vec<Target>,
    /// For each row: its output, its prediction, and the best time divided by its own.
    outputs: Vec<Option<usize>>,
    predicted_us: Vec<f64>,
    shares: Vec<f64>,
}

impl HeldOut {
    fn of(group: &Group, model: &Perceptron, params: &Params) -> Option<Self> {
        let best = group.best_us();
        let output = |text: &String| model.schemes.binary_search(text).ok();
        (best.is_finite() && best > 0.0).then(|| Self {
            input: model.standardised(&group.shared),
            targets: targets(group, &model.schemes, params),
            outputs: group.rows.iter().map(|row| output(&row.candidate)).collect(),
            predicted_us: group.rows.iter().map(|row| row.predicted_us).collect(),
            shares: group.rows.iter().map(|row| best / row.us).collect(),
        })
    }
}

/// Quality of the ensemble: the mean share of its first choices, minus the weighted mean loss.
fn merit(groups: &[HeldOut], members: &[Vec<Layer>], outputs: usize) -> f64 {
    let merit = |group: &HeldOut| {
        let p = mean_probabilities(members, &group.input, outputs);
        let known: Vec<Option<f32>> = group.outputs.iter().map(|at| at.map(|at| p[at])).collect();
        let first = order(&known, &group.predicted_us).first().map_or(0.0, |&at| group.shares[at]);
        first - LOSS_WEIGHT * loss(group, members) / members.len().max(1) as f64
    };
    groups.iter().map(merit).sum::<f64>() / groups.len().max(1) as f64
}

/// Sum of the members' losses on a group.
fn loss(group: &HeldOut, members: &[Vec<Layer>]) -> f64 {
    let loss = |layers: &Vec<Layer>| -> f64 {
        let (Some(last), Some(top)) = (layers.last(), activations(layers, &group.input).pop())
        else {
            return 0.0;
        };
        let logits = last.apply(&top);
        group.targets.iter().map(|target| cross_entropy(logits[target.output], target)).sum()
    };
    members.iter().map(loss).sum()
}

#[cfg(test)]
mod tests;
