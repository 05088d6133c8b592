//! Who is admitted, and who is not.

use super::super::session::COOKIE;
use super::*;
use crate::domain::{Digest, Namespace, Scopes, Token, TokenLimits};
use crate::service::Ring;
use axum::body::Body;

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
    let mut builder = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::empty()).unwrap()
}

fn refused(access: &Access, request: &Request) -> Option<Kind> {
    access.admit(request).err().map(|problem| problem.kind())
}

/// With these secrets as tokens, if there are any.
fn access(secrets: &[&str], without: Without) -> Access {
    let token = |secret: &&str| StoredToken {
        hash: Digest::of(secret.as_bytes()),
        token: Token {
            name: "ci".parse().unwrap(),
            scopes: Scopes::all(),
            namespace: Namespace::default(),
            created_at: Timestamp(0),
            expires_at: secret.starts_with("old").then_some(Timestamp(5)),
            revoked_at: None,
            limits: TokenLimits::default(),
            share_plans: false,
            last_used_at: None,
        },
    };
    let ring = Arc::new(Ring::of(secrets.iter().map(token)));
    let tokens = Tokens::new(ring, &[7; 32]);
    Access { tokens, without, attempts: Attempts::new(0), forwarded: false }
}

fn tokens(secrets: &[&str]) -> Access {
    access(secrets, Without::Loopback)
}

fn local() -> Access {
    access(&[], Without::Loopback)
}

fn everybody() -> Access {
    access(&[], Without::Everybody)
}

#[test]
fn tokens_open_everything_and_health_needs_none() {
    let access = tokens(&["sesame-sesame-sesame", "old-sesame"]);
    let with = |value| request("GET", "/v1/jobs", &[("authorization", value)]);
    assert_eq!(refused(&access, &with("Bearer sesame-sesame-sesame")), None);
    assert_eq!(refused(&access, &with("bearer sesame-sesame-sesame")), None);
    for wrong in
        ["Bearer sesame", "Bearer ", "Basic sesame-sesame-sesame", "x", "Bearer old-sesame"]
    {
        assert_eq!(refused(&access, &with(wrong)), Some(Kind::Unauthorized), "{wrong}");
    }
    assert_eq!(refused(&access, &request("GET", "/v1/jobs", &[])), Some(Kind::Unauthorized));
    assert_eq!(refused(&access, &request("GET", "/readyz", &[])), None);
}

#[test]
fn a_cookie_opens_pages_and_changes_things_only_from_here() {
    let access = tokens(&["sesame; sésame = sésame"]);
    let value = access.tokens.session("sesame; sésame = sésame".as_bytes()).unwrap();
    let good = format!("a=b; {COOKIE}=bm90aGluZw; {COOKIE}={value}; c=d");
    let ask = |method, cookie: &str, more: &[(&str, &str)]| {
        let mut headers = vec![("host", "tune.example"), ("cookie", cookie)];
        headers.extend_from_slice(more);
        refused(&access, &request(method, "/v1/jobs", &headers))
    };
    assert_eq!(ask("GET", &good, &[]), None);
    for bad in ["", "a=b", COOKIE, &format!("{COOKIE}=x"), &format!("x{COOKIE}={value}")] {
        assert_eq!(ask("GET", bad, &[]), Some(Kind::Unauthorized), "{bad}");
    }
    // A valid cookie does not compensate for a wrong token, and the value of a browser's cookie is not a token.
    for wrong in ["Bearer wrong", &format!("Bearer {value}")] {
        let bearer = [("authorization", wrong)];
        assert_eq!(ask("GET", &good, &bearer), Some(Kind::Unauthorized));
    }
    assert_eq!(ask("GET", &format!("{COOKIE}=sesame"), &[]), Some(Kind::Unauthorized));
    let own = [("origin", "https://tune.example")];
    let other = [("origin", "https://evil.example")];
    for method in ["POST", "DELETE", "PUT"] {
        assert_eq!(ask(method, &good, &own), None);
        assert_eq!(ask(method, &good, &other), Some(Kind::CrossOrigin));
        assert_eq!(ask(method, &good, &[("origin", "null")]), Some(Kind::CrossOrigin));
        assert_eq!(ask(method, &good, &[]), Some(Kind::CrossOrigin));
    }
}

