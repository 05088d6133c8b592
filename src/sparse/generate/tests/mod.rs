//! Every generator: the same on any number of threads, and with the structure it promises.

mod factors;
mod lower;
mod planar;
mod spec;

use super::{GenerateError, Spec};
use crate::sparse::features::facts;
use crate::sparse::{Csr, digest};

fn generate(text: &str) -> Csr {
    Spec::parse(text).unwrap().generate().unwrap()
}

fn refusal(text: &str) -> GenerateError {
    Spec::parse(text).unwrap().generate().unwrap_err()
}

const EACH: [&str; 25] = [
    "poisson2d:nx=40,ny=30,seed=4",
    "poisson3d:nx=12,ny=11,nz=9",
    "elasticity:nx=5,ny=4,nz=6,seed=2",
    "rmat:scale=11,edge_factor=8,seed=5",
    "banded:n=900,half=7",
    "uniform:rows=700,cols=500,nnz=9000,seed=1",
    "pruned:rows=120,cols=200,sparsity=0.9,seed=3",
    "blocks:rows=300,cols=250,block=16,density=0.1,seed=2",
    "road:nx=90,ny=70,seed=3",
    "mesh:nx=90,ny=70,seed=3",
    "arrow:n=1000",
    "dense_row:n=1000,per_row=5",
    "long_row:rows=900,cols=3000,per_row=5",
    "circuit:n=3000,hubs=3,seed=8",
    "ilu0_poisson2d:nx=30,ny=31",
    "ilu0_poisson3d:nx=9,ny=8,nz=10,seed=1",
    "ilu0_random:n=2000,per_row=12",
    "ilu0_elasticity:nx=5,ny=4,nz=6,seed=2",
    "ilu0_rmat:scale=11,edge_factor=8,seed=5",
    "cholesky_poisson2d:nx=40,ny=30,seed=4",
    "cholesky_poisson3d:nx=12,ny=11,nz=9",
    "cholesky_banded:n=900,half=7",
    "lower_levels:n=3000,levels=50,seed=6",
    "lower:order=rcm,growth=2,spread=1,seed=4,of=mesh:nx=60,ny=50,seed=4",
    "lower:order=random,unknowns=2,keep=0.7,constraints=300,tail=20,of=circuit:n=900",
];

#[test]
fn any_number_of_threads_gives_the_same_matrix() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for text in EACH {
        let (one, many) = (pool.install(|| generate(text)), generate(text));
        assert!(one == many, "{text}");
        let whole = |matrix: &Csr| digest::digest(matrix, &digest::pattern_digest(matrix));
        assert_eq!(whole(&one), whole(&many));
    }
    assert_ne!(generate("rmat:scale=8,seed=1"), generate("rmat:scale=8,seed=2"));
}

#[test]
fn poisson_is_the_textbook_matrix() {
    let matrix = generate("poisson2d:nx=3,ny=2");
    let row: Vec<_> = matrix.row(1).0.iter().zip(matrix.row(1).1).map(|(&c, &v)| (c, v)).collect();
    assert_eq!(row, [(0, -1.0), (1, 4.0), (2, -1.0), (4, -1.0)]);
    assert_eq!(matrix.nnz(), 6 + 2 * 4 + 2 * 3);
    let cube = generate("poisson3d:nx=4,ny=5,nz=6");
    assert_eq!(cube.nnz(), 120 + 2 * (3 * 5 * 6 + 4 * 4 * 6 + 4 * 5 * 5));
    for text in ["poisson2d:nx=9,ny=7,seed=3", "poisson3d:nx=4,ny=3,nz=5,seed=3"] {
        let all = facts(&generate(text), None);
        assert!(all.symmetric && all.has_full_diagonal, "{text}");
    }
}

#[test]
fn elasticity_is_symmetric_and_does_not_resist_free_motion() {
    let matrix = generate("elasticity:nx=4,ny=3,nz=3");
    assert_eq!(matrix.rows(), 3 * 36);
    assert_eq!((0..matrix.rows()).map(|row| matrix.row_nnz(row)).max(), Some(81));
    for row in 0..matrix.rows() {
        let (columns, values) = matrix.row(row);
        for (&column, &value) in columns.iter().zip(values) {
            let (mirror, values) = matrix.row(column as usize);
            let at = mirror.binary_search(&(row as u32)).unwrap();
            assert!((values[at] - value).abs() < 1e-14);
        }
        // A shift of the whole brick along x costs nothing, except beside the clamped face.
        let along_x: f64 = values.iter().step_by(3).sum();
        if row / 3 % 4 > 0 {
            assert!(along_x.abs() < 1e-13, "row {row}: {along_x}");
        } else if row % 3 == 0 {
            assert!(along_x > 0.01, "row {row}: {along_x}");
        }
    }
    assert!(facts(&matrix, None).has_full_diagonal);
}

#[test]
fn rmat_sums_its_draws_and_is_skewed() {
    let matrix = generate("rmat:scale=12,edge_factor=8,seed=1");
    // Every draw is in some value, duplicates included.
    assert_eq!(matrix.values().iter().sum::<f64>(), 8.0 * 4096.0);
    let lengths = facts(&matrix, None).features;
    assert!(lengths.row_nnz.cov > 1.5 && lengths.col_nnz.cov > 1.5, "{lengths:?}");
    // The upper left quarter gets the share a = 0.57.
    let in_quarter = |row: usize| {
        let (columns, values) = matrix.row(row);
        columns.iter().zip(values).filter(|(c, _)| **c < 2048).map(|(_, v)| v).sum::<f64>()
    };
    let quarter: f64 = (0..2048).map(in_quarter).sum();
    assert!((quarter / 32768.0 - 0.57).abs() < 0.02, "{quarter}");
}

