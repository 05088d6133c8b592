//! Compares an output with the reference; the buffer was poisoned before the call.

use super::element::Element;
use crate::engine::Check;
use crate::sparse::oracle::Product;
use rayon::prelude::*;

/// Keeps the error finite if the scale is zero and the output is exact. Scales are in f32.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// Minimum number of elements per parallel task.
const MIN_LEN: usize = 1 << 14;

/// Fills the output with the poison.
pub fn poison<T: Element>(output: &mut [T]) {
    output.par_chunks_mut(MIN_LEN).for_each(|chunk| chunk.fill(T::POISON));
}

/// The largest componentwise error, with NaN counting as infinity, at the first such element. `without` is an initial C and
/// the beta by which it is part of the reference, but not of the output.
pub fn compare<T: Element>(
    output: &[T],
    reference: &Product,
    without: Option<(&[T], f64)>,
) -> Check {
    let elements = output.par_iter().zip(&reference.value).zip(&reference.scale).enumerate();
    let none = || Check { rel_error: 0.0, unwritten: 0, worst: 0 };
    let check =
        elements.with_min_len(MIN_LEN).fold(none, |mut check, (i, ((&c, &value), &scale))| {
            let value = value - without.map_or(0.0, |(initial, beta)| beta * initial[i].into());
            let error = (c.into() - value).abs() / (f64::from(scale) + TINY);
            let error = if error.is_nan() { f64::INFINITY } else { error };
            if error > check.rel_error {
                (check.rel_error, check.worst) = (error, i as u64);
            }
            check.unwritten += u64::from(c.is_poison());
            check
        });
    check.reduce(none, worse)
}

/// Combines two checks: the larger error (the first if equal), and the sum of unwritten elements.
pub fn worse(a: Check, b: Check) -> Check {
    let a_is_worse =
        a.rel_error > b.rel_error || (a.rel_error == b.rel_error && a.worst <= b.worst);
    Check { unwritten: a.unwritten + b.unwritten, ..if a_is_worse { a } else { b } }
}

#[cfg(test)]
mod tests {
    use super::{compare, poison};
    use crate::sparse::oracle::Product;

    #[test]
    fn finds_the_largest_error_and_unwritten_elements() {
        let len = 100_000;
        let reference = Product { value: vec![1.0; len], scale: vec![2.0; len] };
        let mut output = vec![0f32; len];
        poison(&mut output);
        assert_eq!(compare(&output, &reference, None).unwritten, len as u64);
        output.fill(1.0);
        assert_eq!(compare(&output, &reference, None).rel_error, 0.0);
        output[70_000] = 1.5;
        let check = compare(&output, &reference, None);
        assert_eq!((check.rel_error, check.worst, check.unwritten), (0.25, 70_000, 0));
        let initial = vec![4f32; len];
        assert_eq!(compare(&output, &reference, Some((&initial, -0.25))).worst, 0);
        output[80_000] = f32::NAN;
        let check = compare(&output, &reference, None);
        assert_eq!((check.rel_error, check.worst, check.unwritten), (f64::INFINITY, 80_000, 0));
        assert_eq!(compare::<f64>(&[], &Product::default(), None).rel_error, 0.0);
    }
}
