//! The distance between two matrices by their features, which decides whether a plan of one may be used for the other.

use super::{Result, Service};
use crate::domain::{Candidate, DeviceClass, Features, L2Policy, Matrix, PlanId, Problem};

/// A feature, and the difference that counts as a distance of 1.
type Scaled = (f64, f64);

/// Sizes are compared by their logarithms, because factors matter to a kernel. The scales are set by judgement, not fitted
/// to the stored plans, so that adding a plan does not change any distance: four doublings of a size, two of a row length,
/// or a difference in spread or share between an even and an uneven matrix.
///
/// Where kernels work on the transpose, its rows are the columns; the overlap of neighbours is that of the stored rows all the
/// same, since that of the columns is not known.
fn scaled(matrix: &Matrix, problem: &Problem) -> [Scaled; 9] {
    let log = |value: f64| (value + 1.0).log2();
    let Features { row_nnz, col_nnz, mean_offset, neighbour_overlap, .. } = &matrix.features;
    let (lines, columns) = problem.operand_shape(matrix.rows, matrix.cols);
    let (rows, cols) = match problem.works_on_transpose() {
        true => (col_nnz, row_nnz),
        false => (row_nnz, col_nnz),
    };
    // Offsets are a share of the columns.
    let offset = mean_offset * matrix.cols as f64 / (columns as f64).max(1.0);
    let peak = if rows.mean > 0.0 { rows.max as f64 / rows.mean } else { 0.0 };
    [
        (log(lines as f64), 4.0),
        (log(columns as f64), 4.0),
        (log(matrix.nnz as f64), 4.0),
        (log(rows.mean), 2.0),
        (log(rows.cov), 0.5),
        (log(peak), 2.0),
        (log(cols.cov), 0.5),
        (offset, 0.25),
        (*neighbour_overlap, 0.25),
    ]
}

/// Root mean square of the scaled differences: 0 for equal features, 1 if all differ by their scale.
pub(super) fn distance(a: &Matrix, b: &Matrix, problem: &Problem) -> f64 {
    let (a, b) = (scaled(a, problem), scaled(b, problem));
    let sum: f64 = a.iter().zip(&b).map(|((a, scale), (b, _))| ((a - b) / scale).powi(2)).sum();
    (sum / a.len() as f64).sqrt()
}

/// The nearest of some matrices with plans, and its distance; the first among equally near ones.
pub(super) fn nearest(
    matrix: &Matrix,
    problem: &Problem,
    among: Vec<(Matrix, PlanId)>,
) -> Option<(f64, (Matrix, PlanId))> {
    among
        .into_iter()
        // Features of another version are not comparable.
        .filter(|(other, _)| other.features.version == matrix.features.version)
        .map(|other| (distance(matrix, &other.0, problem), other))
        // Features of imported plans are as their makers wrote them.
        .filter(|(distance, _)| distance.is_finite())
        .min_by(|(a, _), (b, _)| a.total_cmp(b))
}

/// Number of plans whose matrices are compared for winners, newest first.
const AMONG: u32 = 1000;
/// Of these, the nearest that are read, each by a statement of its own: where one candidate wins nearly everywhere, no second one
/// would be found among all of them, and a search would read a thousand plans before it begins.
const READ: usize = 16;

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
    let mut winners: Vec<(f64, Candidate)> = Vec::new();
    for (away, id) in near(matrix, problem, among) {
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

/// The plans that are read for winners, nearest first.
fn near(matrix: &Matrix, problem: &Problem, among: Vec<(Matrix, PlanId)>) -> Vec<(f64, PlanId)> {
    let mut near: Vec<(f64, PlanId)> = among
        .into_iter()
        .filter(|(other, _)| other.features.version == matrix.features.version)
        .map(|(other, id)| (distance(matrix, &other, problem), id))
        .collect();
    near.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    near.truncate(READ);
    near
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Dtype, Layout, Spmm};
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
        let spmm = Spmm::new(8, Dtype::F32, Layout::Row);
        let problem = Problem::Spmm(spmm);
        let distance = |a: &Matrix, b: &Matrix| distance(a, b, &problem);
        assert_eq!(distance(&asked, &asked), 0.0);
        assert!(distance(&asked, &near) < 0.1);
        assert!(distance(&asked, &far) > 0.5);
        assert_eq!(distance(&asked, &far), distance(&far, &asked));
        let id = |name: &str| PlanId(name.to_owned());
        let (away, (found, plan)) =
            nearest(&asked, &problem, vec![(far, id("far")), (near.clone(), id("near"))]).unwrap();
        assert_eq!((found, plan), (near.clone(), id("near")));
        assert_eq!(away, distance(&asked, &near));
        let mut other = near;
        other.features.version += 1;
        assert_eq!(nearest(&asked, &problem, vec![(other, id("other"))]), None);
    }

    #[test]
    fn only_the_nearest_plans_are_read_for_winners() {
        let problem = Problem::Spmm(Spmm::new(8, Dtype::F32, Layout::Row));
        let asked = banded(100, 2);
        let id = |rows: usize| PlanId(format!("{rows:03}"));
        // The farthest first; of some rows twice.
        let sizes: Vec<usize> = (101..141).rev().chain([101]).collect();
        let among = sizes.iter().map(|rows| (banded(*rows, 2), id(*rows))).collect();
        let found = near(&asked, &problem, among);
        let ids: Vec<PlanId> = found.iter().map(|(_, id)| id.clone()).collect();
        let nearest: Vec<PlanId> = [101].into_iter().chain(101..101 + READ - 1).map(id).collect();
        assert_eq!(ids, nearest);
        assert!(found.is_sorted_by(|a, b| a.0 <= b.0));
        let mut other = banded(100, 2);
        other.features.version += 1;
        assert!(near(&asked, &problem, vec![(other, id(100))]).is_empty());
    }

    #[test]
    fn transposed_products_compare_transposes() {
        let given =
            Csr::new(2, 300, vec![0, 200, 201], (0..200).chain([9]).collect(), vec![1.0; 201]);
        let given = given.unwrap();
        let of = |matrix: &Csr, transpose| {
            let spmm = Spmm { transpose, ..Spmm::new(8, Dtype::F32, Layout::Row) };
            scaled(&features::facts(matrix, None), &Problem::Spmm(spmm))
        };
        // But for the overlap of neighbours.
        for (turned, own) in of(&given, true).iter().zip(of(&given.transposed(), false)).take(8) {
            assert!((turned.0 - own.0).abs() < 1e-12, "{turned:?} {own:?}");
        }
    }
}
