//! Dense buffers aligned to cache lines, so that a vector load never crosses two lines.

use bytemuck::{Pod, Zeroable};
use std::marker::PhantomData;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

// SAFETY: a line is sixteen f32 without padding, and every bit pattern is valid.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// `len` elements, aligned to 64 bytes.
pub struct Buffer<T = f32> {
    lines: Vec<Line>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// A zeroed buffer; `None` if there is not enough memory. Pages are mapped on first write, by the writing thread.
    pub fn zeroed(len: usize) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<T>())?;
        let lines = bytemuck::allocation::try_zeroed_vec(bytes.div_ceil(size_of::<Line>())).ok()?;
        Some(Self { lines, len, element: PhantomData })
    }

    pub fn as_slice(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
