//! Places of connections: so many for each client, and beyond them a reserve for the checks of an orchestrator, which no number of
//! connections that send nothing can keep from it: the newest displaces the oldest.

use super::clients::{self, Client, Places};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Connections beyond the usual number.
const RESERVE: usize = 32;
/// Time limit for the headers of these, which must not be held for long.
pub const RESERVE_HEADERS: Duration = Duration::from_secs(5);

/// The places of a server's connections.
pub struct Connections {
    usual: Places,
    reserve: Arc<Reserve>,
}

/// Held until dropped.
pub enum Place {
    Usual { _place: clients::Place },
    Reserved(Reserved),
}

impl Connections {
    /// `all` places, of which an address may have `each`.
    pub fn new(all: usize, each: usize) -> Self {
        let reserve =
            Reserve { places: Arc::new(Semaphore::new(RESERVE)), taken: Mutex::default() };
        Self { usual: Places::new("connections", all, each), reserve: Arc::new(reserve) }
    }

    /// A place for a connection that has been accepted: usual, or else in the reserve.
    pub async fn take(&self, peer: SocketAddr) -> io::Result<Place> {
        match self.usual.try_take(Client::at(peer)) {
            Ok(place) => Ok(Place::Usual { _place: place }),
            Err(_) => Reserve::enter(&self.reserve).await.map(Place::Reserved),
        }
    }
}

struct Reserve {
    places: Arc<Semaphore>,
    /// Connections in the reserve, the oldest first.
    taken: Mutex<VecDeque<Standing>>,
}

/// A connection in the reserve.
#[derive(Clone)]
struct Standing {
    /// Ends the connection.
    displaced: CancellationToken,
    /// It has sent a request, which is being answered.
    answering: Arc<AtomicBool>,
}

/// A place in the reserve, until dropped.
pub struct Reserved {
    reserve: Arc<Reserve>,
    standing: Standing,
    _permit: OwnedSemaphorePermit,
}

impl Reserve {
    async fn enter(reserve: &Arc<Self>) -> io::Result<Reserved> {
        let places = &reserve.places;
        let permit = match Arc::clone(places).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                reserve.displace();
                // Its task ends at once, and no more connections are accepted than there are places.
                Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?
            }
        };
        let standing = Standing { displaced: CancellationToken::new(), answering: Arc::default() };
        reserve.taken().push_back(standing.clone());
        Ok(Reserved { reserve: Arc::clone(reserve), standing, _permit: permit })
    }

    /// Ends the oldest connection that waits for its client: a check comes at once, and is answered at once.
    fn displace(&self) {
        let mut taken = self.taken();
        let waits = |standing: &Standing| !standing.answering.load(Relaxed);
        let oldest = taken.iter().position(waits).unwrap_or(0);
        if let Some(standing) = taken.remove(oldest) {
            standing.displaced.cancel();
        }
    }

    fn taken(&self) -> MutexGuard<'_, VecDeque<Standing>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reserved {
    /// Cancelled once another connection needs the place.
    pub fn displaced(&self) -> CancellationToken {
        self.standing.displaced.clone()
    }

    /// Set while a request is answered.
    pub fn answering(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.standing.answering)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let own = &self.standing.answering;
        self.reserve.taken().retain(|other| !Arc::ptr_eq(&other.answering, own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_connection_displaces_the_oldest_that_waits() {
        let connections = Connections::new(3, 2);
        let peer = |last: u8| SocketAddr::from(([10, 0, 0, last], 80));
        let mut held = Vec::new();
        for (from, usual) in [(1, true), (1, true), (1, false), (2, true), (3, false)] {
            let place = connections.take(peer(from)).await.unwrap();
            assert_eq!(matches!(place, Place::Usual { .. }), usual, "{from}");
            held.push(place);
        }
        let mut reserved: VecDeque<Reserved> = held
            .drain(..)
            .filter_map(|place| match place {
                Place::Reserved(reserved) => Some(reserved),
                Place::Usual { .. } => None,
            })
            .collect();
        while reserved.len() < RESERVE {
            reserved.push_back(Reserve::enter(&connections.reserve).await.unwrap());
        }
        // The oldest is being answered, so the next goes.
        reserved[0].answering().store(true, Relaxed);
        let goes = reserved.remove(1).unwrap();
        let displaced = goes.displaced();
        tokio::spawn(async move {
            displaced.cancelled().await;
            drop(goes);
        });
        let newest = Reserve::enter(&connections.reserve).await.unwrap();
        assert!(!newest.displaced().is_cancelled());
        assert!(reserved.iter().all(|other| !other.displaced().is_cancelled()));
        assert_eq!(connections.reserve.taken().len(), RESERVE);
        drop((newest, reserved));
        assert!(connections.reserve.taken().is_empty());
    }
}
