//! LambdaMART: boosted regression trees on listwise gradients of NDCG (LO-SpMM, section 3.5; Burges, MSR-TR-2010-82).

/// How a forest is grown.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    pub trees: usize,
    pub leaves: usize,
    /// Shrinkage.
    pub rate: f64,
    /// Rows a leaf has at least.
    pub min_rows: usize,
    /// L2 on leaf values.
    pub l2: f64,
    /// Share of groups that each tree sees, and of features.
    pub group_share: f64,
    pub feature_share: f64,
    /// Bins a feature is cut into, at most 255.
    pub bins: usize,
    /// Pairs count whose better one ranks among so many.
    pub truncation: usize,
    /// Rounds without gain on the held-out groups after which growth ends.
    pub patience: usize,
    pub seed: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            trees: 300,
            leaves: 31,
            rate: 0.08,
            min_rows: 40,
            l2: 1.0,
            group_share: 0.8,
            feature_share: 0.8,
            bins: 255,
            truncation: 20,
            patience: 40,
            seed: 1,
        }
    }
}
