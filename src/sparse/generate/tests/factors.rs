//! Triangular factors: lower, with a whole diagonal, tame, and with the levels they promise.

use super::{generate, refusal};
use crate::sparse::generate::GenerateError;
use crate::sparse::levels::lower_levels;

const EACH: [&str; 9] = [
    "ilu0_poisson2d:nx=20,ny=30",
    "ilu0_poisson3d:nx=7,ny=6,nz=5",
    "ilu0_random:n=500",
    "ilu0_elasticity:nx=5,ny=4,nz=3",
    "ilu0_rmat:scale=9,edge_factor=8",
    "cholesky_poisson2d:nx=20,ny=17",
    "cholesky_poisson3d:nx=7,ny=6,nz=5",
    "cholesky_banded:n=300,half=9",
    "lower_levels:n=900,levels=30,per_row=6",
];

#[test]
fn factors_are_lower_and_tame() {
    for text in EACH {
        let matrix = generate(text);
        let mut x = vec![0.0f64; matrix.rows()];
        for row in 0..matrix.rows() {
            let (columns, values) = matrix.row(row);
            let (&last, lower) = columns.split_last().unwrap();
            assert_eq!(last as usize, row, "{text}: the diagonal is there and nothing is above it");
            let sum: f64 = lower.iter().zip(values).map(|(&c, v)| v * x[c as usize]).sum();
            x[row] = (1.0 - sum) / values[lower.len()];
        }
        assert!(x.iter().all(|x| x.abs() < 2.5), "{text}");
    }
}

#[test]
fn levels_are_as_promised() {
    let levels = |text: &str| lower_levels(&generate(text)).widths;
    // Wavefronts of a grid are its anti-diagonals.
    assert_eq!(levels("ilu0_poisson3d:nx=7,ny=6,nz=5").len(), 7 + 6 + 5 - 2);
    // A node waits for (x + 1, y - 1, z) and (x + 1, y + 1, z - 1): wavefronts of x + 2 y + 4 z, 3 levels a node.
    assert_eq!(levels("ilu0_elasticity:nx=5,ny=4,nz=3").len(), 3 * (4 + 2 * 3 + 4 * 2 + 1));
    assert_eq!(levels("cholesky_banded:n=300,half=9").len(), 300);
    assert_eq!(levels("cholesky_banded:n=300,half=0"), [300]);
    let widths = levels("lower_levels:n=903,levels=30,per_row=6");
    assert_eq!(widths.len(), 30);
    assert!(widths.iter().all(|width| (30..=31).contains(width)), "{widths:?}");
    assert_eq!(levels("lower_levels:n=50,levels=1"), [50]);
    assert_eq!(levels("lower_levels:n=50,levels=50,per_row=3").len(), 50);
}

#[test]
fn sizes_are_as_promised() {
    assert_eq!(generate("cholesky_banded:n=100,half=3").nnz(), 400 - 6);
    // Two leaves of 3 points beside a plane of 3, then the plane.
    assert_eq!(generate("cholesky_poisson2d:nx=3,ny=3").nnz(), 2 * (6 + 9) + 6);
    let rows = 3 * 5 * 4 * 3;
    let whole = generate("elasticity:nx=5,ny=4,nz=3").nnz();
    assert_eq!(generate("ilu0_elasticity:nx=5,ny=4,nz=3").nnz(), (whole + rows) / 2);
    let nnz = generate("lower_levels:n=20000,levels=40,per_row=8").nnz() as f64;
    assert!((nnz / (20_000.0 * 8.0) - 1.0).abs() < 0.05, "{nnz}");
    let graph = generate("ilu0_rmat:scale=12,edge_factor=8,seed=1");
    let hub = (0..graph.rows()).map(|row| graph.row_nnz(row)).max().unwrap();
    assert!(graph.row_nnz(graph.rows() - 1) == hub && hub > 200, "hubs come last: {hub}");
}

#[test]
fn refuses_factors_that_are_too_large_before_making_them() {
    for text in [
        "ilu0_elasticity:nx=1000,ny=100,nz=100",
        "ilu0_rmat:scale=28,edge_factor=1024",
        "cholesky_poisson2d:nx=20000,ny=20000",
        "cholesky_poisson2d:nx=10000,ny=10000",
        "cholesky_poisson3d:nx=600,ny=600,nz=600",
        "cholesky_banded:n=1e6,half=1000",
        "lower_levels:n=1e9,levels=2",
    ] {
        assert!(matches!(refusal(text), GenerateError::TooManyEntries { .. }), "{text}");
    }
    for text in [
        "ilu0_elasticity:nx=3,ny=1,nz=3",
        "cholesky_poisson2d:nx=1000000000000000000,ny=1e15",
        "cholesky_banded:n=4,half=4",
        "lower_levels:n=4,levels=5",
        "lower_levels:n=4,levels=2,per_row=1",
    ] {
        assert!(matches!(refusal(text), GenerateError::Parameter { .. }), "{text}");
    }
}
