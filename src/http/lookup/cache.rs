//! The answers to look-ups, kept serialised for as long as they stand.

use crate::domain::Grade;
use axum::body::Bytes;
use axum::http::HeaderValue;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long an answer is valid if this process knows of no change: another process may share the store.
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// Likewise of one from a measured plan, as long as the store is asked every so often whether anything changed: what else it depends
/// on, such as whether a device is online, is no news after that time.
const STABLE_FOR: Duration = Duration::from_secs(10);
/// Most entries of the cache. Keys are chosen by clients, so both their count and their size are bounded.
const MAX_ANSWERS: usize = 1 << 16;
/// So many may be outdated before anybody looks.
const FEW_ANSWERS: usize = 256;
/// Longer query strings are not frequent lookups, and would make keys the larger part of the cache.
const MAX_QUERY: usize = 1024;

/// What decides whether an answer is still valid.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    /// The epoch of the plans.
    pub epoch: u64,
    pub now: Instant,
    /// When the store last confirmed it.
    pub confirmed: Option<Instant>,
}

/// A serialised answer; clones share the bytes.
#[derive(Clone)]
pub(super) struct Answer {
    pub body: Bytes,
    pub tag: HeaderValue,
    pub grade: Grade,
    pub epoch: u64,
    pub at: Instant,
}

impl Answer {
    fn stands(&self, Moment { epoch, now, confirmed }: Moment) -> bool {
        let age = now.saturating_duration_since(self.at);
        let measured = matches!(self.grade, Grade::Exact | Grade::Stale | Grade::Neighbour);
        let lately = || {
            confirmed
                .is_some_and(|confirmed| now.saturating_duration_since(confirmed) < TRUSTED_FOR)
        };
        self.epoch == epoch && (age < TRUSTED_FOR || (measured && age < STABLE_FOR && lately()))
    }
}

/// The answer to one query and a lock for renewing it, so that a thousand requests for an outdated answer cause one lookup.
#[derive(Default)]
pub(super) struct Slot {
    answer: RwLock<Option<Answer>>,
    pub renewal: Mutex<()>,
}

impl Slot {
    pub fn current(&self, moment: Moment) -> Option<Answer> {
        let answer = self.answer.read().unwrap_or_else(PoisonError::into_inner);
        answer.as_ref().filter(|answer| answer.stands(moment)).cloned()
    }

    fn bytes(&self) -> usize {
        let answer = self.answer.read().unwrap_or_else(PoisonError::into_inner);
        answer.as_ref().map_or(0, |answer| answer.body.len())
    }
}

/// Answers by raw query string. A hit takes two read locks and no write lock, which is half the time of `moka`, because that
/// records every read (0.34 against 0.66 microseconds, two million hits of one thread over 64 queries).
pub struct LookupCache {
    slots: RwLock<Slots>,
    /// Most bytes of answers.
    most: usize,
}

#[derive(Default)]
struct Slots {
    by: HashMap<Box<str>, Arc<Slot>>,
    /// Of all answers.
    bytes: usize,
    /// Entries left after the outdated ones went last.
    left: usize,
}

impl Slots {
    /// An answer is outdated after seconds, and all are when a plan is stored: they go whenever the entries have doubled, so that
    /// memory follows what is asked now, not all that was ever asked.
    fn drop_outdated_in_time(&mut self, moment: Moment) {
        if self.by.len() >= FEW_ANSWERS.max(2 * self.left) {
            self.drop_outdated(moment);
            self.count();
        }
    }

    /// Slots being filled have no answer yet, but a request holds them.
    fn drop_outdated(&mut self, moment: Moment) {
        self.by.retain(|_, slot| !is_idle(slot) || slot.current(moment).is_some());
    }

    fn count(&mut self) {
        self.bytes = self.by.values().map(|slot| slot.bytes()).sum();
        self.left = self.by.len();
    }

    fn remove(&mut self, query: &str) {
        if let Some(slot) = self.by.remove(query) {
            self.bytes -= slot.bytes().min(self.bytes);
        }
    }

    /// Drops the outdated answers, or else some of all, so that this is seldom needed.
    fn make_room(&mut self, moment: Moment) {
        let least = self.by.len() / 16;
        let before = self.by.len();
        self.drop_outdated(moment);
        let mut more = least.saturating_sub(before - self.by.len());
        self.by.retain(|_, slot| {
            let goes = more > 0 && is_idle(slot);
            more -= usize::from(goes);
            !goes
        });
        self.count();
    }
}

fn is_idle(slot: &Arc<Slot>) -> bool {
    Arc::strong_count(slot) == 1
}

impl LookupCache {
    /// With at most so many bytes of answers.
    pub fn new(most: usize) -> Self {
        Self { slots: RwLock::default(), most }
    }

