//! Boosted trees for inference: a score for each candidate; higher is better.

use serde::{Deserialize, Serialize};

/// Regression trees whose values add up to a score.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forest {
    /// Initial score; zero if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<Prior>,
    pub trees: Vec<Tree>,
    /// Logarithm of time (in nepers) per unit of score: time ~ exp(-scale * score).
    pub scale: f64,
}

/// The analytic ranking, which the trees correct: a score starts at -weight x ln 2 x the feature, which is the binary
/// logarithm of the ratio of the predicted time to the best predicted time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prior {
    pub feature: u16,
    pub weight: f64,
}

impl Prior {
    pub fn start(&self, feature: f32) -> f64 {
        let start = -self.weight * std::f64::consts::LN_2 * f64::from(feature);
        if start.is_finite() { start } else { 0.0 }
    }
}

/// Most splits of a tree; the limit makes recursion over a tree safe.
const MOST_SPLITS: usize = 1023;

/// A binary tree. Inner node `i` sends a row left if `features[feature[i]] <= threshold[i]`; a child `c >= 0` is an inner
/// node and comes after its parent; `c < 0` is the leaf `!c`. A tree with one leaf has no inner node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    pub feature: Vec<u16>,
    pub threshold: Vec<f32>,
    pub left: Vec<i16>,
    pub right: Vec<i16>,
    /// Reduction of the loss by each split when the tree was grown.
    #[serde(default)]
    pub gain: Vec<f32>,
    pub value: Vec<f32>,
}

/// Reference to a child node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Child {
    Inner(usize),
    Leaf(usize),
}

impl Child {
    pub(super) fn of(child: i16) -> Self {
        match usize::try_from(child) {
            Ok(inner) => Self::Inner(inner),
            Err(_) => Self::Leaf(usize::from((!child).unsigned_abs())),
        }
    }
}

impl Tree {
    /// The leaf's value for one row; `at` reads a feature.
    pub fn value(&self, at: impl Fn(usize) -> f32) -> f32 {
        let mut child = self.top();
        loop {
            match child {
                Child::Leaf(leaf) => return self.value.get(leaf).copied().unwrap_or(0.0),
                Child::Inner(node) => {
                    let left = at(usize::from(self.feature[node])) <= self.threshold[node];
                    child = Child::of(if left { self.left[node] } else { self.right[node] });
                }
            }
        }
    }

    /// The root.
    pub(super) fn top(&self) -> Child {
        if self.feature.is_empty() { Child::Leaf(0) } else { Child::Inner(0) }
    }

    fn check(&self, features: usize) -> Result<(), &'static str> {
        let nodes = self.feature.len();
        if [self.threshold.len(), self.left.len(), self.right.len()] != [nodes; 3] {
            return Err("its arrays of nodes differ in length");
        }
        if nodes > MOST_SPLITS {
            return Err("it has too many splits");
        }
        if !self.gain.is_empty() && self.gain.len() != nodes {
            return Err("it does not have one gain per split");
        }
        if self.value.len() != nodes + 1 {
            return Err("the number of leaves is not the number of splits plus one");
        }
        if self.feature.iter().any(|&feature| usize::from(feature) >= features) {
            return Err("it reads a feature that does not exist");
        }
        if !self.threshold.iter().chain(&self.value).chain(&self.gain).all(|x| x.is_finite()) {
            return Err("it contains a value that is not a finite number");
        }
        // Every node but the first has exactly one parent, which precedes it; so the nodes form a tree without cycles.
        let (mut inner, mut leaves) = (vec![false; nodes], vec![false; nodes + 1]);
        for node in 0..nodes {
            for child in [self.left[node], self.right[node]] {
                let met = match Child::of(child) {
                    Child::Inner(child) if child <= node => return Err("its nodes form a cycle"),
                    Child::Inner(child) => inner.get_mut(child),
                    Child::Leaf(leaf) => leaves.get_mut(leaf),
                };
                match met {
                    Some(met) if !*met => *met = true,
                    Some(_) => return Err("a node has two parents"),
                    None => return Err("a child does not exist"),
                }
            }
        }
        Ok(())
    }
}

