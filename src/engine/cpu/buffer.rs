//! Dense buffers of f32 that start at a cache line, so that a register never straddles two.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

// SAFETY: a line is sixteen f32 without padding, and every bit pattern is one.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// `len` elements, aligned to 64 bytes.
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Buffer {
    /// Zeros; `None` where there is not enough memory. Pages are mapped when first written, by the thread that writes.
    pub fn zeroed(len: usize) -> Option<Self> {
        let lines = bytemuck::allocation::try_zeroed_vec(len.div_ceil(16)).ok()?;
        Some(Self { lines, len })
    }

    pub fn as_slice(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
