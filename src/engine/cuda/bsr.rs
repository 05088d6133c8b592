//! The sparse operand in square blocks (BSR), which cuSPARSE may multiply faster than compressed rows.

use super::baseline::{Csr, Descriptor, data_type};
use super::context::{Buffer, Context};
use super::cusparse::{Handle, Opaque};
use super::launch::refused;
use crate::engine::EngineError;
use crate::sparse::blocks::{BlockPattern, Rows};
use cudarc::cusparse::sys::{cusparseIndexBase_t, cusparseIndexType_t, cusparseOrder_t};
use std::ffi::c_uint;
use std::sync::Arc;
use std::time::Instant;

/// `cusparseCreateBsr`, which versions before 12.1 lack: rows and columns of blocks, blocks, rows and columns of each, the
/// three arrays, the types of the indices, their base, the type of the values and their order within a block.
type CreateBsr = unsafe extern "C" fn(
    *mut Opaque,
    i64,
    i64,
    i64,
    i64,
    i64,
    u64,
    u64,
    u64,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
) -> u32;

/// The blocks may take at most one part in this many of the remaining memory.
const SHARE: u64 = 4;

/// The operand in blocks, on the device.
pub(super) struct Bsr {
    size: usize,
    pattern: BlockPattern,
    row_ptr: Buffer,
    col_idx: Buffer,
    values: Buffer,
    convert_ms: f64,
}

impl Bsr {
    /// Converts the operand by way of the host; all work is complete on return.
    pub(super) fn new(
        context: &Arc<Context>,
        csr: &Csr<'_>,
        size: usize,
    ) -> Result<Self, EngineError> {
        let started = Instant::now();
        let host = Host::read(csr)?;
        let rows = host.rows(csr);
        let pattern = rows.blocks(size).ok_or_else(|| {
            let (rows, cols) = (csr.rows, csr.cols);
            refused(format!("{rows} x {cols} is not a multiple of {size} x {size}, the blocks"))
        })?;
        if i32::try_from(pattern.col_idx.len()).is_err() {
            let blocks = pattern.col_idx.len();
            return Err(refused(format!("{blocks} blocks; cuSPARSE indexes with signed 32 bits")));
        }
        let stored = (pattern.col_idx.len() as u64).saturating_mul((size * size) as u64);
        let (bytes, most) =
            (stored.saturating_mul(csr.dtype.bytes()), context.free_bytes()? / SHARE);
        if bytes > most {
            let why =
                format!("A in blocks takes {bytes} bytes, more than its share of memory, {most}");
            return Err(refused(why));
        }
        let elements = rows.elements(&pattern, size);
        let row_ptr = Buffer::of(context, &pattern.row_ptr)?;
        let col_idx = Buffer::of(context, &pattern.col_idx)?;
        let values = Buffer::of(context, &elements)?;
        context.synchronize()?;
        let convert_ms = started.elapsed().as_secs_f64() * 1e3;
        Ok(Self { size, pattern, row_ptr, col_idx, values, convert_ms })
    }

    /// Milliseconds that the conversion took.
    pub(super) fn convert_ms(&self) -> f64 {
        self.convert_ms
    }

    /// Puts new values of the same pattern into the blocks, in the same memory; waits for the values.
    pub(super) fn take(&self, csr: &Csr<'_>) -> Result<(), EngineError> {
        let host = Host::read(csr)?;
        self.values.write(&host.rows(csr).elements(&self.pattern, self.size))
    }

    pub(super) fn describe(
        &self,
        handle: &Arc<Handle>,
        csr: &Csr<'_>,
    ) -> Result<Descriptor, EngineError> {
        const INDEX: u32 = cusparseIndexType_t::CUSPARSE_INDEX_32I as u32;
        // SAFETY: the signature is the one that the vendor's header gives for this symbol.
        let create: CreateBsr = unsafe { handle.library.later("cusparseCreateBsr") }?;
        let size = self.size;
        let mut raw: Opaque = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the arrays are as long as their shape says and outlive the descriptor's use.
        let status = unsafe {
            create(
                &mut raw,
                (csr.rows / size) as i64,
                (csr.cols / size) as i64,
                self.pattern.col_idx.len() as i64,
                size as i64,
                size as i64,
                self.row_ptr.pointer,
                self.col_idx.pointer,
                self.values.pointer,
                INDEX,
                INDEX,
                cusparseIndexBase_t::CUSPARSE_INDEX_BASE_ZERO as u32,
                data_type(csr.dtype),
                cusparseOrder_t::CUSPARSE_ORDER_ROW as u32,
            )
        };
        handle.check("cusparseCreateBsr", status)?;
        let destroy = handle.library.api.destroy_sparse;
        Ok(Descriptor { raw, destroy, handle: handle.clone() })
    }
}

/// The operand as the host reads it back.
struct Host {
    row_ptr: Vec<u32>,
    col_idx: Vec<u32>,
    values: Vec<u8>,
}

impl Host {
    fn read(csr: &Csr<'_>) -> Result<Self, EngineError> {
        let mut row_ptr = vec![0u32; csr.rows + 1];
        let mut col_idx = vec![0u32; csr.nnz];
        let mut values = vec![0u8; csr.nnz * csr.dtype.bytes() as usize];
        csr.arrays[0].read(0, &mut row_ptr)?;
        csr.arrays[1].read(0, &mut col_idx)?;
        csr.arrays[2].read(0, &mut values)?;
        Ok(Self { row_ptr, col_idx, values })
    }

    fn rows(&self, csr: &Csr<'_>) -> Rows<'_> {
        let Self { row_ptr, col_idx, values } = self;
        let width = csr.dtype.bytes() as usize;
        Rows { cols: csr.cols, row_ptr, col_idx, values, width }
    }
}
