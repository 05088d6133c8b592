//! The only axum: routes, wire types beside their handlers, problem+json.
