//! New values for a plan on a GPU: put in place where arrays hold them as they are, and otherwise by making the arrays again.

use super::arguments::argument;
use super::build::lower;
use super::host::with_values;
use super::open::Bundle;
use super::operand::{self, Form, MATRIX_COL_IDX, MATRIX_ROW_PTR};
use super::run::RunError;
use crate::domain::Problem;
use crate::domain::bundle::{BundleArray, BundleStep, Forward, Manifest, UpdateValues};
use crate::domain::recipe::{Array, ArrayData, EQUAL_VALUES, Program, Recipe};
use crate::engine::PlanFiles;
use crate::engine::cuda::{CudaPlan, Replacement, launch_steps, source};
use crate::sparse::Csr;
use std::collections::HashMap;
use std::sync::Arc;

/// The legacy default stream.
const DEFAULT_STREAM: u64 = 0;

/// Gives new values to a plan, in the order of the matrix's entries.
pub(super) fn on_gpu(plan: &CudaPlan, bundle: &Bundle, values: &[f64]) -> Result<(), RunError> {
    match &bundle.manifest().update_values {
        UpdateValues::Gather(_) => {
            // The default stream neither waits for the streams of calls nor they for it, unless they were made so.
            plan.synchronize()?;
            plan.update_values_from_host(values, DEFAULT_STREAM)?;
            Ok(plan.synchronize()?)
        }
        UpdateValues::Host(_) => {
            let (manifest, files) = made_again(bundle, values)?;
            Ok(plan.replace(&manifest, &files)?)
        }
        UpdateValues::Impossible { reason } => {
            Err(RunError::Operands(format!("the values of this plan cannot be updated: {reason}")))
        }
    }
}

/// What [`on_gpu`] would put in place, where arrays have to be made again; `None` where values are put in place by maps. What
/// [`on_gpu`] would refuse is refused.
pub(super) fn prepared(
    plan: &CudaPlan,
    bundle: &Bundle,
    values: &[f64],
) -> Result<Option<Replacement>, RunError> {
    if !matches!(bundle.manifest().update_values, UpdateValues::Host(_)) {
        plan.accepts(values)?;
        return Ok(None);
    }
    let (manifest, files) = made_again(bundle, values)?;
    Ok(Some(plan.replacement(&manifest, &files)?))
}

/// The bundle's members with arrays made of other values.
struct MadeAgain<'a> {
    bundle: &'a Bundle,
    arrays: HashMap<String, ArrayData>,
}

impl PlanFiles for MadeAgain<'_> {
    fn member(&self, path: &str) -> Option<&[u8]> {
        self.bundle.member(path)
    }

    fn array(&self, name: &str) -> Option<&[u8]> {
        self.arrays.get(name).map(ArrayData::bytes)
    }
}

/// Lowers the plan's candidate again. How far a system is rewritten depends on its values, so arrays and launches may have
/// other lengths than before; the kernels stay.
fn made_again<'a>(
    bundle: &'a Bundle,
    values: &[f64],
) -> Result<(Manifest, MadeAgain<'a>), RunError> {
    let plan = bundle.plan();
    let matrix = Arc::new(with_values(&pattern(bundle)?, values)?);
    let recipe = lower(plan, &matrix).map_err(|error| RunError::Operands(error.to_string()))?;
    let Program::Cuda(program) = &recipe.program else {
        return Err(RunError::Operands("the plan has no kernels".to_owned()));
    };
    let mut manifest = bundle.manifest().clone();
    let Forward::Cuda(forward) = &mut manifest.forward else {
        return Err(RunError::Operands("the bundle has no kernels".to_owned()));
    };
    same_kernels(bundle, forward.module.source.as_deref(), &program.source)?;
    let dtype = plan.problem.dtype();
    let steps = launch_steps(&recipe, program).into_iter().map(|step| {
        let arguments = step.arguments.iter().map(|name| argument(name, dtype));
        let arguments = arguments.collect::<Option<Vec<_>>>().ok_or_else(other_version)?;
        let (symbol, grid, block) = (step.entry, step.grid, step.block);
        let (cluster, shared_bytes, overlaps) = (step.cluster, step.shared_bytes, step.overlaps);
        Ok(BundleStep { symbol, grid, block, cluster, shared_bytes, overlaps, arguments })
    });
    forward.steps = steps.collect::<Result<_, RunError>>()?;
    manifest.scratch.clone_from(&recipe.scratch);
    let arrays = arrays(&matrix, &plan.problem, recipe)?;
    manifest.arrays = arrays
        .iter()
        .map(|array| BundleArray {
            name: array.name.clone(),
            element: array.data.element(),
            length: array.data.len() as u64,
            included: true,
            values: None,
            equality: array.name == EQUAL_VALUES,
        })
        .collect();
    let arrays = arrays.into_iter().map(|array| (array.name, array.data)).collect();
    Ok((manifest, MadeAgain { bundle, arrays }))
}

fn arrays(matrix: &Arc<Csr>, problem: &Problem, recipe: Recipe) -> Result<Vec<Array>, RunError> {
    let operand = operand::arrays(matrix, problem, Form::Kernel);
    let mut all = operand.map_err(|error| RunError::Operands(error.to_string()))?;
    all.extend(recipe.arrays);
    Ok(all)
}

/// The bundle's machine code was compiled from the text that this version lowers to.
fn same_kernels(bundle: &Bundle, member: Option<&str>, text: &str) -> Result<(), RunError> {
    let kept = member.and_then(|path| bundle.member(path)).ok_or_else(other_version)?;
    match source::inlined(text) {
        Ok(text) if text.as_bytes() == kept => Ok(()),
        _ => Err(other_version()),
    }
}

fn other_version() -> RunError {
    RunError::Stale(
        "the arrays of this plan have to be made again for new values, and its kernels are those of another version of \
         sparsetune: tune again"
            .to_owned(),
    )
}

/// The matrix as it was uploaded, without its values.
fn pattern(bundle: &Bundle) -> Result<Csr, RunError> {
    let array = |name| match bundle.array_data(name) {
        Some(ArrayData::U32(data)) => Ok(data),
        _ => Err(RunError::Operands(format!("the bundle lacks the array `{name}`"))),
    };
    let matrix = &bundle.manifest().matrix;
    let pointers = array(MATRIX_ROW_PTR)?.iter().map(|&pointer| pointer as usize).collect();
    let columns = array(MATRIX_COL_IDX)?.to_vec();
    let zeros = vec![0.0; columns.len()];
    Csr::new(matrix.rows as usize, matrix.cols as usize, pointers, columns, zeros)
        .map_err(|error| RunError::Operands(error.to_string()))
}
