//! What one client may hold at once, so that the rest is left for others: connections, uploads in progress and event streams, by
//! address.

use super::error::{Kind, Problem};
use axum::extract::Request;
use axum::http::{Extensions, HeaderMap};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The address at the other end of a connection, as an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// Who a request counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client(IpAddr);

const FORWARDED: &str = "x-forwarded-for";

impl Client {
    /// The client at the other end of a connection.
    pub fn at(peer: SocketAddr) -> Self {
        Self(block(peer.ip()))
    }

    pub fn of(request: &Request, forwarded: bool) -> Self {
        Self::by(request.headers(), request.extensions(), forwarded)
    }

    pub fn by(headers: &HeaderMap, extensions: &Extensions, forwarded: bool) -> Self {
        let address = address(headers, extensions, forwarded);
        Self(block(address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED))))
    }
}

/// The peer or, with `forwarded`, the client that the proxy in front names last. Others before it are the client's own word.
pub fn address(headers: &HeaderMap, extensions: &Extensions, forwarded: bool) -> Option<IpAddr> {
    let peer = extensions.get::<Peer>().map(|peer| peer.0.ip());
    let named = || {
        let value = headers.get_all(FORWARDED).iter().next_back()?.to_str().ok()?;
        value.rsplit(',').next()?.trim().parse().ok()
    };
    let named: Option<IpAddr> = if forwarded { named() } else { None };
    named.or(peer)
}

/// An IPv6 client has a whole network of 64 bits.
fn block(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Places of one kind; clones share them.
#[derive(Clone, Debug)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Of what they are, for messages.
    what: &'static str,
    all: usize,
    each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    sum: usize,
    by: HashMap<Client, Own>,
}

/// What one client has.
#[derive(Debug, Default)]
struct Own {
    places: usize,
    /// When it was last refused another.
    refused: Option<Instant>,
}

/// How long who was refused is expected to come again.
const WANTED: Duration = Duration::from_secs(30);

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// All are taken.
    All,
    /// The client has as many as one may.
    Own,
}

impl Places {
    /// `all` places, of which a client may have `each`.
    pub fn new(what: &'static str, all: usize, each: usize) -> Self {
        Self(Arc::new(Shared { what, all, each, taken: Mutex::default() }))
    }

    /// A place, or the refusal: queued requests would only hold memory and time out.
    pub fn take(&self, client: Client) -> Result<Place, Problem> {
        self.try_take(client).map_err(|full| {
            let Shared { what, all, each, .. } = &*self.0;
            let detail = match full {
                Full::All => format!("the server's limit of {all} concurrent {what} is reached"),
                Full::Own => format!(
                    "{each} {what} from this address are in progress, as many as one may have"
                ),
            };
            Problem::new(Kind::Busy, detail)
        })
    }

    /// A place, or why there is none.
    pub fn try_take(&self, client: Client) -> Result<Place, Full> {
        let mut taken = self.taken();
        if taken.sum >= self.0.all {
            return Err(Full::All);
        }
        let own = taken.by.entry(client).or_default();
        if own.places >= self.0.each {
            own.refused = Some(Instant::now());
            return Err(Full::Own);
        }
        own.places += 1;
        own.refused = None;
        taken.sum += 1;
        Ok(Place { places: self.clone(), client })
    }

    /// Whether this client, who holds a place, must make use of it: fewer than half of all are left, or another upload from its address
    /// was refused because all of its own were taken. Behind a proxy that address may be everybody's.
    pub fn are_short(&self, client: Client) -> bool {
        let taken = self.taken();
        let own = taken.by.get(&client).and_then(|own| own.refused);
        let wanted = own.is_some_and(|refused| refused.elapsed() < WANTED);
        wanted || 2 * (self.0.all.saturating_sub(taken.sum)) < self.0.all
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held until dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    client: Client,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        let Taken { sum, by } = &mut *taken;
        if let Some(own) = by.get_mut(&self.client) {
            *sum -= 1;
            own.places -= 1;
            if own.places == 0 {
                by.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn client(peer: &str, headers: &[&str], forwarded: bool) -> Client {
        let mut request = Request::builder();
        for value in headers {
            request = request.header(FORWARDED, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        Client::of(&request, forwarded)
    }

    #[test]
    fn a_client_is_its_address_and_only_a_proxy_may_name_another() {
        let one = client("10.0.0.1:5", &[], false);
        assert_eq!(one, client("10.0.0.1:6", &["10.0.0.9"], false));
        assert_eq!(one, client("[::ffff:10.0.0.1]:6", &[], false));
        assert_ne!(one, client("10.0.0.2:5", &[], false));
        // The last address of the last header is the proxy's; junk is not believed.
        assert_eq!(one, client("10.0.0.7:5", &["9.9.9.9", "8.8.8.8, 10.0.0.1"], true));
        assert_eq!(one, client("10.0.0.1:5", &["who knows"], true));
        // A network of IPv6 is one client.
        assert_eq!(client("[fd00::1]:5", &[], false), client("[fd00::2]:5", &[], false));
        assert_ne!(client("[fd00::1]:5", &[], false), client("[fd00:0:0:1::1]:5", &[], false));
    }

    #[test]
    fn one_client_leaves_places_for_others() {
        let places = Places::new("uploads", 3, 2);
        let (one, other) = (client("10.0.0.1:5", &[], false), client("10.0.0.2:5", &[], false));
        let first = places.take(one).unwrap();
        let second = places.take(one).unwrap();
        assert!(places.take(one).unwrap_err().detail().contains("from this address"));
        let _third = places.take(other).unwrap();
        assert!(places.take(other).unwrap_err().detail().contains("limit of 3"));
        assert!(places.are_short(other) && places.are_short(one));
        drop(first);
        assert!(places.are_short(other), "one of three is left");
        assert!(places.take(one).is_ok());
        {
            let taken = places.taken();
            assert_eq!((taken.by.len(), taken.sum), (2, 2));
        }
        drop(second);
        assert!(!places.are_short(other));
    }

    #[test]
    fn places_are_short_for_who_was_refused_one() {
        let places = Places::new("uploads", 8, 2);
        let (one, other) = (client("10.0.0.1:5", &[], false), client("10.0.0.2:5", &[], false));
        let first = places.take(one).unwrap();
        let _second = places.take(one).unwrap();
        let _third = places.take(other).unwrap();
        assert!(!places.are_short(one), "nobody waits");
        assert_eq!(places.try_take(one).unwrap_err(), Full::Own);
        assert!(places.are_short(one) && !places.are_short(other));
        drop(first);
        let _again = places.take(one).unwrap();
        assert!(!places.are_short(one), "it has its place");
    }
}
