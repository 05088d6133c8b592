//! Connections: limited in number, with a time limit for headers, and closed gracefully.
//!
//! hyper is used directly instead of `axum::serve`, which sets no timer (a client could send its headers forever) and waits
//! indefinitely for connections at shutdown.

use super::clients::Peer;
use super::connections::{Connections, Place, RESERVE_HEADERS};
use super::metrics::Open;
use super::{App, Limits, checks, router};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::Service;

/// Interval at which samples are moved into the buckets of the metrics.
const METRICS_UPKEEP: Duration = Duration::from_secs(1);

/// A bound listener that does not accept connections yet.
pub struct Server {
    listener: TcpListener,
}

impl Server {
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await? })
    }

    /// The address in use, which contains the actual port if 0 was requested.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `app`'s shutdown begins, then lets running requests finish within the limit.
    pub async fn run(self, app: App) {
        self.serve(router(app.clone()), app).await;
    }

    /// Likewise, what a process answers that only works.
    pub async fn run_checks(self, app: App) {
        self.serve(checks(app.clone()), app).await;
    }

    async fn serve(self, router: Router, app: App) {
        let (limits, shutdown, metrics) = (app.limits, app.shutdown.clone(), app.metrics.clone());
        let upkeep = shutdown.clone().run_until_cancelled_owned(async move {
            let mut tick = tokio::time::interval(METRICS_UPKEEP);
            loop {
                tick.tick().await;
                metrics.upkeep();
            }
        });
        drop(app);
        let connections = self.accept(router, &limits, &shutdown);
        let (connections, _) = tokio::join!(connections, upkeep);
        connections.close();
        if tokio::time::timeout(limits.shutdown, connections.wait()).await.is_err() {
            tracing::warn!(left = connections.len(), "requests were still running at shutdown");
        }
    }

    async fn accept(
        &self,
        router: Router,
        limits: &Limits,
        shutdown: &CancellationToken,
    ) -> TaskTracker {
        let tracker = TaskTracker::new();
        let places = Connections::new(limits.connections, limits.connections_each);
        while let Some(accepted) = shutdown.run_until_cancelled(self.next(&places)).await {
            match accepted {
                Ok(accepted) => {
                    let (router, shutdown) = (router.clone(), shutdown.clone());
                    let (headers, running) = (limits.headers, tracker.token());
                    tracker.spawn(async move {
                        let _open = Open::connection();
                        accepted.serve(router, headers, shutdown, running).await;
                    });
                }
                Err(error) if is_of_one_client(&error) => {}
                Err(error) => {
                    // Probably out of file handles; accepting again immediately would spin.
                    tracing::error!(%error, "cannot accept connections");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
        tracker
    }

    async fn next(&self, places: &Connections) -> io::Result<Accepted> {
        let (stream, peer) = self.listener.accept().await?;
        // Responses are written in one piece, so waiting to fill a segment would only delay them.
        stream.set_nodelay(true)?;
        Ok(Accepted { stream, peer: Peer(peer), place: places.take(peer).await? })
    }
}

/// The place of a connection and its part in what a shutdown waits for; an extension of its requests. A request that does not end
/// with its connection keeps it, so that there are no more of these than there may be connections.
#[derive(Clone)]
pub struct Held(#[expect(dead_code, reason = "held")] Arc<(Place, TaskTrackerToken)>);

/// A connection of the reserve; an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub struct Reserved;

struct Accepted {
    stream: TcpStream,
    peer: Peer,
    place: Place,
}

fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::ConnectionRefused | K::ConnectionAborted | K::ConnectionReset | K::InvalidInput
    )
}

/// How long a client is heard after the last answer: in all, and without a byte. While it still sends, closing at once would
/// destroy the answer on its way (RFC 9112, section 9.6), and many clients read none before they have sent everything.
const LINGERING: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(2);

impl Accepted {
    async fn serve(
        self,
        router: Router,
        headers: Duration,
        shutdown: CancellationToken,
        running: TaskTrackerToken,
    ) {
        let Self { stream, peer, place } = self;
        let held = Arc::new((place, running));
        let Place::Reserved(reserved) = &held.0 else {
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request.extensions_mut().insert(Held(Arc::clone(&held)));
                router.clone().call(request).boxed()
            });
            return connection(stream, service, headers, shutdown).await;
        };
        let (displaced, answering) = (reserved.displaced(), reserved.answering());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(Reserved);
            answering.store(true, Relaxed);
            let (answer, answering) = (router.clone().call(request), answering.clone());
            async move {
                let answer = answer.await;
                answering.store(false, Relaxed);
                answer
            }
            .boxed()
        });
        let serving = connection(stream, service, headers.min(RESERVE_HEADERS), shutdown);
        displaced.run_until_cancelled(serving).await;
    }
}

async fn connection<S, E>(
    stream: TcpStream,
    service: S,
    headers: Duration,
    shutdown: CancellationToken,
) where
    S: HttpService<Incoming, ResBody = Body, Error = E> + Unpin,
    S::Future: Unpin,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(headers)
        .serve_connection(TokioIo::new(stream), service);
    let served = poll_fn(|context| serving.poll_without_shutdown(context));
    let (result, stopping) = match shutdown.run_until_cancelled(served).await {
        Some(result) => (result, false),
        None => {
            Pin::new(&mut serving).graceful_shutdown();
            (poll_fn(|context| serving.poll_without_shutdown(context)).await, true)
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
    let mut stream = serving.into_parts().io.into_inner();
    if stream.shutdown().await.is_ok() && !stopping {
        // Whether the client ended, or did not in time, the connection does.
        let heard = tokio::time::timeout(LINGERING, hear(stream));
        shutdown.run_until_cancelled(heard).await;
    }
}

/// Reads until the client ends, or sends nothing more.
async fn hear(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(Ok(1..)) = tokio::time::timeout(SILENCE, stream.read(&mut buffer)).await {}
}
