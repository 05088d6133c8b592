//! Shared arrays of zeros.

use bytemuck::Zeroable;
use std::sync::Arc;

/// An array of zeros, to be filled in place: a vector would be copied once more to become an array that recipes share. The pages of a
/// large one are had from the operating system as they are first written, so that all threads which fill it bring them in.
pub fn zeroed<T: Zeroable>(length: usize) -> Arc<[T]> {
    let array = Arc::<[T]>::new_zeroed_slice(length);
    // SAFETY: all bytes are zero, which is a value of such types.
    unsafe { array.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::zeroed;

    #[test]
    fn all_elements_are_zero() {
        assert_eq!(&zeroed::<f64>(1000)[..], &[0.0; 1000]);
        assert!(zeroed::<u32>(0).is_empty());
    }
}
