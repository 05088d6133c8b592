//! The parts of a recipe's program that a plan keeps: the launches by name, the text with its headers, what it was compiled
//! to and how, and the program that gathers new values.

use super::compile::{Compiler, Done};
use super::{source, update};
use crate::domain::Dtype;
use crate::domain::plan::LaunchStep;
use crate::domain::protocol::Exported;
use crate::domain::recipe::{Arg, CudaProgram, Recipe, Step};
use crate::engine::EngineError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub(super) fn export(
    recipe: &Recipe,
    program: &CudaProgram,
    done: &Done,
    compiler: &Compiler,
    dtype: Dtype,
) -> Result<Exported, EngineError> {
    let unassembled = |error: source::SourceError| EngineError::Compile(error.to_string());
    let job = compiler.job(&program.source, program.max_registers).map_err(unassembled)?;
    Ok(Exported {
        steps: launch_steps(recipe, program),
        scratch: recipe.scratch.clone(),
        zero_output: program.zero_output,
        update_ms: recipe.update_ms,
        source: Some(source::inlined(&program.source).map_err(unassembled)?),
        cubin: Some(STANDARD.encode(&done.binary.cubin)),
        ptx: Some(compiler.ptx(&job).map_err(EngineError::Compile)?),
        options: job.options,
        compiler: Some(compiler.name()),
        update: Some(update::export(compiler, dtype)?),
        kernel_digest: Some(source::closure_digest(&program.source).map_err(unassembled)?),
        ..Exported::default()
    })
}

/// The launches of a call as a plan keeps them; `program` is the recipe's.
pub fn launch_steps(recipe: &Recipe, program: &CudaProgram) -> Vec<LaunchStep> {
    program.steps.iter().map(|step| launch_step(step, recipe)).collect()
}

/// A launch as a plan keeps it.
fn launch_step(step: &Step, recipe: &Recipe) -> LaunchStep {
    LaunchStep {
        entry: step.entry.clone(),
        grid: step.grid,
        block: step.block,
        cluster: step.cluster,
        shared_bytes: step.shared_bytes,
        overlaps: step.overlaps,
        arguments: step.args.iter().map(|arg| argument_name(arg, recipe)).collect(),
    }
}

/// How a plan names an argument: the operand, `array:NAME`, or the constant itself.
fn argument_name(arg: &Arg, recipe: &Recipe) -> String {
    match *arg {
        Arg::RowPtr => "row_ptr".to_owned(),
        Arg::ColIdx => "col_idx".to_owned(),
        Arg::Values => "values".to_owned(),
        Arg::B => "b".to_owned(),
        Arg::C => "c".to_owned(),
        Arg::Array(index) => {
            format!("array:{}", recipe.arrays.get(index).map_or("?", |array| &array.name))
        }
        Arg::Diagonal => "diagonal".to_owned(),
        Arg::Scratch(index) => format!("scratch:{index}"),
        Arg::Turn { even, odd } => format!("turn:{even},{odd}"),
        Arg::Epoch => "epoch".to_owned(),
        Arg::DeadlineNs => "deadline_ns".to_owned(),
        Arg::Status => "status".to_owned(),
        Arg::U32(value) => format!("u32:{value}"),
        Arg::U64(value) => format!("u64:{value}"),
        Arg::F32(value) => format!("f32:{value}"),
        Arg::Alpha => "alpha".to_owned(),
        Arg::Beta => "beta".to_owned(),
    }
}
