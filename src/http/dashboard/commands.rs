//! Shell commands shown on pages: curl and the sparsetune command line, with this server's address filled in.

use super::address::{encoded, of_server};
use super::shell::Shell;
use crate::domain::{Digest, Dtype, Plan, Problem, Spmm};
use axum::http::HeaderMap;

/// A command to copy and what it does.
pub struct Command {
    pub id: &'static str,
    pub what: &'static str,
    /// The command up to the server's address, which the page's script replaces with the address that the browser uses.
    pub before: String,
    pub address: String,
    pub after: String,
}

/// What the commands need to know about the server.
pub struct Server {
    address: String,
    /// Whether the server requires API tokens.
    tokens: bool,
}

impl Server {
    pub fn new(headers: &HeaderMap, shell: &Shell) -> Self {
        Self { address: of_server(headers), tokens: shell.signed_in }
    }

    fn curl(&self, digest: &Digest, query: &str) -> Command {
        // In double quotes, so that the shell expands the token.
        let bearer = if self.tokens { "-H \"Authorization: Bearer $TOKEN\" " } else { "" };
        Command {
            id: "command-curl",
            what: "Look up the plan over HTTP",
            before: format!("curl {bearer}'"),
            address: self.address.clone(),
            after: format!("/v1/plans?matrix={digest}&{query}'"),
        }
    }

    fn program(&self, id: &'static str, what: &'static str, asked: &str, flags: &str) -> Command {
        let file = if self.tokens { " --token-file FILE" } else { "" };
        Command {
            id,
            what,
            // Quoted because of addresses such as [::1].
            before: format!("sparsetune {asked} --server '"),
            address: self.address.clone(),
            after: format!("'{file}{flags}"),
        }
    }

    fn lookup(&self, digest: &Digest, flags: &str) -> Command {
        let what = "Look up the plan from the command line";
        self.program("command-lookup", what, &format!("lookup {digest}"), flags)
    }
}

/// Commands to look up and to tune a matrix; `like` is a problem that already has a plan.
pub fn of_matrix(digest: &Digest, like: Option<&Problem>, server: &Server) -> Vec<Command> {
    let usual = Problem::Spmm(Spmm { n: 32, ..USUAL });
    let problem = like.unwrap_or(&usual);
    let flags = flags(problem);
    let submit = format!("submit {digest}");
    vec![
        server.curl(digest, &query(problem)),
        server.lookup(digest, &flags),
        server.program("command-submit", "Tune it and wait for the plan", &submit, &flags),
    ]
}

/// Commands to look up the key of a plan.
pub fn of_plan(plan: &Plan, server: &Server) -> Vec<Command> {
    let class = plan.device.class().to_string();
    let (query, flags) = (query(&plan.problem), flags(&plan.problem));
    let query = format!("{query}&device={}&l2={}", encoded(&class), plan.l2_policy);
    let flags = format!("{flags} --device '{}'", class.replace('\'', "'\\''"));
    vec![server.curl(&plan.matrix, &query), server.lookup(&plan.matrix, &flags)]
}

const USUAL: Spmm = Spmm::new(32, Dtype::F32, crate::domain::Layout::Row);

/// The query of `GET /v1/plans`, without default values.
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

/// The flags of `sparsetune lookup` and `submit`, each preceded by a space.
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
    fn query_and_flags_describe_the_same_problem() {
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

    fn text(command: &Command) -> String {
        format!("{}{}{}", command.before, command.address, command.after)
    }

    #[test]
    fn commands_have_a_token_placeholder_if_the_server_requires_one() {
        let digest = Digest::of(b"m");
        let server = |tokens| Server { address: "http://h".to_owned(), tokens };
        let all = of_matrix(&digest, None, &server(true));
        assert!(text(&all[0]).contains("Bearer $TOKEN"), "{}", text(&all[0]));
        assert_eq!(
            text(&all[1]),
            format!("sparsetune lookup {digest} --server 'http://h' --token-file FILE --n 32")
        );
        let open = text(&of_matrix(&digest, None, &server(false))[0]);
        assert!(open.starts_with("curl 'http://h/v1/plans?"), "{open}");
    }

    #[test]
    fn a_lookup_command_names_the_complete_key_of_a_plan() {
        let plan: Plan =
            serde_json::from_str(include_str!("../../../tests/http/plan.json")).unwrap();
        let server = Server { address: "http://h".to_owned(), tokens: true };
        let [curl, lookup] = of_plan(&plan, &server).try_into().ok().unwrap();
        assert!(curl.before.contains("Bearer $TOKEN"));
        assert!(curl.after.contains("&op=spmm&n=32&device=cpu/a%20processor"), "{}", curl.after);
        assert!(curl.after.ends_with(&format!("&l2={}'", plan.l2_policy)), "{}", curl.after);
        assert!(lookup.after.starts_with("' --token-file FILE --n 32 --device 'cpu/a processor"));
    }
}
