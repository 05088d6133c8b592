//! Counter-based random numbers (SplitMix64; Steele, Lea and Flood, OOPSLA 2014): number `i` is a function of seed and
//! `i` only, so arrays are identical when filled by any number of threads.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's output function: a bijection that scrambles all 64 bits.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// 64 random bits determined by (`seed`, `index`).
pub fn bits(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(GOLDEN.wrapping_mul(index.wrapping_add(1))))
}

/// The upper 53 bits as a number in [0, 1).
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// A separate random stream, for example for one row or tree node.
pub struct Stream {
    seed: u64,
    next: u64,
}

impl Stream {
    pub fn new(seed: u64, which: u64) -> Self {
        // Mixed twice, so that adjacent streams are not shifted copies of one sequence.
        Self { seed: mix(bits(seed, which)), next: 0 }
    }

    pub fn bits(&mut self) -> u64 {
        self.next += 1;
        bits(self.seed, self.next)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        unit(self.bits())
    }

    /// Uniform in [low, high).
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in 0..bound, by multiply-shift with a bias below bound / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Standard normal (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        normal(self.unit(), self.unit())
    }

    /// Binomial(trials, p): exact for few trials, else the normal approximation, rounded and clamped.
    pub fn binomial(&mut self, trials: u64, p: f64) -> u64 {
        if trials <= 24 {
            return (0..trials).filter(|_| self.unit() < p).count() as u64;
        }
        let mean = trials as f64 * p;
        if mean < 12.0 {
            return self.waiting_times(trials, p);
        }
        if trials as f64 - mean < 12.0 {
            return trials - self.waiting_times(trials, 1.0 - p);
        }
        let deviation = (mean * (1.0 - p)).sqrt();
        (mean + deviation * self.normal()).round().clamp(0.0, trials as f64) as u64
    }

    /// Binomial by geometric gaps between successes: exact, and fast if successes are rare.
    fn waiting_times(&mut self, trials: u64, p: f64) -> u64 {
        if p <= 0.0 {
            return 0;
        }
        if p >= 1.0 {
            return trials;
        }
        let (mut at, mut successes) = (0.0, 0);
        loop {
            at += ((1.0 - self.unit()).ln() / (-p).ln_1p()).floor() + 1.0;
            if at > trials as f64 {
                return successes;
            }
            successes += 1;
        }
    }
}

/// Box-Muller: a standard normal number from two uniform numbers in [0, 1).
pub fn normal(u: f64, v: f64) -> f64 {
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[cfg(test)]
mod tests {
    use super::{Stream, mix};

    #[test]
    fn is_splitmix64() {
        // The first outputs of the published generator for seed 0.
        assert_eq!(mix(super::GOLDEN), 0xe220_a839_7b1d_cdaf);
        assert_eq!(super::bits(0, 1), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn moments_are_correct() {
        let mut stream = Stream::new(7, 3);
        for (trials, p) in [(20, 0.3), (1000, 0.004), (1000, 0.5), (1000, 0.995)] {
            let draws = 4000;
            let sum: u64 = (0..draws).map(|_| stream.binomial(trials, p)).sum();
            let (mean, expected) = (sum as f64 / draws as f64, trials as f64 * p);
            let error = 5.0 * (expected * (1.0 - p) / draws as f64).sqrt();
            assert!((mean - expected).abs() < error, "{trials} {p}: {mean}");
        }
        let squares: f64 = (0..20_000).map(|_| stream.normal().powi(2)).sum();
        assert!((squares / 20_000.0 - 1.0).abs() < 0.06);
        assert_eq!(stream.binomial(10, 0.0) + stream.binomial(1000, 0.0), 0);
        assert_eq!(stream.binomial(1000, 1.0), 1000);
    }
}
