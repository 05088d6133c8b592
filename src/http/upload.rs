//! An upload in progress: a place among the concurrent uploads, and the body as a stream whose failures are reported
//! separately.

use super::App;
use super::body::Lenience;
use super::clients::{Client, Place};
use super::coding;
use super::error::{Kind, Problem};
use super::metrics::Open;
use crate::service::{Coding, ServiceError};
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::header;
use futures_util::{Stream, StreamExt};
use std::error::Error;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Holds its place until dropped.
pub struct Upload {
    _place: Place,
    _open: Open,
    body: BodyDataStream,
    /// How the body is packed.
    pub coding: Option<Coding>,
}

impl Upload {
    /// Refuses immediately if all places are taken, or all of this client.
    pub fn begin(app: &App, request: Request) -> Result<Self, Problem> {
        if content_type(&request).starts_with("multipart/") {
            let detail = "send the matrix itself as the body (curl -T FILE), not a form";
            return Err(Problem::new(Kind::UnsupportedMediaType, detail));
        }
        let coding = coding::of(request.headers())?;
        let client = Client::of(&request, app.limits.forwarded);
        let place = app.uploads.take(client)?;
        if let Some(lenience) = request.extensions().get::<Lenience>() {
            lenience.unless_short(&app.uploads, client);
        }
        Ok(Self {
            _place: place,
            _open: Open::upload(),
            body: Body::into_data_stream(request.into_body()),
            coding,
        })
    }

    /// Runs `ingest` on the body. A failure of the body itself (too large, connection lost) is reported
    /// as such, instead of the error that `ingest` returns for a stream that ended early.
    pub async fn run<T, F, Fut>(self, ingest: F) -> Result<T, Problem>
    where
        F: FnOnce(std::pin::Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>) -> Fut,
        Fut: Future<Output = Result<T, ServiceError>>,
    {
        let broken: Arc<Mutex<Option<Problem>>> = Arc::default();
        let note = Arc::clone(&broken);
        let body = self.body.map(move |chunk| {
            chunk.map_err(|error| {
                let problem = problem_of(&error);
                let text = format!("{:?}: {error}", problem.kind());
                *note.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
                io::Error::other(text)
            })
        });
        let result = ingest(Box::pin(body)).await;
        let broken = broken.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (result, broken) {
            (Ok(value), _) => Ok(value),
            (Err(_), Some(problem)) => Err(problem),
            (Err(error), None) => Err(error.into()),
        }
    }
}

fn content_type(request: &Request) -> &str {
    let value = request.headers().get(header::CONTENT_TYPE);
    value.and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn problem_of(error: &axum::Error) -> Problem {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            let detail = "the body is larger than server.max_upload_bytes";
            return Problem::new(Kind::TooLarge, detail);
        }
        cause = error.source();
    }
    Problem::new(Kind::MalformedBody, format!("the body was interrupted: {error}"))
}