impl Forest {
    /// Validates a forest that was read from outside: trees are finite and read only the first `features` features. The error
    /// says what is wrong.
    pub fn check(&self, features: usize) -> Result<(), String> {
        if !self.scale.is_finite() || self.scale < 0.0 {
            return Err(format!("the forest's scale is {}", self.scale));
        }
        if let Some(prior) = self.prior {
            if usize::from(prior.feature) >= features {
                return Err("the forest's prior reads a feature that does not exist".to_owned());
            }
            if !prior.weight.is_finite() {
                return Err("the weight of the forest's prior is not a number".to_owned());
            }
        }
        for (at, tree) in self.trees.iter().enumerate() {
            tree.check(features).map_err(|fault| format!("tree {at}: {fault}"))?;
        }
        Ok(())
    }

    /// A row's initial score before the first tree; `at` reads a feature.
    pub(super) fn start(&self, at: impl Fn(usize) -> f32) -> f64 {
        self.prior.map_or(0.0, |prior| prior.start(at(usize::from(prior.feature))))
    }
}

/// A feature of a row, shared or its own; NaN if it does not exist.
pub(super) fn read(shared: &[f32], own: &[f32], feature: usize) -> f32 {
    let value = match feature.checked_sub(shared.len()) {
        None => shared.get(feature),
        Some(feature) => own.get(feature),
    };
    value.copied().unwrap_or(f32::NAN)
}

#[cfg(test)]
mod tests {
    use super::{Forest, Prior, Tree};

    /// x0 <= 1 ? a : (x1 <= 0 ? b : c)
    fn tree() -> Tree {
        Tree {
            feature: vec![0, 1],
            threshold: vec![1.0, -0.0],
            left: vec![!0, !1],
            right: vec![1, !2],
            gain: vec![2.0, 1.0],
            value: vec![10.0, 20.0, 30.0],
        }
    }

    #[test]
    fn rows_up_to_the_threshold_go_left() {
        let value = |x: [f32; 2]| tree().value(|feature| x[feature]);
        assert_eq!(value([1.0, 9.0]), 10.0);
        assert_eq!(value([1.5, 0.0]), 20.0, "0 is not greater than -0");
        assert_eq!(value([1.5, 0.1]), 30.0);
        assert_eq!(value([f32::NAN, f32::NAN]), 30.0);
        assert_eq!(Tree { value: vec![4.0], ..Tree::default() }.value(|_| 0.0), 4.0);
    }

    #[test]
    fn malformed_trees_are_refused() {
        let forest = |tree: Tree| Forest { trees: vec![tree], scale: 1.0, prior: None };
        assert_eq!(forest(tree()).check(2), Ok(()));
        let faults: [fn(&mut Tree); 9] = [
            |tree| tree.right[0] = 0,
            |tree| tree.right[0] = 7,
            |tree| tree.right[1] = !9,
            |tree| tree.right[1] = !1,
            |tree| tree.right[1] = i16::MIN,
            |tree| tree.value[0] = f32::NAN,
            |tree| tree.threshold.truncate(1),
            |tree| tree.value.truncate(1),
            |tree| tree.feature[0] = 2,
        ];
        for (at, fault) in faults.into_iter().enumerate() {
            let mut tree = tree();
            fault(&mut tree);
            assert!(forest(tree).check(2).is_err(), "fault {at} was not detected");
        }
        let prior = Some(Prior { feature: 2, weight: 1.0 });
        assert!(Forest { prior, ..forest(tree()) }.check(2).is_err());
        assert!(Forest { scale: f64::NAN, ..forest(tree()) }.check(2).is_err());
    }
}
