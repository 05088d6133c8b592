//! Bytes that readers share, of memory or of disk: what is about to be taken is charged first, and refused while nothing has
//! been lost.

use super::{ReadError, ReadErrorKind};
use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

const DISK: &str = "disk for temporary files";

/// Bytes for all that is read at the same time in a process; clones share them.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

struct Shared {
    /// Of what the bytes are, for messages.
    of: &'static str,
    limit: u64,
    taken: AtomicU64,
    /// Bytes that there are at present, by the number of those that are taken.
    present: Option<Present>,
    /// Who is asked for more than what was lent so far.
    lender: Option<(Lender, Mutex<u64>)>,
}

/// Asks another process for bytes: at least so many, and rather as many as the second number says, for a place. Returns how many
/// there are.
pub type Lender = Box<dyn Fn(u64, u64, &str) -> Result<u64, ReadError> + Send + Sync>;

/// Bytes that are asked for at once, so that small allocations are not asked for one by one.
const LENT_AT_ONCE: u64 = 8 << 20;

/// How much there is at present, those that are taken included, by the number of bytes that are taken. Called often.
pub type Present = Box<dyn Fn(u64) -> u64 + Send + Sync>;

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { of, limit, taken, .. } = self;
        write!(f, "{} of {limit} bytes of {of}", taken.load(Relaxed))
    }
}

impl Pool {
    /// `limit` bytes of memory.
    pub fn memory(limit: u64) -> Self {
        Self::of("memory", limit, None, None)
    }

    /// `limit` bytes of disk, for temporary files.
    pub fn disk(limit: u64) -> Self {
        Self::of(DISK, limit, None, None)
    }

    /// `limit` bytes of disk at most, and no more than there are at present, which others change.
    pub fn disk_at_present(limit: u64, present: Present) -> Self {
        Self::of(DISK, limit, Some(present), None)
    }

    /// Memory that another process lends, which decides how much there is. What is given back stays here for what comes next.
    pub fn lent_memory(lender: Lender) -> Self {
        Self::of("memory", u64::MAX, None, Some(lender))
    }

    /// [`Self::lent_memory`] for disk.
    pub fn lent_disk(lender: Lender) -> Self {
        Self::of(DISK, u64::MAX, None, Some(lender))
    }

    fn of(of: &'static str, limit: u64, present: Option<Present>, lender: Option<Lender>) -> Self {
        let lender = lender.map(|lender| (lender, Mutex::new(0)));
        Self(Arc::new(Shared { of, limit, taken: AtomicU64::new(0), present, lender }))
    }

    /// Makes sure that as many bytes as are taken, and these, have been lent.
    fn borrow(&self, bytes: u64, place: &str) -> Result<(), ReadError> {
        let Some((lender, lent)) = &self.0.lender else { return Ok(()) };
        let mut lent = lent.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = self.taken().saturating_add(bytes).saturating_sub(*lent);
        if missing > 0 {
            *lent += lender(missing, missing.max(LENT_AT_ONCE), place)?;
        }
        Ok(())
    }

    /// All of it, in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes that are taken now.
    pub fn taken(&self) -> u64 {
        self.0.taken.load(Relaxed)
    }

    /// Nothing yet, and at most `limit` bytes.
    pub fn open(&self, limit: u64) -> Held {
        Held { pool: self.clone(), limit, bytes: AtomicU64::new(0) }
    }

    /// What there is at present, of what may be taken, in bytes: those that are taken are among them.
    pub fn present(&self) -> u64 {
        let present = self.0.present.as_ref().map_or(u64::MAX, |present| present(self.taken()));
        present.min(self.limit())
    }

    fn take(&self, bytes: u64, all: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= all);
        self.0.taken.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.0.taken.fetch_sub(bytes, Relaxed);
    }
}

/// The same bytes, not as many.
impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Pool {}

/// Why bytes were refused: what a reader would hold, and what it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that would be held with what was asked for.
    pub need: u64,
    /// Bytes that may be held: by one reader, or by all at once.
    pub limit: u64,
    /// What the bytes were for.
    pub place: Cow<'static, str>,
}

/// The bytes of one reader and of what it read, given back when dropped. Threads of a reader share them.
#[derive(Debug)]
pub struct Held {
    pool: Pool,
    /// Most bytes of this reader alone.
    limit: u64,
    bytes: AtomicU64,
}

impl Held {
    /// Bytes held now.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Charges `count` times `width` bytes before they are allocated for `place`.
    pub fn charge(
        &self,
        count: u64,
        width: u64,
        place: impl Into<Cow<'static, str>>,
    ) -> Result<(), ReadError> {
        self.charge_bytes(count.saturating_mul(width), place.into())
    }

