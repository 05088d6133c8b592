//! Bytes of the blobs, where servers on several hosts count them together.

use super::Result;
use async_trait::async_trait;
use std::time::Duration;

/// What came of asking for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomTaken {
    /// It is taken.
    Yes,
    /// There is not so much: so many bytes are stored.
    Full(u64),
    /// All of them were not counted for too long.
    Uncounted,
}

/// What was taken at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Whatever was counted since.
    pub so_far: i64,
    /// What has no place yet.
    pub under_way: i64,
}

#[async_trait]
pub trait Stored: Send + Sync {
    /// Takes room for so many bytes, if `most` bytes are stored with them and all were counted within this time. They are under way by
    /// this id until they are stored ([`Self::settle_bytes`]) or given back, or for a day.
    async fn take_bytes(
        &self,
        id: &str,
        bytes: u64,
        most: u64,
        within: Duration,
    ) -> Result<RoomTaken>;
    /// What was taken by this id is stored, or what there was of it is gone.
    async fn settle_bytes(&self, id: &str) -> Result<()>;
    /// What was taken by this id is not stored after all.
    async fn give_bytes(&self, id: &str, bytes: u64) -> Result<()>;
    /// What all servers have taken so far, and what of that is under way: for [`Self::bytes_counted`].
    async fn taken_bytes(&self) -> Result<Taken>;
    /// All were looked at since [`Self::taken_bytes`] was `before`, and had so many bytes; what was under way then or was taken meanwhile
    /// may or may not have been seen, and is added.
    async fn bytes_counted(&self, found: u64, before: Taken) -> Result<()>;
}
