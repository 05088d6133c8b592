//! Results that several schemes share: kept as long as they fit, and made several at once.

use crate::ops::Refusal;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

/// Results by what they are made from. Where they take too many bytes the oldest are dropped, but for those that are held: what was made
/// side by side is there until it is used.
pub struct Kept<K, T> {
    all: Vec<(K, Arc<T>)>,
    /// How many of the newest are held.
    held: usize,
    most_bytes: u64,
    bytes_of: fn(&T) -> u64,
}

impl<K: Clone + PartialEq + Sync, T: Send> Kept<K, T> {
    pub const fn at_most(most_bytes: u64, bytes_of: fn(&T) -> u64) -> Self {
        Self { all: Vec::new(), held: 0, most_bytes, bytes_of }
    }

    pub fn get(&self, key: &K) -> Option<Arc<T>> {
        self.all.iter().find(|(known, _)| known == key).map(|(_, kept)| kept.clone())
    }

    /// The first that meets a condition, and what it is made from.
    pub fn find(&self, is: impl Fn(&K, &T) -> bool) -> Option<(K, Arc<T>)> {
        self.all.iter().find(|(key, kept)| is(key, kept)).cloned()
    }

    pub fn put(&mut self, key: K, made: T) -> Arc<T> {
        self.let_go();
        self.add(key, made)
    }

    /// As [`Self::put`], and what is added is held.
    pub fn hold(&mut self, key: K, made: T) -> Arc<T> {
        let made = self.add(key, made);
        self.held += 1;
        made
    }

    fn add(&mut self, key: K, made: T) -> Arc<T> {
        let bytes = (self.bytes_of)(&made);
        while bytes + self.bytes() > self.most_bytes && self.drop_oldest().is_some() {}
        let made = Arc::new(made);
        self.all.push((key, made.clone()));
        made
    }

    /// Makes those that are not there, all at once. Whoever needs one that is refused is told why when it is made for it.
    pub fn make(&mut self, keys: &[K], make: impl Fn(&K) -> Result<T, Refusal> + Sync) {
        self.let_go();
        let missing: Vec<K> = keys.iter().filter(|key| self.get(key).is_none()).cloned().collect();
        let made = side_by_side(&missing, make);
        for (key, made) in missing.into_iter().zip(made) {
            if let Ok(made) = made {
                self.hold(key, made);
            }
        }
    }

    pub fn bytes(&self) -> u64 {
        self.all.iter().map(|(_, kept)| (self.bytes_of)(kept)).sum()
    }

    /// Whatever there is may be dropped.
    pub const fn let_go(&mut self) {
        self.held = 0;
    }

    /// Drops the oldest that is not held, and returns its bytes.
    pub fn drop_oldest(&mut self) -> Option<u64> {
        let drops = self.all.len() > self.held;
        drops.then(|| (self.bytes_of)(&self.all.remove(0).1))
    }
}

/// Makes a result of every part, each on a thread of its own. Where one of them uses the common pool it waits for its own tasks alone: a
/// thread of the pool could be given another part meanwhile, and the time that it reports would be of both.
pub fn side_by_side<P: Sync, R: Send>(parts: &[P], make: impl Fn(&P) -> R + Sync) -> Vec<R> {
    if let [only] = parts {
        return vec![make(only)];
    }
    let make = &make;
    thread::scope(|scope| {
        let threads: Vec<_> = parts.iter().map(|part| scope.spawn(move || make(part))).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|made| made.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Each of these once, in the order of their first appearance.
pub fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.fold(Vec::new(), |mut kept, one| {
        if !kept.contains(&one) {
            kept.push(one);
        }
        kept
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn results_are_in_the_order_of_their_parts_and_made_at_once() {
        // None gets past the barrier before all have begun.
        let barrier = Barrier::new(3);
        let made = side_by_side(&[1, 2, 3], |part| {
            barrier.wait();
            part * 10
        });
        assert_eq!(made, [10, 20, 30]);
        assert!(side_by_side(&[0; 0], |part| *part).is_empty());
        assert_eq!(distinct([3, 1, 3, 2, 1].into_iter()), [3, 1, 2]);
    }

    #[test]
    fn the_oldest_make_room_and_what_is_refused_is_not_kept() {
        let mut kept: Kept<u32, u64> = Kept::at_most(10, |bytes| *bytes);
        kept.make(&[4, 11, 5], |&key| match key {
            11 => Err(Refusal("too large".to_owned())),
            key => Ok(u64::from(key)),
        });
        assert_eq!((kept.get(&4).as_deref(), kept.get(&11), kept.bytes()), (Some(&4), None, 9));
        // What is there is not made again.
        kept.make(&[5, 3], |&key| Ok(u64::from(key) + u64::from(key == 5)));
        assert_eq!((kept.get(&4), kept.get(&5).as_deref(), kept.bytes()), (None, Some(&5), 8));
        // What is made at once is held, even beyond the room.
        kept.make(&[6, 7], |&key| Ok(u64::from(key)));
        assert_eq!((kept.get(&6).as_deref(), kept.get(&7).as_deref()), (Some(&6), Some(&7)));
        assert_eq!((kept.bytes(), kept.drop_oldest()), (13, None));
        // One that is larger than all room is kept alone.
        assert_eq!((*kept.put(8, 12), kept.bytes()), (12, 12));
        assert_eq!((kept.drop_oldest(), kept.drop_oldest()), (Some(12), None));
    }
}
