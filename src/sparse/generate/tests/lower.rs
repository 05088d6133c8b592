//! Lower triangles of other kinds: their pattern, their orders, and how far their coefficients grow.

use super::{generate, refusal};
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Dtype, Sptrsv};
use crate::sparse::generate::{GenerateError, Spec};
use crate::sparse::levels::lower_levels;
use crate::sparse::triangle::Triangular;
use crate::sparse::{Csr, operand, oracle};
use std::collections::BTreeSet;

const EACH: [&str; 8] = [
    "lower:of=mesh:nx=30,ny=40",
    "lower:order=random,growth=3,of=road:nx=60,ny=40",
    "lower:order=rcm,unknowns=4,growth=0,of=mesh:nx=20,ny=14",
    "lower:order=depth,growth=0,of=mesh:nx=60,ny=30",
    "lower:order=degree,growth=2.5,spread=2,of=circuit:n=2000,hubs=4",
    "lower:constraints=400,tail=70,growth=1,of=poisson2d:nx=30,ny=30",
    "lower:window=16,keep=0.3,growth=3,spread=1,of=banded:n=4000,half=20",
    "lower:growth=0,of=rmat:scale=10,edge_factor=8",
];

fn levels(text: &str) -> usize {
    lower_levels(&generate(text)).widths.len()
}

#[test]
fn they_are_lower_whole_and_solved_without_overflow() {
    for text in EACH {
        let matrix = generate(text);
        for row in 0..matrix.rows() {
            assert_eq!(matrix.row(row).0.last(), Some(&(row as u32)), "{text}: row {row}");
        }
        for (diagonal, transpose) in
            [(Diagonal::NonUnit, false), (Diagonal::Unit, false), (Diagonal::NonUnit, true)]
        {
            let largest = largest(&matrix, diagonal, transpose);
            assert!(largest < 1e7, "{text}, {diagonal:?}, {transpose}: {largest}");
        }
    }
    // A system may amplify, as far as it is asked to and f32 bears it.
    for most in [1e12, 1e24] {
        let text = format!("lower:growth=3,largest={most},of=banded:n=4000,half=6");
        for diagonal in [Diagonal::NonUnit, Diagonal::Unit] {
            let largest = largest(&generate(&text), diagonal, false);
            assert!((1e-3 * most..1e3 * most).contains(&largest), "{text}: {largest}");
        }
    }
}

/// The largest |x| of a solve in float64, with coefficients as f32 has them.
fn largest(matrix: &Csr, diagonal: Diagonal, transpose: bool) -> f64 {
    let (triangle, dtype) = (Triangle::Lower, Dtype::F32);
    let problem = Sptrsv { rhs: 1, dtype, triangle, diagonal, transpose, ..Sptrsv::PLAIN };
    let system = Triangular::of(matrix, &problem).unwrap();
    let x = oracle::sptrsv(&system, &operand::random_double(matrix.rows(), 1), 1);
    x.iter().fold(0.0f64, |most, x| most.max(x.abs()))
}

/// The sum of magnitudes below the diagonal over it, row by row.
fn sums(matrix: &Csr) -> Vec<f64> {
    let sum = |row: usize| {
        let (&diagonal, lower) = matrix.row(row).1.split_last().unwrap();
        lower.iter().map(|value| value.abs()).sum::<f64>() / diagonal
    };
    (0..matrix.rows()).map(sum).collect()
}

#[test]
fn coefficients_grow_as_asked() {
    let median = |text: &str| {
        let mut sums: Vec<f64> =
            sums(&generate(text)).into_iter().filter(|&sum| sum > 0.0).collect();
        sums.sort_by(f64::total_cmp);
        sums[sums.len() / 2]
    };
    for growth in [0.3, 0.9, 2.0] {
        let found = median(&format!("lower:growth={growth},spread=1,of=mesh:nx=50,ny=50"));
        assert!((found / growth - 1.0).abs() < 0.12, "{growth}: {found}");
    }
    // Dominant rows are those of an M-matrix; of those that grow, half of the signs cancel.
    let positive = |text: &str| {
        let matrix = generate(text);
        let positive = matrix.values().iter().filter(|&&value| value > 0.0).count();
        (positive - matrix.rows()) as f64 / (matrix.nnz() - matrix.rows()) as f64
    };
    assert_eq!(positive("lower:growth=0.7,of=mesh:nx=50,ny=50"), 0.0);
    assert!((0.45..0.55).contains(&positive("lower:growth=2,of=mesh:nx=50,ny=50")));
    // Where chains would grow without end, some rows are made smaller, and only some.
    let all = sums(&generate("lower:growth=3,seed=2,of=banded:n=4000,half=6"));
    let small = all[100..].iter().filter(|&&sum| sum < 2.5).count();
    assert!((1..2500).contains(&small), "{small}");
}

