//! The model file: versioned JSON, valid only for the features and the device class that it was trained on.

use super::perceptron::order;
use super::{Forest, Perceptron, polynomial};
use crate::domain::learned::Scope;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Version of the file format; readers refuse unknown versions.
pub const VERSION: u32 = 1;

/// The shared feature by which a matrix is larger than what a model was trained on.
pub const SIZE: &str = "nnz";

/// A model with the conditions under which it may be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFile {
    pub version: u32,
    pub scope: Scope,
    pub features_version: u32,
    /// Names of the features, in the order in which the model reads them.
    pub shared: Vec<String>,
    pub own: Vec<String>,
    /// The largest [`SIZE`] that it was trained on; models of before do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub largest: Option<f32>,
    pub model: Model,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    Lambdamart(Forest),
    Mlp(Perceptron),
}

/// Why a model cannot be used here.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Mismatch {
    #[error("the model file has version {0}, but this sparsetune reads version {VERSION}")]
    Version(u32),
    #[error("the model file cannot be read: {0}")]
    Shape(String),
    #[error(
        "the model was trained on version {model} of the features, but this sparsetune computes version {here}"
    )]
    Features { model: u32, here: u32 },
    #[error("the model was trained for {model}, not for {here}")]
    Scope { model: String, here: String },
    #[error("the model's {kind} feature {at} is `{model}`, but this sparsetune has `{here}` there")]
    Names { kind: &'static str, at: usize, model: String, here: String },
}

/// Largest logarithmic difference (in nepers) between pseudo-times; beyond it only their order is preserved.
const FAR: f64 = 30.0;

impl ModelFile {
    /// Reads and validates a file, so that ranking with the result cannot fail.
    pub fn parse(bytes: &[u8]) -> Result<Self, Mismatch> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let unreadable = |error: serde_json::Error| Mismatch::Shape(error.to_string());
        // The version first, because files of other versions have another structure.
        let Versioned { version } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if version != VERSION {
            return Err(Mismatch::Version(version));
        }
        let file: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        file.check()?;
        Ok(file)
    }

    /// The file's bytes; a model that could not be read back is refused.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Mismatch> {
        self.check()?;
        serde_json::to_vec(self).map_err(|error| Mismatch::Shape(error.to_string()))
    }

    /// Checks that the model may rank candidates of this scope, described by features of this version and with these names
    /// (shared, own).
    pub fn accepts(
        &self,
        scope: &Scope,
        features_version: u32,
        names: (&[String], &[String]),
    ) -> Result<(), Mismatch> {
        if self.scope != *scope {
            let name = |scope: &Scope| format!("{} on {}", scope.op, scope.device_class);
            return Err(Mismatch::Scope { model: name(&self.scope), here: name(scope) });
        }
        if self.features_version != features_version {
            return Err(Mismatch::Features {
                model: self.features_version,
                here: features_version,
            });
        }
        for (kind, model, here) in
            [("shared", self.shared.as_slice(), names.0), ("own", self.own.as_slice(), names.1)]
        {
            if let Some(at) =
                (0..model.len().max(here.len())).find(|&i| model.get(i) != here.get(i))
            {
                let name = |names: &[String]| names.get(at).cloned().unwrap_or_default();
                let (model, here) = (name(model), name(here));
                return Err(Mismatch::Names { kind, at, model, here });
            }
        }
        Ok(())
    }

    /// Pseudo-times of candidates in microseconds: candidates with lower ones are tried first. `own` and `predicted_us` hold
    /// each candidate's features and analytic prediction; `text` returns its text.
    ///
    /// The first choice gets its analytic prediction as time, and the others are relative to it. A forest's score is a
    /// logarithm of time: `us = first * exp(scale * (best score - score))`. A perceptron's probability is not, so only the
    /// order of its times is meaningful: `us = first * exp(best p - p)`; for unknown schemes p = 0, and the result is multiplied
    /// by their prediction divided by the best prediction among them. Each time exceeds the previous one by at least one part
    /// in 1e9; ties are broken by the analytic prediction.
    ///
    /// If the number of features is not what the model reads, candidates keep their analytic predictions.
    pub fn order(
        &self,
        shared: &[f32],
        own: &[Vec<f32>],
        predicted_us: &[f64],
        text: impl Fn(usize) -> String,
    ) -> Vec<f64> {
        let fits = shared.len() == self.shared.len()
            && own.len() == predicted_us.len()
            && own.iter().all(|own| own.len() == self.own.len());
        if !fits {
            return predicted_us.to_vec();
        }
        match &self.model {
            Model::Lambdamart(forest) => {
                by_score(&forest.scores(shared, own), forest.scale, predicted_us)
            }
            Model::Mlp(perceptron) => {
                let texts: Vec<String> = (0..own.len()).map(text).collect();
                by_probability(&perceptron.known(shared, &texts), predicted_us)
            }
        }
    }

    /// Whether a matrix has more entries than any that the model was trained on. `shared` are its features.
    pub fn is_beyond(&self, shared: &[f32]) -> bool {
        let size = self.shared.iter().position(|name| name == SIZE).and_then(|at| shared.get(at));
        size.zip(self.largest).is_some_and(|(size, largest)| *size > largest)
    }

    fn check(&self) -> Result<(), Mismatch> {
        let checked = if self.version != VERSION {
            return Err(Mismatch::Version(self.version));
        } else if self.shared.len() + self.own.len() > usize::from(u16::MAX) {
            Err("it has too many features".to_owned())
        } else if has_twins(&self.shared) || has_twins(&self.own) {
            Err("two features have the same name".to_owned())
        } else {
            match &self.model {
                Model::Lambdamart(forest) => forest.check(self.shared.len() + self.own.len()),
                Model::Mlp(perceptron) => check_perceptron(perceptron, self.shared.len()),
            }
        };
        checked.map_err(Mismatch::Shape)
    }
}

