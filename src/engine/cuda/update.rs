//! The program that a plan brings for new values of the same pattern: it gathers them into an array on the device.

use super::compile::Compiler;
use super::source;
use crate::domain::Dtype;
use crate::domain::protocol::ExportedUpdate;
use crate::engine::EngineError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const ENTRY: &str = "gather_values";

/// The program for values of a type.
pub(super) fn source(dtype: Dtype) -> String {
    let word = match dtype {
        Dtype::F16 | Dtype::Bf16 => "u16",
        Dtype::F32 => "u32",
        Dtype::F64 => "u64",
    };
    format!(
        "#include \"engine/gather.cuh\"\nusing namespace sparsetune;\n\
         extern \"C\" __global__ void {ENTRY}(const {word}* values, const u32* map, {word}* packed, u64 count) {{\n    \
         gather(values, map, packed, count);\n}}\n"
    )
}

/// The program as a plan keeps it; it is compiled if no earlier plan needed it.
pub(super) fn export(compiler: &Compiler, dtype: Dtype) -> Result<ExportedUpdate, EngineError> {
    let text = source(dtype);
    let unassembled = |error: source::SourceError| EngineError::Compile(error.to_string());
    let job = compiler.job(&text, None).map_err(unassembled)?;
    let done = compiler.wait(&job).map_err(EngineError::Compile)?;
    Ok(ExportedUpdate {
        entry: ENTRY.to_owned(),
        source: source::inlined(&text).map_err(unassembled)?,
        cubin: STANDARD.encode(&done.binary.cubin),
        ptx: compiler.ptx(&job).map_err(EngineError::Compile)?,
    })
}
