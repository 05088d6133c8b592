//! Wrong tokens: each address may send a few, so that nobody tries out many. While it has no attempts left, an address is admitted only
//! with tokens that it was admitted with before: otherwise the answer to the right one would give it away, and users behind one address
//! could shut each other out.

use super::clients::Client;
use super::error::{Kind, Problem};
use crate::domain::Digest;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Most addresses that are remembered, of either kind.
const MOST: usize = 4096;

/// Clones share the tally.
#[derive(Clone, Debug)]
pub struct Attempts(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Wrong tokens of an address in a minute; 0 for any number.
    each: u32,
    tallies: Mutex<HashMap<Client, Tally>>,
    /// The number of tallies, so that usual requests need no lock.
    wrong: AtomicUsize,
    /// With which tokens addresses were admitted; a few bytes of a hash suffice.
    admitted: RwLock<HashSet<(Client, u64)>>,
}

/// How many attempts were left when.
#[derive(Clone, Copy, Debug)]
struct Tally {
    left: f64,
    at: Instant,
}

fn mark(client: Client, token: &Digest) -> (Client, u64) {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&token.as_bytes()[..8]);
    (client, u64::from_le_bytes(bytes))
}

impl Attempts {
    pub fn new(each: u32) -> Self {
        Self(Arc::new(Shared {
            each,
            tallies: Mutex::default(),
            wrong: AtomicUsize::new(0),
            admitted: RwLock::default(),
        }))
    }

    /// Counts a wrong token; the refusal if there have been too many.
    pub fn wrong(&self, client: Client) -> Result<(), Problem> {
        self.wrong_at(client, Instant::now())
    }

    fn wrong_at(&self, client: Client, now: Instant) -> Result<(), Problem> {
        if self.0.each == 0 {
            return Ok(());
        }
        let mut tallies = self.tallies();
        if tallies.len() >= MOST && !tallies.contains_key(&client) {
            self.make_room(&mut tallies, now);
        }
        let full = Tally { left: f64::from(self.0.each), at: now };
        let tally = tallies.entry(client).or_insert(full);
        tally.left = self.left(tally, now);
        tally.at = now;
        let barred = tally.left < 1.0;
        if !barred {
            tally.left -= 1.0;
        }
        self.0.wrong.store(tallies.len(), Ordering::Release);
        if barred { Err(self.refusal()) } else { Ok(()) }
    }

    /// Whether the right token is admitted from this address.
    pub fn right(&self, client: Client, token: &Digest) -> Result<(), Problem> {
        self.right_at(client, token, Instant::now())
    }

    fn right_at(&self, client: Client, token: &Digest, now: Instant) -> Result<(), Problem> {
        let mark = mark(client, token);
        if self.0.admitted.read().unwrap_or_else(PoisonError::into_inner).contains(&mark) {
            return Ok(());
        }
        let barred = self.0.wrong.load(Ordering::Acquire) > 0
            && self.tallies().get(&client).is_some_and(|tally| self.left(tally, now) < 1.0);
        if barred {
            return Err(self.refusal());
        }
        let mut admitted = self.0.admitted.write().unwrap_or_else(PoisonError::into_inner);
        if admitted.len() >= MOST {
            admitted.clear();
        }
        admitted.insert(mark);
        Ok(())
    }

    /// What an address has left: attempts come back evenly over a minute.
    fn left(&self, tally: &Tally, now: Instant) -> f64 {
        let most = f64::from(self.0.each);
        let gained = now.saturating_duration_since(tally.at).as_secs_f64() / 60.0 * most;
        (tally.left + gained).min(most)
    }

    /// Forgets who has all attempts again or, if nobody has, who has most.
    fn make_room(&self, tallies: &mut HashMap<Client, Tally>, now: Instant) {
        let most = f64::from(self.0.each);
        tallies.retain(|_, tally| self.left(tally, now) < most);
        if tallies.len() >= MOST {
            let by_left = |a: &Tally, b: &Tally| self.left(a, now).total_cmp(&self.left(b, now));
            let mildest = tallies.iter().max_by(|(_, a), (_, b)| by_left(a, b));
            if let Some(mildest) = mildest.map(|(client, _)| *client) {
                tallies.remove(&mildest);
            }
        }
    }

    fn refusal(&self) -> Problem {
        let detail = format!(
            "more than {} wrong tokens in a minute came from this address: try again later",
            self.0.each
        );
        let wait = Duration::from_secs(60).as_secs() / u64::from(self.0.each.max(1));
        Problem::new(Kind::TooManyAttempts, detail).again_after(wait.max(1))
    }

    fn tallies(&self) -> MutexGuard<'_, HashMap<Client, Tally>> {
        self.0.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn client(number: u32) -> Client {
        Client::at((Ipv4Addr::from(number), 1).into())
    }

    #[test]
    fn an_address_has_a_few_attempts_a_minute() {
        let (attempts, start) = (Attempts::new(3), Instant::now());
        let right = Digest::of(b"right");
        let (one, other) = (client(1), client(2));
        for _ in 0..3 {
            assert!(attempts.wrong_at(one, start).is_ok());
        }
        let refused = attempts.wrong_at(one, start).unwrap_err();
        assert_eq!(refused.kind(), Kind::TooManyAttempts);
        // The right token is refused like a wrong one, but not elsewhere.
        assert!(attempts.right_at(one, &right, start).is_err());
        assert!(attempts.right_at(other, &right, start).is_ok());
        let later = start + Duration::from_secs(21);
        assert!(attempts.right_at(one, &right, later).is_ok());
        assert!(attempts.wrong_at(one, later).is_ok() && attempts.wrong_at(one, later).is_err());
        // It was admitted before, so others at this address do not shut it out.
        assert!(attempts.right_at(one, &right, later).is_ok());
        assert!(attempts.right_at(one, &Digest::of(b"another"), later).is_err());
    }

    #[test]
    fn memory_is_bounded_and_offenders_stay_in_it() {
        let (attempts, start) = (Attempts::new(2), Instant::now());
        let offender = client(0);
        while attempts.wrong_at(offender, start).is_ok() {}
        for number in 1..3 * MOST as u32 {
            attempts.wrong_at(client(number), start).unwrap();
            attempts.right_at(client(number), &Digest::of(b"right"), start).unwrap();
        }
        assert!(attempts.tallies().len() <= MOST);
        assert!(attempts.0.admitted.read().unwrap().len() <= MOST);
        assert!(attempts.wrong_at(offender, start).is_err());
        assert!((0..100).all(|_| Attempts::new(0).wrong(offender).is_ok()));
    }
}
