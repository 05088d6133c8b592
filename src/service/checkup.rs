//! Whether a store is whole: the database, and every blob that it names. What can be mended is mended on request.

mod plans;

pub use plans::{LackingPlan, Remedy};

use super::whole::name_of;
use crate::domain::Digest;
use crate::store::{
    BlobError, Blobs, Matrices as _, Retaining as _, SqliteStore, StoreError, Upkeep as _,
};
use serde::Serialize;
use std::collections::HashSet;
use std::io;
use std::time::Duration;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checkup {
    /// Faults of the database itself. They cannot be mended here: restore a backup.
    pub database: Vec<String>,
    /// Blobs whose contents were compared with their digests.
    pub compared: u64,
    /// Blobs that could not be read, as those of a bucket that is out of reach: nothing is known of them.
    pub unread: Vec<Digest>,
    /// Blobs that are not what their digests say; set aside by a repair.
    pub damaged: Vec<Digest>,
    /// Matrices whose file is missing or damaged. A repair forgets them, but for those that a job needs; their plans are kept.
    pub matrices_without_file: Vec<Digest>,
    /// Programs, arrays and bundles of plans that are missing or damaged.
    pub plan_files_missing: Vec<Digest>,
    /// The plans that lack them, each with what is to be done. A repair does what can be done here.
    pub plans: Vec<LackingPlan>,
    /// Blobs that nothing names, old enough to go; moved to the trash by a repair.
    pub unnamed: u64,
    /// Files that were damaged and set aside before.
    pub set_aside: u64,
    /// What a repair changed, in words.
    pub repaired: Vec<String>,
}

impl Checkup {
    /// Whether nothing is wrong; what upkeep removes by itself is not.
    pub fn is_whole(&self) -> bool {
        self.database.is_empty()
            && self.unread.is_empty()
            && self.damaged.is_empty()
            && self.matrices_without_file.is_empty()
            && self.plan_files_missing.is_empty()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CheckupError {
    #[error("the store: {0}")]
    Store(#[from] StoreError),
    #[error("the blobs: {0}")]
    Blobs(#[from] BlobError),
}

impl From<io::Error> for CheckupError {
    fn from(error: io::Error) -> Self {
        Self::Blobs(error.into())
    }
}

/// Checks a store, which others may use meanwhile. Blobs that nothing names count if they are older than `grace`.
///
/// # Errors
/// Something cannot be read, or mended.
pub async fn checkup(
    store: &SqliteStore,
    blobs: &dyn Blobs,
    grace: Duration,
    repair: bool,
) -> Result<Checkup, CheckupError> {
    let mut found = Checkup { database: store.faults().await?, ..Checkup::default() };
    // Files before names, since a file is there before it is named.
    let (all, old) = (blobs.all().await?, blobs.older_than(grace).await?);
    let named = store.named_blobs().await?;
    found.set_aside = blobs.set_aside().await?;
    let mut sound = HashSet::new();
    for digest in all {
        match is_sound(blobs, &digest).await {
            Ok(true) => {
                sound.insert(digest);
            }
            Ok(false) => found.damaged.push(digest),
            // Deleted meanwhile.
            Err(BlobError::NotFound(_)) => continue,
            Err(error @ (BlobError::Unavailable(_) | BlobError::Full(_))) => {
                tracing::warn!(%digest, %error, "a blob was not compared");
                found.unread.push(digest);
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        found.compared += 1;
    }
    let unnamed: Vec<Digest> =
        old.into_iter().filter(|it| !named.contains(it) && sound.contains(it)).collect();
    found.unnamed = unnamed.len() as u64;
    let matrices = store.kept_matrices().await?;
    let matrices: HashSet<Digest> = matrices.into_iter().map(|kept| kept.digest).collect();
    let unread: HashSet<Digest> = found.unread.iter().copied().collect();
    let named = named.into_iter().filter(|digest| !unread.contains(digest));
    for digest in named.filter(|digest| !sound.contains(digest)) {
        // It may have come since the files were listed, or out of the trash.
        if !found.damaged.contains(&digest) && blobs.exists(&digest).await? {
            continue;
        }
        match matrices.contains(&digest) {
            true => found.matrices_without_file.push(digest),
            false => found.plan_files_missing.push(digest),
        }
    }
    if !found.plan_files_missing.is_empty() {
        found.plans = plans::lacking(store, &found.plan_files_missing, &sound).await?;
    }
    if repair {
        mend(&mut found, store, blobs, unnamed, grace).await?;
    }
    Ok(found)
}

/// Whether a blob is what its digest says. What this host has of one that is elsewhere may be spoilt while that is sound, so it is read there
/// before it is judged.
pub(super) async fn is_sound(blobs: &dyn Blobs, digest: &Digest) -> Result<bool, BlobError> {
    for last in [false, true] {
        let file = match blobs.local_copy(digest).await {
            Err(BlobError::Damaged(_)) => return Ok(false),
            file => file?,
        };
        let name = tokio::task::spawn_blocking(move || name_of(&file)).await;
        match name.map_err(io::Error::other)? {
            Ok(name) if name == Some(*digest) => return Ok(true),
            Ok(_) if last || !blobs.forget_copy(digest).await? => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(BlobError::NotFound(*digest));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

async fn mend(
    found: &mut Checkup,
    store: &SqliteStore,
    blobs: &dyn Blobs,
    unnamed: Vec<Digest>,
    grace: Duration,
) -> Result<(), CheckupError> {
    let repaired = &mut found.repaired;
    blobs.check_with(name_of);
    for digest in &found.damaged {
        if !blobs.exists(digest).await? {
            repaired.push(format!("{digest} was set aside"));
        }
    }
    found.damaged.clear();
    let mut kept = Vec::new();
    for digest in std::mem::take(&mut found.matrices_without_file) {
        // A server may take it in at this time.
        let _alone = store.publishing().await?;
        if blobs.exists(&digest).await? {
            continue;
        }
        let mut forgotten = Ok(());
        for kept in store.kept_matrices().await?.into_iter().filter(|kept| kept.digest == digest) {
            let there = store.within(&kept.namespace);
            forgotten = forgotten.and(there.delete_matrix(&digest).await.map(drop));
        }
        match forgotten {
            Ok(()) => repaired.push(format!("matrix {digest} was forgotten: upload it again")),
            Err(StoreError::InUse(why)) => {
                repaired.push(format!("matrix {digest} was kept: {why}"));
                kept.push(digest);
            }
            Err(error) => return Err(error.into()),
        }
    }
    found.matrices_without_file = kept;
    let mut still = Vec::new();
    for plan in std::mem::take(&mut found.plans) {
        if !plans::mend(store, &plan, repaired).await? {
            still.push(plan);
        }
    }
    let named = |digest: &Digest| still.iter().any(|plan| plan.files.contains(digest));
    found.plan_files_missing.retain(named);
    found.plans = still;
    let moved = blobs.discard_old(unnamed, grace).await?;
    if moved > 0 {
        repaired.push(format!("{moved} files that nothing names were moved to the trash"));
    }
    Ok(())
}
