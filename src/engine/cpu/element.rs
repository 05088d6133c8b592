//! The element types of the CPU kernels.

use crate::domain::Dtype;
use crate::engine::Dense;
use bytemuck::Pod;
use std::sync::Arc;

/// f32 or f64.
pub trait Element: Pod + Send + Sync + Into<f64> + PartialEq {
    const NAME: &'static str;
    const DTYPE: Dtype;
    const ZERO: Self;
    /// A quiet NaN that no computation produces; an element that still holds it was not written.
    const POISON: Self;

    fn of(value: f64) -> Self;
    /// The operand's elements, if they are of this type.
    fn of_dense(dense: &Dense) -> Option<Arc<[Self]>>;
    /// 1 / self, if that is a normal number.
    fn reciprocal(self) -> Option<Self>;
    /// self - a * x; fused only if the host has the instruction, since otherwise it would be a library call.
    fn sub_mul<const FUSED: bool>(self, a: Self, x: Self) -> Self;
    /// self * other + sum; fused as above.
    fn mul_add<const FUSED: bool>(self, other: Self, sum: Self) -> Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn is_poison(self) -> bool;
}

macro_rules! element {
    ($type:ty, $variant:ident, $poison:literal) => {
        impl Element for $type {
            const NAME: &'static str = Dtype::$variant.name();
            const DTYPE: Dtype = Dtype::$variant;
            const ZERO: Self = 0.0;
            const POISON: Self = <$type>::from_bits($poison);

            fn of(value: f64) -> Self {
                value as Self
            }
            fn of_dense(dense: &Dense) -> Option<Arc<[Self]>> {
                match dense {
                    Dense::$variant(elements) => Some(elements.clone()),
                    _ => None,
                }
            }
            fn reciprocal(self) -> Option<Self> {
                Some(1.0 / self).filter(|inverse| inverse.is_normal())
            }
            #[inline(always)]
            fn sub_mul<const FUSED: bool>(self, a: Self, x: Self) -> Self {
                if FUSED { <$type>::mul_add(-a, x, self) } else { self - a * x }
            }
            #[inline(always)]
            fn mul_add<const FUSED: bool>(self, other: Self, sum: Self) -> Self {
                if FUSED { <$type>::mul_add(self, other, sum) } else { self * other + sum }
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }
            fn is_poison(self) -> bool {
                self.to_bits() == $poison
            }
        }
    };
}
element!(f32, F32, 0x7fc0_dead);
element!(f64, F64, 0x7ff8_dead_dead_dead);
