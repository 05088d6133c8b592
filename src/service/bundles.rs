//! Bundles: built from a plan for a download, and kept if that is asked for; `taken` takes in those from elsewhere.

mod built;
mod taken;

pub(super) use built::Built;
pub(super) use taken::Brought;
pub use taken::Imported;

use super::ingest::temporary;
use super::{Lack, Result, Service, ServiceError};
use crate::bundle::{self, BuildError, Parts, Values};
use crate::domain::plan::Launch;
use crate::domain::{Digest, Plan, PlanId, Timestamp};
use crate::sparse::canonical;
use crate::sparse::read::{Held, Pool};
use crate::store::blobs::digest_of;
use crate::store::{BlobError, LocalFile, StoredBundle};
use built::Charging;
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use tempfile::{NamedTempFile, TempPath};

/// Bytes that are hashed and copied at a time.
const CHUNK: usize = 1 << 20;

/// A bundle's file, complete.
struct Written {
    file: TempPath,
    bytes: u64,
    sha256: [u8; 32],
}

/// A bundle that can be read, as long as this is kept.
#[derive(Clone, Debug)]
pub struct ReadyBundle {
    pub without_values: bool,
    /// Digest of the file.
    pub blob: Digest,
    pub bytes: u64,
    pub sha256: [u8; 32],
    pub file: BundleFile,
}

/// Where a bundle's file is.
#[derive(Clone, Debug)]
pub enum BundleFile {
    Stored(LocalFile),
    /// Built for a download, and removed with the last copy of this value; the disk that it takes is charged.
    Temporary {
        path: Arc<TempPath>,
        _disk: Arc<Held>,
    },
}

impl Deref for BundleFile {
    type Target = Path;

    fn deref(&self) -> &Path {
        match self {
            Self::Stored(file) => file,
            Self::Temporary { path, .. } => path,
        }
    }
}

impl Service {
    /// The bundle of a plan: as it is stored, or else built, which stores nothing. Equal requests get equal files.
    pub async fn bundle(&self, id: &PlanId, values: Values) -> Result<ReadyBundle> {
        if let Some(stored) = self.stored_bundle(id, values).await? {
            return self.opened(stored).await;
        }
        // Before what is in memory, which is not of one namespace alone.
        let plan = self.plan(id).await?;
        self.has_matrix(&plan).await?;
        let key = (self.caller.namespace.clone(), id.clone(), values == Values::External);
        if let Some(built) = self.inner.built.get(&key) {
            return Ok(built);
        }
        let brought = self.files_of(&plan).await?;
        // A matrix and its arrays are held in memory, as when one is parsed. Nothing that follows may ask for a permit of its own.
        let _permit = self.inner.parses.clone().acquire_owned().await?;
        // Whoever had the permit before may have built it.
        if let Some(built) = self.inner.built.get(&key) {
            return Ok(built);
        }
        let (folder, pool) = {
            let settings = &self.inner.settings;
            (settings.temp_dir.clone(), settings.limits.disk.clone())
        };
        let staged = tokio::task::spawn_blocking(move || temporary(&folder)).await??;
        let disk = Arc::new(pool.open(u64::MAX));
        let built =
            self.build_bundle((&plan, &brought), values, staged, Some(Arc::clone(&disk))).await;
        let Written { file, bytes, sha256 } = built.inspect_err(|error| self.make_room(error))?;
        let (file, blob) = tokio::task::spawn_blocking(move || {
            let blob = digest_of(&file);
            blob.map(|blob| (file, blob)).map_err(not_written)
        })
        .await??;
        let file = BundleFile::Temporary { path: Arc::new(file), _disk: disk };
        let ready = ReadyBundle { without_values: key.2, blob, bytes, sha256, file };
        self.inner.built.keep(key, &ready, &pool);
        Ok(ready)
    }

    /// What is kept for a next download goes, if there was too little disk for what has failed: the same request may succeed then.
    pub(super) fn make_room(&self, failed: &ServiceError) {
        if matches!(failed, ServiceError::Shortage { lack: Lack::InUse | Lack::Full, .. }) {
            self.inner.built.clear();
        }
    }

    /// Where a client may read the bundle of a plan without this server, as a file of this name, if it is stored and that is
    /// configured.
    pub async fn bundle_link(
        &self,
        id: &PlanId,
        values: Values,
        name: &str,
    ) -> Result<Option<String>> {
        if !self.inner.blobs.has_links() {
            return Ok(None);
        }
        match self.store.bundle(id, values == Values::External).await? {
            None => Ok(None),
            Some(stored) => {
                match self.inner.blobs.link(&stored.blob, "application/zip", Some(name)).await {
                    // It is built.
                    Err(BlobError::NotFound(_) | BlobError::Damaged(_)) => Ok(None),
                    link => Ok(link?),
                }
            }
        }
    }

