//! The same questions from a shell: curl and the command line, with this server's address in them.

use crate::domain::{Digest, Dtype, Problem, Spmm};
use axum::http::{HeaderMap, header};

/// A line to copy, and what it does.
pub struct Command {
    pub id: &'static str,
    pub what: &'static str,
    pub text: String,
}

/// How to look up and to tune this matrix; `like` is a problem that has a plan already.
pub fn of(digest: &Digest, like: Option<&Problem>, base: &str, tokens: bool) -> Vec<Command> {
    let usual = Problem::Spmm(Spmm { n: 32, ..USUAL });
    let problem = like.unwrap_or(&usual);
    let (query, flags) = (query(problem), flags(problem));
    // With double quotes the shell puts the token in.
    let bearer = if tokens { "-H \"Authorization: Bearer $TOKEN\" " } else { "" };
    let file = if tokens { " --token-file FILE" } else { "" };
    vec![
        Command {
            id: "command-curl",
            what: "Look up the plan over HTTP",
            text: format!("curl {bearer}'{base}/v1/plans?matrix={digest}&{query}'"),
        },
        Command {
            id: "command-lookup",
            what: "Look up the plan from the command line",
            text: format!("sparsetune lookup {digest} --server {base}{file}{flags}"),
        },
        Command {
            id: "command-submit",
            what: "Tune it and wait for the plan",
            text: format!("sparsetune submit {digest} --server {base}{file}{flags}"),
        },
    ]
}

const USUAL: Spmm = Spmm::new(32, Dtype::F32, crate::domain::Layout::Row);

/// The address the client came by. A Host header that is no plain name and port is not repeated: the text ends in a shell.
pub fn base(headers: &HeaderMap) -> String {
    let text =
        |name| headers.get(name).and_then(|value: &axum::http::HeaderValue| value.to_str().ok());
    let plain = |host: &&str| {
        !host.is_empty()
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]_".contains(&b))
    };
    let host = text(header::HOST.as_str()).filter(plain).unwrap_or("HOST");
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    format!("{scheme}://{host}")
}

/// The query of `GET /v1/plans`, what is usual left out.
fn query(problem: &Problem) -> String {
    let parts = match problem {
        Problem::Spmm(p) => vec![
            Some(format!("op=spmm&n={}", p.n)),
            (p.dtype != USUAL.dtype).then(|| format!("dtype={}", p.dtype)),
            (p.layout != USUAL.layout).then(|| format!("layout={}", p.layout)),
            p.accumulate.then(|| "accumulate=true".to_owned()),
            p.tf32.then(|| "tf32=true".to_owned()),
        ],
        Problem::Sptrsv(p) => vec![
            Some(format!("op=sptrsv&rhs={}&dtype={}", p.rhs, p.dtype)),
            Some(format!("triangle={}&diagonal={}", p.triangle, p.diagonal)),
            Some(format!("transpose={}", p.transpose)),
        ],
    };
    parts.into_iter().flatten().collect::<Vec<_>>().join("&")
}

/// The flags of `sparsetune lookup` and `submit`, each with a space before it.
fn flags(problem: &Problem) -> String {
    let parts = match problem {
        Problem::Spmm(p) => vec![
            Some(format!("--n {}", p.n)),
            (p.dtype != USUAL.dtype).then(|| format!("--dtype {}", p.dtype)),
            (p.layout != USUAL.layout).then(|| format!("--layout {}", p.layout)),
            p.accumulate.then(|| "--accumulate".to_owned()),
            p.tf32.then(|| "--tf32".to_owned()),
        ],
        Problem::Sptrsv(p) => vec![
            Some(format!("--op sptrsv --dtype {} --triangle {}", p.dtype, p.triangle)),
            Some(format!("--diagonal {}", p.diagonal)),
            (p.rhs != 1).then(|| format!("--rhs {}", p.rhs)),
            p.transpose.then(|| "--transpose".to_owned()),
        ],
    };
    parts.into_iter().flatten().map(|part| format!(" {part}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(problem: &str) -> [String; 2] {
        let problem = serde_json::from_str(problem).unwrap();
        [query(&problem), flags(&problem)]
    }

    #[test]
    fn both_ask_for_the_same() {
        let [query, flags] =
            lines(r#"{"op":"spmm","n":8,"dtype":"f16","layout":"col","accumulate":true}"#);
        assert_eq!(query, "op=spmm&n=8&dtype=f16&layout=col&accumulate=true");
        assert_eq!(flags, " --n 8 --dtype f16 --layout col --accumulate");
        let solve = r#"{"op":"sptrsv","rhs":16,"dtype":"f64","triangle":"upper","diagonal":"unit","transpose":true}"#;
        let [query, flags] = lines(solve);
        let asked = "op=sptrsv&rhs=16&dtype=f64&triangle=upper&diagonal=unit&transpose=true";
        assert_eq!(query, asked);
        let said = " --op sptrsv --dtype f64 --triangle upper --diagonal unit --rhs 16 --transpose";
        assert_eq!(flags, said);
    }

    #[test]
    fn a_host_that_would_leave_its_quotes_is_not_repeated() {
        let with = |host: &str| HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
        assert_eq!(base(&with("[::1]:8080")), "http://[::1]:8080");
        assert_eq!(base(&with("a';reboot;'")), "http://HOST");
        assert_eq!(base(&HeaderMap::new()), "http://HOST");
    }

    #[test]
    fn where_tokens_are_needed_the_lines_have_a_place_for_one() {
        let digest = Digest::of(b"m");
        let all = of(&digest, None, "http://h", true).into_iter().map(|command| command.text);
        let all: Vec<String> = all.collect();
        assert!(all[0].contains("Bearer $TOKEN"), "{}", all[0]);
        assert_eq!(
            all[1],
            format!("sparsetune lookup {digest} --server http://h --token-file FILE --n 32")
        );
        assert!(
            of(&digest, None, "http://h", false)[0].text.starts_with("curl 'http://h/v1/plans?")
        );
    }
}
