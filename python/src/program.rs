//! The command line inside the extension: `python -m sparsetune` and the script `sparsetune` are this.

use pyo3::prelude::*;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs the program with these arguments, of which the first is its name, and returns its exit code. Ctrl-C has its usual
/// meaning for programs from then on, instead of Python's.
#[pyfunction]
pub fn main(py: Python<'_>, argv: Vec<OsString>) -> u8 {
    py.detach(|| {
        // SAFETY: a plain call; Python's handler would only be seen once this function has returned.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        let code = sparsetune::cli::main_with(argv);
        // Nothing flushes it later: the runtime of a Rust program would, at its end.
        let _ = std::io::stdout().flush();
        // A code cannot be asked for its number.
        (0..=u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(1)
    })
}

/// Sets the program with its leading arguments that this process starts for measurements.
#[pyfunction]
pub fn set_program(program: PathBuf, leading: Vec<OsString>) {
    sparsetune::pool::set_program(program, leading);
}
