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

#[async_trait]
pub trait Stored: Send + Sync {
    /// Takes room for so many bytes, if `most` bytes are stored with them and all were counted within this time.
    async fn take_bytes(&self, bytes: u64, most: u64, within: Duration) -> Result<RoomTaken>;
    /// What was taken is not stored after all.
    async fn give_bytes(&self, bytes: u64) -> Result<()>;
    /// What all servers have taken so far, whatever was counted since: for [`Self::bytes_counted`].
    async fn taken_bytes(&self) -> Result<i64>;
    /// All were looked at since [`Self::taken_bytes`] was `before`, and had so many bytes; what was taken meanwhile is added.
    async fn bytes_counted(&self, found: u64, before: i64) -> Result<()>;
}
