//! Plans for the host CPU.

use super::open::Bundle;
use super::operand::{COL_IDX, DIAGONAL, ROW_PTR, VALUES};
use super::run::RunError;
use crate::domain::bundle::{Call, DenseOperand, Forward, Manifest};
use crate::domain::element::Element;
use crate::domain::problem::Triangle;
use crate::domain::recipe::{Array, ArrayData, HostProgram, Program};
use crate::domain::{Digest, Layout, Problem};
use crate::engine::cpu::{self, DenseMut, DenseRef, HostPlan, NewValues};
use crate::ops;
use crate::sparse::{Csr, Triangular};
use std::sync::Arc;

/// A plan on this host, and how new values reach it.
pub(super) struct HostRunner {
    plan: HostPlan,
    source: Source,
}

/// New values of a solve, in the order of its system.
pub(super) struct SolveValues {
    lower: Vec<f64>,
    diagonal: Vec<f64>,
    /// Where the plan keeps the matrix.
    matrix: Option<Arc<Csr>>,
}

/// Where the kernel's values come from.
enum Source {
    /// Entries of the matrix by place, or `None` where place i holds entry i; of the diagonal only if it has values.
    Maps { values: Place, diagonal: Option<Place>, rows: usize, product: bool },
    /// The matrix as it was given.
    Matrix { matrix: Arc<Csr>, problem: Problem },
}

type Place = Option<Arc<[u32]>>;

impl HostRunner {
    /// The runner, and what differs from the host that the plan was measured on.
    pub(super) fn load(bundle: &Bundle) -> Result<(Self, Vec<String>), RunError> {
        let manifest = bundle.manifest();
        let program = match &manifest.forward {
            Forward::Host(host) => {
                stale(host.kernel_digest.as_ref(), &host.program)?;
                Program::Host(host.program)
            }
            Forward::Vendor(vendor) => Program::Vendor { algorithm: vendor.algorithm.clone() },
            Forward::Cuda(_) => {
                return Err(RunError::OtherDevice("the plan's kernels are a GPU's".to_owned()));
            }
        };
        let plan = match &manifest.problem {
            Problem::Spmm(spmm) => {
                let call = &manifest.call;
                let matrix = matrix(bundle, call.c.rows as usize, call.b.rows as usize)?;
                HostPlan::product(Arc::new(matrix), spmm, &program, &packed(bundle))?
            }
            Problem::Sptrsv(solve) => {
                let lower = solve.triangle == Triangle::Lower;
                let system = system(bundle, lower == solve.transpose)?;
                HostPlan::solve(Arc::new(system), solve, &program)?
            }
        };
        let place = |name: &str| -> Result<Option<Place>, RunError> {
            let array = manifest.arrays.iter().find(|array| array.name == name);
            let Some(values) = array.and_then(|array| array.values.as_ref()) else {
                return Ok(None);
            };
            let Some(map) = &values.map else { return Ok(Some(None)) };
            match bundle.array_data(map) {
                Some(ArrayData::U32(map)) => Ok(Some(Some(map))),
                _ => Err(missing(map)),
            }
        };
        let source = Source::Maps {
            // Without a statement about them there are none, as in a triangle that is all diagonal, or they are never updated.
            values: place(VALUES)?.unwrap_or_else(|| Some(Arc::default())),
            diagonal: place(DIAGONAL)?,
            rows: manifest.call.c.rows as usize,
            product: matches!(manifest.problem, Problem::Spmm(_)),
        };
        Ok((Self { plan, source }, warnings(manifest)))
    }

    /// A kernel that nothing was measured for, and the operands of its call.
    pub(super) fn untuned(matrix: &Arc<Csr>, problem: &Problem) -> Result<(Self, Call), RunError> {
        let operand = ops::shared_operand(matrix, problem);
        let element = Element::from(problem.dtype());
        let (plan, shape, layout, accumulate) = match problem {
            Problem::Spmm(spmm) => {
                let program =
                    Program::Host(cpu::default_product(spmm, &operand, cpu::plan_threads()?));
                let plan = HostPlan::product(operand.clone(), spmm, &program, &[])?;
                (plan, (operand.rows(), operand.cols()), spmm.layout, spmm.accumulate)
            }
            Problem::Sptrsv(solve) => {
                let system = Triangular::of(matrix, solve);
                let system = system.map_err(|error| RunError::Operands(error.to_string()))?;
                let program =
                    Program::Host(cpu::default_solve(solve, &system, cpu::plan_threads()?));
                let shape = (system.rows(), system.rows());
                (HostPlan::solve(Arc::new(system), solve, &program)?, shape, Layout::Row, false)
            }
        };
        let dense = |rows: usize| DenseOperand {
            rows: rows as u64,
            cols: problem.columns().into(),
            element,
            layout,
            alignment: element.bytes() as u32,
        };
        let (b, c) = (dense(shape.1), dense(shape.0));
        let call = Call { b, c, accumulate, b_must_be_finite: false };
        let source = Source::Matrix { matrix: matrix.clone(), problem: *problem };
        Ok((Self { plan, source }, call))
    }

