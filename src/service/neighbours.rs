//! The distance between two matrices by their features, which decides whether a plan of one may be used for the other.

use super::{Result, Service};
use crate::domain::{Candidate, DeviceClass, L2Policy, Matrix, PlanId, Problem};

/// A feature, and the difference that counts as a distance of 1.
type Scaled = (f64, f64);

/// Sizes are compared by their logarithms, because factors matter to a kernel. The scales are set by judgement, not fitted
/// to the stored plans, so that adding a plan does not change any distance: four doublings of a size, two of a row length,
/// or a difference in spread or share between an even and an uneven matrix.
fn scaled(matrix: &Matrix) -> [Scaled; 9] {
    let log = |value: f64| (value + 1.0).log2();
    let rows = &matrix.features.row_nnz;
    let peak = if rows.mean > 0.0 { rows.max as f64 / rows.mean } else { 0.0 };
    [
        (log(matrix.rows as f64), 4.0),
        (log(matrix.cols as f64), 4.0),
        (log(matrix.nnz as f64), 4.0),
        (log(rows.mean), 2.0),
        (log(rows.cov), 0.5),
        (log(peak), 2.0),
        (log(matrix.features.col_nnz.cov), 0.5),
        (matrix.features.mean_offset, 0.25),
        (matrix.features.neighbour_overlap, 0.25),
    ]
}

/// Root mean square of the scaled differences: 0 for equal features, 1 if all differ by their scale.
pub(super) fn distance(a: &Matrix, b: &Matrix) -> f64 {
    let (a, b) = (scaled(a), scaled(b));
    let sum: f64 = a.iter().zip(&b).map(|((a, scale), (b, _))| ((a - b) / scale).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

/// The nearest of some matrices with plans, and its distance; the first among equally near ones.
pub(super) fn nearest(
    matrix: &Matrix,
    among: Vec<(Matrix, PlanId)>,
) -> Option<(f64, (Matrix, PlanId))> {
    among
        .into_iter()
        // Features of another version are not comparable.
        .filter(|(other, _)| other.features.version == matrix.features.version)
        .map(|other| (distance(matrix, &other.0), other))
        .min_by(|(a, _), (b, _)| a.total_cmp(b))
}

/// Number of plans searched for winners, newest first.
const AMONG: u32 = 1000;

/// Candidates that won the same problem on the nearest other matrices, nearest first and without repetition, each with the
/// distance of its matrix: a search may try these first.
pub(super) async fn winners(
    service: &Service,
    matrix: &Matrix,
    problem: &Problem,
    class: &DeviceClass,
    l2_policy: L2Policy,
    most: usize,
) -> Result<Vec<(f64, Candidate)>> {
    let store = service.store();
    let among = store.plans_for(problem, class, l2_policy, AMONG).await?;
    let mut near: Vec<(f64, PlanId)> = among
        .into_iter()
        .filter(|(other, _)| other.features.version == matrix.features.version)
        .map(|(other, id)| (distance(matrix, &other), id))
        .collect();
    near.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    let mut winners: Vec<(f64, Candidate)> = Vec::new();
    for (away, id) in near {
        if winners.len() == most {
            break;
        }
        let Some(plan) = store.plan(&id).await? else { continue };
        if winners.iter().all(|(_, known)| *known != plan.candidate) {
            winners.push((away, plan.candidate));
        }
    }
    Ok(winners)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::{Csr, features};

    fn banded(rows: usize, band: usize) -> Matrix {
        let columns =
            |row: usize| (row.saturating_sub(band)..(row + band + 1).min(rows)).map(|c| c as u32);
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for row in 0..rows {
            indices.extend(columns(row));
            indptr.push(indices.len());
        }
        let values = vec![1.0; indices.len()];
        features::facts(&Csr::new(rows, rows, indptr, indices, values).unwrap(), None)
    }

    #[test]
    fn near_matrices_are_nearer() {
        let (asked, near, far) = (banded(100, 2), banded(110, 2), banded(3000, 20));
        assert_eq!(distance(&asked, &asked), 0.0);
        assert!(distance(&asked, &near) < 0.1);
        assert!(distance(&asked, &far) > 0.5);
        assert_eq!(distance(&asked, &far), distance(&far, &asked));
        let id = |name: &str| PlanId(name.to_owned());
        let (away, (found, plan)) =
            nearest(&asked, vec![(far, id("far")), (near.clone(), id("near"))]).unwrap();
        assert_eq!((found, plan), (near.clone(), id("near")));
        assert_eq!(away, distance(&asked, &near));
        let mut other = near;
        other.features.version += 1;
        assert_eq!(nearest(&asked, vec![(other, id("other"))]), None);
    }
}