#[test]
fn densities_are_as_asked() {
    let close = |text: &str, expected: f64| {
        let nnz = generate(text).nnz() as f64;
        assert!((nnz / expected - 1.0).abs() < 0.03, "{text}: {nnz}");
    };
    close("uniform:rows=700,cols=500,nnz=9000", 9000.0);
    close("uniform:rows=100,cols=100,nnz=10000", 10_000.0);
    close("pruned:rows=300,cols=400,sparsity=0.9", 12_000.0);
    close("pruned:rows=300,cols=400,sparsity=0.5", 60_000.0);
    close("pruned:rows=20,cols=30,sparsity=0", 600.0);
    close("blocks:rows=2000,cols=1500,block=10,density=0.2", 600_000.0);
    close("ilu0_random:n=4000,per_row=10", 4000.0 * 5.5);
    assert_eq!(generate("banded:n=100,half=3").nnz(), 700 - 12);
    assert_eq!(generate("arrow:n=50").nnz(), 148);
    assert_eq!(generate("dense_row:n=50,per_row=4").nnz(), 49 * 4 + 50);
    let long = generate("long_row:rows=5,cols=70,per_row=3");
    assert_eq!((long.nnz(), long.row_nnz(2)), (4 * 3 + 70, 70));
}

#[test]
fn pruned_rows_differ_in_length() {
    let features = facts(&generate("pruned:rows=256,cols=1024,sparsity=0.95"), None).features;
    assert!((0.2..1.5).contains(&features.row_nnz.cov), "{features:?}");
}

#[test]
fn blocks_are_whole_and_cut_at_the_ends() {
    let matrix = generate("blocks:rows=100,cols=90,block=16,density=0.3,seed=5");
    for row in 0..matrix.rows() {
        let (columns, _) = matrix.row(row);
        assert_eq!(columns, matrix.row(row / 16 * 16).0, "rows of a block row are alike");
        let whole = |block: &[u32]| {
            let first = block[0] / 16 * 16;
            block[0] == first && block.len() as u32 == 16.min(90 - first)
        };
        assert!(columns.chunk_by(|a, b| a / 16 == b / 16).all(whole), "{columns:?}");
    }
    assert_eq!(generate("blocks:rows=7,cols=9,block=2,density=1").nnz(), 63);
    assert_eq!(generate("blocks:rows=7,cols=9,block=2,density=0").nnz(), 0);
}

#[test]
fn circuits_have_hubs_among_short_rows() {
    let features = facts(&generate("circuit:n=4000,hubs=2"), None).features;
    assert!(features.row_nnz.max > 3000 && features.col_nnz.max > 3000, "{features:?}");
    assert!(features.row_nnz.mean < 10.0);
    assert!(facts(&generate("circuit:n=100,hubs=0"), None).has_full_diagonal);
}

#[test]
fn refuses_what_is_too_large_before_making_it() {
    for text in [
        "poisson3d:nx=2000,ny=1000,nz=1000",
        "elasticity:nx=1000,ny=100,nz=100",
        "rmat:scale=28,edge_factor=1024",
        "banded:n=1e6,half=1000",
        "uniform:rows=1e6,cols=1e6,nnz=1e9",
        "pruned:rows=1e5,cols=1e5,sparsity=0.5",
        "dense_row:n=1e6,per_row=1000",
        "long_row:rows=1e6,cols=1e6,per_row=1000",
        "circuit:n=1e8",
        "blocks:rows=1e5,cols=1e5,block=8,density=0.5",
        "road:nx=1e4,ny=1e4",
        "mesh:nx=1e4,ny=1e4",
        "lower:unknowns=30,of=mesh:nx=1e3,ny=1e3",
        "lower:tail=16384,of=arrow:n=6e7",
        "lower:of=mesh:nx=1e4,ny=1e4",
    ] {
        assert!(matches!(refusal(text), GenerateError::TooManyEntries { .. }), "{text}");
    }
    for text in [
        "poisson2d:nx=0,ny=4",
        "poisson2d:nx=1000000000000000000,ny=1e15",
        "elasticity:nx=3,ny=1,nz=3",
        "rmat:scale=10,a=0.9",
        "banded:n=4,half=4",
        "uniform:rows=2,cols=2,nnz=5",
        "pruned:rows=9,cols=9,sparsity=1",
        "circuit:n=8,hubs=9",
        "long_row:rows=3,cols=4,per_row=5",
        "blocks:rows=9,cols=4,block=5,density=0.5",
        "blocks:rows=9,cols=4,block=2,density=1.5",
        "road:nx=0,ny=4",
        "mesh:nx=1000000000000000000,ny=1e15",
        "ilu0_random:n=3,per_row=4",
        "lower:keep=0,of=arrow:n=9",
        "lower:growth=9,of=arrow:n=9",
        "lower:largest=1e30,of=arrow:n=9",
        "lower:unknowns=0,of=arrow:n=9",
        "lower:of=uniform:rows=9,cols=8,nnz=9",
        "lower:constraints=3e9,of=arrow:n=9",
        "lower:of=mesh:nx=0,ny=4",
    ] {
        assert!(matches!(refusal(text), GenerateError::Parameter { .. }), "{text}");
    }
}
