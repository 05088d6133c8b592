//! Plans that run on arrays of the caller.

use crate::errors::{BundleError, Error, OperandError, StalePlan, WrongDevice, sentence};
use crate::fork;
use crate::matrix::{Matrix, floats};
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, NPY_TYPES};
use numpy::{IxDyn, PyArray, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use sparsetune_core::bundle::{Bundle, LoadedPlan, Opened, Pair, Place, RunError};
use sparsetune_core::domain::bundle::DenseOperand;
use sparsetune_core::domain::element::Element;
use sparsetune_core::domain::{DeviceKind, Layout, Problem};
use sparsetune_core::engine::{EngineError, cpu};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A plan that is ready to run, and the operands of its calls.
#[pyclass(frozen, module = "sparsetune._native")]
pub struct Plan {
    loaded: RwLock<LoadedPlan>,
    ordinal: Option<u32>,
    b: Operand,
    c: Operand,
}

/// A dense operand as NumPy describes it.
struct Operand {
    dense: DenseOperand,
    type_number: i32,
    bytes: usize,
}

/// A dense operand of a caller.
struct Given {
    address: usize,
    dimensions: usize,
}

#[pymethods]
impl Plan {
    /// Opens and verifies a bundle and prepares its plan: on `device` (`cpu`, `cuda:1`), or where the bundle says.
    #[staticmethod]
    #[pyo3(signature = (path, device=None, libraries=Vec::new()))]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        device: Option<&str>,
        libraries: Vec<PathBuf>,
    ) -> PyResult<Self> {
        fork::check()?;
        py.detach(|| {
            let opened = Opened::open(&path).map_err(|error| not_opened(&path, &error))?;
            let ordinal = match device {
                Some(device) => ordinal(device)?,
                None => {
                    let target = &opened.parts()[0].manifest().target;
                    (target.kind == DeviceKind::Cuda).then_some(0)
                }
            };
            let place = match ordinal {
                None => Place::Host,
                Some(ordinal) => Place::Cuda { ordinal, libraries },
            };
            let loaded = LoadedPlan::open(&opened, &place).map_err(run_error)?;
            Ok(Self::of(loaded, ordinal))
        })
    }

    /// A host kernel with settings by rule, for the problem as JSON.
    #[staticmethod]
    fn untuned(py: Python<'_>, matrix: &Bound<'_, Matrix>, problem: &str) -> PyResult<Self> {
        fork::check()?;
        let problem = read_problem(problem)?;
        let csr = matrix.get().csr.clone();
        let loaded = py.detach(|| LoadedPlan::untuned(&csr, &problem)).map_err(run_error)?;
        Ok(Self::of(loaded, None))
    }

    /// One call on NumPy arrays. `out` is made if it is not given.
    #[pyo3(signature = (b, out=None, alpha=None, beta=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        b: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        alpha: Option<f64>,
        beta: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let given = self.b.read("B", b)?;
        let out = match out {
            Some(out) => out.clone(),
            None if beta.unwrap_or(0.0) != 0.0 => {
                let why =
                    "With beta, `out` must be given: it holds the C that beta is a factor of.";
                return Err(OperandError::new_err(why));
            }
            None => self.c.allocate(py, given.dimensions)?,
        };
        let to = self.c.read("out", &out)?;
        if !writeable(&out) {
            return Err(OperandError::new_err("`out` must be writable."));
        }
        self.call(py, given.address, to.address, alpha.unwrap_or(1.0), beta.unwrap_or(0.0))?;
        Ok(out)
    }

    /// One call on host memory by its addresses, which are not checked beyond overlap and alignment.
    fn run_at(&self, py: Python<'_>, b: usize, c: usize, alpha: f64, beta: f64) -> PyResult<()> {
        self.call(py, b, c, alpha, beta)
    }

    /// Queues one call on a stream of the plan's GPU. Addresses are not checked beyond their alignment.
    fn run_on_device(
        &self,
        py: Python<'_>,
        b: u64,
        c: u64,
        stream: u64,
        alpha: f64,
        beta: f64,
    ) -> PyResult<()> {
        fork::check()?;
        // SAFETY: the package's Python half checked device, shape, type and order of both operands, which its caller keeps
        // alive as every asynchronous call needs.
        py.detach(|| unsafe { self.read().run_on_device(b, c, stream, alpha, beta) })
            .map_err(run_error)
    }

    /// Replaces the values: all of them (float32 or float64), in canonical order.
    fn update_values(&self, py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<()> {
        fork::check()?;
        let values = floats(values)?;
        py.detach(|| self.write().update_values(&values)).map_err(run_error)
    }

    /// As `update_values`, for values of the problem's type on the plan's GPU, queued on a stream.
    fn update_values_on_device(&self, py: Python<'_>, values: u64, stream: u64) -> PyResult<()> {
        fork::check()?;
        // SAFETY: as for `run_on_device`: type and number were checked.
        py.detach(|| unsafe { self.write().update_values_on_device(values, stream) })
            .map_err(run_error)
    }

    /// Whether the bundle's check passed, the largest error as a share of the allowed one, and the number of samples.
    fn check(&self, py: Python<'_>) -> PyResult<(bool, f64, u32)> {
        fork::check()?;
        let report = py.detach(|| self.read().check()).map_err(run_error)?;
        Ok((report.passed(), report.worst, report.samples))
    }

    /// Whether a kernel of an earlier call ended itself.
    fn gave_up(&self, py: Python<'_>) -> PyResult<bool> {
        fork::check()?;
        py.detach(|| self.read().gave_up()).map_err(run_error)
    }

    /// The manifest as JSON, or what both manifests of a pair say; None for an untuned plan.
    #[getter]
    fn manifest(&self) -> PyResult<Option<String>> {
        let plan = self.read();
        if let Some(pair) = plan.pair() {
            return json(&pair.summary()).map(Some);
        }
        plan.bundle().map(|bundle| json(bundle.manifest())).transpose()
    }

    /// The problem as JSON.
    #[getter]
    fn problem(&self) -> PyResult<String> {
        json(self.read().problem())
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.read().warnings().iter().map(|warning| sentence(warning)).collect()
    }

    /// The GPU's number; None for a plan on the CPU.
    #[getter]
    fn ordinal(&self) -> Option<u32> {
        self.ordinal
    }

    /// Rows, columns, type, layout and alignment of B.
    #[getter]
    fn b(&self) -> (u64, u64, &'static str, &'static str, u32) {
        self.b.described()
    }

    /// Rows, columns, type, layout and alignment of C.
    #[getter]
    fn c(&self) -> (u64, u64, &'static str, &'static str, u32) {
        self.c.described()
    }
}

