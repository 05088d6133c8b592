//! Stores the winner's program for the plan: source, cubin and arrays as blobs, and the launches.

use super::session::SessionError;
use crate::domain::plan::{Launch, PlanArray};
use crate::domain::protocol::{Exported, ExportedArray};
use crate::service::Service;
use crate::store::BlobError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;
use tempfile::TempPath;

/// Stores source, cubin and the arrays that the evaluator wrote to `folder`; `None` for a program without a launch.
pub(super) async fn launch(
    service: &Service,
    exported: &Exported,
    folder: &Path,
) -> Result<Option<Launch>, SessionError> {
    let Some(first) = exported.steps.first() else { return Ok(None) };
    let source = match &exported.source {
        Some(text) => Some(service.blobs().put(text.clone().into_bytes().into()).await?),
        None => None,
    };
    let cubin = match &exported.cubin {
        Some(text) => {
            let bytes = STANDARD.decode(text).map_err(|error| {
                SessionError::Hopeless(format!("the evaluator sent an invalid cubin: {error}"))
            })?;
            Some(service.blobs().put(bytes.into()).await?)
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
        // The fields above cannot express a launch with clusters.
        steps: if exported.steps.len() > 1 || first.cluster > 1 {
            exported.steps.clone()
        } else {
            Vec::new()
        },
        arrays,
        scratch: exported.scratch.clone(),
        zero_output: exported.zero_output,
    }))
}

/// The evaluator is a separate process and may be corrupted: the files it names must be in the folder and have the
/// stated length.
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
        return Err(garbled("was written outside the folder"));
    }
    let bytes = match element.as_str() {
        "u16" | "f16" => 2,
        "u32" | "f32" => 4,
        "f64" => 8,
        _ => return Err(garbled("has an unknown element type")),
    };
    let written = tokio::fs::symlink_metadata(&file).await;
    let written = written.map_err(|error| garbled(&error.to_string()))?;
    if !written.is_file() || Some(written.len()) != length.checked_mul(bytes) {
        return Err(garbled("does not have the stated length"));
    }
    let file = TempPath::try_from_path(file).map_err(BlobError::from)?;
    let blob = service.blobs().put_file(file, None).await?;
    Ok(PlanArray { name, element, length, blob })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Digest;
    use crate::service::ServiceSettings;
    use crate::store::{Blobs as _, LocalBlobs, SqliteStore};
    use std::sync::Arc;

    fn exported(folder: &Path, name: &str, length: u64) -> Exported {
        let array = ExportedArray {
            name: "order".to_owned(),
            element: "u32".to_owned(),
            length,
            file: Some(folder.join(name)),
        };
        let source = Some("text".to_owned());
        Exported { arrays: vec![array], source, ..Exported::routine("solve", Vec::new()) }
    }

    #[tokio::test]
    async fn arrays_become_blobs_and_invalid_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("store")).await.unwrap();
        let blobs = LocalBlobs::open(&folder.path().join("blobs")).unwrap();
        let service =
            Service::new(Arc::new(store), Arc::new(blobs.clone()), ServiceSettings::default());
        let staged = blobs.stage_folder().await.unwrap();
        let write = |name: &str| std::fs::write(staged.path().join(name), [3u8; 12]).unwrap();
        write("array-0");
        let whole = exported(staged.path(), "array-0", 3);
        let kept = launch(&service, &whole, staged.path()).await.unwrap().unwrap();
        assert_eq!(kept.source, Some(Digest::of(b"text")));
        assert_eq!((kept.entry.as_str(), &kept.steps), ("solve", &Vec::new()));
        let order = &kept.arrays[0];
        assert_eq!((order.name.as_str(), order.length), ("order", 3));
        assert_eq!(order.blob, Digest::of(&[3u8; 12]));
        assert_eq!(blobs.get(&order.blob).await.unwrap(), [3u8; 12][..]);

        write("array-1");
        let mut garbled = vec![
            exported(staged.path(), "array-1", 4),
            exported(staged.path(), "absent", 3),
            exported(folder.path(), "store", 3),
            exported(staged.path(), "../store", 3),
        ];
        garbled[0].arrays[0].length = u64::MAX;
        for exported in garbled {
            let refused = launch(&service, &exported, staged.path()).await;
            assert!(matches!(refused, Err(SessionError::Hopeless(_))), "{refused:?}");
        }
        assert!(folder.path().join("store").exists());
        let nothing = launch(&service, &Exported::default(), staged.path()).await;
        assert_eq!(nothing.unwrap(), None);
    }
}
