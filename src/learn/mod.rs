//! Learning: models that rank candidates by features, trained on what was measured. Knows neither matrix nor GPU: features
//! are numbers with names.

pub mod data;
pub mod file;
pub mod folds;
pub mod forest;
pub mod judge;
pub mod lambdamart;
pub mod mlp;
mod network;
pub mod perceptron;
mod polynomial;
pub mod report;

pub use data::{Dataset, Group, Row};
pub use file::{Mismatch, Model, ModelFile};
pub use forest::Forest;
pub use judge::{GroupVerdict, Judgement, Trainer, Unjudged};
pub use perceptron::Perceptron;
