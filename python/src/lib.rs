//! The extension module of the Python package: the whole program, canonical matrices and their digests, the tuner, and
//! plans that run on arrays of the caller.

mod errors;
mod fork;
mod matrix;
mod plan;
mod program;
mod tuner;

use pyo3::prelude::*;

#[pymodule(name = "_native")]
mod native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::errors::{
        BundleError, Error, NotFound, OperandError, ServerError, StalePlan, TuningError,
        WrongDevice, WrongPattern,
    };
    #[pymodule_export]
    use super::fork::check_process;
    #[pymodule_export]
    use super::matrix::Matrix;
    #[pymodule_export]
    use super::plan::{Plan, device_class, unsupported, write_pair};
    #[pymodule_export]
    use super::program::{main, set_program};
    #[pymodule_export]
    use super::tuner::Tuner;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::fork::watch()
    }
}