    pub(super) fn current(&self, query: &str, moment: Moment) -> Option<Answer> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.by.get(query)?.current(moment)
    }

    /// The slot of a query, created if there is room; `None` if requests hold all of them.
    pub(super) fn slot(&self, query: &str, moment: Moment) -> Option<Arc<Slot>> {
        if query.len() > MAX_QUERY {
            return None;
        }
        let mut slots = self.slots();
        if let Some(slot) = slots.by.get(query) {
            return Some(Arc::clone(slot));
        }
        slots.drop_outdated_in_time(moment);
        let full = |slots: &Slots| slots.by.len() >= MAX_ANSWERS || slots.bytes >= self.most;
        if full(&slots) {
            slots.make_room(moment);
            if full(&slots) {
                return None;
            }
        }
        let slot = Arc::<Slot>::default();
        slots.by.insert(query.into(), Arc::clone(&slot));
        Some(slot)
    }

    /// Puts an answer into a slot of this cache.
    pub(super) fn put(&self, slot: &Slot, answer: Answer) {
        let mut slots = self.slots();
        let (old, new) = (slot.bytes(), answer.body.len());
        *slot.answer.write().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        slots.bytes = (slots.bytes + new).saturating_sub(old);
    }

    pub(super) fn forget(&self, query: &str) {
        self.slots().remove(query);
    }

    fn slots(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::etag;

    fn put(cache: &LookupCache, query: &str, grade: Grade, moment: Moment) {
        let slot = cache.slot(query, moment).unwrap();
        let body = Bytes::from_static(b"{}");
        let Moment { epoch, now: at, .. } = moment;
        cache.put(&slot, Answer { tag: etag::of(&body), body, grade, epoch, at });
    }

    fn at(epoch: u64, now: Instant) -> Moment {
        Moment { epoch, now, confirmed: None }
    }

    #[test]
    fn an_answer_stands_for_a_second_of_one_epoch() {
        let (cache, start) = (LookupCache::new(1 << 20), Instant::now());
        put(&cache, "a", Grade::Exact, at(7, start));
        let almost = start + TRUSTED_FOR - Duration::from_nanos(1);
        assert!(cache.current("a", at(7, almost)).is_some());
        assert!(cache.current("a", at(8, start)).is_none());
        assert!(cache.current("a", at(7, start + TRUSTED_FOR)).is_none());
    }

    /// Other processes of the store are heard of within the same second.
    #[test]
    fn a_measured_one_stands_longer_while_the_store_says_so() {
        let (cache, start) = (LookupCache::new(1 << 20), Instant::now());
        put(&cache, "measured", Grade::Stale, at(7, start));
        put(&cache, "none", Grade::None, at(7, start));
        let seconds = |s: f64| start + Duration::from_secs_f64(s);
        for (now, confirmed, stands) in
            [(5.0, 4.5, true), (5.0, 3.9, false), (9.9, 9.5, true), (10.0, 9.9, false)]
        {
            let moment = Moment { confirmed: Some(seconds(confirmed)), ..at(7, seconds(now)) };
            assert_eq!(cache.current("measured", moment).is_some(), stands, "{now} {confirmed}");
            assert!(cache.current("none", moment).is_none());
            assert!(cache.current("measured", Moment { epoch: 8, ..moment }).is_none());
        }
    }

    #[test]
    fn outdated_answers_go_before_the_cache_is_full() {
        let (cache, start) = (LookupCache::new(1 << 20), Instant::now());
        let mut most = 0;
        for i in 0..20 * FEW_ANSWERS {
            // A plan is stored after every hundredth answer.
            put(&cache, &i.to_string(), Grade::Exact, at((i / 100) as u64, start));
            most = most.max(cache.slots().by.len());
        }
        assert!((FEW_ANSWERS..=FEW_ANSWERS + 100).contains(&most), "{most}");
        let slots = cache.slots();
        assert_eq!(slots.bytes, 2 * slots.by.len());
    }

    #[test]
    fn a_full_cache_lets_go_of_old_answers_first() {
        let (cache, start) = (LookupCache::new(2 * 64), Instant::now());
        // A clock of the test's own, so that the result does not depend on its speed.
        let now = at(7, start + TRUSTED_FOR);
        put(&cache, "old", Grade::Exact, at(7, start));
        for i in 1..64 {
            put(&cache, &i.to_string(), Grade::Exact, now);
        }
        put(&cache, "new", Grade::Exact, now);
        let kept = |cache: &LookupCache| {
            let slots = cache.slots();
            assert_eq!(slots.bytes, 2 * slots.by.len());
            slots.by.len()
        };
        assert!(!cache.slots().by.contains_key("old"), "the old answer makes room");
        // It and three others, so that the next ones find room.
        assert_eq!(kept(&cache), 61);
        for i in 64..1000 {
            put(&cache, &i.to_string(), Grade::Exact, now);
        }
        assert!((60..=64).contains(&kept(&cache)));
        put(&cache, "999", Grade::Exact, now);
        cache.forget("999");
        kept(&cache);
        assert!(cache.slot(&"x".repeat(MAX_QUERY + 1), now).is_none());
    }
}