    /// Entries of an untuned plan's matrix.
    pub(super) fn nnz(&self) -> u64 {
        match &self.source {
            Source::Matrix { matrix, .. } => matrix.nnz() as u64,
            Source::Maps { .. } => 0,
        }
    }

    pub(super) fn run(
        &self,
        b: &[u8],
        c: &mut [u8],
        alpha: f64,
        beta: f64,
    ) -> Result<(), RunError> {
        let unaligned = |_| {
            let element = self.plan.dtype();
            RunError::Operands(format!("B or C is not aligned to an element of {element}"))
        };
        let cast = bytemuck::try_cast_slice;
        let (b, c) = match self.plan.dtype() {
            crate::domain::Dtype::F64 => (
                DenseRef::F64(cast(b).map_err(unaligned)?),
                DenseMut::F64(bytemuck::try_cast_slice_mut(c).map_err(unaligned)?),
            ),
            _ => (
                DenseRef::F32(bytemuck::try_cast_slice(b).map_err(unaligned)?),
                DenseMut::F32(bytemuck::try_cast_slice_mut(c).map_err(unaligned)?),
            ),
        };
        Ok(self.plan.run(b, c, alpha, beta)?)
    }

    /// New values of a solve in the order of the matrix's entries, as its plan takes them: everything that can be refused has been.
    pub(super) fn prepared(&self, values: &[f64]) -> Result<SolveValues, RunError> {
        let new = match &self.source {
            Source::Maps { values: place, diagonal, rows, .. } => {
                let diagonal = match diagonal {
                    Some(place) => gathered(place, values),
                    None => vec![1.0; *rows],
                };
                SolveValues { lower: gathered(place, values), diagonal, matrix: None }
            }
            Source::Matrix { matrix, problem: Problem::Sptrsv(solve) } => {
                let matrix = Arc::new(with_values(matrix, values)?);
                let system = Triangular::of(&matrix, solve);
                let system = system.map_err(|error| RunError::Operands(error.to_string()))?;
                let Triangular { values: lower, diagonal, .. } = system;
                SolveValues { lower, diagonal, matrix: Some(matrix) }
            }
            Source::Matrix { .. } => {
                return Err(RunError::Operands("the plan is a product, not a solve".to_owned()));
            }
        };
        self.plan.takes(&new.lower, &new.diagonal)?;
        Ok(new)
    }

    pub(super) fn put(&mut self, new: SolveValues) -> Result<(), RunError> {
        let SolveValues { lower, diagonal, matrix: given } = new;
        self.plan.set_values(NewValues::Solve { lower: &lower, diagonal: &diagonal })?;
        if let (Source::Matrix { matrix, .. }, Some(given)) = (&mut self.source, given) {
            *matrix = given;
        }
        Ok(())
    }

    /// Takes new values in the order of the matrix's entries.
    pub(super) fn update(&mut self, values: &[f64]) -> Result<(), RunError> {
        match &self.source {
            Source::Maps { values: place, product: true, .. } => {
                let entries = gathered(place, values);
                Ok(self.plan.set_values(NewValues::Product(&entries))?)
            }
            Source::Matrix { matrix, problem: problem @ Problem::Spmm(_) } => {
                let matrix = Arc::new(with_values(matrix, values)?);
                let operand = ops::shared_operand(&matrix, problem);
                self.plan.set_values(NewValues::Product(operand.values()))?;
                self.source = Source::Matrix { matrix, problem: *problem };
                Ok(())
            }
            _ => {
                let new = self.prepared(values)?;
                self.put(new)
            }
        }
    }
}

