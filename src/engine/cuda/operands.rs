//! The loaded problem on the device: the sparse operand, B, C with a guard behind it, and the recipes' own arrays.

use super::context::{Buffer, Context};
use super::launch::refused;
use super::residual::{Raw, Side, Solution};
use super::verify::Reference;
use crate::domain::recipe::{ArrayData, Recipe};
use crate::domain::{Dtype, L2Policy, Layout, Problem, Spmm, Sptrsv};
use crate::engine::{ALPHA, BETA, Dense, EngineError, Expected, Operands, Solve};
use crate::sparse::operand::{bf16_bits, half_bits};
use crate::sparse::oracle::Product;
use rayon::prelude::*;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// 16 bits, repeated, that form a quiet NaN in an element of any type and that no arithmetic produces: hardware returns a NaN
/// with all bits of the fraction set, or passes an operand on. It also differs from the sentinel that some kernels wait on.
pub(super) const POISON: u32 = 0x7ffc_7ffc;

/// Poisoned words behind C; a kernel that writes past the end changes them before it harms another buffer.
pub(super) const GUARD_WORDS: usize = 4096;

pub(super) struct Loaded {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Columns of B and C; right-hand sides of a solve.
    pub(super) n: usize,
    /// Entries of the sparse operand as kernels read it: for SpTRSV the strictly lower triangle in solve order.
    pub(super) nnz: usize,
    pub(super) layout: Layout,
    /// Type of the values and of B.
    pub(super) dtype: Dtype,
    /// Type of C.
    pub(super) result: Dtype,
    pub(super) l2_policy: L2Policy,
    pub(super) row_ptr: Buffer,
    pub(super) col_idx: Buffer,
    pub(super) values: Buffer,
    /// SpTRSV: the diagonal in solve order.
    pub(super) diagonal: Option<Buffer>,
    pub(super) b: Buffer,
    pub(super) c: Buffer,
    /// The content of C before a verified call that adds to it.
    pub(super) c0: Option<Buffer>,
    pub(super) judge: Judge,
    arrays: HashMap<ArrayKey, Uploaded>,
    /// Milliseconds spent on uploads of arrays so far.
    uploading_ms: f64,
}

/// A recipe's array on the device, with the milliseconds that its upload took.
struct Uploaded {
    buffer: Buffer,
    ms: f64,
}

/// What a load may place on the device besides the operands that kernels read.
pub(super) struct Room {
    /// See `Options`.
    pub(super) reference_bytes: Option<u64>,
    /// Whether the vendor's routines are available, which need the matrix in their own form.
    pub(super) vendor: bool,
}

/// The reference that a result is judged by.
pub(super) enum Judge {
    Product(Reference),
    Solution(Solution),
}

/// Recipes share an upload by name, element type and length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ArrayKey {
    name: String,
    kind: &'static str,
    length: usize,
}

impl Loaded {
    pub(super) fn upload(
        context: &Arc<Context>,
        operands: Operands,
        room: &Room,
    ) -> Result<Self, EngineError> {
        let loaded = match (operands.problem, operands.expected.clone()) {
            (Problem::Spmm(spmm), Expected::Product(product)) => {
                Self::product(context, operands, &spmm, product, room)
            }
            (Problem::Sptrsv(problem), Expected::Solution(solve)) => {
                Self::system(context, operands, &problem, &solve, room)
            }
            (problem, _) => Err(refused(format!("the reference does not belong to `{problem}`"))),
        };
        context.synchronize()?;
        loaded
    }

    fn product(
        context: &Arc<Context>,
        operands: Operands,
        spmm: &Spmm,
        product: Arc<Product>,
        room: &Room,
    ) -> Result<Self, EngineError> {
        let (Spmm { n, dtype, layout, .. }, result) = (*spmm, spmm.result());
        let c0 = operands.c0.as_ref().filter(|_| spmm.accumulate);
        if spmm.accumulate != operands.c0.is_some() {
            return Err(refused(format!(
                "the initial C does not belong to `{}`",
                operands.problem
            )));
        }
        let (n, matrix) = (n as usize, &operands.matrix);
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let elements = rows as u64 * n as u64;
        check_lengths([
            ("B", cols as u64 * n as u64, operands.b.len()),
            ("the reference", elements, product.value.len()),
            ("the reference's scale", elements, product.scale.len()),
            ("the initial C", elements, c0.map_or(elements as usize, Dense::len)),
        ])?;
        Ok(Self {
            rows,
            cols,
            n,
            nnz: matrix.nnz(),
            layout,
            dtype,
            result,
            l2_policy: operands.l2_policy,
            row_ptr: Buffer::of(context, &row_pointers(matrix.indptr())?)?,
            col_idx: Buffer::of(context, matrix.indices())?,
            values: in_type(context, matrix.values(), dtype)?,
            diagonal: None,
            b: dense(context, &operands.b, dtype)?,
            c: output(context, elements as usize, result)?,
            c0: c0.map(|c0| dense(context, c0, result)).transpose()?,
            // Last, since it takes a share of the memory that the others leave.
            judge: Judge::Product(Reference::upload(context, product, room.reference_bytes)?),
            arrays: HashMap::new(),
            uploading_ms: 0.0,
        })
    }

