//! Addresses as text: the server's own as the client used it, encoded query values, and safe redirect targets.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, header};

/// Placeholder for a missing or unsafe Host header.
const UNKNOWN: &str = "HOST";

/// This server's address as the client used it. It is shown in shell commands, so a Host header is repeated only if it is a
/// plain host name or IP address with an optional port.
pub fn of_server(headers: &HeaderMap) -> String {
    let plain = |host: &&str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        host.bytes().all(known) && host.parse::<Authority>().is_ok()
    };
    let host = text(headers, &header::HOST).filter(plain).unwrap_or(UNKNOWN);
    format!("{}://{host}", if by_tls(headers) { "https" } else { "http" })
}

/// Whether the client used https, according to the proxy in front. The first of several values is the outermost proxy's.
pub fn by_tls(headers: &HeaderMap) -> bool {
    let said = text(headers, &HeaderName::from_static("x-forwarded-proto")).unwrap_or_default();
    said.split(',').next().unwrap_or_default().trim().eq_ignore_ascii_case("https")
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Percent-encodes a query value. Slashes are kept, so that paths stay readable.
pub fn encoded(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// The given address if it is a page of this server, else `/`.
///
/// Browsers read `//host`, `/\host` and `/<tab>/host` as another site's address, so only plain ASCII paths pass.
pub fn local(next: &str) -> &str {
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let here = next.starts_with('/') && !next.starts_with("//");
    let path = next.split(['?', '#']).next().unwrap_or_default();
    // Signing in must not lead back to signing in or out.
    let elsewhere = path != "/login" && path != "/logout";
    if plain && here && elsewhere { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::{by_tls, encoded, local, of_server};
    use axum::http::{HeaderMap, header};

    #[test]
    fn a_host_that_could_escape_shell_quotes_is_not_repeated() {
        let with = |host: &str| HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
        for good in ["[::1]:8080", "127.0.0.1:1", "tune.example", "a-b_c.example:80"] {
            assert_eq!(of_server(&with(good)), format!("http://{good}"));
        }
        for bad in ["a';reboot;'", "a b", "user@host", "a:b:c", "a/b", "$(x)", "", "[::1"] {
            assert_eq!(of_server(&with(bad)), "http://HOST", "{bad}");
        }
        assert_eq!(of_server(&HeaderMap::new()), "http://HOST");
    }

    #[test]
    fn the_outermost_proxy_determines_the_scheme() {
        let with = |said: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-proto", said.parse().unwrap());
            headers
        };
        assert_eq!(of_server(&with("HTTPS, http")), "https://HOST");
        assert!(by_tls(&with("https")) && by_tls(&with(" https ")));
        assert!(!by_tls(&with("http, https")) && !by_tls(&with("")) && !by_tls(&HeaderMap::new()));
    }

    #[test]
    fn values_are_encoded() {
        assert_eq!(encoded("/jobs?state=x&device=cuda:0"), "/jobs%3Fstate%3Dx%26device%3Dcuda%3A0");
        assert_eq!(encoded("é\r\n"), "%C3%A9%0D%0A");
    }

    #[test]
    fn only_local_pages_are_redirect_targets() {
        for good in ["/", "/jobs", "/jobs?state=failed&device=cuda%3A0", "/a//b", "/../x"] {
            assert_eq!(local(good), good);
        }
        for bad in [
            "",
            "jobs",
            "//evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "/a\\b",
            "https://evil.example",
            "javascript:alert(1)",
            "/\t/evil.example",
            "/\n/evil.example",
            " //evil.example",
            "/a b",
            "/é",
            "/login",
            "/login?next=/",
            "/logout",
        ] {
            assert_eq!(local(bad), "/", "{bad:?}");
        }
    }
}
