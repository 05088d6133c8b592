//! What was changed, by whom, and from where.

use super::{Namespace, Timestamp};

/// A change that was made through the API or by a command on the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    pub at: Timestamp,
    /// The name of the token; `None` if none was required.
    pub token: Option<String>,
    /// The namespace that it was made in.
    pub namespace: Namespace,
    /// The address that the request came from; `None` for commands on the store.
    pub peer: Option<String>,
    /// The request's id.
    pub request: Option<String>,
    /// Method and route, such as `DELETE /v1/jobs/{id}`, or the command.
    pub action: String,
    /// The path of what was changed, if it is one thing.
    pub subject: Option<String>,
    /// The status of the answer.
    pub status: u16,
}