fn has_twins(names: &[String]) -> bool {
    names.iter().collect::<BTreeSet<_>>().len() != names.len()
}

/// Each time exceeds the previous one by at least this factor, so that sorting by time gives the model's order.
const RISE: f64 = 1.0 + 1e-9;

/// A prediction that times can be computed from: finite and positive.
fn usable(us: f64) -> f64 {
    if us.is_finite() && us > 0.0 { us } else { 1.0 }
}

fn by_score(scores: &[f64], scale: f64, predicted_us: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| {
        let by_score = scores[b].total_cmp(&scores[a]);
        by_score.then(predicted_us[a].total_cmp(&predicted_us[b])).then(a.cmp(&b))
    });
    let Some(&first) = order.first() else { return Vec::new() };
    let anchor = usable(predicted_us[first]);
    let mut times = vec![0.0; scores.len()];
    let mut before = 0.0;
    for at in order {
        let us = anchor * (scale * (scores[first] - scores[at])).min(FAR).exp();
        times[at] = f64::max(us, before * RISE);
        before = times[at];
    }
    times
}

fn by_probability(known: &[Option<f32>], predicted_us: &[f64]) -> Vec<f64> {
    let order = order(known, predicted_us);
    let Some(&first) = order.first() else { return Vec::new() };
    let p = |at: usize| f64::from(known[at].unwrap_or(0.0));
    let anchor = usable(predicted_us[first]);
    let unknown = order.iter().find(|&&at| known[at].is_none());
    let best_unknown = unknown.map_or(1.0, |&at| usable(predicted_us[at]));
    let mut times = vec![0.0; known.len()];
    let mut before = 0.0;
    for at in order {
        let factor = match known[at] {
            Some(_) => 1.0,
            None => (usable(predicted_us[at]) / best_unknown).clamp(1.0, FAR.exp()),
        };
        let us = anchor * (p(first) - p(at)).exp() * factor;
        times[at] = f64::max(us, before * RISE);
        before = times[at];
    }
    times
}

fn check_perceptron(model: &Perceptron, features: usize) -> Result<(), String> {
    let terms = polynomial::count(model.inputs.len());
    if model.inputs.is_empty() || model.inputs.iter().any(|&i| usize::from(i) >= features) {
        return Err(format!("an input is not among its {features} features"));
    }
    if model.sizes.iter().any(|size| !model.inputs.contains(size)) {
        return Err("a size that it reads is not among its inputs".to_owned());
    }
    if model.mean.len() != terms || model.inverse_deviation.len() != terms {
        return Err(format!(
            "it has {terms} terms, but not the same number of means and deviations"
        ));
    }
    let finite = |numbers: &[f32]| numbers.iter().all(|x| x.is_finite());
    if !finite(&model.mean) || !finite(&model.inverse_deviation) {
        return Err("a mean or a deviation is not a number".to_owned());
    }
    if !model.clip.is_finite() || model.clip <= 0.0 {
        return Err(format!("its clipping bound is {}", model.clip));
    }
    if model.schemes.is_empty() || !model.schemes.is_sorted_by(|a, b| a < b) {
        return Err("its list of schemes is empty or not sorted".to_owned());
    }
    if model.members.is_empty() {
        return Err("it has no ensemble members".to_owned());
    }
    for (number, layers) in model.members.iter().enumerate() {
        let mut width = terms;
        for (at, layer) in layers.iter().enumerate() {
            let outputs = layer.bias.len();
            if outputs == 0 || outputs.checked_mul(width) != Some(layer.weights.len()) {
                return Err(format!(
                    "member {number}: the size of layer {at} does not match the previous layer"
                ));
            }
            if !finite(&layer.weights) || !finite(&layer.bias) {
                return Err(format!(
                    "member {number}: layer {at} has a weight that is not a number"
                ));
            }
            width = outputs;
        }
        if layers.is_empty() || width != model.schemes.len() {
            return Err(format!(
                "member {number}: the number of outputs is not the number of schemes"
            ));
        }
    }
    Ok(())
}
