//! The exceptions of the package. Their texts are whole sentences.

use pyo3::create_exception;
use pyo3::exceptions::PyException;

create_exception!(sparsetune, Error, PyException, "Base class of all errors of sparsetune.");
create_exception!(
    sparsetune,
    OperandError,
    Error,
    "An operand has another shape, type, layout, alignment or place than the call needs."
);
create_exception!(sparsetune, BundleError, Error, "A file is not a sound bundle.");
create_exception!(
    sparsetune,
    StalePlan,
    Error,
    "A plan was made by another version of the kernels than this one has."
);
create_exception!(sparsetune, WrongDevice, Error, "A plan is for another device.");
create_exception!(sparsetune, WrongPattern, Error, "A plan is for a matrix with another pattern.");
create_exception!(sparsetune, TuningError, Error, "Tuning has failed.");
create_exception!(sparsetune, ServerError, Error, "A server could not be reached, or refused.");
create_exception!(sparsetune, NotFound, ServerError, "A server does not have what was asked for.");

/// The text as a sentence: with a capital at its beginning and a full stop at its end.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| match first.is_ascii_lowercase() {
        true if !text.starts_with("sparsetune") => first.to_ascii_uppercase(),
        _ => first,
    });
    let whole: String = first.into_iter().chain(letters).collect();
    if whole.ends_with(['.', '!', '?']) { whole } else { format!("{whole}.") }
}