impl Plan {
    /// One call on host memory, without Python's lock. The operands were checked by `Operand::read`, or by the package's
    /// Python half.
    fn call(&self, py: Python<'_>, b: usize, c: usize, alpha: f64, beta: f64) -> PyResult<()> {
        fork::check()?;
        let (b_bytes, c_bytes) = (self.b.bytes, self.c.bytes);
        if c < b + b_bytes && b < c + c_bytes {
            return Err(OperandError::new_err("`out` must not overlap B."));
        }
        if b_bytes == 0 || c_bytes == 0 {
            // The address of nothing may be null, which no slice has.
            return Ok(());
        }
        let ran = py.detach(|| {
            // SAFETY: both operands are alive during this call, contiguous, as long as was checked, and do not overlap; C may
            // be written. That no other thread writes to them meanwhile is the caller's part, as with NumPy's own functions.
            let (b, c) = unsafe {
                (
                    std::slice::from_raw_parts(b as *const u8, b_bytes),
                    std::slice::from_raw_parts_mut(c as *mut u8, c_bytes),
                )
            };
            self.read().run_on_host(b, c, alpha, beta)
        });
        ran.map_err(run_error)
    }

    fn of(loaded: LoadedPlan, ordinal: Option<u32>) -> Self {
        let call = loaded.call();
        let (b, c) = (Operand::of(&call.b), Operand::of(&call.c));
        Self { loaded: RwLock::new(loaded), ordinal, b, c }
    }

