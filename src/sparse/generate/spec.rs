//! The specification of a generated matrix, as JSON (`{"kind": "poisson2d", ...}`) or as a line of text.

use super::{
    GenerateError, Lower, dissection, elasticity, graph, irregular, layered, planar, pruned,
    stencil,
};
use crate::sparse::Csr;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What to generate. Equal specifications give equal matrices, bit for bit.
///
/// Grids take `seed = 0` for constant coefficients; any other seed draws each coefficient from [0.5, 1.5).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Spec {
    /// Five-point operator on nx x ny points with a fixed boundary.
    Poisson2d {
        nx: u64,
        ny: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Seven-point operator on nx x ny x nz points with a fixed boundary.
    Poisson3d {
        nx: u64,
        ny: u64,
        nz: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Linear elasticity on nx x ny x nz free nodes of trilinear bricks, clamped next to the nodes of x = 0: 3 unknowns
    /// per node, up to 27 blocks of 3 x 3 per block row.
    Elasticity {
        nx: u64,
        ny: u64,
        nz: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Recursive graph of 2^scale vertices and edge_factor * 2^scale draws; duplicates summed, self loops kept.
    Rmat {
        scale: u32,
        #[serde(default = "default_edge_factor")]
        edge_factor: u64,
        #[serde(default = "default_a")]
        a: f64,
        #[serde(default = "default_b")]
        b: f64,
        #[serde(default = "default_c")]
        c: f64,
        #[serde(default = "default_d")]
        d: f64,
        #[serde(default)]
        seed: u64,
    },
    /// All entries with |column - row| <= half, diagonally dominant.
    Banded {
        n: u64,
        half: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Every entry is present with the same probability, about `nnz` in total.
    Uniform {
        rows: u64,
        cols: u64,
        nnz: u64,
        #[serde(default)]
        seed: u64,
    },
    /// The largest share (1 - sparsity) of Gaussian weights whose rows and columns differ in scale.
    Pruned {
        rows: u64,
        cols: u64,
        sparsity: f64,
        #[serde(default)]
        seed: u64,
    },
    /// Block-pruned layers: dense blocks of block x block entries at random positions of a block grid, with about the
    /// given density. Blocks at the edges may be clipped.
    Blocks {
        rows: u64,
        cols: u64,
        block: u64,
        density: f64,
        #[serde(default)]
        seed: u64,
    },
    /// A road network of nx x ny places with 1 to 4 neighbours, about 2.4, numbered at random within tiles.
    Road {
        nx: u64,
        ny: u64,
        #[serde(default)]
        seed: u64,
    },
    /// A triangulation of nx x ny points with 2 to 8 neighbours, about 6, numbered at random within tiles.
    Mesh {
        nx: u64,
        ny: u64,
        #[serde(default)]
        seed: u64,
    },
    /// A diagonal, a dense last row and a dense last column.
    Arrow {
        n: u64,
        #[serde(default)]
        seed: u64,
    },
    /// One dense row in the middle; the others have a diagonal and `per_row` - 1 random entries.
    DenseRow {
        n: u64,
        #[serde(default = "default_per_row")]
        per_row: u64,
        #[serde(default)]
        seed: u64,
    },
    /// One full row in the middle; the others have `per_row` random entries; all values are in [-1, 1).
    LongRow {
        rows: u64,
        cols: u64,
        #[serde(default = "default_per_row")]
        per_row: u64,
        #[serde(default)]
        seed: u64,
    },
    /// `hubs` rows and columns connected to most others (supply rails); other rows have 3 to 8 entries, most of them
    /// near.
    Circuit {
        n: u64,
        #[serde(default = "default_hubs")]
        hubs: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Lower factor with the pattern of ILU(0) of `poisson2d`.
    Ilu0Poisson2d {
        nx: u64,
        ny: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Lower factor with the pattern of ILU(0) of `poisson3d`.
    Ilu0Poisson3d {
        nx: u64,
        ny: u64,
        nz: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Lower factor with the pattern of ILU(0) of a random symmetric matrix with about `per_row` entries per row.
    Ilu0Random {
        n: u64,
        #[serde(default = "default_per_row")]
        per_row: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Lower factor with the pattern of ILU(0) of `elasticity`: 3 x 3 blocks.
    Ilu0Elasticity {
        nx: u64,
        ny: u64,
        nz: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Lower factor with the pattern of one triangle of `rmat`, its hubs last; about half of the draws remain.
    Ilu0Rmat {
        scale: u32,
        #[serde(default = "default_edge_factor")]
        edge_factor: u64,
        #[serde(default = "default_a")]
        a: f64,
        #[serde(default = "default_b")]
        b: f64,
        #[serde(default = "default_c")]
        c: f64,
        #[serde(default = "default_d")]
        d: f64,
        #[serde(default)]
        seed: u64,
    },
    /// Cholesky factor of `poisson2d` under nested dissection: supernodes, the last one dense and nx or ny wide.
    CholeskyPoisson2d {
        nx: u64,
        ny: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Cholesky factor of `poisson3d` under nested dissection: supernodes, the last one a dense plane of the grid.
    CholeskyPoisson3d {
        nx: u64,
        ny: u64,
        nz: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Cholesky factor of a full band: all entries with 0 <= row - column <= half, so one level per row.
    CholeskyBanded {
        n: u64,
        half: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Random lower factor with a given number of levels of equal width and about `per_row` entries per row.
    LowerLevels {
        n: u64,
        levels: u64,
        #[serde(default = "default_per_row")]
        per_row: u64,
        #[serde(default)]
        seed: u64,
    },
    /// Lower triangle of a square matrix of another kind, reordered, with coefficients whose products may grow.
    Lower(Box<Lower>),
}

/// Why a text is not a valid specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("`{0}` is not of the form name=value")]
    Pair(String),
    #[error("`{name}` is given twice")]
    Twice { name: String },
    #[error("`{name}={value}`: the value must be a number")]
    Number { name: String, value: String },
    #[error("the specification is invalid: {0}")]
    Fit(String),
}

impl Spec {
    /// Parses `poisson3d:nx=64,ny=64,nz=64,seed=1`. Integers may be written as `1e6`. The text after `of=` is a nested
    /// specification: `lower:order=rcm,of=mesh:nx=40,ny=30`.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let (outer, inner) = text.split_once("of=").map_or((text, None), |(o, i)| (o, Some(i)));
        let mut fields = fields(outer)?;
        if let Some(inner) = inner {
            // Only one level of nesting: a second `of=` is not a number and therefore refused.
            fields.insert("of".to_owned(), Value::Object(self::fields(inner)?));
        }
        serde_json::from_value(Value::Object(fields)).map_err(|e| SpecError::Fit(e.to_string()))
    }

    /// Generates the matrix. Sizes are checked before memory is allocated.
    pub fn generate(&self) -> Result<Csr, GenerateError> {
        match *self {
            Self::Poisson2d { nx, ny, seed } => stencil::poisson([nx, ny, 1], 2, seed),
            Self::Poisson3d { nx, ny, nz, seed } => stencil::poisson([nx, ny, nz], 3, seed),
            Self::Elasticity { nx, ny, nz, seed } => elasticity::brick([nx, ny, nz], seed),
            Self::Rmat { scale, edge_factor, a, b, c, d, seed } => {
                graph::rmat(scale, edge_factor, [a, b, c, d], seed)
            }
            Self::Banded { n, half, seed } => stencil::banded(n, half, seed),
            Self::Uniform { rows, cols, nnz, seed } => graph::uniform(rows, cols, nnz, seed),
            Self::Pruned { rows, cols, sparsity, seed } => {
                pruned::layer(rows, cols, sparsity, seed)
            }
            Self::Blocks { rows, cols, block, density, seed } => {
                pruned::blocks(rows, cols, block, density, seed)
            }
            Self::Road { nx, ny, seed } => planar::road([nx, ny], seed),
            Self::Mesh { nx, ny, seed } => planar::mesh([nx, ny], seed),
            Self::Arrow { n, seed } => irregular::arrow(n, seed),
            Self::DenseRow { n, per_row, seed } => irregular::dense_row(n, per_row, seed),
            Self::LongRow { rows, cols, per_row, seed } => {
                irregular::long_row(rows, cols, per_row, seed)
            }
            Self::Circuit { n, hubs, seed } => irregular::circuit(n, hubs, seed),
            Self::Ilu0Poisson2d { nx, ny, seed } => stencil::factor([nx, ny, 1], seed),
            Self::Ilu0Poisson3d { nx, ny, nz, seed } => stencil::factor([nx, ny, nz], seed),
            Self::Ilu0Random { n, per_row, seed } => graph::factor(n, per_row, seed),
            Self::Ilu0Elasticity { nx, ny, nz, seed } => elasticity::factor([nx, ny, nz], seed),
            Self::Ilu0Rmat { scale, edge_factor, a, b, c, d, seed } => {
                graph::rmat_factor(scale, edge_factor, [a, b, c, d], seed)
            }
            Self::CholeskyPoisson2d { nx, ny, seed } => dissection::cholesky([nx, ny, 1], seed),
            Self::CholeskyPoisson3d { nx, ny, nz, seed } => {
                dissection::cholesky([nx, ny, nz], seed)
            }
            Self::CholeskyBanded { n, half, seed } => layered::band(n, half, seed),
            Self::LowerLevels { n, levels, per_row, seed } => {
                layered::levels(n, levels, per_row, seed)
            }
            Self::Lower(ref lower) => lower.generate(),
        }
    }
}

/// The kind and the named values of one specification.
fn fields(text: &str) -> Result<Map<String, Value>, SpecError> {
    let (kind, pairs) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
    let mut fields = Map::new();
    fields.insert("kind".to_owned(), Value::from(kind.trim()));
    for pair in pairs.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| SpecError::Pair(pair.to_owned()))?;
        let (name, value) = (name.trim(), value.trim());
        // The only value that is a word.
        let word = (name == "order").then(|| Value::from(value));
        let value = word
            .or_else(|| number(value))
            .ok_or_else(|| SpecError::Number { name: name.to_owned(), value: value.to_owned() })?;
        if fields.insert(name.to_owned(), value).is_some() {
            return Err(SpecError::Twice { name: name.to_owned() });
        }
    }
    Ok(fields)
}

/// A JSON number, as an integer if it is one, however it is written.
fn number(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<u64>() {
        return Some(Value::from(whole));
    }
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite())?;
    // Beyond 2^53 a float is no longer an exact integer.
    let whole = value.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&value);
    Some(if whole { Value::from(value as u64) } else { Value::from(value) })
}

fn default_edge_factor() -> u64 {
    16
}

// The probabilities of the Graph500 benchmark.
fn default_a() -> f64 {
    0.57
}

fn default_b() -> f64 {
    0.19
}

fn default_c() -> f64 {
    0.19
}

fn default_d() -> f64 {
    0.05
}

fn default_per_row() -> u64 {
    8
}

fn default_hubs() -> u64 {
    2
}
