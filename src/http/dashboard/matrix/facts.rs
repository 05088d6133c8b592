//! What is known of a matrix, as terms with their explanations.

use crate::domain::matrix::{Spread, TriangleFeatures};
use crate::domain::{Features, Matrix};
use crate::http::dashboard::format;

/// One figure, and what it means.
pub struct Fact {
    pub term: &'static str,
    pub meaning: &'static str,
    pub value: String,
}

/// Figures that belong together.
pub struct Group {
    pub name: &'static str,
    pub facts: Vec<Fact>,
}

/// Everything that was computed when the matrix came.
pub fn of(matrix: &Matrix) -> Vec<Group> {
    let features = &matrix.features;
    let mut groups = vec![
        Group { name: "Shape", facts: shape(matrix) },
        Group { name: "Rows and columns", facts: lines(features) },
    ];
    if let Some(lower) = &features.lower {
        groups.push(Group { name: "Lower triangle, as a solve sees it", facts: triangle(lower) });
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
        fact(
            "Nonzeros",
            "Entries that are stored, explicit zeros among them",
            format::count(matrix.nnz),
        ),
        fact("Density", "Nonzeros over rows × columns", share(features.density)),
        fact(
            "Symmetric",
            "Square, and equal to its transpose, values included",
            yes(matrix.symmetric),
        ),
        fact(
            "Full diagonal",
            "Every diagonal entry is stored and not zero",
            yes(matrix.has_full_diagonal),
        ),
        fact(
            "Bandwidth",
            "Farthest that an entry is from the diagonal, in columns",
            format::count(features.bandwidth),
        ),
        fact(
            "Mean offset",
            "Mean distance of the entries from the diagonal, over the columns",
            share(features.mean_offset),
        ),
        fact(
            "Neighbour overlap",
            "Share of a row's columns that the row before it has too, on average",
            share(features.neighbour_overlap),
        ),
    ]
}

fn lines(features: &Features) -> Vec<Fact> {
    const ROWS: &str = "Longest and mean; variation is the standard deviation over the mean";
    vec![
        fact("Entries in a row", ROWS, spread(&features.row_nnz)),
        fact("Entries in a column", ROWS, spread(&features.col_nnz)),
        fact("Empty rows", "Rows without entries", format::count(features.empty_rows)),
        fact("Empty columns", "Columns without entries", format::count(features.empty_cols)),
    ]
}

fn triangle(lower: &TriangleFeatures) -> Vec<Fact> {
    const WIDTH: &str = "Rows that can be solved at once: most and mean; variation is the standard deviation over the mean";
    vec![
        fact(
            "Levels",
            "Steps of a solve in which all rows of a level are solved at once",
            format::count(lower.levels),
        ),
        fact("Rows in a level", WIDTH, spread(&lower.lnnz)),
        fact(
            "Nonzeros",
            "Entries of the triangle, the diagonal counted once a row",
            format::count(lower.nnz),
        ),
        fact(
            "Entries in a row",
            "Of the triangle: longest and mean, and their variation",
            spread(&lower.rnnz),
        ),
        fact(
            "Dependency nearness",
            "Mean of 1 / distance to the last row waited for: 1 where every row waits for the one before it",
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

/// A share that may be very small: a sparse matrix's density is.
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
