//! The loaded problem on the device: CSR, B, C with a guard behind it, the reference, and the recipes' own arrays.

use super::context::{Buffer, Context};
use super::launch::refused;
use crate::domain::recipe::{ArrayData, Recipe};
use crate::domain::{Dtype, L2Policy, Layout, Problem};
use crate::engine::{EngineError, Operands};
use crate::sparse::oracle::Product;
use rayon::prelude::*;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// A quiet NaN that no arithmetic produces: hardware answers 0x7fffffff or passes an operand on.
pub(super) const POISON: u32 = 0x7fc0_dead;

/// Poisoned words behind C; a kernel that runs past the end changes them before it harms another buffer.
pub(super) const GUARD_WORDS: usize = 4096;

/// Bytes of reference on the device at a time, where all of it does not fit.
const SLICE_BYTES: u64 = 256 << 20;

/// Bytes of reference an element: value f64, scale f32.
const REFERENCE_BYTES: u64 = 12;

pub(super) struct Loaded {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) n: usize,
    pub(super) nnz: usize,
    pub(super) layout: Layout,
    pub(super) l2_policy: L2Policy,
    pub(super) row_ptr: Buffer,
    pub(super) col_idx: Buffer,
    pub(super) values: Buffer,
    pub(super) diagonal: Option<Buffer>,
    pub(super) b: Buffer,
    pub(super) c: Buffer,
    pub(super) reference: Reference,
    arrays: HashMap<ArrayKey, Buffer>,
}

/// The reference result on the device, all of it or `capacity` elements at a time.
pub(super) struct Reference {
    pub(super) value: Buffer,
    pub(super) scale: Buffer,
    /// Elements that `value` and `scale` hold.
    pub(super) capacity: usize,
    /// Whether they hold the whole reference already.
    pub(super) resident: bool,
    pub(super) host: Arc<Product>,
}

/// Recipes share an upload by name, element type and length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ArrayKey {
    name: String,
    kind: &'static str,
    length: usize,
}

impl Loaded {
    /// `reference_bytes` bounds the device memory of the reference; see `Options`.
    pub(super) fn upload(
        context: &Arc<Context>,
        operands: Operands,
        reference_bytes: Option<u64>,
    ) -> Result<Self, EngineError> {
        let Some((b, reference)) = operands.product().map(|(b, r)| (b.clone(), r.clone())) else {
            return Err(refused("the CUDA engine takes products in f32".to_owned()));
        };
        let Operands { matrix, problem, l2_policy, .. } = operands;
        let Problem::Spmm(spmm) = problem else {
            return Err(refused(format!("the CUDA engine does not solve `{problem}`")));
        };
        if spmm.dtype != Dtype::F32 {
            return Err(refused(format!("the CUDA engine does not take {} operands", spmm.dtype)));
        }
        let n = spmm.n as usize;
        let elements = matrix.rows() as u64 * n as u64;
        check_lengths(elements, &reference, matrix.cols() as u64 * n as u64, b.len())?;
        let row_ptr = Buffer::of(context, &row_pointers(matrix.indptr())?)?;
        let col_idx = Buffer::of(context, matrix.indices())?;
        let values: Vec<f32> = matrix.values().par_iter().map(|&value| value as f32).collect();
        let values = Buffer::of(context, &values)?;
        let b = Buffer::of(context, &b[..])?;
        let c = Buffer::new(context, (elements as usize + GUARD_WORDS) * 4)?;
        context.fill(c.pointer, POISON, elements as usize + GUARD_WORDS)?;
        let reference = Reference::upload(context, reference, reference_bytes)?;
        context.synchronize()?;
        Ok(Self {
            rows: matrix.rows(),
            cols: matrix.cols(),
            n,
            nnz: matrix.nnz(),
            layout: spmm.layout,
            l2_policy,
            row_ptr,
            col_idx,
            values,
            diagonal: None,
            b,
            c,
            reference,
            arrays: HashMap::new(),
        })
    }

    /// Elements of C.
    pub(super) fn elements(&self) -> usize {
        self.rows * self.n
    }

    /// Uploads the recipes' arrays that are not there yet. Where they do not fit, those of other recipes give way.
    pub(super) fn upload_arrays(
        &mut self,
        context: &Arc<Context>,
        recipes: &[Recipe],
    ) -> Result<(), EngineError> {
        match self.try_upload_arrays(context, recipes) {
            Err(EngineError::OutOfMemory(_)) => {
                let arrays = recipes.iter().flat_map(|recipe| &recipe.arrays);
                let keep: Vec<ArrayKey> = arrays.map(ArrayKey::of).collect();
                self.arrays.retain(|key, _| keep.contains(key));
                self.try_upload_arrays(context, recipes)
            }
            result => result,
        }
    }

