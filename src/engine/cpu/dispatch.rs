//! Selects the compiled instance of a CPU kernel: element type, M1, registers per row and instruction set are compile-time
//! constants.

use super::element::Element;
use super::kernel::{self, Panel};
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2F32, Avx2F64, Avx512F32, Avx512F64};
use super::simd::{Isa, Plain};
use std::ops::Range;

/// Supported tile heights.
pub const SUPPORTED_M1: [u32; 4] = [1, 2, 4, 8];

/// Panel widths that tiles of several rows are compiled for.
pub const SUPPORTED_N1: [u32; 4] = [8, 16, 32, 64];

/// Panel widths that single rows are compiled for.
pub const SUPPORTED_ROW_N1: [u32; 5] = [8, 16, 32, 64, 128];

/// `kernel::row_panel` for one element type, instruction set and tile.
pub type RowPanel<T> = unsafe fn(&Panel<'_, T>, &[u32]);

/// `kernel::row_split` for one element type, instruction set and width.
pub type RowSplit<T> = unsafe fn(&Panel<'_, T>, Range<usize>);

/// An element type that the product kernels are compiled for.
pub trait Multiplied: Element {
    /// Lanes of a register; the baseline's kernels use four of either type.
    fn lanes(isa: Isa) -> usize;
    /// The compiled tile of `m1` rows by `vecs` registers.
    fn panel_of(isa: Isa, m1: u32, vecs: usize, masked: bool) -> Option<RowPanel<Self>>;
    /// The compiled kernel for single rows of `vecs` registers.
    fn split_of(isa: Isa, vecs: usize, masked: bool) -> Option<RowSplit<Self>>;
}

/// The kernel for tiles of `m1` rows and panels of `width` of at most `n1` columns.
pub fn row_panel<T: Multiplied>(isa: Isa, m1: u32, n1: u32, width: usize) -> Option<RowPanel<T>> {
    let Shape { isa, vecs, masked } = Shape::of::<T>(isa, n1, width);
    T::panel_of(isa, m1, vecs, masked)
}

/// The kernel for single rows and panels of `width` of at most `n1` columns.
pub fn row_split<T: Multiplied>(isa: Isa, n1: u32, width: usize) -> Option<RowSplit<T>> {
    let Shape { isa, vecs, masked } = Shape::of::<T>(isa, n1, width);
    T::split_of(isa, vecs, masked)
}

/// Registers per row of the panel.
struct Shape {
    isa: Isa,
    vecs: usize,
    /// Whether at least one register is only partly used, because the panel is narrower than N1.
    masked: bool,
}

impl Shape {
    fn of<T: Multiplied>(isa: Isa, n1: u32, width: usize) -> Self {
        // If half of a 512-bit register is enough, a 256-bit one is used.
        #[cfg(target_arch = "x86_64")]
        let narrow = isa == Isa::Avx512 && width <= T::lanes(isa) / 2;
        #[cfg(target_arch = "x86_64")]
        let isa = if narrow { Isa::Avx2 } else { isa };
        let lanes = T::lanes(isa);
        if width == n1 as usize && width.is_multiple_of(lanes) {
            Self { isa, vecs: width / lanes, masked: false }
        } else {
            Self { isa, vecs: width.div_ceil(lanes).next_power_of_two(), masked: true }
        }
    }
}

macro_rules! multiplied {
    ($type:ty, $avx512:ident, $avx2:ident, $plain:ident) => {
        impl Multiplied for $type {
            fn lanes(isa: Isa) -> usize {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => 64 / size_of::<Self>(),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => 32 / size_of::<Self>(),
                    Isa::Scalar => 4,
                }
            }

            fn panel_of(isa: Isa, m1: u32, vecs: usize, masked: bool) -> Option<RowPanel<Self>> {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => $avx512::panel(m1, vecs, masked),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => $avx2::panel(m1, vecs, masked),
                    Isa::Scalar => $plain::panel(m1, vecs, masked),
                }
            }

            fn split_of(isa: Isa, vecs: usize, masked: bool) -> Option<RowSplit<Self>> {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => $avx512::split(vecs, masked),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => $avx2::split(vecs, masked),
                    Isa::Scalar => $plain::split(vecs, masked),
                }
            }
        }
    };
}
multiplied!(f32, avx512_f32, avx2_f32, plain_f32);
multiplied!(f64, avx512_f64, avx2_f64, plain_f64);

/// One module per instruction set and type: the generic kernels inlined into functions compiled for it.
macro_rules! compiled_for {
    ($module:ident, $type:ty, $simd:ty, [$($vecs:literal / $unroll:literal),*], $widest:literal $(, $features:literal)?) => {
        mod $module {
            use super::*;

            $(#[target_feature(enable = $features)])?
            unsafe fn panel_of<const M1: usize, const VECS: usize, const MASKED: bool>(
                panel: &Panel<'_, $type>,
                order: &[u32],
            ) {
                // SAFETY: the requirements are the caller's.
                unsafe { kernel::row_panel::<$simd, M1, VECS, MASKED>(panel, order) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn split_of<const VECS: usize, const UNROLL: usize, const MASKED: bool>(
                panel: &Panel<'_, $type>,
                rows: Range<usize>,
            ) {
                // SAFETY: the requirements are the caller's.
                unsafe { kernel::row_split::<$simd, VECS, UNROLL, MASKED>(panel, rows) }
            }

            pub fn panel(m1: u32, vecs: usize, masked: bool) -> Option<RowPanel<$type>> {
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

            pub fn split(vecs: usize, masked: bool) -> Option<RowSplit<$type>> {
                match (vecs, masked) {
                    $(
                        ($vecs, false) => Some(split_of::<$vecs, $unroll, false>),
                        ($vecs, true) => Some(split_of::<$vecs, $unroll, true>),
                    )*
                    ($widest, false) => Some(split_of::<$widest, 1, false>),
                    ($widest, true) => Some(split_of::<$widest, 1, true>),
                    _ => None,
                }
            }
        }
    };
}

// Registers per row / entries of a row in flight: at least four sums, to hide the latency of the multiply-add. Then the
// registers of the widest panel of single rows.
#[cfg(target_arch = "x86_64")]
compiled_for!(avx512_f32, f32, Avx512F32, [1 / 4, 2 / 2, 4 / 1], 8, "avx512f,avx2,fma");
#[cfg(target_arch = "x86_64")]
compiled_for!(avx512_f64, f64, Avx512F64, [1 / 4, 2 / 2, 4 / 1, 8 / 1], 16, "avx512f,avx2,fma");
#[cfg(target_arch = "x86_64")]
compiled_for!(avx2_f32, f32, Avx2F32, [1 / 4, 2 / 2, 4 / 1, 8 / 1], 16, "avx2,fma");
#[cfg(target_arch = "x86_64")]
compiled_for!(avx2_f64, f64, Avx2F64, [1 / 4, 2 / 2, 4 / 1, 8 / 1, 16 / 1], 32, "avx2,fma");
compiled_for!(plain_f32, f32, Plain<f32>, [1 / 4, 2 / 2, 4 / 1, 8 / 1, 16 / 1], 32);
compiled_for!(plain_f64, f64, Plain<f64>, [1 / 4, 2 / 2, 4 / 1, 8 / 1, 16 / 1], 32);
