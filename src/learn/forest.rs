//! Boosted trees as they are used: a score for each candidate, the higher the better.

use serde::{Deserialize, Serialize};

/// Regression trees whose values add up to a score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forest {
    pub trees: Vec<Tree>,
    /// Nepers of time that a difference of 1 in score stands for: time ~ exp(-scale * score).
    pub scale: f64,
}

/// A binary tree. Inner node `i` sends a row left where `features[feature[i]] <= threshold[i]`; a child `c >= 0` is an inner
/// node, `c < 0` is the leaf `!c`. A tree of one leaf has no inner node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    pub feature: Vec<u16>,
    pub threshold: Vec<f32>,
    pub left: Vec<i16>,
    pub right: Vec<i16>,
    pub value: Vec<f32>,
}

impl Tree {
    /// The leaf's value for one row; `at` reads a feature.
    pub fn value(&self, at: impl Fn(usize) -> f32) -> f32 {
        if self.feature.is_empty() {
            return self.value.first().copied().unwrap_or(0.0);
        }
        let mut node = 0usize;
        loop {
            let left = at(usize::from(self.feature[node])) <= self.threshold[node];
            let next = if left { self.left[node] } else { self.right[node] };
            match usize::try_from(next) {
                Ok(inner) => node = inner,
                Err(_) => return self.value[(!next) as usize],
            }
        }
    }
}

impl Forest {
    /// Scores of candidates that have `shared` in common; `own` holds one slice of features a candidate.
    pub fn scores(&self, shared: &[f32], own: &[Vec<f32>]) -> Vec<f64> {
        let score = |own: &Vec<f32>| {
            let at = |feature: usize| match feature.checked_sub(shared.len()) {
                None => shared[feature],
                Some(own_feature) => own[own_feature],
            };
            self.trees.iter().map(|tree| f64::from(tree.value(at))).sum()
        };
        own.iter().map(score).collect()
    }
}
