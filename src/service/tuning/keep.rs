//! What a plan keeps of its winner's program beyond the figures: source, cubin and arrays as blobs, and the launches.

use super::session::SessionError;
use crate::domain::plan::{Launch, PlanArray};
use crate::domain::protocol::{Exported, ExportedArray};
use crate::service::Service;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;

/// Stores source, cubin and the arrays that the evaluator wrote to `folder`; none for a program without a launch.
pub(super) async fn launch(
    service: &Service,
    exported: &Exported,
    folder: &Path,
) -> Result<Option<Launch>, SessionError> {
    let Some(first) = exported.steps.first() else { return Ok(None) };
    let source = match &exported.source {
        Some(text) => Some(service.blobs().put_bytes(text.clone().into_bytes().into()).await?),
        None => None,
    };
    let cubin = match &exported.cubin {
        Some(text) => {
            let bytes = STANDARD.decode(text).map_err(|error| {
                SessionError::Hopeless(format!("the evaluator's cubin is garbled: {error}"))
            })?;
            Some(service.blobs().put_bytes(bytes.into()).await?)
        }
        None => None,
    };
    let mut arrays = Vec::with_capacity(exported.arrays.len());
    for exported in &exported.arrays {
        arrays.push(array(service, exported, folder).await?);
    }
    Ok(Some(Launch {
        entry: first.entry.clone(),
        source,
        cubin,
        grid: first.grid,
        block: first.block,
        shared_bytes: first.shared_bytes,
        arguments: first.arguments.clone(),
        // One that needs a cluster is not said whole by the members above.
        steps: if exported.steps.len() > 1 || first.cluster > 1 {
            exported.steps.clone()
        } else {
            Vec::new()
        },
        arrays,
        scratch: exported.scratch.clone(),
    }))
}

/// The evaluator is a process of its own and may have gone mad: what it names must lie in the folder, and be as long as
/// it says.
async fn array(
    service: &Service,
    exported: &ExportedArray,
    folder: &Path,
) -> Result<PlanArray, SessionError> {
    let ExportedArray { name, element, length, file } = exported.clone();
    let garbled =
        |why: &str| SessionError::Hopeless(format!("the evaluator's array {name}: {why}"));
    let file = file.ok_or_else(|| garbled("was not written"))?;
    if file.parent() != Some(folder) {
        return Err(garbled("was written elsewhere"));
    }
    let bytes = match element.as_str() {
        "u16" => 2,
        "u32" | "f32" => 4,
        "f64" => 8,
        _ => return Err(garbled("has elements of an unknown type")),
    };
    let written = tokio::fs::symlink_metadata(&file).await;
    let written = written.map_err(|error| garbled(&error.to_string()))?;
    if !written.is_file() || Some(written.len()) != length.checked_mul(bytes) {
        return Err(garbled("is not as long as it says"));
    }
    let blob = service.blobs().put_staged(file).await?;
    Ok(PlanArray { name, element, length, blob })
}
