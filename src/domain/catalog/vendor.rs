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
    /// The Rust crate `sprs`, on one thread of the host, for every operation.
    Sprs,
}

/// Every routine that stored candidates may name. An entry is never removed or renamed.
pub static ROUTINES: &[Routine] = &[
    Routine { name: "csr_alg1", library: Library::CusparseProduct },
    Routine { name: "csr_alg2", library: Library::CusparseProduct },
    Routine { name: "csr_alg3", library: Library::CusparseProduct },
    // Tried by earlier versions; it is one of the three above.
    Routine { name: "default", library: Library::CusparseProduct },
    Routine { name: "spsv", library: Library::CusparseSolve },
    Routine { name: "spsm", library: Library::CusparseSolve },
    Routine { name: "cublas_dense", library: Library::Cublas },
    Routine { name: "cublas_dense_tf32", library: Library::Cublas },
    Routine { name: "sprs", library: Library::Sprs },
];

impl Library {
    /// Whether the library solves the problem as it is given. cuBLAS multiplies a matrix that is first made dense; nobody's
    /// speed-up is stated over that.
    pub const fn is_baseline(self) -> bool {
        match self {
            Self::CusparseProduct | Self::CusparseSolve | Self::Sprs => true,
            Self::Cublas => false,
        }
    }

    /// Whether the library multiplies a matrix that is made dense first.
    pub const fn densifies(self) -> bool {
        match self {
            Self::Cublas => true,
            Self::CusparseProduct | Self::CusparseSolve | Self::Sprs => false,
        }
    }

    /// Names of the library's routines.
    pub fn routines(self) -> impl Iterator<Item = &'static str> {
        let own = move |routine: &&Routine| routine.library == self;
        ROUTINES.iter().filter(own).map(|routine| routine.name)
    }
}

/// The routine of this name; `None` for a name that no version of this program has given to any.
pub fn routine(name: &str) -> Option<&'static Routine> {
    ROUTINES.iter().find(|routine| routine.name == name)
}
