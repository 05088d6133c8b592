//! The media types and encodings that a client accepts: the lists of `Accept` and `Accept-Encoding`, with their weights.

use axum::http::{HeaderMap, HeaderName, header};

/// The weight given to any of these names; `None` if none of them is listed. Names are in lower case.
fn weight(headers: &HeaderMap, header: HeaderName, names: &[&str]) -> Option<f32> {
    let values = headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    let ranges = values.flat_map(elements).filter_map(|element| {
        let mut parts = element.split(';').map(str::trim);
        let name = parts.next()?;
        let named = names.iter().any(|wanted| wanted.eq_ignore_ascii_case(name));
        named.then(|| parts.find_map(quality).unwrap_or(1.0))
    });
    ranges.reduce(f32::max)
}

/// The elements of a list; a comma within quotes does not separate.
fn elements(list: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    list.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
}

/// A weight; one that cannot be parsed counts as 0.
fn quality(parameter: &str) -> Option<f32> {
    let (name, value) = parameter.split_once('=')?;
    let value = name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse::<f32>().ok())?;
    Some(value.filter(|value| (0.0..=1.0).contains(value)).unwrap_or(0.0))
}

/// Whether the client wants a page: browsers list HTML on every navigation, programs do not.
pub fn prefers_html(headers: &HeaderMap) -> bool {
    let html = weight(headers, header::ACCEPT, &["text/html"]).unwrap_or(0.0);
    let json = weight(headers, header::ACCEPT, &["application/json"]).unwrap_or(0.0);
    html > 0.0 && html >= json
}

/// Whether the client accepts gzip and does not prefer the uncompressed bytes.
pub fn takes_gzip(headers: &HeaderMap) -> bool {
    let named = |names| weight(headers, header::ACCEPT_ENCODING, names);
    let gzip = named(&["gzip", "x-gzip"]).or_else(|| named(&["*"])).unwrap_or(0.0);
    gzip > 0.0 && gzip >= named(&["identity"]).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn pages_are_for_those_who_name_html() {
        for (accept, expected) in [
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
            ("text/html", true),
            ("TEXT/HTML;Q=0.1", true),
            ("text/html;level=1;q=0.5, application/json;q=0.5", true),
            ("application/json, text/html;q=0.9", false),
            ("application/json;q=0.1, text/html;q=0.9", true),
            ("application/json, text/html", true),
            ("text/html;q=0", false),
            ("text/html;q=0.000, */*", false),
            ("text/html;q=NaN", false),
            ("*/*", false),
            ("text/*", false),
            ("application/json", false),
            ("text/htmlx, x-text/html", false),
            ("a/b;x=\",text/html\"", false),
            ("", false),
        ] {
            assert_eq!(prefers_html(&with(header::ACCEPT, accept)), expected, "{accept}");
        }
        assert!(!prefers_html(&HeaderMap::new()));
    }

    #[test]
    fn gzip_is_taken_where_it_is_not_refused() {
        for (accept, expected) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("x-gzip", true),
            ("*", true),
            ("br;q=1.0, *;q=0.1", true),
            ("gzip; q=0.5, identity; q=0.5", true),
            ("br", false),
            ("gzip;q=0", false),
            ("gzip;q=0.0", false),
            ("gzip ; q = 0.000, *", false),
            ("*;q=0", false),
            ("identity, gzip;q=0.5", false),
            ("", false),
        ] {
            assert_eq!(takes_gzip(&with(header::ACCEPT_ENCODING, accept)), expected, "{accept}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
