//! Bundles that were made elsewhere: verified by a process of its own, stored, and what their plans name.

use super::{Written, finished, not_written};
use crate::bundle::{Extract, Named};
use crate::domain::plan::Launch;
use crate::domain::{Digest, Namespace, Plan, PlanId, Timestamp};
use crate::service::ingest::receive;
use crate::service::{Result, Service, ServiceError};
use crate::sparse::read::{Coding, Held};
use crate::store::{BlobError, StoredBundle};
use bytes::Bytes;
use futures_util::Stream;
use std::collections::HashSet;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use tempfile::NamedTempFile;

/// A plan that was taken in.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    pub plan: Plan,
    /// False if a plan with its id was already stored; then nothing changed.
    pub created: bool,
}

/// Which of the files that they name the plans from elsewhere brought, of those that were asked for last: by plan and bundle.
pub(in crate::service) struct Brought(moka::sync::Cache<(PlanId, Digest), Arc<HashSet<Digest>>>);

/// Plans for which this is remembered.
const MOST_BROUGHT: u64 = 256;

impl Default for Brought {
    fn default() -> Self {
        Self(moka::sync::Cache::new(MOST_BROUGHT))
    }
}

impl Service {
    /// Takes in a bundle that was made elsewhere. It is verified and stored, and nothing of it is run.
    pub async fn import_bundle<S, E>(&self, body: S, coding: Option<Coding>) -> Result<Imported>
    where
        S: Stream<Item = std::result::Result<Bytes, E>> + Send,
        E: Display,
    {
        let received = receive(body, &self.inner.settings).await?;
        let (extract, unpacked) = {
            let _permit = self.inner.parses.clone().acquire_owned().await?;
            self.read_bundle(&received, coding).await?
        };
        let received = unpacked.unwrap_or(received);
        let Extract { plan, facts, without_values, files } = extract;
        // Another clock must not make its plan newer than any that is made here.
        let mut plan = Plan { created_at: plan.created_at.min(Timestamp::now()), ..plan };
        if self.store.has_plan(&plan.id).await? {
            return Ok(Imported { plan: self.plan(&plan.id).await?, created: false });
        }
        let namespace = self.caller.namespace.clone();
        if namespace != Namespace::default() {
            plan.id = imported_id(&plan.id, &namespace);
            if self.store.has_plan(&plan.id).await? {
                return Ok(Imported { plan: self.plan(&plan.id).await?, created: false });
            }
        }
        let (room, file) = (Arc::clone(&self.inner.room), received.to_path_buf());
        let measured = tokio::task::spawn_blocking(move || -> Result<_> {
            // Its programs are stored once more by themselves.
            let bytes = std::fs::metadata(file).map_err(not_written)?.len();
            Ok((bytes, room.take(bytes.saturating_mul(2))?))
        });
        // Before any of it has a place, where what is refused would stay.
        let (bytes, _reserved) = measured.await??;
        self.store.may_store(bytes, 0).await?;
        self.keep_programs(&received, files).await?;
        let staged = self.inner.blobs.stage().await?;
        let written = tokio::task::spawn_blocking(move || copied(&received, staged)).await??;
        let Written { file, bytes, sha256 } = written;
        let mut stored = StoredBundle {
            plan: plan.id.clone(),
            without_values,
            blob: self.inner.blobs.put_file(file, None).await?,
            bytes,
            sha256,
            imported: true,
            created_at: Timestamp::now(),
        };
        let mut created = self.store.import_plan(&plan, &facts, &stored).await?;
        if !created && !self.store.has_plan(&plan.id).await? {
            // Another namespace has made it.
            plan.id = imported_id(&plan.id, &namespace);
            stored.plan = plan.id.clone();
            created = self.store.import_plan(&plan, &facts, &stored).await?;
        }
        Ok(Imported { plan, created })
    }

