//! Room for what is stored: a quota of bytes, and disk that must stay free for the database and everything else.

use super::error::{Lack, Result, ServiceError};
use crate::environment::disk;
use crate::sparse::read::Shortage;
use crate::store::blobs::STAGING;
use crate::store::{Blobs, RoomTaken, Store};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// What may be stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredLimits {
    /// The folder of the blobs; without one, nothing is checked.
    pub folder: Option<PathBuf>,
    /// The folder of the database, whose disk may be another.
    pub store_folder: Option<PathBuf>,
    /// Most bytes of all blobs; 0 is no quota.
    pub most: u64,
    /// Bytes of the file system of each that must stay free.
    pub least_free: u64,
}

/// How long a count of the folder is used; what is stored meanwhile is added to it.
const COUNT_AGE: Duration = Duration::from_secs(30);
/// How long a count of a bucket is used, for which all of it is listed: by all servers together, which add what they store.
const BUCKET_COUNT_AGE: Duration = Duration::from_secs(600);
/// How long a count is believed that leaves no room: some may have been made since.
const FULL_COUNT_AGE: Duration = Duration::from_secs(5);

pub(super) struct Room {
    limits: StoredLimits,
    /// The blobs, which may be where several servers put theirs, and the store that then has one count for all.
    shared: Option<(Arc<dyn Store>, Arc<dyn Blobs>)>,
    counted: Mutex<Counted>,
}

/// What one process alone stores in its folder.
#[derive(Default)]
struct Counted {
    /// Until when the count of the folder is used, and what it is.
    known: Option<(Instant, u64)>,
    /// Bytes that were taken for what has no place yet, and which a count of the folder does not find.
    under_way: u64,
}

/// Room that was taken for what has no place yet: kept until it has, or never will.
#[must_use]
pub(super) struct Reserved {
    room: Arc<Room>,
    bytes: u64,
    /// Its name in the store, where servers count together.
    shared: Option<(Arc<dyn Store>, String)>,
}

