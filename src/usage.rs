//! The lines that use a plan, in Python, in C++ and on the command line: shown on the plan's page, and at the end of `tune` and
//! `submit`.

use crate::domain::{DeviceKind, Plan, PlanId, Problem};

/// Where the plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    Server {
        address: &'a str,
        /// Name of the file with the API token, if the server requires one.
        token_file: Option<&'a str>,
    },
    /// A data folder.
    Folder(&'a str),
    /// A bundle.
    File(&'a str),
}

/// One way to use a plan: three lines, in which the server's address occurs once at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// For anchors: `python`, `cpp`, `cli`.
    pub id: &'static str,
    pub name: &'static str,
    /// What the lines need, as a sentence.
    pub needs: &'static str,
    /// The lines up to the server's address, which a page replaces with the one that its browser uses.
    pub before: String,
    /// Empty unless the plan is on a server.
    pub address: String,
    pub after: String,
}

impl Way {
    pub fn lines(&self) -> String {
        format!("{}{}{}", self.before, self.address, self.after)
    }
}

/// Why no bundle can be made of a plan; `None` if one can.
pub fn hindrance(plan: &Plan) -> Option<&'static str> {
    let vendor = plan.candidate.is_baseline() || plan.candidate.is_densified();
    let compiled = plan.launch.as_ref().is_some_and(|launch| launch.cubin.is_some());
    (plan.device.kind == DeviceKind::Cuda && !vendor && !compiled).then_some(
        "The plan was predicted and its kernel never compiled, so there is nothing to run yet: measure it first.",
    )
}

/// The ways to use a plan.
pub fn ways(plan: &PlanId, problem: &Problem, place: Place<'_>) -> Vec<Way> {
    let call = match problem.op().descriptor().has_levels {
        true => "x = plan(b)",
        false => "C = plan(B)",
    };
    let way = |(id, name, needs): (&'static str, &'static str, &'static str), lines: String| {
        let (before, address, after) = match place {
            Place::Server { address, .. } => match lines.split_once(ADDRESS) {
                Some((before, after)) => (before.to_owned(), address.to_owned(), after.to_owned()),
                None => (lines, String::new(), String::new()),
            },
            Place::Folder(_) | Place::File(_) => (lines, String::new(), String::new()),
        };
        Way { id, name, needs, before, address, after }
    };
    let own_file = format!("{plan}.stplan");
    let (file, from) = match place {
        Place::Server { token_file, .. } => {
            let token = token_file.map(|file| format!(" --token-file {}", shell(file)));
            (own_file.as_str(), format!("--server '{ADDRESS}'{}", token.unwrap_or_default()))
        }
        Place::Folder(folder) => (own_file.as_str(), format!("--data {}", shell(folder))),
        Place::File(file) => (file, String::new()),
    };
    let fetched = match place {
        Place::Server { token_file, .. } => {
            let token = if token_file.is_some() { ", token=TOKEN" } else { "" };
            format!("sparsetune.Client(\"{ADDRESS}\"{token}).bundle(\"{plan}\", \"{file}\")")
        }
        Place::Folder(_) | Place::File(_) => python(file),
    };
    let mut ways =
        vec![way(PYTHON, format!("import sparsetune\nplan = sparsetune.load({fetched})\n{call}"))];
    let (quoted, mut fetch) = (shell(file), String::new());
    if !matches!(place, Place::File(_)) {
        let built = "cd plan && cmake -B build && cmake --build build\nbuild/check";
        ways.push(way(CPP, format!("sparsetune bundle export --cpp plan {plan} {from}\n{built}")));
        fetch = format!("sparsetune bundle export {plan} -o {quoted} {from}\n");
    }
    let run = format!("sparsetune bundle verify {quoted}\nsparsetune bundle run {quoted}");
    ways.push(way(CLI, fetch + &run));
    if matches!(place, Place::Folder(_)) {
        // The file that Python loads is written by the command line.
        ways.reverse();
    }
    ways
}

/// Stands for the address while the lines are made; no command contains it.
const ADDRESS: &str = "\0";

type Words = (&'static str, &'static str, &'static str);

const PYTHON: Words =
    ("python", "Python", "Operands of NumPy, CuPy or PyTorch; the package is in python/.");
const CPP: Words = (
    "cpp",
    "C++",
    "Writes a header, a loader and a program that checks the plan; plan.hpp is what to include.",
);
const CLI: Words = (
    "cli",
    "Command line",
    "Downloads the plan as one file, verifies it, and runs it with its own check.",
);

/// A word of a shell command, quoted where it must be.
fn shell(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/+,:@".contains(&byte);
    match !word.is_empty() && word.bytes().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// A string of Python.
fn python(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Dtype, Layout, Spmm};

    fn all(place: Place<'_>) -> Vec<String> {
        let problem = Problem::Spmm(Spmm::new(8, Dtype::F32, Layout::Row));
        let ways = ways(&PlanId("0193".to_owned()), &problem, place);
        ways.iter().map(Way::lines).collect()
    }

    #[test]
    fn a_server_is_named_in_all_three() {
        let server = Place::Server { address: "http://[::1]:80", token_file: None };
        assert_eq!(
            all(server),
            [
                "import sparsetune\n\
                 plan = sparsetune.load(sparsetune.Client(\"http://[::1]:80\").bundle(\"0193\", \"0193.stplan\"))\n\
                 C = plan(B)",
                "sparsetune bundle export --cpp plan 0193 --server 'http://[::1]:80'\n\
                 cd plan && cmake -B build && cmake --build build\n\
                 build/check",
                "sparsetune bundle export 0193 -o 0193.stplan --server 'http://[::1]:80'\n\
                 sparsetune bundle verify 0193.stplan\n\
                 sparsetune bundle run 0193.stplan",
            ]
        );
        let [python, cpp, cli] =
            all(Place::Server { address: "http://h", token_file: Some("my token") })
                .try_into()
                .unwrap();
        assert!(python.contains("Client(\"http://h\", token=TOKEN)"), "{python}");
        for line in [cpp, cli] {
            assert!(line.contains("--server 'http://h' --token-file 'my token'\n"), "{line}");
        }
    }

    #[test]
    fn a_folder_is_exported_from_and_a_file_is_there_already() {
        let [cli, cpp, python] = all(Place::Folder("it's")).try_into().unwrap();
        assert!(
            cli.starts_with("sparsetune bundle export 0193 -o 0193.stplan --data 'it'\\''s'\n")
        );
        assert!(cpp.starts_with("sparsetune bundle export --cpp plan 0193 --data 'it'\\''s'\n"));
        assert!(python.contains("sparsetune.load(\"0193.stplan\")"));
        let [python, cli] = all(Place::File("a \"b\".stplan")).try_into().unwrap();
        assert!(python.contains(r#"sparsetune.load("a \"b\".stplan")"#), "{python}");
        assert_eq!(
            cli,
            "sparsetune bundle verify 'a \"b\".stplan'\nsparsetune bundle run 'a \"b\".stplan'"
        );
    }
}
