//! What goes wrong with a store: told apart by what helps, in words without the store's own documents.

use crate::store::tls::Distrust;
use crate::store::{BlobError, Cause};
use object_store::client::HttpError;
use std::error::Error;
use std::fmt;

/// What a failed request to the store means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// There is no object of this key.
    Missing,
    /// There is one already (412).
    Exists,
    /// Another request for the same key came between (409): this one may succeed now.
    Conflict,
    /// It is another object than the one that was asked for.
    Changed,
    /// Throttled, out of reach, slow, or failed on the other side: the same request may succeed later.
    Passes,
    /// Refused (403): the same request may succeed once who may do what has changed, and not by being repeated.
    Refused,
    /// There is no room in the store.
    Full,
    /// All else.
    Lasts,
}

impl Kind {
    /// Its name, of those that an operator has to do with.
    const fn counted(self) -> Option<&'static str> {
        match self {
            Self::Passes => Some("unavailable"),
            Self::Refused => Some("refused"),
            Self::Full => Some("full"),
            Self::Lasts => Some("failed"),
            Self::Missing | Self::Exists | Self::Conflict | Self::Changed => None,
        }
    }
}

/// A failed request to the store.
#[derive(Debug)]
pub(super) struct Fault {
    pub kind: Kind,
    /// What was tried, and what came of it. It has no secrets: the store's answers are not repeated but for their code.
    message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Fault {}

impl Fault {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The failure of what was tried ("write an object").
    pub(super) fn of(tried: &str, error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let text = error.to_string();
        let (status, code) = (status(&text), code(&text));
        let named = |kind, what: &str| {
            let mut message = format!("cannot {tried}: {what}");
            if let Some(status) = status {
                message.push_str(&format!(" ({status}"));
                message.push_str(&code.map(|code| format!(" {code}")).unwrap_or_default());
                message.push(')');
            }
            Self { kind, message }
        };
        match error {
            E::NotFound { .. } if code == Some("NoSuchBucket") => {
                named(Kind::Lasts, "there is no such bucket")
            }
            E::NotFound { .. } => named(Kind::Missing, "there is no such object"),
            // The crate gives both this name: the condition that failed is an error of its own, and a conflict is not.
            E::AlreadyExists { source, .. } if source.is::<E>() => {
                named(Kind::Exists, "there is such an object already")
            }
            E::AlreadyExists { .. } => named(Kind::Conflict, "another request for it came between"),
            E::Precondition { .. } | E::NotModified { .. } => {
                named(Kind::Changed, "it has been replaced meanwhile")
            }
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                let what = match code {
                    Some("RequestTimeTooSkewed") => "the clock of this host is wrong",
                    Some("SignatureDoesNotMatch") => "the secret access key is not the right one",
                    _ => "the store refuses access",
                };
                named(Kind::Refused, what)
            }
            E::NotSupported { .. } | E::NotImplemented { .. } => {
                named(Kind::Lasts, "the store does not support it")
            }
            _ => match (status, transport(error)) {
                (Some(507), _) => named(Kind::Full, "the store is full"),
                (Some(501), _) => named(Kind::Lasts, "the store does not support it"),
                (Some(429 | 503), _) => named(Kind::Passes, "the store throttles, or is down"),
                (Some(408 | 500..=599), _) => named(Kind::Passes, "the store failed"),
                (Some(400), _) if code == Some("RequestTimeout") => {
                    named(Kind::Passes, "the store did not wait")
                }
                // An error in the body of an answer that began as a success.
                (Some(200), _) => named(Kind::Passes, "the store failed on the way"),
                (None, Some((kind, what))) => named(kind, &what),
                _ => named(Kind::Lasts, &short(&text)),
            },
        }
    }
}

impl From<Fault> for BlobError {
    fn from(fault: Fault) -> Self {
        if let Some(kind) = fault.kind.counted() {
            metrics::counter!("sparsetune_blob_faults_total", "kind" => kind).increment(1);
        }
        let cause = |fault: Fault| -> Cause { Box::new(fault) };
        match fault.kind {
            Kind::Passes | Kind::Refused | Kind::Conflict | Kind::Changed => {
                Self::Unavailable(cause(fault))
            }
            Kind::Full => Self::Full(cause(fault)),
            Kind::Missing | Kind::Exists | Kind::Lasts => Self::Failed(cause(fault)),
        }
    }
}

/// The status of the store's answer, which the crate tells in its text alone.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// The code of the store's error, a word such as `SlowDown`.
fn code(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let word = code.len() <= 60 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    word.then_some(code)
}

/// What happened to a request that had no answer. One that was not sent, since the certificate was not to be trusted, may be sent once
/// that has been replaced, like one that was refused.
fn transport(error: &(dyn Error + 'static)) -> Option<(Kind, String)> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(lost) = error.downcast_ref::<HttpError>() {
            let mut innermost: &(dyn Error + 'static) = lost;
            while let Some(inner) = innermost.source() {
                innermost = inner;
            }
            return Some(match innermost.is::<Distrust>() {
                true => (Kind::Refused, innermost.to_string()),
                false => (Kind::Passes, format!("the store cannot be reached: {innermost}")),
            });
        }
        at = error.source();
    }
    None
}

/// The text without a document of the store's.
fn short(text: &str) -> String {
    let text = text.split('<').next().unwrap_or_default().trim();
    text.chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_store_are_reduced_to_status_and_code() {
        let text = "Error performing PUT http://h/b/k in 2ms - Server returned non-2xx status code: 503 Service Unavailable: \
                    <Error><Code>SlowDown</Code><Message>AKIDEXAMPLE</Message></Error>";
        let source = text.to_owned().into();
        let fault =
            Fault::of("write an object", &object_store::Error::Generic { store: "S3", source });
        assert_eq!(fault.kind, Kind::Passes);
        assert_eq!(
            fault.to_string(),
            "cannot write an object: the store throttles, or is down (503 SlowDown)"
        );
        assert_eq!(code("<Code>a b</Code>"), None);
        let path = "k".to_owned();
        let gone = |text: &str| object_store::Error::NotFound {
            path: path.clone(),
            source: text.to_owned().into(),
        };
        let bucket =
            Fault::of("read", &gone("status code: 404 Not Found: <Code>NoSuchBucket</Code>"));
        assert_eq!(bucket.kind, Kind::Lasts, "a missing bucket is no missing blob");
        assert_eq!(Fault::of("read", &gone("status code: 404 Not Found: ")).kind, Kind::Missing);
    }
}
