//! The program that a plan brings for new values of the same pattern: it gathers them into an array on the device.

use super::compile::Compiler;
use super::source;
use crate::domain::Dtype;
use crate::domain::protocol::ExportedUpdate;
use crate::engine::EngineError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const ENTRY: &str = "gather_values";
const QUOTIENTS: &str = "gather_quotients";

/// The program for values of a type. Triangular systems, whose arrays hold quotients, are of f32 or f64.
pub(super) fn source(dtype: Dtype) -> String {
    let (word, number) = match dtype {
        Dtype::F16 | Dtype::Bf16 => ("u16", None),
        Dtype::F32 => ("u32", Some("float")),
        Dtype::F64 => ("u64", Some("double")),
    };
    let quotients = number.map(|number| {
        format!(
            "extern \"C\" __global__ void {QUOTIENTS}(const {number}* values, const u32* map, const u32* divisors, \
             {number}* packed, u64 count) {{\n    \
             sparsetune::gather_quotients(values, map, divisors, packed, count);\n}}\n"
        )
    });
    format!(
        "#include \"engine/gather.cuh\"\nusing namespace sparsetune;\n\
         extern \"C\" __global__ void {ENTRY}(const {word}* values, const u32* map, {word}* packed, u64 count) {{\n    \
         gather(values, map, packed, count);\n}}\n{}",
        quotients.unwrap_or_default()
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
        quotients: text.contains(QUOTIENTS).then(|| QUOTIENTS.to_owned()),
        source: source::inlined(&text).map_err(unassembled)?,
        cubin: STANDARD.encode(&done.binary.cubin),
        ptx: compiler.ptx(&job).map_err(EngineError::Compile)?,
    })
}
