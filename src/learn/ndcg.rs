//! Normalised discounted cumulative gain: the quality of the head of a ranked list (Järvelin and Kekäläinen, TOIS 2002).

/// Discount of a position: 1 for position 0, then falling with the reciprocal of the logarithm.
pub fn discount(place: usize) -> f64 {
    1.0 / (place as f64 + 2.0).log2()
}

/// Rows in descending order of score; rows with equal scores stay in order.
pub fn order(scores: &[f64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    order.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
    order
}

/// The discounted gain of the first `k` rows in ideal order.
pub fn ideal(gains: &[f64], k: usize) -> f64 {
    let mut sorted = gains.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted.iter().take(k).enumerate().map(|(place, gain)| gain * discount(place)).sum()
}

/// NDCG of the first `k` rows by score, from 0 to 1; 1 for a list without any gain.
pub fn ndcg(gains: &[f64], scores: &[f64], k: usize) -> f64 {
    let ideal = ideal(gains, k);
    if ideal <= 0.0 {
        return 1.0;
    }
    let order = order(scores);
    let first = order.iter().take(k).enumerate();
    first.map(|(place, &row)| gains[row as usize] * discount(place)).sum::<f64>() / ideal
}

#[cfg(test)]
mod tests {
    use super::ndcg;

    #[test]
    fn matches_the_manual_computation() {
        let gains = [0.0, 3.0, 1.0];
        // Order 2, 0, 1: gain 1 at the first position, 3 at the third (discount one half); the ideal is 3, then 1.
        let ideal = 3.0 + 1.0 / 3f64.log2();
        assert!((ndcg(&gains, &[1.0, 0.5, 2.0], 10) - (1.0 + 1.5) / ideal).abs() < 1e-15);
        assert!((ndcg(&gains, &[1.0, 0.5, 2.0], 1) - 1.0 / 3.0).abs() < 1e-15);
        assert_eq!(ndcg(&gains, &[0.0, 2.0, 1.0], 10), 1.0);
    }

    #[test]
    fn the_earlier_row_wins_ties() {
        assert_eq!(ndcg(&[1.0, 0.0], &[5.0, 5.0], 1), 1.0);
        assert_eq!(ndcg(&[0.0, 1.0], &[5.0, 5.0], 1), 0.0);
        assert_eq!(ndcg(&[0.0, 1.0], &[-0.0, 0.0], 1), 1.0, "in the total order -0 is below 0");
    }

    #[test]
    fn a_list_without_gain_is_perfect() {
        assert_eq!(ndcg(&[0.0, 0.0], &[1.0, 2.0], 10), 1.0);
        assert_eq!(ndcg(&[], &[], 10), 1.0);
    }
}
