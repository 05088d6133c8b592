//! Runs a bundle's plan on the caller's own buffers.

mod check;
mod pair;

use self::pair::Linked;
use super::host::HostRunner;
use super::open::Bundle;
use super::pair::{Opened, Pair};
use crate::domain::bundle::{Call, DenseOperand, Forward, Manifest, UpdateValues};
use crate::domain::{DeviceKind, Problem};
use crate::engine::EngineError;
use crate::engine::cuda::CudaPlan;
use crate::sparse::Csr;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a plan is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// This host's CPU.
    Host,
    /// A GPU, in its primary context.
    Cuda {
        /// As the driver numbers the devices.
        ordinal: u32,
        /// CUDA libraries, or folders with them, that take precedence over the system's.
        libraries: Vec<PathBuf>,
    },
}

/// Why a plan cannot run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The plan is for another device, or the device lacks what it needs.
    #[error("{0}")]
    OtherDevice(String),
    /// The kernels of this version are others than those that the plan was measured with.
    #[error("{0}")]
    Stale(String),
    /// Operands or values do not suit the plan.
    #[error("{0}")]
    Operands(String),
    #[error(
        "the bundle was written without values, and none were given yet: update the values first"
    )]
    NoValues,
    #[error(transparent)]
    Engine(EngineError),
}

impl From<EngineError> for RunError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::OtherDevice(why) => Self::OtherDevice(why),
            other => Self::Engine(other),
        }
    }
}

/// A plan that is ready to run.
///
/// Calls of one plan follow each other: its kernels pass on state in memory of the plan. On a GPU they must be queued on one
/// stream, or on streams that wait for one another; load the bundle twice for calls at the same time.
pub struct LoadedPlan {
    bundle: Option<Arc<Bundle>>,
    pair: Option<Pair>,
    problem: Problem,
    call: Call,
    runner: Runner,
    /// Whether the values are no longer those that the bundle's check is for.
    updated: bool,
    /// Whether values are still missing.
    without_values: bool,
    warnings: Vec<String>,
}

enum Runner {
    Host(Box<HostRunner>),
    Cuda(Box<CudaPlan>),
    Pair(Box<Linked>),
}

impl LoadedPlan {
    /// Prepares the plan: uploads its arrays or distributes its rows. Calls then allocate nothing.
    ///
    /// # Errors
    /// The plan is for another device, is stale, or does not fit into the device's memory.
    pub fn load(bundle: Arc<Bundle>, place: &Place) -> Result<Self, RunError> {
        let manifest = bundle.manifest();
        let kind = match place {
            Place::Host => DeviceKind::Cpu,
            Place::Cuda { .. } => DeviceKind::Cuda,
        };
        if kind != manifest.target.kind {
            return Err(RunError::OtherDevice(other_kind(manifest)));
        }
        let (runner, warnings) = match place {
            Place::Host => {
                let (runner, warnings) = HostRunner::load(&bundle)?;
                (Runner::Host(Box::new(runner)), warnings)
            }
            Place::Cuda { ordinal, libraries } => {
                let plan = CudaPlan::load(libraries, *ordinal, manifest, &*bundle)?;
                let warnings = plan.warnings().to_vec();
                (Runner::Cuda(Box::new(plan)), warnings)
            }
        };
        Ok(Self {
            problem: manifest.problem,
            call: manifest.call.clone(),
            runner,
            updated: false,
            without_values: manifest.arrays.iter().any(|array| !array.included),
            warnings,
            bundle: Some(bundle),
            pair: None,
        })
    }

