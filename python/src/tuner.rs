//! Tuning in this process, without a server.

use crate::errors::{Error, OperandError, TuningError, sentence};
use crate::fork;
use crate::matrix::Matrix;
use crate::plan::read_problem;
use pyo3::prelude::*;
use serde_json::{Map, Value};
use sparsetune::bundle::Values;
use sparsetune::domain::{Digest, Grade, Plan, Problem, Search, SearchStrategy};
use sparsetune::{Tuner as Inner, TunerError};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A tuner with a data folder of its own, for one device.
#[pyclass(frozen, module = "sparsetune._native")]
pub struct Tuner(Mutex<Option<Arc<Inner>>>);

#[pymethods]
impl Tuner {
    /// Opens the data folder and the device (`cpu`, `cuda:0`). `command` is the program with its leading arguments that is
    /// started for measurements.
    #[new]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        device: &str,
        command: (PathBuf, Vec<OsString>),
        libraries: Vec<PathBuf>,
    ) -> PyResult<Self> {
        fork::check()?;
        let (program, leading) = command;
        let options = Inner::options().evaluator(program).evaluator_arguments(leading);
        let options = libraries.into_iter().fold(options, |options, path| options.library(path));
        let opened = py.detach(|| options.data(folder).open(device)).map_err(tuning_error)?;
        Ok(Self(Mutex::new(Some(Arc::new(opened)))))
    }

    /// Tunes, unless the folder has a measured plan and `again` is not said, writes the bundle of the plan to a file, and
    /// returns the plan's id. Problem and search are JSON; what a search leaves out has its default.
    #[expect(clippy::too_many_arguments, reason = "Python's, which has names for them")]
    fn tune(
        &self,
        py: Python<'_>,
        matrix: &Bound<'_, Matrix>,
        problem: &str,
        search: Option<&str>,
        expected_calls: Option<u64>,
        path: PathBuf,
        again: bool,
    ) -> PyResult<String> {
        fork::check()?;
        let problem = read_problem(problem)?;
        let search = read_search(search, &problem)?;
        let digest = matrix.get().digest;
        let matrix = sparsetune::Matrix::from(matrix.get().csr.as_ref().clone());
        let inner = self.lock().clone();
        let inner = inner.ok_or_else(|| Error::new_err("The tuner is closed."))?;
        py.detach(|| {
            if problem.parts().is_some() {
                return both(
                    &inner,
                    (&digest, &matrix),
                    (&problem, search, expected_calls),
                    (&path, again),
                );
            }
            let known = inner.lookup(&digest, &problem)?;
            // A key has one answer: it may have been made for another number of calls.
            let known = known.plan.filter(|plan| {
                !again && known.grade == Grade::Exact && plan.expected_calls == expected_calls
            });
            let plan = match known {
                Some(plan) => plan,
                None => inner.tune_with(&matrix, &problem, search, expected_calls)?,
            };
            inner.bundle(&plan.id, Values::Included, &path)?;
            Ok(plan.id.to_string())
        })
        .map_err(tuning_error)
    }

    /// Ends the process that measures, once nobody tunes any more.
    fn close(&self, py: Python<'_>) {
        let inner = self.lock().take();
        py.detach(|| drop(inner));
    }
}

impl Tuner {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Inner>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As `tune`, for both triangles: two plans, and one file of both. Returns the id of the first.
fn both(
    inner: &Inner,
    (digest, matrix): (&Digest, &sparsetune::Matrix),
    (problem, search, expected_calls): (&Problem, Search, Option<u64>),
    (path, again): (&Path, bool),
) -> Result<String, TunerError> {
    let known = inner.lookup(digest, problem)?;
    let grade = known.grade;
    let fits =
        |plan: &Plan| !again && grade == Grade::Exact && plan.expected_calls == expected_calls;
    let plans = match (known.plan, known.second) {
        // The two may be of matrices with the same pattern: only plans of one matrix are a pair.
        (Some(first), Some(second))
            if fits(&first) && fits(&second) && first.matrix == second.matrix =>
        {
            [first, second]
        }
        _ => inner.tune_both(matrix, problem, search, expected_calls)?,
    };
    inner.bundle_both([&plans[0].id, &plans[1].id], path)?;
    Ok(plans[0].id.to_string())
}

fn read_search(search: Option<&str>, problem: &Problem) -> PyResult<Search> {
    let strategy = SearchStrategy::default_for(problem);
    let Some(search) = search else { return Ok(Search { strategy, ..Search::default() }) };
    let refused = |error: serde_json::Error| {
        OperandError::new_err(sentence(&format!("the search is not valid: {error}")))
    };
    let mut fields: Map<String, Value> = serde_json::from_str(search).map_err(refused)?;
    if !fields.contains_key("strategy") {
        fields.insert("strategy".to_owned(), serde_json::to_value(strategy).map_err(refused)?);
    }
    serde_json::from_value(Value::Object(fields)).map_err(refused)
}

fn tuning_error(error: TunerError) -> PyErr {
    TuningError::new_err(sentence(&error.to_string()))
}
