//! The random dense operand: uniform in [-1, 1), a function of seed and position only; and rounding to types of 16 bits.

use super::{Csr, random};
use half::{bf16, f16};
use rayon::prelude::*;

/// `len` values in [-1, 1), identical on any number of threads.
pub fn random(len: usize, seed: u64) -> Vec<f32> {
    (0..len).into_par_iter().with_min_len(1 << 14).map(|i| draw(seed, i)).collect()
}

fn draw(seed: u64, i: usize) -> f32 {
    // 24 bits, so every value is exact in f32, and 1 cannot be reached by rounding.
    let draw = (random::bits(seed, i as u64) >> 40) as f32;
    draw * (1.0 / (1u32 << 23) as f32) - 1.0
}

/// As `random`, with the full precision of f64.
pub fn random_double(len: usize, seed: u64) -> Vec<f64> {
    let draws = (0..len).into_par_iter().with_min_len(1 << 14);
    // Doubling and subtracting are exact for multiples of 2^-52 below 1.
    draws.map(|i| 2.0 * random::unit(random::bits(seed, i as u64)) - 1.0).collect()
}

/// As `random`, rounded to binary16 and returned as bits; 1 can be reached by rounding.
pub fn random_half(len: usize, seed: u64) -> Vec<u16> {
    let draws = (0..len).into_par_iter().with_min_len(1 << 14);
    // Exact in f32, so the conversion is the only rounding.
    draws.map(|i| f16::from_f32(draw(seed, i)).to_bits()).collect()
}

/// As [`random_half`], rounded to bf16.
pub fn random_bf16(len: usize, seed: u64) -> Vec<u16> {
    let draws = (0..len).into_par_iter().with_min_len(1 << 14);
    draws.map(|i| bf16::from_f32(draw(seed, i)).to_bits()).collect()
}

/// The power of two that scales A's largest value to about 1; B is scaled by it. Error scales are kept in f32, so an
/// f64 product of numbers far from 1 could otherwise not be verified.
pub fn balancing(matrix: &Csr) -> f64 {
    let largest = matrix.values().par_iter().map(|value| value.abs()).reduce(|| 0.0, f64::max);
    // Within +-1000, so that small values of B stay normal numbers.
    if largest > 0.0 { 2f64.powi(-(largest.log2() as i32).clamp(-900, 900)) } else { 1.0 }
}

/// Rounds to IEEE binary16, ties to even: 11 significant bits, down to the spacing of subnormals, 2^-24. Too large
/// values become infinite. The crate `half` is not used, because its conversion from f64 rounds twice or drops low bits
/// on some processors.
pub fn round_to_half(value: f64) -> f64 {
    rounded(value, [10, -24], MOST_HALF)
}

/// Rounds to bf16, ties to even: 8 significant bits, down to the spacing of subnormals, 2^-133. Too large values become
/// infinite.
pub fn round_to_bf16(value: f64) -> f64 {
    rounded(value, [7, -133], MOST_BF16)
}

/// Rounds to this many bits of fraction, the last of them worth no less than 2 to the second number.
fn rounded(value: f64, [fraction, least]: [i32; 2], most: f64) -> f64 {
    let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let spacing = 2f64.powi((exponent - fraction).max(least));
    let rounded = (value / spacing).round_ties_even() * spacing;
    if rounded.abs() > most { f64::INFINITY.copysign(value) } else { rounded }
}

/// The largest finite number of binary16.
pub const MOST_HALF: f64 = 65504.0;

/// The largest finite number of bf16, (2 - 2^-7) 2^127.
pub const MOST_BF16: f64 = 338_953_138_925_153_547_590_470_800_371_487_866_880.0;

/// The bits of `round_to_bf16`.
pub fn bf16_bits(value: f64) -> u16 {
    // A number of bf16 is one of binary32 whose lower half is zero.
    ((round_to_bf16(value) as f32).to_bits() >> 16) as u16
}

/// The bits of `round_to_half`.
pub fn half_bits(value: f64) -> u16 {
    f16::from_f64(round_to_half(value)).to_bits()
}

#[cfg(test)]
mod tests {
    use super::{
        bf16, bf16_bits, f16, half_bits, random, random_bf16, random_double, random_half,
        round_to_bf16, round_to_half,
    };

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
        // The same random number with more bits.
        assert!(doubles.iter().zip(&one).all(|(x, &y)| (x - f64::from(y)).abs() < 1.5e-7));
    }

    #[test]
    fn halves_round_as_ieee_says() {
        let cases = [
            (1.0, 1.0),
            (1.0 + 1.0 / 2048.0, 1.0),
            (1.0 + 3.0 / 2048.0, 1.0 + 2.0 / 1024.0),
            // Slightly above the tie, which a conversion through f32 would lose.
            (1.0 + 1.0 / 2048.0 + 2f64.powi(-40), 1.0 + 1.0 / 1024.0),
            (-65504.0, -65504.0),
            (65519.9, 65504.0),
            (65520.0, f64::INFINITY),
            (2f64.powi(-25), 0.0),
            (2f64.powi(-24) * 1.6, 2f64.powi(-23)),
            (0.0, 0.0),
        ];
        for (value, half) in cases {
            assert_eq!(round_to_half(value), half, "{value}");
            assert_eq!(f16::from_bits(half_bits(value)).to_f64(), half, "{value}");
        }
        let all = (0..=u16::MAX).map(f16::from_bits).filter(|half| half.is_finite());
        assert!(all.into_iter().all(|half| half_bits(half.to_f64()) == half.to_bits()));
    }

    #[test]
    fn halves_are_the_same_random_numbers() {
        let halves = random_half(10_000, 5);
        let rounded = random(10_000, 5).into_iter().map(|x| half_bits(f64::from(x)));
        assert!(rounded.eq(halves));
        let rounded = random(10_000, 5).into_iter().map(|x| bf16_bits(f64::from(x)));
        assert!(rounded.eq(random_bf16(10_000, 5)));
    }

    #[test]
    fn upper_halves_of_floats_round_to_even() {
        let cases = [
            (1.0, 1.0),
            (1.0 + 1.0 / 256.0, 1.0),
            (1.0 + 3.0 / 256.0, 1.0 + 2.0 / 128.0),
            // Slightly above the tie, which a conversion through f32 would lose.
            (1.0 + 1.0 / 256.0 + 2f64.powi(-40), 1.0 + 1.0 / 128.0),
            (65520.0, 65536.0),
            (-1e38, -f64::from(bf16::from_f64(1e38))),
            (3.3895e38, f64::from(bf16::MAX)),
            (3.4e38, f64::INFINITY),
            (f64::from(f32::MAX), f64::INFINITY),
            (2f64.powi(-134), 0.0),
            (2f64.powi(-133) * 1.6, 2f64.powi(-132)),
            (0.0, 0.0),
        ];
        for (value, expected) in cases {
            assert_eq!(round_to_bf16(value), expected, "{value}");
            assert_eq!(bf16::from_bits(bf16_bits(value)).to_f64(), expected, "{value}");
        }
        let all = (0..=u16::MAX).map(bf16::from_bits).filter(|number| number.is_finite());
        assert!(all.into_iter().all(|number| bf16_bits(number.to_f64()) == number.to_bits()));
    }
}
