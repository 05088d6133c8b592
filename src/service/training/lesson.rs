//! The learning itself: each learner is judged on patterns that it has not seen, and the best is trained on everything.

use super::Halt;
use super::desk::Desk;
use super::verdict;
use crate::domain::learned::{HeldOut, Importance, Learner, Op, Scope};
use crate::domain::training::TrainingStage;
use crate::learn::{Dataset, Model, ModelFile, file, judge, lambdamart, mlp};
use crate::ops::features;

/// Parts that the patterns are dealt into to judge.
const FOLDS: usize = 5;

/// The last training leaves one part of so many out, to know when to stop.
const HELD_OUT: usize = 10;

/// What comes of the learning.
pub(super) struct Lesson {
    pub learner: Learner,
    pub quality: HeldOut,
    pub importance: Vec<Importance>,
    pub file: Vec<u8>,
}

/// The learners tried for an operation: LO-SpMM's for tiles; for schemes AG-SpTRSV's in both variants, and LO-SpMM's too.
const fn learners(op: Op) -> &'static [Learner] {
    match op {
        Op::Spmm => &[Learner::Lambdamart],
        Op::Sptrsv => &[Learner::Mlp, Learner::MlpRegret, Learner::Lambdamart],
    }
}

/// What a perceptron reads: all that is shared but the device's facts, which a scope's groups have in common.
fn inputs(shared: &[String]) -> Vec<u16> {
    let reads = |(i, name): (usize, &String)| {
        (!name.starts_with("device_")).then(|| u16::try_from(i).ok()).flatten()
    };
    shared.iter().enumerate().filter_map(reads).collect()
}
