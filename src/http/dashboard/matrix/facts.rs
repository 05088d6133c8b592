//! Properties of a matrix, each with an explanation.

use crate::domain::matrix::{Spread, TriangleFeatures};
use crate::domain::{Features, Matrix};
use crate::http::dashboard::format;

/// One property, its meaning and its value.
pub struct Fact {
    pub term: &'static str,
    pub meaning: &'static str,
    pub value: String,
}

/// Properties that belong together.
pub struct Group {
    pub name: &'static str,
    pub facts: Vec<Fact>,
}

/// All properties computed when the matrix was uploaded.
pub fn of(matrix: &Matrix) -> Vec<Group> {
    let features = &matrix.features;
    let mut groups = vec![
        Group { name: "Shape", facts: shape(matrix) },
        Group { name: "Rows and columns", facts: lines(features) },
    ];
    if let Some(lower) = &features.lower {
        groups.push(Group { name: "Lower triangle (triangular solve)", facts: triangle(lower) });
    }
    groups
}

fn shape(matrix: &Matrix) -> Vec<Fact> {
    let features = &matrix.features;
    vec![
        fact(
            "Rows × columns",
            "",
            format!("{} × {}", format::count(matrix.rows), format::count(matrix.cols)),
        ),
        fact("Nonzeros", "Stored entries, including explicit zeros", format::count(matrix.nnz)),
        fact("Density", "Nonzeros divided by rows × columns", share(features.density)),
        fact(
            "Symmetric",
            "Square, and equal to its transpose, values included",
            yes(matrix.symmetric),
        ),
        fact(
            "Full diagonal",
            "Every diagonal entry is stored and nonzero",
            yes(matrix.has_full_diagonal),
        ),
        fact(
            "Bandwidth",
            "Largest distance of an entry from the diagonal, in columns",
            format::count(features.bandwidth),
        ),
        fact(
            "Mean offset",
            "Mean distance of the entries from the diagonal, divided by the number of columns",
            share(features.mean_offset),
        ),
        fact(
            "Neighbour overlap",
            "Mean share of a row's columns that also occur in the previous row",
            share(features.neighbour_overlap),
        ),
    ]
}

fn lines(features: &Features) -> Vec<Fact> {
    const ROWS: &str = "Maximum and mean; variation is the standard deviation divided by the mean";
    vec![
        fact("Entries per row", ROWS, spread(&features.row_nnz)),
        fact("Entries per column", ROWS, spread(&features.col_nnz)),
        fact("Empty rows", "Rows without entries", format::count(features.empty_rows)),
        fact("Empty columns", "Columns without entries", format::count(features.empty_cols)),
    ]
}

fn triangle(lower: &TriangleFeatures) -> Vec<Fact> {
    const WIDTH: &str = "Rows that can be solved in parallel: maximum and mean; variation is the standard deviation divided by the mean";
    vec![
        fact(
            "Levels",
            "Number of dependency levels; all rows of a level can be solved in parallel",
            format::count(lower.levels),
        ),
        fact("Rows per level", WIDTH, spread(&lower.lnnz)),
        fact(
            "Nonzeros",
            "Entries of the triangle, with one diagonal entry per row",
            format::count(lower.nnz),
        ),
        fact(
            "Entries per row",
            "Of the triangle: maximum, mean and variation",
            spread(&lower.rnnz),
        ),
        fact(
            "Dependency proximity",
            "Mean of 1 / distance to the nearest row that a row depends on; 1 if every row depends on the previous one",
            format::digits(lower.dep_dist),
        ),
    ]
}

fn fact(term: &'static str, meaning: &'static str, value: String) -> Fact {
    Fact { term, meaning, value }
}

fn spread(spread: &Spread) -> String {
    let (max, mean) = (format::count(spread.max), format::digits(spread.mean));
    format!("max {max}, mean {mean}, variation {:.2}", spread.cov)
}

/// A share that may be very small, such as the density of a sparse matrix.
fn share(fraction: f64) -> String {
    if fraction != 0.0 && fraction.abs() < 1e-3 {
        format!("{} ppm", format::digits(fraction * 1e6))
    } else {
        format::percent(fraction)
    }
}

fn yes(holds: bool) -> String {
    if holds { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn small_shares_keep_their_digits() {
        assert_eq!(share(0.0), "0.0 %");
        assert_eq!(share(0.0000123), "12.3 ppm");
        assert_eq!(share(0.0123), "1.2 %");
        assert_eq!(share(1.0), "100 %");
    }
}
