//! The vendor's libraries and their routines, each set up once on the loaded operands.

use super::baseline::{Routine, Work};
use super::context::{Buffer, Context};
use super::cublas::{self, Cublas};
use super::cusparse::Handle;
use super::gemm::{self, Gemm};
use super::launch::refused;
use super::operands::{Judge, Loaded};
use super::overtaking;
use super::own::OwnKernels;
use crate::domain::candidate::is_dense_product;
use crate::domain::recipe::Compiled;
use crate::engine::EngineError;
use crate::engine::libraries::{LibraryError, Search};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// A library's handle, or the reason that there is none.
pub(super) type Opened<H> = Result<Arc<H>, String>;

pub(super) struct Vendors {
    cusparse: Opened<Handle>,
    /// Opened when a dense product is first requested; only the absence of the library is remembered as a failure.
    cublas: Option<Opened<cublas::Handle>>,
    search: Search,
    /// Algorithms set up on the loaded operands.
    routines: HashMap<String, Arc<Routine>>,
}

impl Vendors {
    pub(super) fn new(cusparse: Opened<Handle>, search: Search) -> Self {
        Self { cusparse, cublas: None, search, routines: HashMap::new() }
    }

    /// Whether the sparse routines are available, which need the matrix in their own form.
    pub(super) fn has_sparse(&self) -> bool {
        self.cusparse.is_ok()
    }

    /// Drops what was set up on the operands.
    pub(super) fn clear(&mut self) {
        self.routines.clear();
    }

    /// Milliseconds of the work that new values require of a routine that was set up.
    pub(super) fn update_ms(&self, algorithm: &str) -> Option<f64> {
        self.routines.get(algorithm).and_then(|routine| routine.update_ms())
    }

    /// The routine; if recipes' arrays leave no memory for it, they are freed. The time of opening a library is reported
    /// separately, as compile time: it is spent once for all matrices.
    pub(super) fn routine(
        &mut self,
        context: &Arc<Context>,
        own: &OwnKernels,
        loaded: &mut Loaded,
        algorithm: &str,
    ) -> Result<(Arc<Routine>, Compiled), EngineError> {
        let mut compiled = Compiled::default();
        if let Some(routine) = self.routines.get(algorithm) {
            return Ok((routine.clone(), compiled));
        }
        let dense = is_dense_product(algorithm);
        if dense && self.cublas.is_none() {
            let started = Instant::now();
            let opened = match open(&self.search, context) {
                Err(EngineError::OutOfMemory(_)) => {
                    loaded.drop_arrays();
                    open(&self.search, context)
                }
                result => result,
            };
            self.cublas = Some(opened?);
            compiled.compile_ms = started.elapsed().as_secs_f64() * 1e3;
        }
        let set_up = |loaded: &Loaded| match dense {
            true => self.dense(context, own, loaded, algorithm),
            false => {
                let mut routine =
                    Routine::new(context, handle(&self.cusparse)?, loaded, algorithm)?;
                if let Routine::Product(spmm) = &mut routine {
                    overtaking::keep_in_order(context, own, loaded, spmm, algorithm)?;
                }
                Ok(routine)
            }
        };
        let routine = match set_up(loaded) {
            Err(EngineError::OutOfMemory(_)) => {
                loaded.drop_arrays();
                set_up(loaded)
            }
            result => result,
        };
        let routine = Arc::new(routine?);
        self.routines.insert(algorithm.to_owned(), routine.clone());
        Ok((routine, compiled))
    }

    fn dense(
        &self,
        context: &Arc<Context>,
        own: &OwnKernels,
        loaded: &Loaded,
        algorithm: &str,
    ) -> Result<Routine, EngineError> {
        if matches!(loaded.judge, Judge::Solution(_)) {
            return Err(refused(format!(
                "`{algorithm}` multiplies; the loaded problem is a solve"
            )));
        }
        let cublas =
            self.cublas.as_ref().ok_or_else(|| refused("cuBLAS is not open".to_owned()))?;
        let work = Work::of(loaded);
        let scatter =
            |dense: &Buffer, leading| gemm::scatter(context, own, &work.csr, dense, leading);
        Gemm::new(context, handle(cublas)?, &work, algorithm, scatter).map(Routine::Dense)
    }
}

fn handle<H>(opened: &Opened<H>) -> Result<&Arc<H>, EngineError> {
    opened.as_ref().map_err(|reason| refused(reason.clone()))
}

/// The handle, or that there is no library, which will not change. What may differ next time is an error.
fn open(search: &Search, context: &Arc<Context>) -> Result<Opened<cublas::Handle>, EngineError> {
    match Cublas::open(search) {
        Ok(library) => Ok(Ok(Arc::new(cublas::Handle::new(library, context)?))),
        Err(error @ LibraryError::Absent { .. }) => {
            tracing::warn!(%error, "cuBLAS cannot be used: no dense products");
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(refused(error.to_string())),
    }
}