    /// Prepares what a file holds: a plan, or two that one call runs.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn open(opened: &Opened, place: &Place) -> Result<Self, RunError> {
        match opened {
            Opened::One(bundle) => Self::load(Arc::clone(bundle), place),
            Opened::Two(pair) => {
                let [first, second] = pair.parts().clone().map(|part| Self::load(part, place));
                let linked = Self::linked(first?, second?, *pair.problem())?;
                Ok(Self { pair: Some(pair.clone()), ..linked })
            }
        }
    }

    /// One call of both, in this order.
    fn linked(first: Self, second: Self, problem: Problem) -> Result<Self, RunError> {
        let mut warnings = first.warnings.clone();
        warnings.extend(
            second.warnings.iter().filter(|warning| !first.warnings.contains(warning)).cloned(),
        );
        let linked = Linked::new(first, second)?;
        Ok(Self {
            bundle: None,
            pair: None,
            problem,
            call: linked.call(),
            runner: Runner::Pair(Box::new(linked)),
            updated: false,
            // The parts know.
            without_values: false,
            warnings,
        })
    }

    /// A good host kernel for the problem that nothing was measured for: what runs until there is a plan.
    ///
    /// # Errors
    /// No host kernel computes the problem, or the matrix does not suit it.
    pub fn untuned(matrix: &Arc<Csr>, problem: &Problem) -> Result<Self, RunError> {
        if let Some(parts) = problem.parts() {
            let [first, second] = parts.map(|part| Self::untuned(matrix, &part));
            return Self::linked(first?, second?, *problem);
        }
        let (runner, call) = HostRunner::untuned(matrix, problem)?;
        Ok(Self {
            bundle: None,
            pair: None,
            problem: *problem,
            call,
            runner: Runner::Host(Box::new(runner)),
            updated: false,
            without_values: false,
            warnings: Vec::new(),
        })
    }

    /// The bundle that was loaded; `None` for an untuned plan and for a pair.
    pub fn bundle(&self) -> Option<&Arc<Bundle>> {
        self.bundle.as_ref()
    }

    /// The two bundles that were loaded, if it is a pair.
    pub fn pair(&self) -> Option<&Pair> {
        self.pair.as_ref()
    }

    /// Entries of the matrix: as many values as [`Self::update_values`] takes.
    pub fn entries(&self) -> u64 {
        match (&self.bundle, &self.runner) {
            (Some(bundle), _) => bundle.manifest().matrix.nnz,
            (None, Runner::Host(host)) => host.nnz(),
            (None, Runner::Pair(pair)) => pair.first.entries(),
            (None, Runner::Cuda(_)) => 0,
        }
    }

    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The dense operands of a call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// What differs from the device that the plan was measured on, as sentences.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// One call on operands in host memory, as bytes in the layout that [`Self::call`] states. On a GPU they are copied there
    /// and back.
    ///
    /// # Errors
    /// The operands do not suit the plan, or the call failed.
    pub fn run_on_host(
        &self,
        b: &[u8],
        c: &mut [u8],
        alpha: f64,
        beta: f64,
    ) -> Result<(), RunError> {
        self.ready(alpha, beta)?;
        right_length("B", b.len(), &self.call.b)?;
        right_length("C", c.len(), &self.call.c)?;
        match &self.runner {
            Runner::Host(host) => host.run(b, c, alpha, beta),
            Runner::Cuda(plan) => Ok(plan.call_on_host(b, c, alpha, beta)?),
            Runner::Pair(pair) => pair.run_on_host(b, c),
        }
    }

    /// Queues one call on operands in device memory on a stream; allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// The plan is not a GPU's, the addresses are not aligned, or the launch was refused.
    ///
    /// # Safety
    /// `b` and `c` are addresses of the plan's device with as many bytes as [`Self::call`] states, valid until the call has
    /// run, and `stream` is a stream of its primary context, or 0.
    pub unsafe fn run_on_device(
        &self,
        b: u64,
        c: u64,
        stream: u64,
        alpha: f64,
        beta: f64,
    ) -> Result<(), RunError> {
        self.ready(alpha, beta)?;
        match &self.runner {
            // SAFETY: the caller's.
            Runner::Cuda(plan) => Ok(unsafe { plan.run(b, c, stream, alpha, beta) }?),
            // SAFETY: the caller's.
            Runner::Pair(pair) => unsafe { pair.run_on_device(b, c, stream) },
            Runner::Host(_) => Err(on_host()),
        }
    }

    fn ready(&self, alpha: f64, beta: f64) -> Result<(), RunError> {
        if self.without_values {
            return Err(RunError::NoValues);
        }
        if !self.call.accumulate && (alpha, beta) != (1.0, 0.0) {
            let why = "the plan computes C = A B: alpha and beta need a plan with `accumulate`";
            return Err(RunError::Operands(why.to_owned()));
        }
        Ok(())
    }

    /// Replaces the values of the matrix, given in the order of its entries; the pattern stays. How near an approximate plan (families
    /// `sweeps` and `inverse`) comes was measured with the values before: with others its error is not known.
    ///
    /// # Errors
    /// There are not as many as entries, one of them is not finite in the problem's type, or the plan cannot be updated. The
    /// old values stay in effect.
    pub fn update_values(&mut self, values: &[f64]) -> Result<(), RunError> {
        self.check_values(values)?;
        match (&mut self.runner, &self.bundle) {
            (Runner::Host(host), bundle) => {
                if let Some(bundle) = bundle {
                    gathers(&bundle.manifest().update_values)?;
                }
                host.update(values)?;
            }
            (Runner::Cuda(plan), Some(bundle)) => super::update::on_gpu(plan, bundle, values)?,
            (Runner::Cuda(_), None) => return Err(RunError::NoValues),
            (Runner::Pair(pair), _) => pair.update_values(values)?,
        }
        self.updated = true;
        self.without_values = false;
        Ok(())
    }

    /// Replaces the values by those in device memory, in the problem's element type. Where the arrays hold them as they are, a
    /// kernel puts them in place, queued on the stream; where the arrays are made on the host, this reads the values there, makes
    /// the arrays again and waits for all work on the device. The error of an approximate plan is not known afterwards, as of
    /// [`Self::update_values`].
    ///
    /// # Errors
    /// The plan is not a GPU's, or cannot be updated; or its arrays are made on the host and a value is not finite, or the stream is
    /// being captured.
    ///
    /// # Safety
    /// `values` is an address of the plan's device with one element for each entry of the matrix, and `stream` a stream of
    /// its primary context, or 0.
    pub unsafe fn update_values_on_device(
        &mut self,
        values: u64,
        stream: u64,
    ) -> Result<(), RunError> {
        let update = self.bundle.as_ref().map(|bundle| &bundle.manifest().update_values);
        let made = matches!(update, Some(UpdateValues::Host(_)));
        match &mut self.runner {
            Runner::Cuda(plan) if made => {
                // SAFETY: the caller's.
                let values = unsafe { plan.values_on_host(values, stream) }?;
                return self.update_values(&values);
            }
            // SAFETY: the caller's.
            Runner::Cuda(plan) => unsafe { plan.update_values_on_device(values, stream) }?,
            // SAFETY: the caller's.
            Runner::Pair(pair) => unsafe { pair.update_values_on_device(values, stream) }?,
            Runner::Host(_) => return Err(on_host()),
        }
        self.updated = true;
        self.without_values = false;
        Ok(())
    }

    fn check_values(&self, values: &[f64]) -> Result<(), RunError> {
        let nnz = self.entries();
        if values.len() as u64 != nnz {
            let why = format!("there are {} values for a matrix of {nnz} entries", values.len());
            return Err(RunError::Operands(why));
        }
        let dtype = self.problem.dtype();
        let beyond = |value: &f64| !crate::sparse::oracle::round(*value, dtype).is_finite();
        match values.iter().position(beyond) {
            None => Ok(()),
            Some(at) => Err(RunError::Operands(format!(
                "value {at} is {}, which is not a finite number in {dtype}",
                values[at]
            ))),
        }
    }

    /// Whether a kernel of an earlier call waited too long and ended itself, so that the call's result is not valid. Waits
    /// for all calls, and makes the plan usable again.
    ///
    /// # Errors
    /// The device failed.
    pub fn gave_up(&self) -> Result<bool, RunError> {
        match &self.runner {
            Runner::Cuda(plan) => Ok(plan.gave_up()?),
            Runner::Pair(pair) => pair.gave_up(),
            Runner::Host(_) => Ok(false),
        }
    }
}

