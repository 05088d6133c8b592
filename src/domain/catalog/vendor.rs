//! The routines of the vendors' libraries, by the names that candidates give them.

/// One routine of a vendor's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routine {
    /// The value of a candidate's parameter `algorithm`.
    pub name: &'static str,
    pub library: Library,
}

/// A vendor's library, as it is used for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Sparse products of cuSPARSE.
    CusparseProduct,
    /// Triangular solves of cuSPARSE.
    CusparseSolve,
    /// Dense products of cuBLAS, for a sparse matrix that is made dense first.
    Cublas,
    /// Sparse products of Intel's MKL, on all threads of the host.
    MklProduct,
    /// Triangular solves of MKL.
    MklSolve,
    /// This program's plain product, for hosts without MKL: a loop over CSR whose rows are split evenly over all threads.
    PlainProduct,
    /// This program's plain substitution, for hosts without MKL: row after row on one thread.
    PlainSolve,
    /// The Rust crate `sprs`, on one thread of the host, for every operation: the baseline of plans of earlier versions.
    Sprs,
}

/// Every routine that stored candidates may name. An entry is never removed or renamed.
pub static ROUTINES: &[Routine] = &[
    Routine { name: "csr_alg1", library: Library::CusparseProduct },
    Routine { name: "csr_alg2", library: Library::CusparseProduct },
    Routine { name: "csr_alg3", library: Library::CusparseProduct },
    // Tried by earlier versions; it is one of the three above.
    Routine { name: "default", library: Library::CusparseProduct },
    // Of the matrix in blocks of as many rows and columns.
    Routine { name: "bsr4", library: Library::CusparseProduct },
    Routine { name: "bsr8", library: Library::CusparseProduct },
    Routine { name: "bsr16", library: Library::CusparseProduct },
    Routine { name: "bsr32", library: Library::CusparseProduct },
    // For one column of B.
    Routine { name: "spmv_alg1", library: Library::CusparseProduct },
    Routine { name: "spmv_alg2", library: Library::CusparseProduct },
    Routine { name: "spsv", library: Library::CusparseSolve },
    // Algorithms of `spsv` that newer versions of the library can be asked for.
    Routine { name: "spsv_alg1", library: Library::CusparseSolve },
    Routine { name: "spsv_alg2", library: Library::CusparseSolve },
    Routine { name: "spsm", library: Library::CusparseSolve },
    Routine { name: "cublas_dense", library: Library::Cublas },
    Routine { name: "cublas_dense_tf32", library: Library::Cublas },
    Routine { name: "mkl_mm", library: Library::MklProduct },
    // For one column of B.
    Routine { name: "mkl_mv", library: Library::MklProduct },
    Routine { name: "mkl_trsv", library: Library::MklSolve },
    Routine { name: "mkl_trsm", library: Library::MklSolve },
    Routine { name: "plain_csr", library: Library::PlainProduct },
    Routine { name: "plain_solve", library: Library::PlainSolve },
    // Of earlier versions; now only an oracle of tests.
    Routine { name: "sprs", library: Library::Sprs },
];

impl Library {
    /// Whether the library solves the problem as it is given. cuBLAS multiplies a matrix that is first made dense; nobody's
    /// speed-up is stated over that.
    pub const fn is_baseline(self) -> bool {
        !matches!(self, Self::Cublas)
    }

    /// Whether it runs on one thread of the host, which a speed-up over it has to mention.
    pub const fn is_single_threaded(self) -> bool {
        matches!(self, Self::PlainSolve | Self::Sprs)
    }

    /// What it is called; of what is part of this program, what it is.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CusparseProduct | Self::CusparseSolve => "cuSPARSE",
            Self::Cublas => "cuBLAS",
            Self::MklProduct | Self::MklSolve => "MKL",
            Self::PlainProduct => "plain CSR product",
            Self::PlainSolve => "plain substitution",
            Self::Sprs => "sprs",
        }
    }

    /// What the baseline is called if it is part of this program, and so has no vendor and its version is the program's.
    pub const fn own_name(self) -> Option<&'static str> {
        match self {
            Self::PlainProduct | Self::PlainSolve => Some(self.name()),
            _ => None,
        }
    }

    /// Whether the library multiplies a matrix that is made dense first.
    pub const fn densifies(self) -> bool {
        matches!(self, Self::Cublas)
    }

    /// Names of the library's routines.
    pub fn routines(self) -> impl Iterator<Item = &'static str> {
        let own = move |routine: &&Routine| routine.library == self;
        ROUTINES.iter().filter(own).map(|routine| routine.name)
    }
}

/// Sizes of the blocks in which a sparse product may take its matrix (`bsr4`), each a multiple of the one before.
pub const BLOCK_SIZES: [usize; 4] = [4, 8, 16, 32];

/// The size of the blocks in which the routine of this name takes the matrix, if it takes it so: 16 of `bsr16`.
pub fn block_size(routine: &str) -> Option<usize> {
    routine.strip_prefix("bsr")?.parse().ok().filter(|size| *size > 0)
}

/// Whether the routine of this name multiplies a vector, so that B has one column.
pub fn takes_vector(routine: &str) -> bool {
    routine.starts_with("spmv_") || routine == "mkl_mv"
}

/// The routine of this name; `None` for a name that no version of this program has given to any.
pub fn routine(name: &str) -> Option<&'static Routine> {
    ROUTINES.iter().find(|routine| routine.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_size_has_its_routine() {
        let sizes: Vec<usize> = ROUTINES.iter().filter_map(|it| block_size(it.name)).collect();
        assert_eq!(sizes, BLOCK_SIZES);
        assert!(BLOCK_SIZES.windows(2).all(|pair| pair[1] % pair[0] == 0));
        for other in ["bsr", "bsr0", "bsr-4", "bsr4x", "csr_alg1"] {
            assert_eq!(block_size(other), None, "{other}");
        }
        for size in BLOCK_SIZES {
            let found = routine(&format!("bsr{size}")).unwrap();
            assert!(found.library == Library::CusparseProduct && !takes_vector(found.name));
        }
        let vectors = ROUTINES.iter().filter(|it| takes_vector(it.name)).count();
        assert_eq!(vectors, 3);
    }
}
