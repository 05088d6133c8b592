//! Learning: models that rank candidates by features, trained on measurements. Independent of matrices and GPUs:
//! features are named numbers.

mod answers;
pub mod bins;
mod curve;
pub mod data;
pub mod file;
pub mod folds;
pub mod forest;
pub mod grow;
pub mod judge;
pub mod lambdamart;
pub mod lambdas;
pub mod mlp;
pub mod ndcg;
mod network;
pub mod perceptron;
mod polynomial;
mod predict;
pub mod report;

pub use data::{Dataset, Group, Row};
pub use file::{Mismatch, Model, ModelFile};
pub use forest::Forest;
pub use judge::{Evaluation, EvaluationError, GroupVerdict, Trainer};
pub use perceptron::Perceptron;
