//! A trait for the host's vector registers, so that each kernel is written once: AVX-512, AVX2, and plain arrays that
//! the compiler vectorises for the baseline instruction set (NEON on aarch64, SSE2 on x86-64).

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

/// One vector register of f32, and a mask of its lanes.
///
/// # Safety
/// Functions may be called only if the host has the instruction set. Loads and stores access exactly the unmasked lanes.
pub unsafe trait Simd: Copy {
    const LANES: usize;
    type Mask: Copy;

    unsafe fn zero() -> Self;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// self * other + sum
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// The first `lanes` lanes; all of them for any larger number.
    unsafe fn mask(lanes: usize) -> Self::Mask;
    /// Masked lanes read as zero.
    unsafe fn load_masked(from: *const f32, mask: Self::Mask) -> Self;
    unsafe fn store_masked(self, to: *mut f32, mask: Self::Mask);
}

/// Four lanes that the compiler maps to baseline registers. If the baseline has no fused multiply-add, the product is
/// rounded, since a fused operation would be a library call.
#[derive(Clone, Copy)]
pub struct Plain([f32; 4]);

// SAFETY: no special instructions; `load_masked` and `store_masked` access only the first `mask` lanes.
unsafe impl Simd for Plain {
    const LANES: usize = 4;
    type Mask = usize;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; 4])
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller guarantees four readable elements; [f32; 4] has the alignment of f32.
        Self(unsafe { *from.cast::<[f32; 4]>() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as in `load`, for writing.
        unsafe { *to.cast::<[f32; 4]>() = self.0 }
    }

    #[inline(always)]
    unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
        Self(std::array::from_fn(|i| {
            if cfg!(target_arch = "aarch64") {
                self.0[i].mul_add(other.0[i], sum.0[i])
            } else {
                self.0[i] * other.0[i] + sum.0[i]
            }
        }))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    #[inline(always)]
    unsafe fn mask(lanes: usize) -> usize {
        lanes.min(4)
    }

    #[inline(always)]
    unsafe fn load_masked(from: *const f32, mask: usize) -> Self {
        let mut lanes = [0.0; 4];
        for (i, lane) in lanes.iter_mut().enumerate().take(mask) {
            // SAFETY: the caller guarantees access to the unmasked lanes.
            *lane = unsafe { *from.add(i) };
        }
        Self(lanes)
    }

    #[inline(always)]
    unsafe fn store_masked(self, to: *mut f32, mask: usize) {
        for (i, &lane) in self.0.iter().enumerate().take(mask) {
            // SAFETY: the caller guarantees access to the unmasked lanes.
            unsafe { *to.add(i) = lane };
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub struct Avx2(__m256);

    // SAFETY: each method is the corresponding intrinsic; masked-out lanes are not accessed (Intel SDM, VMASKMOV).
    unsafe impl Simd for Avx2 {
        const LANES: usize = 8;
        type Mask = __m256i;

        #[inline(always)]
        unsafe fn zero() -> Self {
            Self(unsafe { _mm256_setzero_ps() })
        }

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            Self(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Self(unsafe { _mm256_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
            Self(unsafe { _mm256_fmadd_ps(self.0, other.0, sum.0) })
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn mask(lanes: usize) -> __m256i {
            unsafe {
                let bound = _mm256_set1_epi32(lanes.min(8) as i32);
                _mm256_cmpgt_epi32(bound, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
            }
        }

        #[inline(always)]
        unsafe fn load_masked(from: *const f32, mask: __m256i) -> Self {
            Self(unsafe { _mm256_maskload_ps(from, mask) })
        }

        #[inline(always)]
        unsafe fn store_masked(self, to: *mut f32, mask: __m256i) {
            unsafe { _mm256_maskstore_ps(to, mask, self.0) }
        }
    }

    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    // SAFETY: each method is the corresponding intrinsic; masked-out lanes are not accessed.
    unsafe impl Simd for Avx512 {
        const LANES: usize = 16;
        type Mask = __mmask16;

        #[inline(always)]
        unsafe fn zero() -> Self {
            Self(unsafe { _mm512_setzero_ps() })
        }

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            Self(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Self(unsafe { _mm512_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn mul_add(self, other: Self, sum: Self) -> Self {
            Self(unsafe { _mm512_fmadd_ps(self.0, other.0, sum.0) })
        }

        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn mask(lanes: usize) -> __mmask16 {
            if lanes >= 16 { u16::MAX } else { (1 << lanes) - 1 }
        }

        #[inline(always)]
        unsafe fn load_masked(from: *const f32, mask: __mmask16) -> Self {
            Self(unsafe { _mm512_maskz_loadu_ps(mask, from) })
        }

        #[inline(always)]
        unsafe fn store_masked(self, to: *mut f32, mask: __mmask16) {
            unsafe { _mm512_mask_storeu_ps(to, mask, self.0) }
        }
    }
}
