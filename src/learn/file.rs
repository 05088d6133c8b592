//! The model file: JSON, versioned, bound to the features and the class of device that it was trained on.

use super::{Forest, Perceptron};
use crate::domain::learned::Scope;
use serde::{Deserialize, Serialize};

/// Version of the file's shape; readers refuse one they do not know.
pub const VERSION: u32 = 1;

/// A model with all that it must be used under.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelFile {
    pub version: u32,
    pub scope: Scope,
    pub features_version: u32,
    /// Names of the features, in the order in which it reads them.
    pub shared: Vec<String>,
    pub own: Vec<String>,
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
    #[error("the model file is of version {0}; this sparsetune reads version {VERSION}")]
    Version(u32),
    #[error("the model file cannot be read: {0}")]
    Shape(String),
    #[error("the model reads features of version {model}, here they are of version {here}")]
    Features { model: u32, here: u32 },
    #[error("the model is for {model}, not for {here}")]
    Scope { model: String, here: String },
}
