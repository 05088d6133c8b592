//! Boosted trees as they are used: a score for each candidate, the higher the better.

use serde::{Deserialize, Serialize};

/// Regression trees whose values add up to a score.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forest {
    /// What scores start from; nothing if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<Prior>,
    pub trees: Vec<Tree>,
    /// Nepers of time that a difference of 1 in score stands for: time ~ exp(-scale * score).
    pub scale: f64,
}

/// The analytic ranking, which trees then correct: a score starts at -weight x ln 2 x the feature, which is the binary logarithm
/// of the predicted time over the best predicted.
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

/// Splits of a tree, at most: who asks a tree may go down it by recursion.
const MOST_SPLITS: usize = 1023;

/// A binary tree. Inner node `i` sends a row left where `features[feature[i]] <= threshold[i]`; a child `c >= 0` is an inner
/// node, and comes after its parent; `c < 0` is the leaf `!c`. A tree of one leaf has no inner node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    pub feature: Vec<u16>,
    pub threshold: Vec<f32>,
    pub left: Vec<i16>,
    pub right: Vec<i16>,
    /// By how much each split lowered the loss when the tree was grown.
    #[serde(default)]
    pub gain: Vec<f32>,
    pub value: Vec<f32>,
}

/// Where a child is.
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

    /// Where a walk begins.
    pub(super) fn top(&self) -> Child {
        if self.feature.is_empty() { Child::Leaf(0) } else { Child::Inner(0) }
    }

    fn check(&self, features: usize) -> Result<(), &'static str> {
        let nodes = self.feature.len();
        if [self.threshold.len(), self.left.len(), self.right.len()] != [nodes; 3] {
            return Err("its nodes are not all there");
        }
        if nodes > MOST_SPLITS {
            return Err("it has more splits than any that is grown here");
        }
        if !self.gain.is_empty() && self.gain.len() != nodes {
            return Err("it does not have one gain a split");
        }
        if self.value.len() != nodes + 1 {
            return Err("it does not have one leaf more than splits");
        }
        if self.feature.iter().any(|&feature| usize::from(feature) >= features) {
            return Err("it reads a feature that there is not");
        }
        if !self.threshold.iter().chain(&self.value).chain(&self.gain).all(|x| x.is_finite()) {
            return Err("it holds what is no number");
        }
        // Every node but the first has one parent before it, so that walks end and what they meet is a tree.
        let (mut inner, mut leaves) = (vec![false; nodes], vec![false; nodes + 1]);
        for node in 0..nodes {
            for child in [self.left[node], self.right[node]] {
                let met = match Child::of(child) {
                    Child::Inner(child) if child <= node => return Err("its nodes run in circles"),
                    Child::Inner(child) => inner.get_mut(child),
                    Child::Leaf(leaf) => leaves.get_mut(leaf),
                };
                match met {
                    Some(met) if !*met => *met = true,
                    Some(_) => return Err("a node of it has two parents"),
                    None => return Err("a child of it is not there"),
                }
            }
        }
        Ok(())
    }
}

impl Forest {
    /// Whether it can be asked: trees that end, and read no more than `features`; what is wrong with it if not. To be called of
    /// what was read from outside.
    pub fn check(&self, features: usize) -> Result<(), String> {
        if !self.scale.is_finite() || self.scale < 0.0 {
            return Err(format!("the forest's scale is {}", self.scale));
        }
        if let Some(prior) = self.prior {
            if usize::from(prior.feature) >= features {
                return Err("the forest starts from a feature that there is not".to_owned());
            }
            if !prior.weight.is_finite() {
                return Err("the weight of what the forest starts from is no number".to_owned());
            }
        }
        for (at, tree) in self.trees.iter().enumerate() {
            tree.check(features).map_err(|fault| format!("tree {at}: {fault}"))?;
        }
        Ok(())
    }

    /// What a row scores before the first tree; `at` reads a feature.
    pub(super) fn start(&self, at: impl Fn(usize) -> f32) -> f64 {
        self.prior.map_or(0.0, |prior| prior.start(at(usize::from(prior.feature))))
    }
}

/// A feature of a row: a shared one, else one of its own; no number where there is none.
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
    fn a_walk_goes_left_up_to_the_threshold() {
        let value = |x: [f32; 2]| tree().value(|feature| x[feature]);
        assert_eq!(value([1.0, 9.0]), 10.0);
        assert_eq!(value([1.5, 0.0]), 20.0, "0 is not above -0");
        assert_eq!(value([1.5, 0.1]), 30.0);
        assert_eq!(value([f32::NAN, f32::NAN]), 30.0);
        assert_eq!(Tree { value: vec![4.0], ..Tree::default() }.value(|_| 0.0), 4.0);
    }

    #[test]
    fn what_cannot_be_walked_is_refused() {
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
            assert!(forest(tree).check(2).is_err(), "fault {at} was not seen");
        }
        let prior = Some(Prior { feature: 2, weight: 1.0 });
        assert!(Forest { prior, ..forest(tree()) }.check(2).is_err());
        assert!(Forest { scale: f64::NAN, ..forest(tree()) }.check(2).is_err());
    }
}