#[test]
fn orders_give_different_levels_of_one_graph() {
    let of = |order: &str| format!("lower:order={order},of=mesh:nx=70,ny=60,seed=3");
    let all = ["natural", "random", "rcm", "depth", "degree"].map(of);
    let counts = all.each_ref().map(|text| levels(text));
    assert_eq!(counts.iter().collect::<BTreeSet<_>>().len(), 5, "{counts:?}");
    let [_, random, rcm, depth, _] = counts;
    assert!(random < 60 && rcm > 100 && depth > 2 * rcm, "{counts:?}");
    // Numbered anew, a symmetric graph keeps its entries.
    let entries = all.each_ref().map(|text| generate(text).nnz());
    assert!(entries.iter().all(|&nnz| nnz == entries[0]), "{entries:?}");
    let shuffled = levels("lower:order=depth,window=64,of=mesh:nx=70,ny=60,seed=3");
    assert!(random < shuffled && shuffled < depth / 2, "{shuffled} of {depth}");
    // Reverse Cuthill-McKee narrows the band.
    let band = |text: &str| {
        let matrix = generate(text);
        (0..matrix.rows()).map(|row| row - matrix.row(row).0[0] as usize).max().unwrap()
    };
    assert!(band(&all[2]) < 200 && band(&all[0]) > 1000);
}

#[test]
fn hubs_blocks_constraints_and_tails_are_where_they_are_said_to_be() {
    let circuit = generate("lower:order=degree,of=circuit:n=1000,hubs=3");
    assert!(circuit.row_nnz(999) > 600, "the hub comes last: {}", circuit.row_nnz(999));
    // 5-point rows of blocks of 3: the unknowns of a node make three levels.
    let blocks = generate("lower:unknowns=3,of=poisson2d:nx=8,ny=7");
    assert_eq!(blocks.nnz(), (7 * 7 + 8 * 6) * 9 + 56 * 6);
    assert_eq!(lower_levels(&blocks).widths.len(), 3 * (8 + 7 - 1));
    // No entry between constraints, all of them between the rows of the tail, whose last meets all.
    let saddle = generate("lower:constraints=50,tail=9,of=poisson2d:nx=20,ny=20");
    assert_eq!(saddle.rows(), 459);
    for row in 400..450 {
        let (columns, _) = saddle.row(row);
        assert!((2..=10).contains(&columns.len()) && columns[columns.len() - 2] < 400);
    }
    for (at, row) in (450..459).enumerate() {
        let columns = saddle.row(row).0;
        assert!(
            columns
                .iter()
                .rev()
                .take(at + 1)
                .eq((450..=row as u32).rev().collect::<Vec<_>>().iter())
        );
        assert!((450 / (9 - at)..=450 / (9 - at) + 1).contains(&(columns.len() - at - 1)));
    }
    let kept = generate("lower:keep=0.5,of=banded:n=3000,half=20").nnz() as f64;
    assert!((kept / (3000.0 * 11.0) - 1.0).abs() < 0.03, "{kept}");
}

#[test]
fn is_read_as_text_and_as_json_and_not_within_itself() {
    let text = "lower:order=depth,growth=1.5,seed=2,of=mesh:nx=4,ny=5";
    let spec = Spec::parse(text).unwrap();
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), spec);
    assert!(json.contains(r#""of":{"kind":"mesh","nx":4"#), "{json}");
    for wrong in [
        "lower:order=rcm",
        "lower:of=",
        "lower:order=best,of=arrow:n=9",
        "lower:of=lower:of=arrow:n=9",
        "lower:of=arrow:n=9,order=rcm",
        "arrow:n=9,of=arrow:n=9",
    ] {
        assert!(Spec::parse(wrong).is_err(), "{wrong}");
    }
    let twice = r#"{"kind":"lower","of":{"kind":"lower","of":{"kind":"arrow","n":9}}}"#;
    let twice: Spec = serde_json::from_str(twice).unwrap();
    assert_eq!(twice.size(), None);
    assert!(matches!(twice.generate(), Err(GenerateError::Parameter { name: "of", .. })));
    assert!(matches!(
        refusal("lower:of=pruned:rows=9,cols=8,sparsity=0.5"),
        GenerateError::Parameter { .. }
    ));
}
