//! Corrects predictions by observed times: kernel ridge regression of the logarithmic error on families and parameter values
//! (the similarity of two candidates is the number of values they share), with an estimate of its uncertainty.

use crate::domain::Candidate;

/// Most observations used, the best ones: more hardly change the result, and the cost grows with their cube.
const MOST: usize = 48;
/// Ridge parameter: how much of an observed error is attributed to noise.
const RIDGE: f64 = 0.3;
/// Exploration bonus, in logarithms, for a candidate unlike all observed ones.
const OPTIMISM: f64 = 0.3;
/// A failed candidate counts as this many times slower than predicted.
const FAILED: f64 = 4.0;

/// A regression fitted to the observations.
pub struct Correction<'a> {
    seen: Vec<Seen<'a>>,
    /// Mean error, in logarithms.
    mean: f64,
    /// Inverse of the regularised similarity matrix, row-major.
    inverse: Vec<f64>,
    /// The inverse times the errors relative to their mean.
    weights: Vec<f64>,
}

struct Seen<'a> {
    candidate: &'a Candidate,
    error: f64,
    /// Square root of the weight, which is larger for times near the best: differences among slow candidates do not matter.
    root: f64,
}

impl<'a> Correction<'a> {
    /// `observed` are candidates with predicted and measured microseconds; `None` for a failure.
    pub fn of(observed: impl Iterator<Item = (&'a Candidate, f64, Option<f64>)>) -> Self {
        // What no model can predict tells nothing of its errors.
        let mut timed: Vec<(&Candidate, f64, f64)> = observed
            .filter(|(_, predicted, _)| predicted.is_finite())
            .map(|(candidate, predicted, us)| {
                let predicted = predicted.max(f64::MIN_POSITIVE);
                (candidate, predicted, us.unwrap_or(FAILED * predicted).max(f64::MIN_POSITIVE))
            })
            .collect();
        timed.sort_by(|a, b| a.2.total_cmp(&b.2).then_with(|| a.0.cmp(b.0)));
        timed.truncate(MOST);
        let best = timed.first().map_or(1.0, |(_, _, us)| *us);
        let seen: Vec<Seen> = timed
            .into_iter()
            .map(|(candidate, predicted, us)| {
                let error = (us / predicted).ln();
                Seen { candidate, error, root: (best / us).sqrt() }
            })
            .collect();
        let total: f64 = seen.iter().map(|one| one.root * one.root).sum();
        let mean = seen.iter().map(|one| one.root * one.root * one.error).sum::<f64>();
        let mean = if total > 0.0 { mean / total } else { 0.0 };
        let size = seen.len();
        let mut likeness = vec![0.0; size * size];
        for (i, a) in seen.iter().enumerate() {
            for (j, b) in seen.iter().enumerate() {
                let ridge = if i == j { RIDGE } else { 0.0 };
                likeness[i * size + j] = a.root * b.root * alike(a.candidate, b.candidate) + ridge;
            }
        }
        let inverse = inverse(likeness, size);
        let errors: Vec<f64> = seen.iter().map(|one| one.root * (one.error - mean)).collect();
        let weights = rows(&inverse, size).map(|row| dot(row, &errors)).collect();
        Self { seen, mean, inverse, weights }
    }

    /// Lower confidence bound of the logarithm of a candidate's time: the corrected prediction minus a multiple of the uncertainty.
    pub fn lower_confidence_bound(&self, candidate: &Candidate, predicted_us: f64) -> f64 {
        let near: Vec<f64> =
            self.seen.iter().map(|one| one.root * alike(one.candidate, candidate)).collect();
        let known: f64 = rows(&self.inverse, self.seen.len())
            .zip(&near)
            .map(|(row, k)| k * dot(row, &near))
            .sum();
        let all = alike(candidate, candidate);
        let doubt = (1.0 - known / all).max(0.0).sqrt();
        let predicted = predicted_us.max(f64::MIN_POSITIVE).ln();
        predicted + self.mean + dot(&self.weights, &near) - OPTIMISM * doubt
    }
}

/// Similarity of two candidates: the family, each shared parameter value, and each again if the family is the same.
fn alike(a: &Candidate, b: &Candidate) -> f64 {
    let shared = a.params.iter().filter(|(name, value)| b.params.get(*name) == Some(*value));
    let (shared, family) = (shared.count() as f64, f64::from(u8::from(a.family == b.family)));
    family + shared * (1.0 + family)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn rows(matrix: &[f64], size: usize) -> impl Iterator<Item = &[f64]> {
    matrix.chunks(size.max(1))
}

/// Gauss-Jordan; the matrix is symmetric and positive definite, so no pivoting is needed.
fn inverse(mut a: Vec<f64>, size: usize) -> Vec<f64> {
    let mut inverse = vec![0.0; size * size];
    (0..size).for_each(|i| inverse[i * size + i] = 1.0);
    for pivot in 0..size {
        let by = 1.0 / a[pivot * size + pivot];
        for column in 0..size {
            a[pivot * size + column] *= by;
            inverse[pivot * size + column] *= by;
        }
        for row in (0..size).filter(|row| *row != pivot) {
            let times = a[row * size + pivot];
            for column in 0..size {
                a[row * size + column] -= times * a[pivot * size + column];
                inverse[row * size + column] -= times * inverse[pivot * size + column];
            }
        }
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(unroll: i64, ways: i64) -> Candidate {
        Candidate::new("row_split").with("unroll", unroll).with("ways", ways)
    }

    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        let a = vec![4.0, 1.0, 0.5, 1.0, 3.0, 0.25, 0.5, 0.25, 2.0];
        let b = inverse(a.clone(), 3);
        for (i, row) in a.chunks(3).enumerate() {
            for j in 0..3 {
                let product: f64 = (0..3).map(|k| row[k] * b[k * 3 + j]).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_value_slower_than_predicted_has_a_higher_bound() {
        let (slow, fast) = (of(2, 1), of(4, 1));
        let observed = [(&slow, 10.0, Some(20.0)), (&fast, 10.0, Some(10.0))];
        let correction = Correction::of(observed.into_iter());
        assert!(
            correction.lower_confidence_bound(&of(4, 2), 10.0)
                < correction.lower_confidence_bound(&of(2, 2), 10.0)
        );
        // Observed candidates are less uncertain than unobserved ones.
        let doubtful = Candidate::new("tiled").with("rows", 64);
        assert!(correction.lower_confidence_bound(&doubtful, 10.0) < 10f64.ln() + correction.mean);
    }

    #[test]
    fn an_infinite_prediction_corrects_nothing() {
        let (known, unknown) = (of(2, 1), of(4, 2));
        let observed = [(&known, 10.0, Some(20.0)), (&unknown, f64::INFINITY, Some(30.0))];
        let with = Correction::of(observed.into_iter());
        let without = Correction::of([(&known, 10.0, Some(20.0))].into_iter());
        let bounds = [with, without].map(|it| it.lower_confidence_bound(&of(2, 2), 10.0));
        assert!(bounds[0].is_finite() && bounds[0] == bounds[1]);
    }

    #[test]
    fn without_observations_predictions_are_unchanged_and_failures_count_as_slow() {
        let nothing = Correction::of(std::iter::empty());
        assert!(
            nothing.lower_confidence_bound(&of(2, 1), 10.0)
                < nothing.lower_confidence_bound(&of(2, 1), 11.0)
        );
        let (failed, good) = (of(2, 1), of(4, 2));
        let observed = [(&failed, 10.0, None), (&good, 10.0, Some(10.0))];
        let correction = Correction::of(observed.into_iter());
        assert!(
            correction.lower_confidence_bound(&of(8, 2), 10.0)
                < correction.lower_confidence_bound(&of(8, 1), 10.0)
        );
    }
}
