//! Addresses of pages as text: values of a query made safe, and where one may be sent back to.

/// A value of a query string with all but the plainest bytes percent-encoded. A slash stays, so that paths can be read.
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
    // Signing in leads anywhere but back to signing in or out.
    let elsewhere = path != "/login" && path != "/logout";
    if plain && here && elsewhere { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::{encoded, local};

    #[test]
    fn values_are_encoded() {
        assert_eq!(encoded("/jobs?state=x&device=cuda:0"), "/jobs%3Fstate%3Dx%26device%3Dcuda%3A0");
        assert_eq!(encoded("é\r\n"), "%C3%A9%0D%0A");
    }

    #[test]
    fn only_own_pages_are_gone_back_to() {
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