    fn read(&self) -> RwLockReadGuard<'_, LoadedPlan> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, LoadedPlan> {
        self.loaded.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Operand {
    fn of(dense: &DenseOperand) -> Self {
        let type_number = match dense.element {
            Element::F16 => NPY_TYPES::NPY_HALF,
            // A type of another package, known by its name.
            Element::Bf16 => NPY_TYPES::NPY_USERDEF,
            Element::F64 => NPY_TYPES::NPY_DOUBLE,
            _ => NPY_TYPES::NPY_FLOAT,
        };
        let bytes = (dense.rows * dense.cols * dense.element.bytes()) as usize;
        Self { dense: dense.clone(), type_number: type_number as i32, bytes }
    }

    fn described(&self) -> (u64, u64, &'static str, &'static str, u32) {
        let dense = &self.dense;
        (dense.rows, dense.cols, dense.element.name(), dense.layout.name(), dense.alignment)
    }

    /// Whether it is contiguous in C order; a single column is in both orders.
    fn rows_first(&self) -> bool {
        self.dense.layout == Layout::Row || self.dense.cols == 1
    }

    /// Refuses an array of another shape, type or order.
    fn read(&self, what: &str, array: &Bound<'_, PyAny>) -> PyResult<Given> {
        let Ok(array) = array.cast::<PyUntypedArray>() else {
            let kind = array.get_type().fully_qualified_name()?;
            return Err(self.refusal(what, &format!("a {kind}")));
        };
        let (rows, cols) = (self.dense.rows as usize, self.dense.cols as usize);
        let fits = match *array.shape() {
            [found_rows, found_cols] => (found_rows, found_cols) == (rows, cols),
            [found_rows] => cols == 1 && found_rows == rows,
            _ => false,
        };
        let dtype = array.dtype();
        let native = dtype.is_native_byteorder().unwrap_or(true);
        let same = match self.dense.element {
            Element::Bf16 => dtype.getattr("name")?.extract::<String>()? == "bfloat16",
            _ => dtype.num() == self.type_number,
        };
        if !fits || !same || !native {
            let found = format!("{:?} of {}", array.shape(), dtype.str()?);
            return Err(self.refusal(what, &found));
        }
        let contiguous = match self.rows_first() {
            true => array.is_c_contiguous(),
            false => array.is_fortran_contiguous(),
        };
        if !contiguous {
            let strides = format!("strided by {:?} bytes", array.strides());
            return Err(self.refusal(what, &strides));
        }
        // SAFETY: the array is alive, and only the address of its data is read.
        let address = unsafe { (*array.as_array_ptr()).fields.data } as usize;
        let alignment = self.dense.element.bytes() as usize;
        if !address.is_multiple_of(alignment) {
            return Err(OperandError::new_err(format!(
                "The address of {what} must be a multiple of {alignment} bytes."
            )));
        }
        Ok(Given { address, dimensions: array.ndim() })
    }

    fn refusal(&self, what: &str, found: &str) -> PyErr {
        let DenseOperand { rows, cols, .. } = self.dense;
        let element = match self.dense.element {
            Element::F16 => "float16",
            Element::Bf16 => "bfloat16 (of ml_dtypes)",
            Element::F64 => "float64",
            _ => "float32",
        };
        let order = match self.dense.layout {
            Layout::Row => "row-major (C order)",
            Layout::Col => "column-major (Fortran order)",
        };
        OperandError::new_err(format!(
            "{what} must be {rows} x {cols} elements of {element} in a NumPy array, contiguous and {order}; it is {found}."
        ))
    }

    /// A new array, not initialised, with as many dimensions as B.
    fn allocate<'py>(&self, py: Python<'py>, dimensions: usize) -> PyResult<Bound<'py, PyAny>> {
        let shape = [self.dense.rows as usize, self.dense.cols as usize];
        let shape = IxDyn(&shape[..dimensions.min(2)]);
        let columns_first = !self.rows_first();
        if self.dense.element == Element::Bf16 {
            let dtype = PyModule::import(py, "ml_dtypes")?.getattr("bfloat16")?;
            let [rows, cols] = [self.dense.rows, self.dense.cols];
            let shape = if dimensions == 1 { vec![rows] } else { vec![rows, cols] };
            let order = if columns_first { "F" } else { "C" };
            return PyModule::import(py, "numpy")?.call_method1("empty", (shape, dtype, order));
        }
        // SAFETY: plain numbers, which the call writes before anybody reads them.
        Ok(unsafe {
            match self.dense.element {
                Element::F16 => PyArray::<half::f16, _>::new(py, shape, columns_first).into_any(),
                Element::F64 => PyArray::<f64, _>::new(py, shape, columns_first).into_any(),
                _ => PyArray::<f32, _>::new(py, shape, columns_first).into_any(),
            }
        })
    }
}