    /// Stores the bundle of a plan, building it if need be; true if it was not stored before.
    pub async fn keep_bundle(&self, id: &PlanId, values: Values) -> Result<(ReadyBundle, bool)> {
        if let Some(stored) = self.stored_bundle(id, values).await? {
            return Ok((self.opened(stored).await?, false));
        }
        if !self.store.has_plan(id).await? {
            // Of one that another namespace shares nothing is stored.
            return Ok((self.bundle(id, values).await?, false));
        }
        let plan = self.plan(id).await?;
        self.has_matrix(&plan).await?;
        let brought = self.files_of(&plan).await?;
        let _permit = self.inner.parses.clone().acquire_owned().await?;
        if let Some(stored) = self.stored_bundle(id, values).await? {
            return Ok((self.opened(stored).await?, false));
        }
        let blobs = &self.inner.blobs;
        let staged = blobs.stage().await?;
        let built = self.build_bundle((&plan, &brought), values, staged, None).await?;
        let Written { file, bytes, sha256 } = built;
        // Before it has a place, where what is refused would stay.
        self.store.may_store(bytes, 0).await?;
        let room = Arc::clone(&self.inner.room);
        let (file, _reserved) = tokio::task::spawn_blocking(move || -> Result<_> {
            let reserved = room.take(bytes)?;
            File::open(&file).and_then(|file| file.sync_all()).map_err(not_written)?;
            Ok((file, reserved))
        })
        .await??;
        let blob = blobs.put_file(file, None).await?;
        let bundle = StoredBundle {
            plan: id.clone(),
            without_values: values == Values::External,
            blob,
            bytes,
            sha256,
            imported: false,
            created_at: Timestamp::now(),
        };
        self.store.put_bundle(&bundle).await?;
        Ok((self.opened(bundle).await?, true))
    }

    /// A bundle that is stored with its file.
    async fn stored_bundle(&self, id: &PlanId, values: Values) -> Result<Option<StoredBundle>> {
        let known = self.store.bundle(id, values == Values::External).await?;
        let Some(known) = known else { return Ok(None) };
        Ok(self.inner.blobs.exists(&known.blob).await?.then_some(known))
    }

    async fn opened(&self, stored: StoredBundle) -> Result<ReadyBundle> {
        let StoredBundle { without_values, blob, bytes, sha256, .. } = stored;
        let file = BundleFile::Stored(self.inner.blobs.local_copy(&blob).await?);
        Ok(ReadyBundle { without_values, blob, bytes, sha256, file })
    }

    /// Refuses to build a bundle without the plan's matrix, which has to be the caller's, whoever has made the plan.
    async fn has_matrix(&self, plan: &Plan) -> Result<()> {
        if self.store.matrix(&plan.matrix).await?.is_some() {
            return Ok(());
        }
        let message = format!(
            "the matrix {} is no longer stored here, and a bundle is made of plan and matrix: upload it again",
            plan.matrix
        );
        Err(ServiceError::Conflict { message })
    }

    /// The caller has a permit to hold a matrix in memory.
    async fn build_bundle(
        &self,
        (plan, brought): (&Plan, &HashSet<Digest>),
        values: Values,
        staged: NamedTempFile,
        disk: Option<Arc<Held>>,
    ) -> Result<Written> {
        let blobs = &self.inner.blobs;
        let matrix = self.entries(&plan.matrix).await?;
        let mut files: HashMap<Digest, LocalFile> = HashMap::new();
        let named = plan.launch.iter().flat_map(Launch::blobs);
        for digest in named.filter(|digest| brought.contains(digest)) {
            files.insert(*digest, blobs.local_copy(digest).await?);
        }
        let (plan, memory) = (plan.clone(), self.inner.settings.limits.memory.clone());
        tokio::task::spawn_blocking(move || {
            write(&plan, (&matrix, &memory), &files, values, (staged, disk.as_deref()))
        })
        .await?
    }
}

fn write(
    plan: &Plan,
    (matrix, memory): (&Path, &Pool),
    files: &HashMap<Digest, LocalFile>,
    values: Values,
    (mut staged, disk): (NamedTempFile, Option<&Held>),
) -> Result<Written> {
    let (matrix, _, _held) = canonical::open_in(matrix, memory)?;
    let blob = |digest: &Digest| match files.get(digest) {
        Some(file) => std::fs::read(file),
        None => Err(io::ErrorKind::NotFound.into()),
    };
    let parts = Parts { plan, matrix: Arc::new(matrix), blob: &blob };
    let file = Charging::new(staged.as_file_mut(), disk);
    let mut out = BufWriter::with_capacity(CHUNK, file);
    let built = bundle::build(&parts, values, &mut out).map_err(not_built);
    let written = built.and_then(|()| out.flush().map_err(not_written));
    match (written, out.get_mut().refused()) {
        (Err(_), Some(refused)) => return Err(refused.into()),
        (written, _) => written?,
    }
    drop(out);
    finished(staged)
}

/// Hashes a file that was written.
fn finished(staged: NamedTempFile) -> Result<Written> {
    let file = staged.into_temp_path();
    let mut reader = File::open(&file).map_err(not_written)?;
    let (mut hasher, mut bytes, mut chunk) = (Sha256::new(), 0u64, vec![0u8; CHUNK]);
    loop {
        let read = reader.read(&mut chunk).map_err(not_written)?;
        if read == 0 {
            break;
        }
        hasher.update(&chunk[..read]);
        bytes += read as u64;
    }
    Ok(Written { file, bytes, sha256: hasher.finalize().into() })
}

fn not_written(error: io::Error) -> ServiceError {
    ServiceError::of_io("a bundle", error)
}

fn not_built(error: BuildError) -> ServiceError {
    let message = error.to_string();
    match error {
        BuildError::ValuesNeeded => {
            ServiceError::Unsupported { pointer: Some("values".to_owned()), message }
        }
        BuildError::Blob(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = "a file that the plan names did not come with it, and no bundle can be built without it";
            ServiceError::Conflict { message: message.to_owned() }
        }
        BuildError::NoProgram(_)
        | BuildError::Lowering(_)
        | BuildError::Argument(_)
        | BuildError::Unchecked(_) => ServiceError::Conflict { message },
        error => ServiceError::internal(error),
    }
}
