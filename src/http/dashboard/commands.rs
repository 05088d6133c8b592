//! Shell commands shown on pages: curl and the sparsetune command line, with this server's address filled in.

use super::address::{encoded, of_server};
use super::shell::Shell;
use crate::domain::catalog::operation::{Field, Value};
use crate::domain::{Digest, Op, Plan, Problem};
use crate::usage::Place;
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

    /// Where this server's plans are.
    pub fn place(&self) -> Place<'_> {
        Place::Server { address: &self.address, token_file: self.tokens.then_some("FILE") }
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

/// A problem that commands ask for.
struct Asked {
    op: Op,
    /// Fields that have to be named: the others are at their defaults.
    named: Vec<(&'static Field, Value)>,
}

impl Asked {
    fn of(op: Op, fields: impl Iterator<Item = (&'static Field, Value)>) -> Self {
        Self { op, named: fields.filter(|(field, value)| field.default != Some(*value)).collect() }
    }

    fn problem(problem: &Problem) -> Self {
        Self::of(problem.op(), problem.fields())
    }

    /// What the command line takes where no flag is given.
    fn usual() -> Self {
        let op = Op::default();
        Self::of(op, op.descriptor().fields.iter().map(|field| (field, field.usual)))
    }

    /// The query of `GET /v1/plans`.
    fn query(&self) -> String {
        let fields = self.named.iter().map(|(field, value)| format!("&{}={value}", field.name));
        format!("op={}{}", self.op, fields.collect::<String>())
    }

    /// The flags of `sparsetune lookup` and `submit`, each with a space before it.
    fn flags(&self) -> String {
        let op =
            if self.op == Op::default() { String::new() } else { format!(" --op {}", self.op) };
        let flags = self.named.iter().map(|(field, value)| match value {
            // Booleans are false by default.
            Value::Boolean(_) => format!(" --{}", field.name),
            value => format!(" --{} {value}", field.name),
        });
        op + &flags.collect::<String>()
    }
}

/// Commands to look up and to tune a matrix; `like` is a problem that already has a plan.
pub fn of_matrix(digest: &Digest, like: Option<&Problem>, server: &Server) -> Vec<Command> {
    let asked = like.map_or_else(Asked::usual, Asked::problem);
    let flags = asked.flags();
    let submit = format!("submit {digest}");
    vec![
        server.curl(digest, &asked.query()),
        server.lookup(digest, &flags),
        server.program("command-submit", "Tune it and wait for the plan", &submit, &flags),
    ]
}

/// Commands to look up the key of a plan.
pub fn of_plan(plan: &Plan, server: &Server) -> Vec<Command> {
    let class = plan.device.class().to_string();
    let asked = Asked::problem(&plan.problem);
    let query = format!("{}&device={}&l2={}", asked.query(), encoded(&class), plan.l2_policy);
    let flags = format!("{} --device '{}'", asked.flags(), class.replace('\'', "'\\''"));
    vec![server.curl(&plan.matrix, &query), server.lookup(&plan.matrix, &flags)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(problem: &str) -> [String; 2] {
        let asked = Asked::problem(&serde_json::from_str(problem).unwrap());
        [asked.query(), asked.flags()]
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
        let said = " --op sptrsv --rhs 16 --dtype f64 --triangle upper --diagonal unit --transpose";
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
