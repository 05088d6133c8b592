//! Selects the compiled instance of a CPU kernel: M1, registers per row and instruction set are compile-time constants.

use super::kernel::{self, Panel};
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Isa, Plain};
use std::ops::Range;

/// Supported tile heights.
pub const SUPPORTED_M1: [u32; 4] = [1, 2, 4, 8];

/// Supported panel widths.
pub const SUPPORTED_N1: [u32; 4] = [8, 16, 32, 64];

/// `kernel::row_panel` for one instruction set and one tile.
pub type RowPanel = unsafe fn(&Panel<'_>, &[u32]);

/// `kernel::row_split` for one instruction set and one width.
pub type RowSplit = unsafe fn(&Panel<'_>, Range<usize>);

/// The kernel for tiles of `m1` rows and panels of `width` of at most `n1` columns.
pub fn row_panel(isa: Isa, m1: u32, n1: u32, width: usize) -> Option<RowPanel> {
    let shape = Shape::of(isa, n1, width);
    match shape.isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::panel(m1, shape.vecs, shape.masked),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::panel(m1, shape.vecs, shape.masked),
        Isa::Scalar => plain::panel(m1, shape.vecs, shape.masked),
    }
}

/// The kernel for single rows and panels of `width` of at most `n1` columns.
pub fn row_split(isa: Isa, n1: u32, width: usize) -> Option<RowSplit> {
    let shape = Shape::of(isa, n1, width);
    match shape.isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::split(shape.vecs, shape.masked),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::split(shape.vecs, shape.masked),
        Isa::Scalar => plain::split(shape.vecs, shape.masked),
    }
}

/// Registers per row of the panel.
struct Shape {
    isa: Isa,
    vecs: usize,
    /// Whether at least one register is only partly used, because the panel is narrower than N1.
    masked: bool,
}

impl Shape {
    fn of(isa: Isa, n1: u32, width: usize) -> Self {
        // If half of a 512-bit register is enough, a 256-bit one is used.
        #[cfg(target_arch = "x86_64")]
        let isa = if isa == Isa::Avx512 && width <= 8 { Isa::Avx2 } else { isa };
        let lanes = isa.lanes() as usize;
        if width == n1 as usize && width.is_multiple_of(lanes) {
            Self { isa, vecs: width / lanes, masked: false }
        } else {
            Self { isa, vecs: width.div_ceil(lanes).next_power_of_two(), masked: true }
        }
    }
}

/// One module per instruction set: the generic kernels inlined into functions compiled for it.
macro_rules! compiled_for {
    ($module:ident, $simd:ty, [$($vecs:literal / $unroll:literal),*] $(, $features:literal)?) => {
        mod $module {
            use super::*;

            $(#[target_feature(enable = $features)])?
            unsafe fn panel_of<const M1: usize, const VECS: usize, const MASKED: bool>(
                panel: &Panel<'_>,
                order: &[u32],
            ) {
                // SAFETY: the requirements are the caller's.
                unsafe { kernel::row_panel::<$simd, M1, VECS, MASKED>(panel, order) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn split_of<const VECS: usize, const UNROLL: usize, const MASKED: bool>(
                panel: &Panel<'_>,
                rows: Range<usize>,
            ) {
                // SAFETY: the requirements are the caller's.
                unsafe { kernel::row_split::<$simd, VECS, UNROLL, MASKED>(panel, rows) }
            }

            pub fn panel(m1: u32, vecs: usize, masked: bool) -> Option<RowPanel> {
                match (m1, vecs, masked) {
                    $(
                        (1, $vecs, false) => Some(panel_of::<1, $vecs, false>),
                        (2, $vecs, false) => Some(panel_of::<2, $vecs, false>),
                        (4, $vecs, false) => Some(panel_of::<4, $vecs, false>),
                        (8, $vecs, false) => Some(panel_of::<8, $vecs, false>),
                        (1, $vecs, true) => Some(panel_of::<1, $vecs, true>),
                        (2, $vecs, true) => Some(panel_of::<2, $vecs, true>),
                        (4, $vecs, true) => Some(panel_of::<4, $vecs, true>),
                        (8, $vecs, true) => Some(panel_of::<8, $vecs, true>),
                    )*
                    _ => None,
                }
            }

            pub fn split(vecs: usize, masked: bool) -> Option<RowSplit> {
                match (vecs, masked) {
                    $(
                        ($vecs, false) => Some(split_of::<$vecs, $unroll, false>),
                        ($vecs, true) => Some(split_of::<$vecs, $unroll, true>),
                    )*
                    _ => None,
                }
            }
        }
    };
}

// Registers per row / entries of a row in flight: at least four sums, to hide the latency of the multiply-add.
#[cfg(target_arch = "x86_64")]
compiled_for!(avx512, Avx512, [1 / 4, 2 / 2, 4 / 1], "avx512f,avx2,fma");
#[cfg(target_arch = "x86_64")]
compiled_for!(avx2, Avx2, [1 / 4, 2 / 2, 4 / 1, 8 / 1], "avx2,fma");
compiled_for!(plain, Plain, [1 / 4, 2 / 2, 4 / 1, 8 / 1, 16 / 1]);