#[test]
fn behind_tls_a_page_without_it_is_another_sites() {
    let post = |origin, proto| {
        let headers = [("host", "a.example"), ("origin", origin), ("x-forwarded-proto", proto)];
        refused(&everybody(), &request("POST", "/v1/jobs", &headers))
    };
    assert_eq!(post("https://a.example", "https"), None);
    assert_eq!(post("http://a.example", "HTTPS, http"), Some(Kind::CrossOrigin));
    // A proxy may send no header, or know only the previous hop.
    assert_eq!(post("http://a.example", ""), None);
    assert_eq!(post("https://a.example", "http"), None);
}

#[test]
fn only_who_was_let_in_is_trusted() {
    let access = tokens(&["sesame-sesame-sesame", "old-sesame"]);
    let bearer = [("authorization", "Bearer sesame-sesame-sesame")];
    assert!(access.trusts(&request("POST", "/v1/jobs", &bearer)));
    for path in ["/v1/jobs", "/healthz", "/login", "/static/app.css"] {
        assert!(!access.trusts(&request("GET", path, &[])), "{path}");
    }
    assert!(local().trusts(&request("GET", "/healthz", &[("host", "localhost")])));
    assert!(!local().trusts(&request("GET", "/healthz", &[("host", "evil.example")])));
}

#[test]
fn signing_in_needs_no_token_but_its_own_site() {
    let access = tokens(&["sesame-sesame-sesame", "old-sesame"]);
    let ask = |method, path, origin: &str| {
        refused(&access, &request(method, path, &[("host", "a.example"), ("origin", origin)]))
    };
    for path in ["/login", "/static/app.css"] {
        assert_eq!(ask("GET", path, "http://a.example"), None);
    }
    for path in ["/login/x", "/logout", "/", "/jobs", "/openapi.yaml", "/fragments/jobs"] {
        assert_eq!(ask("GET", path, "http://a.example"), Some(Kind::Unauthorized), "{path}");
    }
    assert_eq!(ask("POST", "/login", "http://a.example"), None);
    assert_eq!(ask("POST", "/login", "http://evil.example"), Some(Kind::CrossOrigin));
}

#[test]
fn a_request_has_one_host() {
    let refused = |headers: &[(&str, &str)], version| {
        let mut request = request("GET", "/v1/jobs", headers);
        *request.version_mut() = version;
        one_host(&request).err().map(|problem| problem.kind())
    };
    let one = [("host", "localhost")];
    let two = [("host", "localhost"), ("host", "evil.example")];
    for version in [Version::HTTP_10, Version::HTTP_11] {
        assert_eq!(refused(&one, version), None);
        assert_eq!(refused(&two, version), Some(Kind::InvalidParameter));
    }
    assert_eq!(refused(&[], Version::HTTP_10), None);
    assert_eq!(refused(&[], Version::HTTP_11), Some(Kind::InvalidParameter));
}

#[test]
fn a_rebound_name_is_refused_on_loopback() {
    for good in ["localhost:8080", "127.0.0.1:9", "[::1]:80", "127.9.9.9"] {
        let request = request("GET", "/v1/jobs", &[("host", good)]);
        assert_eq!(refused(&local(), &request), None, "{good}");
    }
    for bad in
        ["evil.example", "localhost.evil.example:8080", "10.0.0.1", "127.0.0.1.evil.example", ""]
    {
        let request = request("GET", "/v1/jobs", &[("host", bad)]);
        assert_eq!(refused(&local(), &request), Some(Kind::UnknownHost), "{bad}");
    }
}

#[test]
fn other_sites_may_not_post() {
    let post =
        |origin| request("POST", "/v1/jobs", &[("host", "localhost:8080"), ("origin", origin)]);
    assert_eq!(refused(&local(), &post("http://localhost:8080")), None);
    for bad in ["http://evil.example", "null", "http://localhost:9090", ""] {
        assert_eq!(refused(&local(), &post(bad)), Some(Kind::CrossOrigin), "{bad}");
        assert_eq!(refused(&everybody(), &post(bad)), Some(Kind::CrossOrigin), "{bad}");
    }
}
