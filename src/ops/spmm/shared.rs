//! What the candidates of one matrix share while they are lowered: row orders, packed arrays, and how long those took.

use super::family::RowOrder;
use super::inspect::rows_by_length;
use super::similarity;
use crate::domain::recipe::{Arg, Array, ArrayData, Program, Scratch};
use crate::domain::{Device, Spmm};
use crate::ops::Refusal;
use crate::sparse::Csr;
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Most bytes of packed arrays that are kept for candidates to come; what is dropped can be packed again.
pub const MOST_KEPT: u64 = 8 << 30;

/// The matrix, the problem, the device, and what has been made of them so far.
pub struct Shared {
    pub matrix: Arc<Csr>,
    pub problem: Spmm,
    pub device: Device,
    kept: HashMap<String, Kept>,
}

struct Kept {
    value: Arc<dyn Any + Send + Sync>,
    bytes: u64,
    ms: f64,
}

/// A candidate lowered: what runs, what it brings along, and what bringing that took.
pub struct Lowered {
    pub program: Program,
    pub arrays: Vec<Array>,
    pub scratch: Vec<Scratch>,
    /// Host time of sorting and packing, also where an earlier candidate spent it.
    pub ms: f64,
    /// The part of it that new values take again; see `Recipe::update_ms`.
    pub update_ms: Option<f64>,
}

/// The sparse operand as a kernel takes it: its arguments up to the dimensions, and what they bring along.
pub struct Sparse {
    pub arrays: Vec<Array>,
    pub args: Vec<Arg>,
    pub ms: f64,
    pub update_ms: Option<f64>,
}

impl Lowered {
    /// A program that brings nothing along.
    pub fn bare(program: Program) -> Self {
        Self { program, arrays: Vec::new(), scratch: Vec::new(), ms: 0.0, update_ms: None }
    }
}

impl Shared {
    pub fn new(matrix: Arc<Csr>, problem: Spmm, device: Device) -> Self {
        Self { matrix, problem, device, kept: HashMap::new() }
    }

    /// What `make` gives, made once for all candidates that ask by this name, with the milliseconds it took: everybody who
    /// uses it answers for them. `bytes` says how much memory it holds.
    pub fn once<T: Send + Sync + 'static, E>(
        &mut self,
        name: &str,
        bytes: impl Fn(&T) -> u64,
        make: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<(Arc<T>, f64), E> {
        if let Some(kept) = self.kept.get(name)
            && let Ok(value) = kept.value.clone().downcast::<T>()
        {
            return Ok((value, kept.ms));
        }
        let started = Instant::now();
        let value = Arc::new(make(self)?);
        let ms = started.elapsed().as_secs_f64() * 1e3;
        let bytes = bytes(&value);
        if self.kept.values().map(|kept| kept.bytes).sum::<u64>() + bytes > MOST_KEPT {
            self.kept.clear();
        }
        self.kept.insert(name.to_owned(), Kept { value: value.clone(), bytes, ms });
        Ok((value, ms))
    }

    /// Rows in an order, none for the natural one, with the milliseconds that took.
    pub fn ordered(&mut self, order: RowOrder) -> (Option<Arc<[u32]>>, f64) {
        let (rows, ms) = match order {
            RowOrder::Natural => return (None, 0.0),
            RowOrder::Length => self.by_length(),
            RowOrder::Similarity => self.by_similarity(),
        };
        (Some(rows), ms)
    }

    /// Rows by falling length.
    pub fn by_length(&mut self) -> (Arc<[u32]>, f64) {
        let made = self.once(
            "rows_by_length",
            |rows: &Arc<[u32]>| 4 * rows.len() as u64,
            |shared| Ok::<_, std::convert::Infallible>(rows_by_length(&shared.matrix).into()),
        );
        let Ok((rows, ms)) = made;
        ((*rows).clone(), ms)
    }

    /// Rows by similarity.
    pub fn by_similarity(&mut self) -> (Arc<[u32]>, f64) {
        let made = self.once(
            "rows_by_similarity",
            |rows: &Arc<[u32]>| 4 * rows.len() as u64,
            |shared| {
                let rows = (0..shared.matrix.rows() as u32).collect();
                Ok::<_, std::convert::Infallible>(similarity::order(&shared.matrix, rows).into())
            },
        );
        let Ok((rows, ms)) = made;
        ((*rows).clone(), ms)
    }
}

impl RowOrder {
    /// The name that candidates give it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Natural => "natural",
            Self::Length => "length",
            Self::Similarity => "similarity",
        }
    }

    /// An array of rows in this order.
    pub fn array(self, rows: Arc<[u32]>) -> Array {
        array(format!("rows_by_{}", self.name()), ArrayData::U32(rows))
    }
}

/// Scratch memory as a recipe may ask for it: a plan that leaves no room for the operands is none.
pub fn scratch(what: &str, bytes: u64, device: &Device) -> Result<Scratch, Refusal> {
    let most = MOST_KEPT.min(device.memory_bytes / 4);
    if bytes > most {
        let why = format!(
            "{what} take {bytes} bytes of device memory; at most {most} are lent to one candidate"
        );
        return Err(Refusal(why));
    }
    Ok(Scratch { bytes: bytes.max(16), fill: 0 })
}

/// An array for a recipe.
pub fn array(name: impl Into<String>, data: ArrayData) -> Array {
    Array { name: name.into(), data }
}
