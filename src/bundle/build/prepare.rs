//! Repeats a plan's lowering, and finds out what its arrays hold.

use super::super::arguments::argument;
use super::super::operand::{self, Form};
use super::super::places::{self, Content};
use super::{BuildError, Parts};
use crate::domain::bundle::Argument;
use crate::domain::element::Element;
use crate::domain::plan::{Launch, LaunchStep, PlanArray};
use crate::domain::recipe::{Array, Program, Recipe};
use crate::domain::{DeviceKind, Digest, Dtype, Plan};
use crate::ops;
use crate::sparse::{Csr, TriangleError};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// A plan's arrays, and what each of them holds.
pub(super) struct Prepared {
    pub(super) recipe: Recipe,
    pub(super) arrays: Vec<Array>,
    /// One for each array; `None` if they are other functions of the values, or the plan has no kernel that computes quotients.
    pub(super) contents: Option<Vec<Content>>,
    /// Why the arrays cannot be made again, if they cannot.
    pub(super) foreign: Option<&'static str>,
    pub(super) nnz: usize,
}

pub(super) fn prepare(parts: &Parts<'_>) -> Result<Prepared, BuildError> {
    let plan = parts.plan;
    let recipe = lower(plan, &parts.matrix)?;
    let form = match &recipe.program {
        Program::Vendor { .. } if plan.device.kind == DeviceKind::Cuda => Form::Vendor,
        _ => Form::Kernel,
    };
    let wanted = wanted(plan, &recipe)?;
    let keep = |array: &Array| wanted.as_ref().is_none_or(|names| names.contains(&array.name));
    let all = |matrix: &Arc<Csr>, recipe: &Recipe| -> Result<Vec<Array>, TriangleError> {
        let operand = operand::arrays(matrix, &plan.problem, form)?.into_iter();
        Ok(operand.chain(recipe.arrays.iter().cloned()).filter(keep).collect())
    };
    let nnz = parts.matrix.nnz();
    let mut arrays = all(&parts.matrix, &recipe)?;
    let stored = plan.launch.as_ref().map_or(&[][..], |launch| &launch.arrays);
    let same = |stored: &PlanArray| {
        let made = recipe.arrays.iter().find(|array| array.name == stored.name);
        made.is_some_and(|made| {
            made.data.element().name() == stored.element
                && Digest::of(made.data.bytes()) == stored.blob
        })
    };
    if !stored.iter().all(same) {
        let operand = operand::arrays(&parts.matrix, &plan.problem, form)?.into_iter().filter(keep);
        arrays = operand.collect();
        for stored in stored {
            arrays.push(read(parts, stored)?);
        }
        let foreign = "another version of sparsetune packed the arrays of this plan";
        return Ok(Prepared { recipe, arrays, contents: None, foreign: Some(foreign), nnz });
    }
    let again = |matrix: Arc<Csr>| all(&matrix, &lower(plan, &matrix).ok()?).ok();
    let update = plan.launch.as_ref().and_then(|launch| launch.update.as_ref());
    let divides = update.is_some_and(|update| update.quotients.is_some());
    let dtype = plan.problem.dtype();
    let contents = places::contents(&parts.matrix, dtype, &arrays, divides, &again);
    let foreign = None;
    if contents.is_none() {
        arrays.extend(operand::pattern(&parts.matrix));
    }
    Ok(Prepared { recipe, arrays, contents, foreign, nnz })
}

/// Lowers the plan's candidate for a matrix as it was uploaded.
pub(in crate::bundle) fn lower(plan: &Plan, matrix: &Arc<Csr>) -> Result<Recipe, BuildError> {
    let operand = ops::shared_operand(matrix, &plan.problem);
    let mut lowerer = ops::of(&plan.problem).lowerer(operand, &plan.device)?;
    Ok(lowerer.lower(&plan.candidate)?)
}

/// The arrays that a GPU program names; `None` if all of them are read.
fn wanted(plan: &Plan, recipe: &Recipe) -> Result<Option<HashSet<String>>, BuildError> {
    if !matches!(recipe.program, Program::Cuda(_)) {
        return Ok(None);
    }
    let launch = plan.launch.as_ref().ok_or(BuildError::NoProgram("it was never compiled"))?;
    let mut names = HashSet::new();
    for step in steps(launch) {
        for argument in arguments(&step, plan.problem.dtype())? {
            if let Argument::Array { name } = argument {
                names.insert(name);
            }
        }
    }
    Ok(Some(names))
}

fn read(parts: &Parts<'_>, stored: &PlanArray) -> Result<Array, BuildError> {
    let bytes = (parts.blob)(&stored.blob).map_err(BuildError::Blob)?;
    let garbled = || {
        let message = format!("array `{}` has {} bytes", stored.name, bytes.len());
        BuildError::Blob(io::Error::new(io::ErrorKind::InvalidData, message))
    };
    let element = Element::named(&stored.element).ok_or_else(garbled)?;
    let data = super::super::open::array_data(element, &bytes).ok_or_else(garbled)?;
    if data.len() as u64 != stored.length {
        return Err(garbled());
    }
    Ok(Array { name: stored.name.clone(), data })
}

/// All launches of a call.
pub(super) fn steps(launch: &Launch) -> Vec<LaunchStep> {
    if !launch.steps.is_empty() {
        return launch.steps.clone();
    }
    let Launch { entry, grid, block, shared_bytes, arguments, .. } = launch.clone();
    vec![LaunchStep { entry, grid, block, cluster: 1, shared_bytes, overlaps: false, arguments }]
}

pub(super) fn arguments(step: &LaunchStep, dtype: Dtype) -> Result<Vec<Argument>, BuildError> {
    let each = step.arguments.iter();
    each.map(|name| argument(name, dtype).ok_or_else(|| BuildError::Argument(name.clone())))
        .collect()
}
