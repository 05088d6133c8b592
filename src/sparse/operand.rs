//! The random dense operand: uniform in [-1, 1), a function of the seed and the position alone.

use super::random;
use rayon::prelude::*;

/// `len` values in [-1, 1), the same on any number of threads.
pub fn random(len: usize, seed: u64) -> Vec<f32> {
    (0..len)
        .into_par_iter()
        .with_min_len(1 << 14)
        .map(|i| {
            // 24 bits: every value is exact in f32, and 1 cannot be reached by rounding.
            let draw = (random::bits(seed, i as u64) >> 40) as f32;
            draw * (1.0 / (1u32 << 23) as f32) - 1.0
        })
        .collect()
}

/// As `random`, with all bits that f64 has there.
pub fn random_double(len: usize, seed: u64) -> Vec<f64> {
    let draws = (0..len).into_par_iter().with_min_len(1 << 14);
    // Exact: both the doubling and the difference of multiples of 2^-52 below 1.
    draws.map(|i| 2.0 * random::unit(random::bits(seed, i as u64)) - 1.0).collect()
}

#[cfg(test)]
mod tests {
    use super::{random, random_double};

    #[test]
    fn is_in_range_and_the_same_on_any_number_of_threads() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let (one, many) = (pool.install(|| random(100_000, 5)), random(100_000, 5));
        assert_eq!(one, many);
        assert_ne!(one, random(100_000, 6));
        assert!(one.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean = one.iter().map(|&x| f64::from(x)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.01);
        assert!(random(0, 1).is_empty());
        let doubles = random_double(100_000, 5);
        assert!(doubles.iter().all(|x| (-1.0..1.0).contains(x)));
        // The same draw, more of its bits.
        assert!(doubles.iter().zip(&one).all(|(x, &y)| (x - f64::from(y)).abs() < 1.5e-7));
    }
}
