//! A trait for the host's vector registers, so that each kernel is written once for all types and instruction sets:
//! AVX-512, AVX2, and plain arrays that the compiler vectorises for the baseline (NEON on aarch64, SSE2 on x86-64).

use super::element::Element;

/// An instruction set the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Scalar,
}

impl Isa {
    /// The instruction sets of this host, best first; never empty.
    pub fn available() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            // The AVX-512 kernels use AVX2 for panels narrower than one register.
            if avx2 && is_x86_feature_detected!("avx512f") {
                found.push(Self::Avx512);
            }
            if avx2 {
                found.push(Self::Avx2);
            }
        }
        found.push(Self::Scalar);
        found
    }

    /// The best instruction set of this host.
    pub fn best() -> Self {
        Self::available().first().copied().unwrap_or(Self::Scalar)
    }

    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            Self::Scalar => "scalar",
        }
    }

    /// f32 lanes of one register.
    pub fn lanes(self) -> u32 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 16,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 8,
            Self::Scalar => 4,
        }
    }

    /// Architectural vector registers.
    pub fn registers(self) -> u32 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 32,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 16,
            Self::Scalar if cfg!(target_arch = "aarch64") => 32,
            Self::Scalar => 16,
        }
    }
}

/// One vector register of elements, and a mask of its lanes.
///
/// # Safety
/// Functions may be called only if the host has the instruction set. Loads and stores access exactly the unmasked lanes, and
/// need no more alignment than an element.
pub unsafe trait Simd: Copy {
    type Element: Element;
    type Mask: Copy;
    const LANES: usize;

    unsafe fn zero() -> Self;
    unsafe fn splat(value: Self::Element) -> Self;
    unsafe fn load(from: *const Self::Element) -> Self;
    unsafe fn store(self, to: *mut Self::Element);
    /// self * other + sum
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// The first `lanes` lanes; all of them for any larger number.
    unsafe fn mask(lanes: usize) -> Self::Mask;
    /// Masked lanes read as zero.
    unsafe fn load_masked(from: *const Self::Element, mask: Self::Mask) -> Self;
    unsafe fn store_masked(self, to: *mut Self::Element, mask: Self::Mask);
    /// Writes past the caches, which then need not read the line first; `to` is aligned to the register. Other threads see
    /// it after `fence`.
    unsafe fn stream(self, to: *mut Self::Element);
    /// Ends a run of `stream`.
    unsafe fn fence();
    /// Asks for the cache line of an address, which may be any.
    fn prefetch(from: *const Self::Element);
}

/// Four lanes that the compiler maps to baseline registers. If the baseline has no fused multiply-add, the product is
/// rounded, since a fused operation would be a library call.
#[derive(Clone, Copy)]
pub struct Plain<T>([T; 4]);

