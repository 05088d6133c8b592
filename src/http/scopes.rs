//! Which scope of a token each operation needs; `openapi.yaml` says the same under `security`, and a test compares the two.

use crate::domain::access::Scope;
use axum::http::Method;

/// The scope that a method of a route needs; `None` for methods that it does not have, and where any token will do.
pub fn needed(method: &Method, route: &str) -> Option<Scope> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let changes = matches!(*method, Method::POST | Method::PUT | Method::DELETE);
    match route {
        _ if !reads && !changes => None,
        "/login" | "/logout" => None,
        "/v1/tokens" | "/v1/tokens/{name}" | "/v1/audit" => Some(Scope::Admin),
        "/v1/webhooks" | "/v1/webhooks/{id}" | "/v1/webhooks/{id}/deliveries" | "/webhooks" => {
            Some(Scope::Admin)
        }
        "/v1/export" | "/v1/import" => Some(Scope::Admin),
        "/metrics" => Some(Scope::Metrics),
        _ if reads => Some(Scope::Read),
        "/v1/matrices" | "/v1/matrices/{digest}" | "/v1/bundles" => Some(Scope::Submit),
        "/v1/matrices/{digest}/pin" | "/v1/plans/{id}/pin" => Some(Scope::Submit),
        // Its job is queued for who may tune.
        "/v1/plans" | "/v1/plans/{id}/bundle" => Some(Scope::Submit),
        "/v1/jobs" | "/v1/jobs/{id}" => Some(Scope::Tune),
        // Models and the quarantine are all users' together; and what nobody has thought of is not for everybody.
        _ => Some(Scope::Admin),
    }
}

/// Whether a method of a route concerns all namespaces, so that it is for tokens of the operator's alone. That of the others is in their
/// own, or reads what is of the whole service and names nothing of another.
pub fn of_all(method: &Method, route: &str) -> bool {
    match route {
        "/v1/tokens" | "/v1/tokens/{name}" | "/v1/audit" => false,
        "/v1/webhooks" | "/v1/webhooks/{id}" | "/v1/webhooks/{id}/deliveries" | "/webhooks" => {
            false
        }
        "/v1/export" => false,
        "/metrics" => true,
        // What changes models and the quarantine; imports, whose answers say what is there already, in other namespaces too; and what
        // nobody has thought of.
        _ => needed(method, route) == Some(Scope::Admin),
    }
}