/// A matrix of the same pattern.
pub(super) fn with_values(matrix: &Csr, values: &[f64]) -> Result<Csr, RunError> {
    let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
    Csr::new(matrix.rows(), matrix.cols(), indptr, indices, values.to_vec())
        .map_err(|error| RunError::Operands(error.to_string()))
}

fn gathered(place: &Place, values: &[f64]) -> Vec<f64> {
    match place {
        None => values.to_vec(),
        Some(map) => {
            map.iter().map(|&entry| values.get(entry as usize).copied().unwrap_or(0.0)).collect()
        }
    }
}

fn missing(name: &str) -> RunError {
    RunError::Operands(format!("the bundle lacks the array `{name}`"))
}

/// An array of numbers that is left out if it holds the values.
fn numbers(
    bundle: &Bundle,
    name: &str,
    (length, without): (usize, f64),
) -> Result<Vec<f64>, RunError> {
    let listed = bundle.manifest().arrays.iter().find(|array| array.name == name);
    let listed = listed.ok_or_else(|| missing(name))?;
    // Before anything of that length is made: a bundle may claim any.
    if listed.length != length as u64 {
        let found = listed.length;
        return Err(RunError::Operands(format!("`{name}` has {found} elements, not {length}")));
    }
    if !listed.included {
        return Ok(vec![without; length]);
    }
    match bundle.array_data(name) {
        Some(ArrayData::F32(data)) => Ok(data.iter().map(|&value| value.into()).collect()),
        Some(ArrayData::F64(data)) => Ok(data.to_vec()),
        _ => Err(missing(name)),
    }
}

fn indices(bundle: &Bundle, name: &str) -> Result<Arc<[u32]>, RunError> {
    match bundle.array_data(name) {
        Some(ArrayData::U32(data)) => Ok(data),
        _ => Err(missing(name)),
    }
}

fn pointers(bundle: &Bundle) -> Result<Vec<usize>, RunError> {
    Ok(indices(bundle, ROW_PTR)?.iter().map(|&pointer| pointer as usize).collect())
}

fn matrix(bundle: &Bundle, rows: usize, cols: usize) -> Result<Csr, RunError> {
    let columns = indices(bundle, COL_IDX)?.to_vec();
    let values = numbers(bundle, VALUES, (columns.len(), 0.0))?;
    Csr::new(rows, cols, pointers(bundle)?, columns, values)
        .map_err(|error| RunError::Operands(error.to_string()))
}

/// The system in solve order; the kernels' own preparation validates it.
fn system(bundle: &Bundle, reversed: bool) -> Result<Triangular, RunError> {
    let diagonal = numbers(bundle, DIAGONAL, (bundle.manifest().call.c.rows as usize, 1.0))?;
    let columns = indices(bundle, COL_IDX)?.to_vec();
    Ok(Triangular {
        indptr: pointers(bundle)?,
        values: numbers(bundle, VALUES, (columns.len(), 0.0))?,
        indices: columns,
        diagonal,
        reversed,
    })
}

/// The recipe's own arrays.
fn packed(bundle: &Bundle) -> Vec<Array> {
    let operand = [ROW_PTR, COL_IDX, VALUES, DIAGONAL];
    let own = bundle.manifest().arrays.iter().filter(|it| !operand.contains(&it.name.as_str()));
    own.filter_map(|it| Some(Array { name: it.name.clone(), data: bundle.array_data(&it.name)? }))
        .collect()
}

/// Refuses a plan that was measured with other kernels.
fn stale(measured: Option<&Digest>, program: &HostProgram) -> Result<(), RunError> {
    let ours = cpu::program_digest(program);
    if measured.is_none_or(|digest| *digest == ours) {
        return Ok(());
    }
    Err(RunError::Stale(
        "the plan is stale: it was measured with other host kernels than those of this version of sparsetune; tune again"
            .to_owned(),
    ))
}

fn warnings(manifest: &Manifest) -> Vec<String> {
    let target = &manifest.target;
    let here = cpu::host_name();
    let mut warnings = Vec::new();
    if here != target.name {
        warnings.push(format!("the plan was measured on {}, and this host is {here}", target.name));
    }
    if let Ok(threads) = cpu::plan_threads()
        && threads as u64 != u64::from(target.multiprocessors)
    {
        let measured = target.multiprocessors;
        warnings.push(format!("the plan was measured with {measured} threads; here are {threads}"));
    }
    warnings
}
