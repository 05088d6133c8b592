//! The baseline on a CPU: sprs' own sparse-times-dense multiply, which adds to C, so zeroing C belongs to the call.

use super::load::Loaded;
use crate::domain::{Digest, Layout};
use crate::engine::EngineError;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeBuilder};
use sprs::prod::{csr_mulacc_dense_colmaj, csr_mulacc_dense_rowmaj};
use sprs::{CompressedStorage, CsMatViewI};

/// The one algorithm's name.
pub const ALGORITHM: &str = "sprs";

/// One call of sprs, single-threaded as the library is.
pub fn multiply(loaded: &mut Loaded) -> Result<(), EngineError> {
    let (matrix, n) = (&loaded.operands.matrix, loaded.n);
    let shape = (matrix.rows(), matrix.cols());
    // SAFETY: a `Csr` is what sprs asks of a CSR (see `Csr::as_sprs`), and `values` has a value for each entry.
    let a: CsMatViewI<'_, f32, u32, usize> = unsafe {
        CsMatViewI::new_unchecked(
            CompressedStorage::CSR,
            shape,
            matrix.indptr(),
            matrix.indices(),
            &loaded.values[..],
        )
    };
    let output = loaded.output.as_mut_slice();
    output.fill(0.0);
    let misfit =
        |error: ndarray::ShapeError| EngineError::Refused(format!("sprs cannot run it: {error}"));
    match loaded.layout {
        Layout::Row => {
            let b =
                ArrayView2::from_shape((shape.1, n), loaded.dense.as_slice()).map_err(misfit)?;
            let c = ArrayViewMut2::from_shape((shape.0, n), output).map_err(misfit)?;
            csr_mulacc_dense_rowmaj(a, b, c);
        }
        Layout::Col => {
            let b = ArrayView2::from_shape((shape.1, n).f(), &loaded.b[..]).map_err(misfit)?;
            let c = ArrayViewMut2::from_shape((shape.0, n).f(), output).map_err(misfit)?;
            csr_mulacc_dense_colmaj(a, b, c);
        }
    }
    Ok(())
}

/// sprs' text is not ours; its version stands for it.
pub fn kernel_digest() -> Digest {
    Digest::of(super::host::VENDOR.as_bytes())
}
