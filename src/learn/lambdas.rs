//! The gradients of LambdaRank (Burges, MSR-TR-2010-82, section 4): each pair of rows with different gains is pushed apart
//! in proportion to the change of NDCG if the two were exchanged.

use super::grow::Slope;
use super::ndcg;

/// The properties of a list of rows that are constant during training.
#[derive(Clone, Debug)]
pub struct Pull {
    /// Only pairs with at least one row ranked among the first `truncation` count.
    pub truncation: usize,
    /// 1 / (discounted gain of the ideal order); 0 if no row has a gain.
    pub inverse_ideal: f64,
    /// Divide by the score difference, and damp lists with many pairs (LightGBM's `lambdarank_norm`).
    pub normalise: bool,
}

impl Pull {
    pub fn of(gains: &[f64], truncation: usize, normalise: bool) -> Self {
        let ideal = ndcg::ideal(gains, truncation);
        let inverse_ideal = if ideal > 0.0 { 1.0 / ideal } else { 0.0 };
        Self { truncation, inverse_ideal, normalise }
    }

    /// Derivatives of the loss, the sum over pairs of weight x ln(1 + exp(worse - better)), with constant weights.
    pub fn slopes(&self, gains: &[f64], scores: &[f64]) -> Vec<Slope> {
        let mut slopes = vec![Slope::default(); gains.len()];
        let mut total = 0.0;
        self.each_pair(gains, scores, |better, worse, weight| {
            let wrong = 1.0 / (1.0 + (scores[better] - scores[worse]).exp());
            let (pull, curvature) = (wrong * weight, wrong * (1.0 - wrong) * weight);
            slopes[better].gradient -= pull;
            slopes[worse].gradient += pull;
            slopes[better].hessian += curvature;
            slopes[worse].hessian += curvature;
            total += 2.0 * pull;
        });
        if self.normalise && total > 0.0 {
            let factor = (1.0 + total).log2() / total;
            for slope in &mut slopes {
                slope.gradient *= factor;
                slope.hessian *= factor;
            }
        }
        slopes
    }

    /// Every counted pair with different gains: better row, worse row, weight.
    fn each_pair(&self, gains: &[f64], scores: &[f64], mut pair: impl FnMut(usize, usize, f64)) {
        if self.inverse_ideal <= 0.0 {
            return;
        }
        let order = ndcg::order(scores);
        let discounts: Vec<f64> = (0..order.len()).map(ndcg::discount).collect();
        let spread = match (order.first(), order.last()) {
            (Some(&first), Some(&last)) => scores[first as usize] - scores[last as usize],
            _ => 0.0,
        };
        for (place, &a) in order.iter().enumerate().take(self.truncation) {
            for (later, &b) in order.iter().enumerate().skip(place + 1) {
                let (a, b) = (a as usize, b as usize);
                let gained = gains[a] - gains[b];
                if gained == 0.0 {
                    continue;
                }
                let moved = discounts[place] - discounts[later];
                let mut weight = gained.abs() * moved * self.inverse_ideal;
                if self.normalise && spread > 0.0 {
                    weight /= 0.01 + (scores[a] - scores[b]).abs();
                }
                if gained > 0.0 { pair(a, b, weight) } else { pair(b, a, weight) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Pull;
    use crate::sparse::random::Stream;

    /// The loss whose derivatives the lambdas are, with the pairs' weights taken at `at`.
    fn loss(pull: &Pull, gains: &[f64], at: &[f64], scores: &[f64]) -> f64 {
        let mut sum = 0.0;
        pull.each_pair(gains, at, |better, worse, weight| {
            sum += weight * (scores[worse] - scores[better]).exp().ln_1p();
        });
        sum
    }

    #[test]
    fn slopes_match_finite_differences_of_the_pairwise_loss() {
        let mut random = Stream::new(5, 0);
        for (rows, truncation) in [(2, 1), (7, 3), (12, 20)] {
            let gains: Vec<f64> = (0..rows).map(|_| (random.unit() * 4.0).floor() / 4.0).collect();
            let scores: Vec<f64> = (0..rows).map(|_| random.normal()).collect();
            let pull = Pull::of(&gains, truncation, false);
            let slopes = pull.slopes(&gains, &scores);
            let h = 1e-4;
            for row in 0..rows {
                let moved = |by: f64| {
                    let mut moved = scores.clone();
                    moved[row] += by;
                    loss(&pull, &gains, &scores, &moved)
                };
                let gradient = (moved(h) - moved(-h)) / (2.0 * h);
                let hessian = (moved(h) - 2.0 * moved(0.0) + moved(-h)) / (h * h);
                assert!((gradient - slopes[row].gradient).abs() < 1e-8, "{row}: {gradient}");
                assert!((hessian - slopes[row].hessian).abs() < 1e-6, "{row}: {hessian}");
            }
        }
    }

    #[test]
    fn weights_equal_the_change_of_ndcg_by_an_exchange() {
        let (gains, scores) = ([0.25, 1.0, 0.0, 0.5], [0.3, 0.1, 0.9, 0.2]);
        let pull = Pull::of(&gains, 4, false);
        let before = crate::learn::ndcg::ndcg(&gains, &scores, 4);
        let mut pairs = 0;
        pull.each_pair(&gains, &scores, |a, b, weight| {
            let mut exchanged = scores;
            exchanged.swap(a, b);
            let change = crate::learn::ndcg::ndcg(&gains, &exchanged, 4) - before;
            assert!((change.abs() - weight).abs() < 1e-12, "{a} {b}: {change} {weight}");
            pairs += 1;
        });
        assert_eq!(pairs, 6);
    }

    #[test]
    fn only_pairs_within_the_truncation_count() {
        let gains: Vec<f64> = (0..10).map(f64::from).collect();
        let scores: Vec<f64> = (0..10).map(|row| -f64::from(row)).collect();
        let pull = Pull::of(&gains, 2, false);
        let mut pairs = Vec::new();
        pull.each_pair(&gains, &scores, |better, worse, _| pairs.push((better, worse)));
        assert_eq!(pairs.len(), 9 + 8);
        assert!(pairs.iter().all(|&(better, worse)| worse < 2 && worse < better));
    }

    #[test]
    fn normalisation_scales_all_slopes_of_a_list_equally() {
        let (gains, scores) = ([1.0, 0.0, 0.5], [0.0; 3]);
        let plain = Pull::of(&gains, 3, false).slopes(&gains, &scores);
        let scaled = Pull::of(&gains, 3, true).slopes(&gains, &scores);
        let total: f64 = plain.iter().map(|slope| slope.gradient.max(0.0)).sum();
        assert!(total > 0.0);
        let factor = scaled[0].gradient / plain[0].gradient;
        for (plain, scaled) in plain.iter().zip(&scaled) {
            assert!((scaled.gradient - factor * plain.gradient).abs() < 1e-15);
            assert!((scaled.hessian - factor * plain.hessian).abs() < 1e-15);
        }
    }

    #[test]
    fn equal_gains_have_zero_slopes() {
        for gains in [&[][..], &[1.0], &[0.5; 4], &[0.0; 3]] {
            let scores = vec![0.0; gains.len()];
            let slopes = Pull::of(gains, 5, true).slopes(gains, &scores);
            assert!(slopes.iter().all(|slope| slope.gradient == 0.0 && slope.hessian == 0.0));
        }
    }
}
