//! Connections: limited in number, with a time limit for headers, and closed gracefully.
//!
//! hyper is used directly instead of `axum::serve`, which sets no timer (a client could send its headers forever) and waits
//! indefinitely for connections at shutdown.

use super::metrics::Open;
use super::{App, Limits, router};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

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
        let (limits, shutdown, metrics) = (app.limits, app.shutdown.clone(), app.metrics.clone());
        let upkeep = shutdown.clone().run_until_cancelled_owned(async move {
            let mut tick = tokio::time::interval(METRICS_UPKEEP);
            loop {
                tick.tick().await;
                metrics.upkeep();
            }
        });
        let connections = self.accept(router(app), &limits, &shutdown);
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
        let places = Arc::new(Semaphore::new(limits.connections));
        while let Some(accepted) = shutdown.run_until_cancelled(self.next(&places)).await {
            match accepted {
                Ok((stream, place)) => {
                    let (router, shutdown) = (router.clone(), shutdown.clone());
                    let headers = limits.headers;
                    tracker.spawn(async move {
                        let _open = Open::connection();
                        connection(stream, router, headers, shutdown).await;
                        drop(place);
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

    async fn next(&self, places: &Arc<Semaphore>) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
        let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, _) = self.listener.accept().await?;
        // Responses are written in one piece, so waiting to fill a segment would only delay them.
        stream.set_nodelay(true)?;
        Ok((stream, place))
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::ConnectionRefused | K::ConnectionAborted | K::ConnectionReset | K::InvalidInput
    )
}

async fn connection(
    stream: TcpStream,
    router: Router,
    headers: Duration,
    shutdown: CancellationToken,
) {
    let service = TowerToHyperService::new(router);
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(headers)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
