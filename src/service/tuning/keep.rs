//! Stores the winner's program for the plan: its text, what it was compiled to, and arrays as blobs, and the launches.

use super::exported;
use super::session::SessionError;
use crate::domain::Digest;
use crate::domain::element::Element;
use crate::domain::plan::{Launch, PlanArray, UpdateProgram};
use crate::domain::protocol::{Exported, ExportedArray, ExportedUpdate};
use crate::service::Service;
use crate::store::{BlobError, is_full};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::io;
use std::path::Path;

/// Stores source, cubin, PTX, the program for new values and the arrays that the evaluator wrote to `folder`; `None` for a program without a launch.
pub(super) async fn launch(
    service: &Service,
    exported: &Exported,
    folder: &Path,
) -> Result<Option<Launch>, SessionError> {
    let Some(first) = exported.steps.first() else { return Ok(None) };
    let source = match &exported.source {
        Some(source) => Some(text(service, source).await?),
        None => None,
    };
    let cubin = match &exported.cubin {
        Some(encoded) => Some(cubin(service, encoded).await?),
        None => None,
    };
    let ptx = match &exported.ptx {
        Some(ptx) => Some(text(service, ptx).await?),
        None => None,
    };
    let update = match &exported.update {
        Some(update) => Some(self::update(service, update).await?),
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
        ptx,
        options: exported.options.clone(),
        compiler: exported.compiler.clone(),
        grid: first.grid,
        block: first.block,
        shared_bytes: first.shared_bytes,
        arguments: first.arguments.clone(),
        // The fields above cannot express a launch with clusters, or one that overlaps the kernel before it.
        steps: if exported.steps.len() > 1 || first.cluster > 1 || first.overlaps {
            exported.steps.clone()
        } else {
            Vec::new()
        },
        arrays,
        scratch: exported.scratch.clone(),
        zero_output: exported.zero_output,
        update,
    }))
}

async fn update(
    service: &Service,
    exported: &ExportedUpdate,
) -> Result<UpdateProgram, SessionError> {
    Ok(UpdateProgram {
        entry: exported.entry.clone(),
        quotients: exported.quotients.clone(),
        source: text(service, &exported.source).await?,
        cubin: cubin(service, &exported.cubin).await?,
        ptx: text(service, &exported.ptx).await?,
    })
}

async fn text(service: &Service, text: &str) -> Result<Digest, SessionError> {
    Ok(service.blobs().put(text.to_owned().into_bytes().into()).await?)
}

async fn cubin(service: &Service, encoded: &str) -> Result<Digest, SessionError> {
    let bytes = STANDARD.decode(encoded).map_err(|error| {
        SessionError::Hopeless(format!("the evaluator sent an invalid cubin: {error}"))
    })?;
    Ok(service.blobs().put(bytes.into()).await?)
}

/// The evaluator is a separate process and may be corrupted: the files it names must be in the folder and have the
/// stated length, and are copied, so that what is stored is what was looked at, and belongs to this process's user.
async fn array(
    service: &Service,
    exported: &ExportedArray,
    folder: &Path,
) -> Result<PlanArray, SessionError> {
    let ExportedArray { name, element, length, file } = exported.clone();
    let garbled =
        |why: &str| SessionError::Hopeless(format!("the evaluator's array {name}: {why}"));
    let file = file.ok_or_else(|| garbled("was not written"))?;
    let unknown = || garbled("has an unknown element type");
    let bytes = Element::named(&element).ok_or_else(unknown)?.bytes();
    let bytes = length.checked_mul(bytes);
    let bytes = bytes.ok_or_else(|| garbled("does not have the stated length"))?;
    let mut own = service.blobs().stage().await?;
    let folder = folder.to_owned();
    let copied = tokio::task::spawn_blocking(move || {
        exported::take(&folder, &file, bytes, own.as_file_mut())?;
        Ok(own.into_temp_path())
    });
    let copied = copied.await.map_err(|error| BlobError::from(io::Error::other(error)))?;
    let own = copied.map_err(|error: io::Error| match is_full(&error) {
        true => BlobError::from(error).into(),
        false => garbled(&error.to_string()),
    })?;
    let blob = service.blobs().put_file(own, None).await?;
    Ok(PlanArray { name, element, length, blob })
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let update = ExportedUpdate {
            entry: "gather".to_owned(),
            quotients: Some("quotients".to_owned()),
            source: "gathers".to_owned(),
            cubin: STANDARD.encode([7u8; 3]),
            ptx: "assembly".to_owned(),
        };
        let (update, options) = (Some(update), vec!["--std=c++17".to_owned()]);
        Exported {
            arrays: vec![array],
            source,
            update,
            options,
            ..Exported::routine("solve", Vec::new())
        }
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
        assert_eq!((kept.options.len(), kept.ptx), (1, None));
        let update = kept.update.as_ref().unwrap();
        assert_eq!((update.entry.as_str(), update.source), ("gather", Digest::of(b"gathers")));
        assert_eq!(update.quotients.as_deref(), Some("quotients"));
        assert_eq!(blobs.get(&update.cubin).await.unwrap(), [7u8; 3][..]);
        assert_eq!(blobs.get(&update.ptx).await.unwrap(), b"assembly"[..]);
        assert_eq!(kept.blobs().count(), 5);
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
        let mut no_base64 = exported(staged.path(), "absent", 3);
        no_base64.update.as_mut().unwrap().cubin = "%".to_owned();
        garbled.push(no_base64);
        for exported in garbled {
            let refused = launch(&service, &exported, staged.path()).await;
            assert!(matches!(refused, Err(SessionError::Hopeless(_))), "{refused:?}");
        }
        assert!(folder.path().join("store").exists());
        let nothing = launch(&service, &Exported::default(), staged.path()).await;
        assert_eq!(nothing.unwrap(), None);
    }
}