fn writeable(array: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the array is alive, and only its flags are read.
    array.cast::<PyUntypedArray>().is_ok_and(
        |array| unsafe { (*array.as_array_ptr()).fields.flags } & NPY_ARRAY_WRITEABLE != 0,
    )
}

/// Why an operation's problem cannot run on a kind of device (`cpu`, `cuda:0`); None if it can.
#[pyfunction]
pub fn unsupported(device: &str, problem: &str) -> PyResult<Option<String>> {
    let problem = read_problem(problem)?;
    let kind = match ordinal(device)? {
        None => DeviceKind::Cpu,
        Some(_) => DeviceKind::Cuda,
    };
    let why = match problem.out_of_tuned_range() {
        Some((_, why)) => Some(sentence(&why)),
        None => problem.limit(Some(kind)).map(|limit| sentence(limit.why)),
    };
    Ok(why)
}

/// Writes two bundles into one file, which one call runs: the plans of both triangles of a matrix, in the order of their calls.
#[pyfunction]
pub fn write_pair(py: Python<'_>, first: PathBuf, second: PathBuf, path: PathBuf) -> PyResult<()> {
    py.detach(|| {
        let open = |part: &Path| {
            Bundle::open(part).map(Arc::new).map_err(|error| not_opened(part, &error))
        };
        let pair = Pair::of(open(&first)?, open(&second)?);
        let pair = pair.map_err(|error| BundleError::new_err(sentence(&error.to_string())))?;
        let mut file = File::create(&path)?;
        pair.write(&mut file)
            .map_err(|error| BundleError::new_err(sentence(&error.to_string())))?;
        Ok(file.sync_all()?)
    })
}

fn not_opened(path: &Path, error: &sparsetune_core::bundle::BundleError) -> PyErr {
    let why = sentence(&error.to_string());
    BundleError::new_err(format!("{}: {why}", path.display()))
}

/// The class of a device: that of this host's CPU for `cpu`; for a GPU from its name, compute capability and number of
/// multiprocessors.
#[pyfunction]
#[pyo3(signature = (gpu=None))]
pub fn device_class(gpu: Option<(String, String, u32)>) -> PyResult<String> {
    use sparsetune_core::domain::Device;
    let class = match gpu {
        None => cpu::device_class().map_err(|error| run_error(error.into()))?,
        Some((name, compute_capability, multiprocessors)) => {
            let kind = DeviceKind::Cuda;
            Device { kind, name, compute_capability, multiprocessors, ..Device::NONE }.class()
        }
    };
    Ok(class.0)
}

/// None for `cpu`, the number of `cuda:0`.
fn ordinal(device: &str) -> PyResult<Option<u32>> {
    let number = match device.strip_prefix("cuda") {
        None => None,
        Some("") => Some(Some(0)),
        Some(rest) => rest.strip_prefix(':').map(|number| number.parse().ok()),
    };
    match (device, number) {
        ("cpu", _) => Ok(None),
        (_, Some(Some(number))) => Ok(Some(number)),
        _ => Err(WrongDevice::new_err(format!(
            "`{device}` is no device: it must be `cpu` or `cuda:` with a number."
        ))),
    }
}

pub fn read_problem(problem: &str) -> PyResult<Problem> {
    serde_json::from_str(problem).map_err(|error| {
        OperandError::new_err(sentence(&format!("the problem is not valid: {error}")))
    })
}

fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| Error::new_err(sentence(&error.to_string())))
}

fn run_error(error: RunError) -> PyErr {
    let text = sentence(&error.to_string());
    match error {
        RunError::OtherDevice(_) => WrongDevice::new_err(text),
        RunError::Stale(_) => StalePlan::new_err(text),
        RunError::Operands(_) | RunError::NoValues | RunError::Engine(EngineError::Refused(_)) => {
            OperandError::new_err(text)
        }
        RunError::Engine(_) => Error::new_err(text),
    }
}