    fn charge_bytes(&self, bytes: u64, place: Cow<'static, str>) -> Result<(), ReadError> {
        let need = self.bytes().saturating_add(bytes);
        let of = self.pool.0.of;
        let limit = self.limit.min(self.pool.limit());
        if need > limit {
            let message = format!(
                "reading the upload would need at least {need} bytes of {of} (for {place}), more than the limit of {limit} bytes of {of}"
            );
            return Err(ReadError {
                shortage: Some(Shortage { need, limit, place }),
                ..ReadError::too_large(message)
            });
        }
        let all = self.pool.present();
        if need > all {
            let message = format!(
                "reading the upload would need at least {need} bytes of {of} (for {place}), and there are {all} at present"
            );
            return Err(ReadError {
                shortage: Some(Shortage { need, limit: all, place }),
                ..ReadError::new(ReadErrorKind::StorageFull, message)
            });
        }
        self.pool.borrow(bytes, &place)?;
        if !self.pool.take(bytes, all) {
            let message = format!(
                "reading the upload would need at least {need} bytes of {of} (for {place}); of the {all} that may be used at \
                 once, {} are in use now",
                self.pool.taken()
            );
            return Err(ReadError {
                shortage: Some(Shortage { need, limit: all, place }),
                ..ReadError::new(ReadErrorKind::Busy, message)
            });
        }
        self.bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Gives back all but `bytes`, once the rest has been freed.
    pub fn keep(&self, bytes: u64) {
        let before = self.bytes.fetch_min(bytes, Relaxed);
        self.pool.give(before.saturating_sub(bytes));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pool.give(self.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_what_there_is() {
        let memory = Pool::memory(100);
        let first = memory.open(80);
        first.charge(10, 6, "a").unwrap();
        let error = first.charge(3, 10, "b").unwrap_err();
        let shortage = Shortage { need: 90, limit: 80, place: "b".into() };
        assert_eq!((error.kind, error.shortage), (ReadErrorKind::TooLarge, Some(shortage)));
        let second = memory.open(200);
        let error = second.charge(50, 1, "c").unwrap_err();
        let shortage = Shortage { need: 50, limit: 100, place: "c".into() };
        assert_eq!((error.kind, error.shortage), (ReadErrorKind::Busy, Some(shortage)));
        // What can never be had is refused for good.
        assert_eq!(second.charge(101, 1, "c").unwrap_err().kind, ReadErrorKind::TooLarge);
        first.keep(20);
        second.charge(50, 1, "c").unwrap();
        assert_eq!(memory.taken(), 70);
        drop(first);
        assert_eq!(memory.taken(), 50);
        drop(second);
        assert_eq!(memory.taken(), 0);
    }

    #[test]
    fn lent_bytes_are_asked_for_in_large_pieces_and_kept() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let list = asked.clone();
        let memory = Pool::lent_memory(Box::new(move |least, most, place| {
            list.lock().unwrap().push((least, most, place.to_owned()));
            match least > 100 << 20 {
                true => Err(ReadError::too_large("no")),
                false => Ok(most),
            }
        }));
        let held = memory.open(u64::MAX);
        held.charge(5, 1, "a").unwrap();
        held.charge(LENT_AT_ONCE - 5, 1, "b").unwrap();
        held.keep(0);
        held.charge(LENT_AT_ONCE + 1, 1, "c").unwrap();
        assert_eq!(held.charge(1 << 30, 1, "d").unwrap_err().message, "no");
        assert_eq!(held.bytes(), LENT_AT_ONCE + 1);
        let asked = asked.lock().unwrap();
        let first = [(5, LENT_AT_ONCE, "a".to_owned()), (1, LENT_AT_ONCE, "c".to_owned())];
        assert_eq!(asked[..2], first);
        // What was lent and is not taken counts: the lender's sum is exact.
        assert_eq!(asked[2].0, (1 << 30) - (LENT_AT_ONCE - 1));
    }

    #[test]
    fn what_is_free_at_present_limits_temporary_files() {
        static FREE: AtomicU64 = AtomicU64::new(100);
        // What was taken is no longer free, and a half stays free.
        let present = |taken: u64| (FREE.load(Relaxed) + taken) / 2;
        let disk = Pool::disk_at_present(1000, Box::new(present));
        let first = disk.open(u64::MAX);
        first.charge(40, 1, "a").unwrap();
        FREE.store(60, Relaxed);
        let error = first.charge(20, 1, "a").unwrap_err();
        let shortage = Shortage { need: 60, limit: 50, place: "a".into() };
        assert_eq!((error.kind, error.shortage), (ReadErrorKind::StorageFull, Some(shortage)));
        assert_eq!(disk.open(u64::MAX).charge(20, 1, "b").unwrap_err().kind, ReadErrorKind::Busy);
        // Room was made since the start.
        FREE.store(400, Relaxed);
        first.charge(100, 1, "a").unwrap();
        let error = first.charge(1000, 1, "a").unwrap_err();
        assert_eq!(error.kind, ReadErrorKind::TooLarge, "more than ever");
    }
}