/// A host kernel reads arrays that hold the values as they are, or none of the loader's making.
fn gathers(update: &UpdateValues) -> Result<(), RunError> {
    let reason = match update {
        UpdateValues::Gather(_) => return Ok(()),
        UpdateValues::Host(_) => "its arrays are functions of all values",
        UpdateValues::Impossible { reason } => reason,
    };
    Err(RunError::Operands(format!("the values of this plan cannot be updated: {reason}")))
}

fn on_host() -> RunError {
    RunError::OtherDevice("the plan runs on the host CPU, not on a GPU's operands".to_owned())
}

fn other_kind(manifest: &Manifest) -> String {
    let name = &manifest.target.name;
    let how = match manifest.forward {
        Forward::Cuda(_) => "its kernels are a GPU's",
        Forward::Host(_) => "its kernel is the host's",
        Forward::Vendor(_) => "so is the vendor's routine that won",
    };
    format!("the plan is for {name}: {how}, so it cannot run on another kind of device")
}

fn right_length(what: &str, found: usize, operand: &DenseOperand) -> Result<(), RunError> {
    let DenseOperand { rows, cols, element, .. } = operand;
    let bytes = rows * cols * element.bytes();
    if found as u64 == bytes {
        return Ok(());
    }
    let element = element.name();
    Err(RunError::Operands(format!(
        "{what} has {found} bytes; {rows} x {cols} elements of {element} have {bytes}"
    )))
}
