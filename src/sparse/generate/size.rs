//! The size of the matrix for a specification, computed without generating it.

use super::Spec;

/// Size of a generated matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub rows: u64,
    pub cols: u64,
    /// Approximate number of entries, without duplicates or clipping. Fill under nested dissection is not included; the
    /// generator counts it before it starts.
    pub entries: f64,
}

impl Spec {
    /// The size; `None` if it overflows.
    pub fn size(&self) -> Option<Size> {
        let square = |n: Option<u64>, per_row: f64| Some((n?, n?, n? as f64 * per_row));
        let grid = |sizes: &[u64]| sizes.iter().try_fold(1_u64, |n, size| n.checked_mul(*size));
        let unknowns = |sizes: &[u64]| grid(sizes)?.checked_mul(3);
        let power = |scale: u32| 1_u64.checked_shl(scale);
        let (rows, cols, entries) = match *self {
            Self::Poisson2d { nx, ny, .. } => square(grid(&[nx, ny]), 5.0),
            Self::Poisson3d { nx, ny, nz, .. } => square(grid(&[nx, ny, nz]), 7.0),
            Self::Elasticity { nx, ny, nz, .. } => square(unknowns(&[nx, ny, nz]), 81.0),
            Self::Rmat { scale, edge_factor, .. } | Self::Ilu0Rmat { scale, edge_factor, .. } => {
                square(power(scale), edge_factor as f64)
            }
            Self::Banded { n, half, .. } => square(Some(n), 2.0 * half.min(n) as f64 + 1.0),
            Self::Uniform { rows, cols, nnz, .. } => Some((rows, cols, nnz as f64)),
            Self::Pruned { rows, cols, sparsity, .. } => {
                Some((rows, cols, rows as f64 * cols as f64 * (1.0 - sparsity)))
            }
            Self::Blocks { rows, cols, density, .. } => {
                Some((rows, cols, rows as f64 * cols as f64 * density))
            }
            Self::Road { nx, ny, .. } => square(grid(&[nx, ny]), 2.4),
            Self::Mesh { nx, ny, .. } => square(grid(&[nx, ny]), 6.0),
            Self::Arrow { n, .. } => square(Some(n), 3.0),
            Self::DenseRow { n, per_row, .. } => square(Some(n), per_row as f64 + 1.0),
            Self::LongRow { rows, cols, per_row, .. } => {
                Some((rows, cols, rows as f64 * per_row as f64 + cols as f64))
            }
            Self::Circuit { n, hubs, .. } => square(Some(n), 5.5 + 2.0 * hubs as f64),
            Self::Ilu0Poisson2d { nx, ny, .. } => square(grid(&[nx, ny]), 3.0),
            Self::Ilu0Poisson3d { nx, ny, nz, .. } => square(grid(&[nx, ny, nz]), 4.0),
            Self::Ilu0Random { n, per_row, .. } => square(Some(n), per_row as f64),
            Self::Ilu0Elasticity { nx, ny, nz, .. } => square(unknowns(&[nx, ny, nz]), 42.0),
            Self::CholeskyPoisson2d { nx, ny, .. } => square(grid(&[nx, ny]), 1.0),
            Self::CholeskyPoisson3d { nx, ny, nz, .. } => square(grid(&[nx, ny, nz]), 1.0),
            Self::CholeskyBanded { n, half, .. } => square(Some(n), half.min(n) as f64 + 1.0),
            Self::LowerLevels { n, per_row, .. } => square(Some(n), per_row as f64),
            Self::Lower(ref lower) => return lower.size(),
        }?;
        Some(Size { rows, cols, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_the_generated_matrices() {
        for text in [
            "poisson2d:nx=9,ny=7",
            "poisson3d:nx=5,ny=4,nz=6",
            "elasticity:nx=4,ny=4,nz=4",
            "rmat:scale=8",
            "banded:n=100,half=7",
            "uniform:rows=50,cols=90,nnz=700",
            "pruned:rows=64,cols=96,sparsity=0.8",
            "blocks:rows=64,cols=96,block=8,density=0.3",
            "road:nx=20,ny=20",
            "mesh:nx=20,ny=20",
            "arrow:n=80",
            "dense_row:n=100",
            "long_row:rows=90,cols=200",
            "circuit:n=300",
            "ilu0_poisson2d:nx=9,ny=7",
            "ilu0_poisson3d:nx=5,ny=4,nz=6",
            "ilu0_random:n=300",
            "ilu0_elasticity:nx=4,ny=4,nz=4",
            "ilu0_rmat:scale=8",
            "cholesky_poisson2d:nx=9,ny=9",
            "cholesky_poisson3d:nx=5,ny=5,nz=5",
            "cholesky_banded:n=100,half=9",
            "lower_levels:n=300,levels=10",
            "lower:of=mesh:nx=20,ny=20",
            "lower:unknowns=3,constraints=90,tail=9,of=circuit:n=300",
            "lower:keep=0.4,of=banded:n=200,half=30",
        ] {
            let spec = Spec::parse(text).unwrap();
            let (size, matrix) = (spec.size().unwrap(), spec.generate().unwrap());
            let rows = matrix.rows() as u64;
            assert_eq!((size.rows, size.cols), (rows, matrix.cols() as u64), "{text}");
            assert!(size.entries <= 8.0 * matrix.nnz() as f64, "{text}: {size:?}");
            assert!(size.entries >= 0.0 && size.entries >= rows as f64, "{text}: {size:?}");
        }
        assert_eq!(Spec::parse("rmat:scale=64").unwrap().size(), None);
        assert_eq!(Spec::parse("mesh:nx=1e15,ny=1e15").unwrap().size(), None);
        assert_eq!(
            Spec::parse("lower:tail=18446744073709551615,of=arrow:n=1e15").unwrap().size(),
            None
        );
    }
}
