//! Prediction error of a model over the trials of a job: bias, spread and rank correlation.

use crate::domain::plan::ModelError;

/// The error of a model over pairs of predicted and measured times. Pairs that are not both positive and finite are ignored;
/// `None` if no pair is left.
pub fn model_error(model: &str, pairs: &[(f64, f64)]) -> Option<ModelError> {
    let sound = |us: f64| us.is_finite() && us > 0.0;
    let pairs: Vec<(f64, f64)> =
        pairs.iter().copied().filter(|&(predicted, us)| sound(predicted) && sound(us)).collect();
    if pairs.is_empty() {
        return None;
    }
    let errors: Vec<f64> = pairs.iter().map(|(predicted, us)| (us / predicted).ln()).collect();
    let mean = mean(&errors);
    let variance = errors.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / errors.len() as f64;
    let (predicted, measured): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    Some(ModelError {
        model: model.to_owned(),
        trials: errors.len() as u32,
        median_ratio: mean.exp(),
        spread: variance.sqrt().exp(),
        rank_correlation: correlation(&ranks(&predicted), &ranks(&measured)),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Ranks from 0; equal values get their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = |value: &f64| {
        let first = sorted.partition_point(|other| other < value);
        let behind = sorted.partition_point(|other| other <= value);
        (first + behind - 1) as f64 / 2.0
    };
    values.iter().map(rank).collect()
}

/// Pearson's correlation; `None` if one side is constant.
fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| term(a - mean_a, b - mean_b)).sum()
    };
    let (both, first, second) = (sum(&|a, b| a * b), sum(&|a, _| a * a), sum(&|_, b| b * b));
    (first > 0.0 && second > 0.0).then(|| (both / (first * second).sqrt()).clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_factor_is_bias_without_spread() {
        let pairs = [(1.0, 2.0), (3.0, 6.0), (2.0, 4.0), (f64::INFINITY, 1.0)];
        let error = model_error("m", &pairs).unwrap();
        assert_eq!((error.model.as_str(), error.trials), ("m", 3));
        assert!((error.median_ratio - 2.0).abs() < 1e-12 && (error.spread - 1.0).abs() < 1e-6);
        assert!((error.rank_correlation.unwrap() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn bias_spread_and_rank_are_independent() {
        // Ratios 2 and 1/2, in the wrong order.
        let error = model_error("m", &[(2.0, 4.0), (10.0, 5.0), (3.0, 3.0)]).unwrap();
        assert!((error.median_ratio - 1.0).abs() < 1e-12, "{error:?}");
        let spread = (2.0 * 2f64.ln().powi(2) / 3.0).sqrt().exp();
        assert!((error.spread - spread).abs() < 1e-12, "{error:?}");
        // Ranks 0 2 1 and 1 2 0: 1 - 6 (1 + 0 + 1) / (3 (9 - 1)).
        assert!((error.rank_correlation.unwrap() - 0.5).abs() < 1e-12, "{error:?}");
    }

    #[test]
    fn constant_values_have_no_correlation() {
        assert_eq!(model_error("m", &[]), None);
        let error = model_error("m", &[(1.0, 1.0)]).unwrap();
        assert_eq!((error.spread, error.rank_correlation), (1.0, None));
        assert_eq!(model_error("m", &[(1.0, 2.0), (1.0, 3.0)]).unwrap().rank_correlation, None);
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 9.0]), [1.5, 0.0, 1.5, 3.0]);
    }
}