// SAFETY: no special instructions; `load_masked` and `store_masked` access only the first `mask` lanes.
unsafe impl<T: Element> Simd for Plain<T> {
    type Element = T;
    type Mask = usize;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([T::ZERO; 4])
    }

    #[inline(always)]
    unsafe fn splat(value: T) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the caller guarantees four readable elements; [T; 4] has the alignment of T.
        Self(unsafe { *from.cast::<[T; 4]>() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: as in `load`, for writing.
        unsafe { *to.cast::<[T; 4]>() = self.0 }
    }

    #[inline(always)]
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
        const FUSED: bool = cfg!(target_arch = "aarch64");
        Self(std::array::from_fn(|i| self.0[i].mul_add::<FUSED>(other.0[i], sum.0[i])))
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul(other.0[i])))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].add(other.0[i])))
    }

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> usize {
        lanes.min(4)
    }

    #[inline(always)]
    unsafe fn load_masked(from: *const T, mask: usize) -> Self {
        let mut lanes = [T::ZERO; 4];
        for (i, lane) in lanes.iter_mut().enumerate().take(mask) {
            // SAFETY: the caller guarantees access to the unmasked lanes.
            *lane = unsafe { *from.add(i) };
        }
        Self(lanes)
    }

    #[inline(always)]
    unsafe fn store_masked(self, to: *mut T, mask: usize) {
        for (i, &lane) in self.0.iter().enumerate().take(mask) {
            // SAFETY: the caller guarantees access to the unmasked lanes.
            unsafe { *to.add(i) = lane };
        }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut T) {
        // SAFETY: as in `store`; the compiler has no such store for every host.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    unsafe fn fence() {}

    #[inline(always)]
    fn prefetch(from: *const T) {
        #[cfg(target_arch = "x86_64")]
        x86::prefetch(from);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = from;
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2F32, Avx2F64, Avx512F32, Avx512F64};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    /// Asks for the cache line of an address, into the first level.
    #[inline(always)]
    pub fn prefetch<T>(from: *const T) {
        // SAFETY: every x86-64 has SSE; a prefetch of an address that is not mapped does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    /// A register type whose operations are single intrinsics. `mask` and the masked operations are given as expressions,
    /// since they differ between the instruction sets.
    macro_rules! register {
        (
            $name:ident, $element:ty, $lanes:literal, $register:ty, $mask:ty,
            $zero:ident, $splat:ident, $load:ident, $store:ident, $stream:ident, $mul_add:ident, $mul:ident, $add:ident,
            mask: |$count:ident| $of_count:expr,
            load: |$from:ident, $load_mask:ident| $load_masked:expr,
            store: |$to:ident, $store_mask:ident, $value:ident| $store_masked:expr
        ) => {
            #[derive(Clone, Copy)]
            pub struct $name($register);

            // SAFETY: each method is the corresponding intrinsic; masked-out lanes are not accessed (Intel SDM, VMASKMOV
            // and the fault suppression of masked AVX-512 moves).
            unsafe impl Simd for $name {
                type Element = $element;
                type Mask = $mask;
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn zero() -> Self {
                    Self(unsafe { $zero() })
                }

                #[inline(always)]
                unsafe fn splat(value: $element) -> Self {
                    Self(unsafe { $splat(value) })
                }

                #[inline(always)]
                unsafe fn load(from: *const $element) -> Self {
                    Self(unsafe { $load(from) })
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut $element) {
                    unsafe { $store(to, self.0) }
                }

                #[inline(always)]
                unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
                    Self(unsafe { $mul_add(self.0, other.0, sum.0) })
                }

                #[inline(always)]
                unsafe fn mul(self, other: Self) -> Self {
                    Self(unsafe { $mul(self.0, other.0) })
                }

                #[inline(always)]
                unsafe fn add(self, other: Self) -> Self {
                    Self(unsafe { $add(self.0, other.0) })
                }

                #[inline(always)]
                unsafe fn mask($count: usize) -> $mask {
                    $of_count
                }

                #[inline(always)]
                unsafe fn load_masked($from: *const $element, $load_mask: $mask) -> Self {
                    Self(unsafe { $load_masked })
                }

                #[inline(always)]
                unsafe fn store_masked(self, $to: *mut $element, $store_mask: $mask) {
                    let $value = self.0;
                    unsafe { $store_masked }
                }

                #[inline(always)]
                unsafe fn stream(self, to: *mut $element) {
                    unsafe { $stream(to, self.0) }
                }

                #[inline(always)]
                unsafe fn fence() {
                    unsafe { _mm_sfence() }
                }

                #[inline(always)]
                fn prefetch(from: *const $element) {
                    prefetch(from);
                }
            }
        };
    }

    register!(
        Avx2F32, f32, 8, __m256, __m256i,
        _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_stream_ps, _mm256_fmadd_ps,
        _mm256_mul_ps, _mm256_add_ps,
        mask: |lanes| unsafe {
            let bound = _mm256_set1_epi32(lanes.min(8) as i32);
            _mm256_cmpgt_epi32(bound, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
        },
        load: |from, mask| _mm256_maskload_ps(from, mask),
        store: |to, mask, value| _mm256_maskstore_ps(to, mask, value)
    );

    register!(
        Avx2F64, f64, 4, __m256d, __m256i,
        _mm256_setzero_pd, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_stream_pd, _mm256_fmadd_pd,
        _mm256_mul_pd, _mm256_add_pd,
        mask: |lanes| unsafe {
            let bound = _mm256_set1_epi64x(lanes.min(4) as i64);
            _mm256_cmpgt_epi64(bound, _mm256_setr_epi64x(0, 1, 2, 3))
        },
        load: |from, mask| _mm256_maskload_pd(from, mask),
        store: |to, mask, value| _mm256_maskstore_pd(to, mask, value)
    );

    register!(
        Avx512F32, f32, 16, __m512, __mmask16,
        _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_stream_ps, _mm512_fmadd_ps,
        _mm512_mul_ps, _mm512_add_ps,
        mask: |lanes| if lanes >= 16 { u16::MAX } else { (1 << lanes) - 1 },
        load: |from, mask| _mm512_maskz_loadu_ps(mask, from),
        store: |to, mask, value| _mm512_mask_storeu_ps(to, mask, value)
    );

    register!(
        Avx512F64, f64, 8, __m512d, __mmask8,
        _mm512_setzero_pd, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_stream_pd, _mm512_fmadd_pd,
        _mm512_mul_pd, _mm512_add_pd,
        mask: |lanes| if lanes >= 8 { u8::MAX } else { (1 << lanes) - 1 },
        load: |from, mask| _mm512_maskz_loadu_pd(mask, from),
        store: |to, mask, value| _mm512_mask_storeu_pd(to, mask, value)
    );
}
