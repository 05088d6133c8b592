//! Learning: models that rank candidates by features, trained on what was measured. Knows neither matrix nor GPU: features
//! are numbers with names.

pub mod bins;
pub mod data;
pub mod file;
pub mod forest;
pub mod grow;
pub mod lambdamart;
pub mod lambdas;
pub mod mlp;
pub mod ndcg;
pub mod perceptron;
mod predict;

pub use data::{Dataset, Group, Row};
pub use file::{Mismatch, Model, ModelFile};
pub use forest::Forest;
pub use perceptron::Perceptron;