    fn system(
        context: &Arc<Context>,
        operands: Operands,
        problem: &Sptrsv,
        solve: &Solve,
        room: &Room,
    ) -> Result<Self, EngineError> {
        let (dtype, n, system) = (problem.dtype, problem.rhs as usize, &solve.system);
        let rows = system.rows();
        if u32::try_from(rows).is_err() {
            return Err(refused(format!("{rows} rows; the CUDA kernels count them with 32 bits")));
        }
        let elements = rows as u64 * n as u64;
        check_lengths([
            ("the matrix's diagonal", operands.matrix.rows() as u64, rows),
            ("b", elements, operands.b.len()),
            ("the second b", elements, solve.second.len()),
        ])?;
        Ok(Self {
            rows,
            cols: rows,
            n,
            nnz: system.nnz(),
            layout: Layout::Row,
            dtype,
            result: dtype,
            l2_policy: operands.l2_policy,
            row_ptr: Buffer::of(context, &row_pointers(&system.indptr)?)?,
            col_idx: Buffer::of(context, &system.indices)?,
            values: in_type(context, &system.values, dtype)?,
            diagonal: Some(in_type(context, &system.diagonal, dtype)?),
            b: dense(context, &operands.b, dtype)?,
            c: output(context, elements as usize, dtype)?,
            c0: None,
            judge: Judge::Solution(Solution {
                problem: *problem,
                reversed: system.reversed,
                sides: [
                    Side::upload(context, &operands.b, dtype)?,
                    Side::upload(context, &solve.second, dtype)?,
                ],
                raw: match room.vendor {
                    true => Some(Raw::upload(context, &operands.matrix, problem)?),
                    false => None,
                },
            }),
            arrays: HashMap::new(),
            uploading_ms: 0.0,
        })
    }

    /// Elements of C.
    pub(super) fn elements(&self) -> usize {
        self.rows * self.n
    }

    /// alpha and beta of the calls that are timed: `C = alpha A B + beta C`.
    pub(super) fn factors(&self) -> [f64; 2] {
        if self.c0.is_some() { [ALPHA, BETA] } else { [1.0, 0.0] }
    }

    /// The factors of the call that must not read C, for a problem that adds to it.
    pub(super) fn bare_factors(&self) -> Option<[f64; 2]> {
        self.c0.as_ref().map(|_| [ALPHA, 0.0])
    }

    /// 32-bit words of C; the guard begins behind them.
    pub(super) fn words(&self) -> usize {
        words(self.elements(), self.result)
    }

    /// Uploads the recipes' arrays that are not on the device yet. If they do not fit, arrays of other recipes are freed.
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
                let started = Instant::now();
                let buffer = match &array.data {
                    ArrayData::U16(data) | ArrayData::F16(data) | ArrayData::Bf16(data) => {
                        Buffer::of(context, data)?
                    }
                    ArrayData::U32(data) => Buffer::of(context, data)?,
                    ArrayData::F32(data) => Buffer::of(context, data)?,
                    ArrayData::F64(data) => Buffer::of(context, data)?,
                };
                // So that the clock includes the whole upload.
                context.synchronize()?;
                let ms = started.elapsed().as_secs_f64() * 1e3;
                self.uploading_ms += ms;
                place.insert(Uploaded { buffer, ms });
            }
        }
        Ok(())
    }

    /// Milliseconds spent on uploads of arrays since the load.
    pub(super) fn uploading_ms(&self) -> f64 {
        self.uploading_ms
    }

    /// Milliseconds that uploading all arrays of a recipe took, whichever recipe uploaded them first.
    pub(super) fn arrays_ms(&self, recipe: &Recipe) -> f64 {
        let keys: HashSet<ArrayKey> = recipe.arrays.iter().map(ArrayKey::of).collect();
        keys.iter().filter_map(|key| self.arrays.get(key)).map(|uploaded| uploaded.ms).sum()
    }

    /// Frees all arrays, to make room for something that does not fit beside them.
    pub(super) fn drop_arrays(&mut self) {
        self.arrays.clear();
    }

    /// Device address of a recipe's array.
    pub(super) fn array(&self, recipe: &Recipe, index: usize) -> Result<u64, EngineError> {
        let array = recipe.arrays.get(index);
        array
            .and_then(|array| self.arrays.get(&ArrayKey::of(array)))
            .map(|uploaded| uploaded.buffer.pointer)
            .ok_or_else(|| refused(format!("the recipe has no array {index}")))
    }
}