    /// The files that are read for a plan. One from elsewhere may name any: only those that its bundle brought are its own, or whoever
    /// takes in a plan could read by it what others have stored.
    pub(in crate::service) async fn files_of(&self, plan: &Plan) -> Result<Arc<HashSet<Digest>>> {
        let named: HashSet<Digest> = plan.launch.iter().flat_map(Launch::blobs).copied().collect();
        if named.is_empty() {
            return Ok(Arc::new(named));
        }
        let Some(bundle) = self.store.brought_by(&plan.id).await? else {
            return Ok(Arc::new(named));
        };
        let key = (plan.id.clone(), bundle.blob);
        if let Some(known) = self.inner.brought.0.get(&key) {
            return Ok(known);
        }
        let file = match self.inner.blobs.local_copy(&bundle.blob).await {
            Err(BlobError::NotFound(_) | BlobError::Damaged(_)) => return Ok(Arc::default()),
            file => file?,
        };
        let _permit = self.inner.parses.clone().acquire_owned().await?;
        let (Extract { files, .. }, _) = self.read_bundle(&file, None).await?;
        let brought = tokio::task::spawn_blocking(move || compared(&file, &files));
        let brought = Arc::new(brought.await??);
        self.inner.brought.0.insert(key, Arc::clone(&brought));
        Ok(brought)
    }

    /// Stores the files that the plan names, as far as the bundle in a file holds them, one after another. All are compared before the
    /// first is stored: what is refused leaves nothing.
    async fn keep_programs(&self, bundle: &Path, files: Vec<Named>) -> Result<()> {
        let (path, named) = (bundle.to_owned(), files.clone());
        tokio::task::spawn_blocking(move || compared(&path, &named)).await??;
        for named in files {
            let memory = self.inner.settings.limits.budget();
            let bundle = bundle.to_owned();
            let found = tokio::task::spawn_blocking(move || {
                contents(&bundle, named, &memory).map(|bytes| (bytes, memory))
            });
            let (bytes, _memory) = found.await??;
            self.inner.blobs.put(bytes.into()).await?;
        }
        Ok(())
    }
}

/// The bytes of a file that a plan names, compared with its digest: the place was said by another process. Blocks.
fn contents(bundle: &Path, named: Named, memory: &Held) -> Result<Vec<u8>> {
    let Named { digest, start, bytes } = named;
    memory.keep(0);
    memory.charge(bytes, 1, "a file of the bundle")?;
    let length = usize::try_from(bytes).map_err(ServiceError::internal)?;
    let mut found = vec![0; length];
    let file = File::open(bundle).map_err(not_written)?;
    file.read_exact_at(&mut found, start).map_err(not_written)?;
    match Digest::of(&found) == digest {
        true => Ok(found),
        false => Err(misplaced(&digest)),
    }
}

/// The digests of files at places that another process said, each compared with what is there, in pieces. Blocks.
fn compared(bundle: &Path, files: &[Named]) -> Result<HashSet<Digest>> {
    const PIECE: usize = 256 << 10;
    let file = File::open(bundle).map_err(not_written)?;
    let mut piece = vec![0; PIECE];
    for Named { digest, start, bytes } in files {
        let mut hasher = blake3::Hasher::new();
        let mut done = 0;
        while done < *bytes {
            let length = PIECE.min(usize::try_from(bytes - done).unwrap_or(PIECE));
            file.read_exact_at(&mut piece[..length], start + done).map_err(not_written)?;
            hasher.update(&piece[..length]);
            done += length as u64;
        }
        if Digest::from_bytes(*hasher.finalize().as_bytes()) != *digest {
            return Err(misplaced(digest));
        }
    }
    Ok(files.iter().map(|named| named.digest).collect())
}

fn misplaced(digest: &Digest) -> ServiceError {
    let message = format!("the bundle has no file {digest}, which was read from it");
    ServiceError::ReaderFailed { message }
}

/// The id of a plan that a namespace takes in. Ids are unique in the store, and no answer may tell that another namespace has this one,
/// so what is taken in elsewhere than in the default one has an id of its own, the same every time.
fn imported_id(id: &PlanId, of: &Namespace) -> PlanId {
    PlanId::derived(&format!("sparsetune imported plan\0{id}\0{of}"))
}

fn copied(from: &Path, mut staged: NamedTempFile) -> Result<Written> {
    let mut from = File::open(from).map_err(not_written)?;
    io::copy(&mut from, staged.as_file_mut()).map_err(not_written)?;
    staged.as_file().sync_all().map_err(not_written)?;
    finished(staged)
}