impl Reserved {
    /// It is not stored after all.
    pub(super) async fn give(mut self) {
        match self.shared.take() {
            // It would be counted until all of them are.
            Some((store, id)) => {
                if let Err(error) = store.give_bytes(&id, self.bytes).await {
                    tracing::warn!(%error, bytes = self.bytes, "room that was taken was not given back");
                }
            }
            None => {
                if let Some((_, stored)) = &mut self.room.counted().known {
                    *stored = stored.saturating_sub(self.bytes);
                }
            }
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let Some((store, id)) = self.shared.take() else {
            let mut counted = self.room.counted();
            counted.under_way = counted.under_way.saturating_sub(self.bytes);
            return;
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // It is counted twice until this is done, or a day long.
                if let Err(error) = store.settle_bytes(&id).await {
                    tracing::warn!(%error, "what is stored still counts as under way");
                }
            });
        }
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Room {
    pub(super) fn new(
        limits: StoredLimits,
        shared: Option<(Arc<dyn Store>, Arc<dyn Blobs>)>,
    ) -> Self {
        Self { limits, shared, counted: Mutex::default() }
    }

    /// Free bytes of the disks, by the folder that is on them. Blocks on the file system.
    pub(super) fn free(&self) -> Vec<(&'static str, u64)> {
        let StoredLimits { folder, store_folder, .. } = &self.limits;
        let folders = [("blobs", folder), ("store", store_folder)].into_iter();
        folders.filter_map(|(name, folder)| Some((name, disk::free(folder.as_deref()?)?))).collect()
    }

    /// Fails if a disk has less room than has to stay free, or none. Blocks on the file system.
    pub(super) fn check(&self) -> Result<()> {
        let least = self.limits.least_free.max(1);
        let Some((name, free)) = self.free().into_iter().find(|(_, free)| *free < least) else {
            return Ok(());
        };
        let message = format!(
            "the disk of the folder `{name}` is nearly full: {free} bytes are free, and {least} have to stay free"
        );
        let shortage = Shortage { need: least, limit: free, place: "disk".into() };
        Err(ServiceError::Shortage { message, shortage, lack: Lack::Full })
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for what is to be stored, or refuses it, before any of it is written. Blocks on the file system.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Result<Reserved> {
        let reserved = |bytes, shared| Ok(Reserved { room: Arc::clone(self), bytes, shared });
        let Some(folder) = &self.limits.folder else { return reserved(0, None) };
        let least = self.limits.least_free;
        if let Some(free) = disk::free(folder).filter(|free| free.saturating_sub(bytes) < least) {
            let message = format!(
                "{bytes} bytes are to be stored, and {free} bytes of disk are free, of which {least} have to stay free"
            );
            let shortage =
                Shortage { need: bytes, limit: free.saturating_sub(least), place: "disk".into() };
            return Err(ServiceError::Shortage { message, shortage, lack: Lack::Full });
        }
        let most = self.limits.most;
        if most == 0 {
            return reserved(0, None);
        }
        if let (Some((store, blobs)), Ok(runtime)) = (&self.shared, Handle::try_current())
            && blobs.are_shared()
        {
            let id = uuid::Uuid::now_v7().to_string();
            return match runtime.block_on(take_shared(&**store, &**blobs, (&id, bytes), most))? {
                None => reserved(bytes, Some((Arc::clone(store), id))),
                Some(stored) => Err(too_much(bytes, stored, most)),
            };
        }
        let mut counted = self.counted();
        let now = Instant::now();
        let known = counted.known.filter(|(until, _)| now < *until);
        let (until, stored) = match known {
            Some(known) => known,
            None => {
                let stored = count(folder);
                let stored =
                    stored.map_err(|error| ServiceError::of_io("the stored blobs", error))?;
                (now + COUNT_AGE, stored.saturating_add(counted.under_way))
            }
        };
        let need = stored.saturating_add(bytes);
        if need > most {
            // Room may be made at any time, so the next request counts again.
            counted.known = None;
            return Err(too_much(bytes, stored, most));
        }
        counted.known = Some((until, need));
        counted.under_way = counted.under_way.saturating_add(bytes);
        drop(counted);
        reserved(bytes, None)
    }
}

fn too_much(bytes: u64, stored: u64, most: u64) -> ServiceError {
    let message = format!(
        "{bytes} bytes are to be stored, and {stored} are; this server stores at most {most}"
    );
    let place = "stored matrices and programs".into();
    let shortage = Shortage { need: stored.saturating_add(bytes), limit: most, place };
    ServiceError::Shortage { message, shortage, lack: Lack::Full }
}

/// Takes room of that which all servers have together, and counts all of it if that is due. What is stored, if there is too little room.
async fn take_shared(
    store: &dyn Store,
    blobs: &dyn Blobs,
    (id, bytes): (&str, u64),
    most: u64,
) -> Result<Option<u64>> {
    if store.take_bytes(id, bytes, most, BUCKET_COUNT_AGE).await? == RoomTaken::Yes {
        return Ok(None);
    }
    // Another server may have counted just now, or there was room all the time.
    match store.take_bytes(id, bytes, most, FULL_COUNT_AGE).await? {
        RoomTaken::Yes => return Ok(None),
        RoomTaken::Full(stored) => return Ok(Some(stored)),
        RoomTaken::Uncounted => {}
    }
    let before = store.taken_bytes().await?;
    let found = blobs.stored_bytes().await?;
    let found = found.ok_or_else(|| ServiceError::internal("shared blobs that are not counted"))?;
    store.bytes_counted(found, before).await?;
    Ok(match store.take_bytes(id, bytes, most, BUCKET_COUNT_AGE).await? {
        RoomTaken::Yes => None,
        RoomTaken::Full(stored) => Some(stored),
        // Clocks were set meanwhile.
        RoomTaken::Uncounted => Some(found),
    })
}

/// Bytes of all files in a folder and those below, but for those without a place yet. What disappears meanwhile is not counted.
fn count(folder: &Path) -> io::Result<u64> {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let entries = match std::fs::read_dir(folder) {
        Err(error) if gone(&error) => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == STAGING {
            continue;
        }
        bytes += match entry.metadata() {
            Ok(facts) if facts.is_dir() => count(&entry.path())?,
            Ok(facts) => facts.len(),
            Err(error) if gone(&error) => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(room: &Arc<Room>, bytes: u64) -> Option<Shortage> {
        match room.take(bytes) {
            Ok(_reserved) => None,
            Err(ServiceError::Shortage { shortage, lack: Lack::Full, .. }) => Some(shortage),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_quota_counts_what_is_there_and_what_is_added() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("ab")).unwrap();
        std::fs::write(folder.path().join("ab/cd"), [0; 60]).unwrap();
        let limits = StoredLimits {
            folder: Some(folder.path().to_owned()),
            most: 100,
            ..Default::default()
        };
        let room = Arc::new(Room::new(limits.clone(), None));
        assert_eq!(refused(&room, 30), None);
        let shortage = refused(&room, 30).unwrap();
        assert_eq!((shortage.need, shortage.limit), (120, 100));
        // What was announced is counted only as far as it came.
        assert_eq!(refused(&room, 40), None);
        std::fs::remove_file(folder.path().join("ab/cd")).unwrap();
        assert!(refused(&room, 100).is_some() && refused(&room, 100).is_none());
        let boundless = Arc::new(Room::new(StoredLimits { most: 0, ..limits }, None));
        assert_eq!(refused(&boundless, 1000), None);
    }

    /// An upload takes its room, and what it has written so far is no part of a count of what is stored.
    #[test]
    fn what_is_under_way_counts_however_often_the_folder_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let staging = folder.path().join(STAGING);
        std::fs::create_dir(&staging).unwrap();
        let limits = StoredLimits {
            folder: Some(folder.path().to_owned()),
            most: 100,
            ..Default::default()
        };
        let room = Arc::new(Room::new(limits, None));
        let first = room.take(60).unwrap();
        std::fs::write(staging.join("blob-1"), [0; 30]).unwrap();
        // Who is refused has the folder counted anew.
        for _ in 0..3 {
            assert_eq!(refused(&room, 50).unwrap().need, 110);
        }
        let second = room.take(40).unwrap();
        // Stored, and counted as what is stored.
        std::fs::rename(staging.join("blob-1"), folder.path().join("ab")).unwrap();
        drop(first);
        // By the last count, of which it took 60.
        assert_eq!(refused(&room, 40).unwrap().need, 140);
        for _ in 0..2 {
            assert_eq!(refused(&room, 40).unwrap().need, 110);
        }
        // Given up.
        drop(second);
        for _ in 0..2 {
            assert_eq!(refused(&room, 90).unwrap().need, 120);
        }
        assert_eq!(refused(&room, 70), None);
    }

    #[test]
    fn some_disk_stays_free() {
        let folder = Some(std::env::temp_dir());
        let limits = |least_free| StoredLimits {
            folder: folder.clone(),
            least_free,
            ..StoredLimits::default()
        };
        let room = |least_free| Arc::new(Room::new(limits(least_free), None));
        assert_eq!(refused(&room(0), 1), None);
        assert_eq!(refused(&room(u64::MAX), 1).unwrap().place, "disk");
        let nowhere = Arc::new(Room::new(StoredLimits::default(), None));
        assert_eq!(refused(&nowhere, u64::MAX), None);
        assert!(room(0).check().is_ok() && room(u64::MAX).check().is_err());
        // The database may be on another disk than the blobs.
        let limits =
            StoredLimits { folder: None, store_folder: folder.clone(), ..limits(u64::MAX) };
        assert!(
            Room::new(limits, None)
                .check()
                .unwrap_err()
                .to_string()
                .contains("`store` is nearly full")
        );
    }
}
