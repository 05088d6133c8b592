//! Compares an output with the reference; the buffer was poisoned before the call.

use crate::engine::Check;
use crate::sparse::oracle::Product;
use rayon::prelude::*;

/// A quiet NaN that no computation produces; an element that still holds it was not written.
pub const POISON: u32 = 0x7fc0_dead;

/// Keeps the error finite if the scale is zero and the output is exact.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// Minimum number of elements per parallel task.
const MIN_LEN: usize = 1 << 14;

/// Fills the output with the poison.
pub fn poison(output: &mut [f32]) {
    output.par_chunks_mut(MIN_LEN).for_each(|chunk| chunk.fill(f32::from_bits(POISON)));
}

/// The largest componentwise error, with NaN counting as infinity, at the first such element.
pub fn compare(output: &[f32], reference: &Product) -> Check {
    let elements = output.par_iter().zip(&reference.value).zip(&reference.scale).enumerate();
    let none = || Check { rel_error: 0.0, unwritten: 0, worst: 0 };
    let check =
        elements.with_min_len(MIN_LEN).fold(none, |mut check, (i, ((&c, &value), &scale))| {
            let error = (f64::from(c) - value).abs() / (f64::from(scale) + TINY);
            let error = if error.is_nan() { f64::INFINITY } else { error };
            if error > check.rel_error {
                (check.rel_error, check.worst) = (error, i as u64);
            }
            check.unwritten += u64::from(c.to_bits() == POISON);
            check
        });
    check.reduce(none, |a, b| {
        let a_is_worse =
            a.rel_error > b.rel_error || (a.rel_error == b.rel_error && a.worst <= b.worst);
        let worst = if a_is_worse { a } else { b };
        Check { unwritten: a.unwritten + b.unwritten, ..worst }
    })
}

#[cfg(test)]
mod tests {
    use super::{compare, poison};
    use crate::sparse::oracle::Product;

    #[test]
    fn finds_the_largest_error_and_unwritten_elements() {
        let len = 100_000;
        let reference = Product { value: vec![1.0; len], scale: vec![2.0; len] };
        let mut output = vec![0.0; len];
        poison(&mut output);
        assert_eq!(compare(&output, &reference).unwritten, len as u64);
        output.fill(1.0);
        assert_eq!(compare(&output, &reference).rel_error, 0.0);
        output[70_000] = 1.5;
        let check = compare(&output, &reference);
        assert_eq!((check.rel_error, check.worst, check.unwritten), (0.25, 70_000, 0));
        output[80_000] = f32::NAN;
        let check = compare(&output, &reference);
        assert_eq!((check.rel_error, check.worst, check.unwritten), (f64::INFINITY, 80_000, 0));
        assert_eq!(compare(&[], &Product::default()).rel_error, 0.0);
    }
}