    fn try_upload_arrays(
        &mut self,
        context: &Arc<Context>,
        recipes: &[Recipe],
    ) -> Result<(), EngineError> {
        for array in recipes.iter().flat_map(|recipe| &recipe.arrays) {
            if let Entry::Vacant(place) = self.arrays.entry(ArrayKey::of(array)) {
                place.insert(match &array.data {
                    ArrayData::U16(data) => Buffer::of(context, data)?,
                    ArrayData::U32(data) => Buffer::of(context, data)?,
                    ArrayData::F32(data) => Buffer::of(context, data)?,
                    ArrayData::F64(data) => Buffer::of(context, data)?,
                });
            }
        }
        // So that the caller's clock sees the whole upload.
        context.synchronize()
    }

    /// Frees all arrays, for something that does not fit beside them.
    pub(super) fn drop_arrays(&mut self) {
        self.arrays.clear();
    }

    /// Device address of a recipe's array.
    pub(super) fn array(&self, recipe: &Recipe, index: usize) -> Result<u64, EngineError> {
        let array = recipe.arrays.get(index);
        array
            .and_then(|array| self.arrays.get(&ArrayKey::of(array)))
            .map(|buffer| buffer.pointer)
            .ok_or_else(|| refused(format!("the recipe has no array {index}")))
    }
}

impl Reference {
    /// Whole if it takes at most half of what is left, so that recipes have room for arrays; else room for a slice.
    fn upload(
        context: &Arc<Context>,
        host: Arc<Product>,
        most_bytes: Option<u64>,
    ) -> Result<Self, EngineError> {
        let free = context.free_bytes()?;
        let most_bytes = most_bytes.unwrap_or(free / 2);
        if host.value.len() as u64 * REFERENCE_BYTES <= most_bytes {
            let value = Buffer::of(context, &host.value)?;
            let scale = Buffer::of(context, &host.scale)?;
            return Ok(Self { value, scale, capacity: host.value.len(), resident: true, host });
        }
        let bytes = SLICE_BYTES.min(free / 4).min(most_bytes);
        let capacity = (bytes / REFERENCE_BYTES).max(1) as usize;
        let value = Buffer::new(context, capacity * 8)?;
        let scale = Buffer::new(context, capacity * 4)?;
        Ok(Self { value, scale, capacity, resident: false, host })
    }
}

impl ArrayKey {
    fn of(array: &crate::domain::recipe::Array) -> Self {
        let (kind, length) = match &array.data {
            ArrayData::U16(data) => ("u16", data.len()),
            ArrayData::U32(data) => ("u32", data.len()),
            ArrayData::F32(data) => ("f32", data.len()),
            ArrayData::F64(data) => ("f64", data.len()),
        };
        Self { name: array.name.clone(), kind, length }
    }
}

fn check_lengths(
    elements: u64,
    reference: &Product,
    b_expected: u64,
    b_length: usize,
) -> Result<(), EngineError> {
    let lengths = [
        ("B", b_expected, b_length as u64),
        ("the reference", elements, reference.value.len() as u64),
        ("the reference's scale", elements, reference.scale.len() as u64),
    ];
    match lengths.into_iter().find(|(_, expected, length)| expected != length) {
        None => Ok(()),
        Some((what, expected, length)) => {
            Err(refused(format!("{what} has {length} elements, not {expected}")))
        }
    }
}

/// Row pointers as kernels take them.
fn row_pointers(indptr: &[usize]) -> Result<Vec<u32>, EngineError> {
    let nnz = indptr.last().copied().unwrap_or(0);
    if u32::try_from(nnz).is_err() {
        return Err(refused(format!(
            "{nnz} nonzeros; the CUDA kernels index them with 32 bits, {} at most",
            u32::MAX
        )));
    }
    // None is larger than the last: a canonical CSR's pointers never fall.
    Ok(indptr.par_iter().map(|&pointer| pointer as u32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_pointers_are_32_bits_or_refused() {
        assert_eq!(row_pointers(&[0, 2, 5]), Ok(vec![0, 2, 5]));
        let error = row_pointers(&[0, 1 << 32]).unwrap_err();
        assert!(error.to_string().starts_with("4294967296 nonzeros;"), "{error}");
    }

    #[test]
    fn operands_of_the_wrong_length_are_refused() {
        let product = Product { value: vec![0.0; 4], scale: vec![0.0; 3] };
        assert!(check_lengths(4, &product, 2, 1).unwrap_err().to_string().starts_with("B has 1"));
        let error = check_lengths(4, &product, 2, 2).unwrap_err().to_string();
        assert_eq!(error, "the reference's scale has 3 elements, not 4");
    }
}