impl ArrayKey {
    fn of(array: &crate::domain::recipe::Array) -> Self {
        let (kind, length) = match &array.data {
            ArrayData::U16(data) => ("u16", data.len()),
            ArrayData::F16(data) => ("f16", data.len()),
            ArrayData::Bf16(data) => ("bf16", data.len()),
            ArrayData::U32(data) => ("u32", data.len()),
            ArrayData::F32(data) => ("f32", data.len()),
            ArrayData::F64(data) => ("f64", data.len()),
        };
        Self { name: array.name.clone(), kind, length }
    }
}

/// Name, expected length and length of each operand.
fn check_lengths<const N: usize>(lengths: [(&str, u64, usize); N]) -> Result<(), EngineError> {
    match lengths.into_iter().find(|&(_, expected, length)| expected != length as u64) {
        None => Ok(()),
        Some((what, expected, length)) => {
            Err(refused(format!("{what} has {length} elements, not {expected}")))
        }
    }
}

/// Values in the problem's type.
pub(super) fn in_type(
    context: &Arc<Context>,
    values: &[f64],
    dtype: Dtype,
) -> Result<Buffer, EngineError> {
    match dtype {
        Dtype::F64 => Buffer::of(context, values),
        Dtype::F32 => {
            let rounded: Vec<f32> = values.par_iter().map(|&value| value as f32).collect();
            Buffer::of(context, &rounded)
        }
        Dtype::F16 => {
            let rounded: Vec<u16> = values.par_iter().map(|&value| half_bits(value)).collect();
            Buffer::of(context, &rounded)
        }
        Dtype::Bf16 => {
            let rounded: Vec<u16> = values.par_iter().map(|&value| bf16_bits(value)).collect();
            Buffer::of(context, &rounded)
        }
    }
}

pub(super) fn dense(
    context: &Arc<Context>,
    data: &Dense,
    dtype: Dtype,
) -> Result<Buffer, EngineError> {
    match (data, dtype) {
        (Dense::F16(data), Dtype::F16) | (Dense::Bf16(data), Dtype::Bf16) => {
            Buffer::of(context, data)
        }
        (Dense::F32(data), Dtype::F32) => Buffer::of(context, data),
        (Dense::F64(data), Dtype::F64) => Buffer::of(context, data),
        _ => Err(refused(format!("the dense operand is not in {dtype}, as its problem is"))),
    }
}

/// C and the guard behind it, poisoned.
fn output(context: &Arc<Context>, elements: usize, dtype: Dtype) -> Result<Buffer, EngineError> {
    let words = words(elements, dtype) + GUARD_WORDS;
    let c = Buffer::new(context, words * 4)?;
    context.fill(c.pointer, POISON, words)?;
    Ok(c)
}

/// Number of 32-bit words that hold this many elements.
fn words(elements: usize, dtype: Dtype) -> usize {
    (elements * dtype.bytes() as usize).div_ceil(4)
}

/// Row pointers as kernels read them.
pub(super) fn row_pointers(indptr: &[usize]) -> Result<Vec<u32>, EngineError> {
    let nnz = indptr.last().copied().unwrap_or(0);
    if u32::try_from(nnz).is_err() {
        return Err(refused(format!(
            "{nnz} nonzeros; the CUDA kernels index them with 32 bits, {} at most",
            u32::MAX
        )));
    }
    // No pointer is larger than the last: a canonical CSR's pointers never decrease.
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
        let error = check_lengths([("B", 2, 2), ("b", 4, 3), ("c", 0, 1)]).unwrap_err();
        assert_eq!(error.to_string(), "b has 3 elements, not 4");
        assert!(check_lengths([("B", 2, 2), ("b", 4, 4), ("c", 0, 0)]).is_ok());
    }

    #[test]
    fn the_poison_is_a_quiet_nan_in_every_type() {
        let double = u64::from(POISON) << 32 | u64::from(POISON);
        assert!(f32::from_bits(POISON).is_nan() && POISON & 1 << 22 != 0);
        assert!(f64::from_bits(double).is_nan() && double & 1 << 51 != 0);
        // As f16 and bf16: all exponent bits, and the first of the fraction, in both halves.
        assert_eq!(POISON & 0x7e00_7e00, 0x7e00_7e00);
        assert_eq!(POISON & 0x7fc0_7fc0, 0x7fc0_7fc0);
        assert_eq!(POISON >> 16, POISON & 0xffff);
        assert_eq!(
            [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64].map(|dtype| words(3, dtype)),
            [2, 2, 3, 6]
        );
    }
}
