//! The help of the program: its commands in groups, examples, and from the same source completions for shells and manual pages.

use super::{Args, say};
use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Which commands belong together, in the order of the help. A test compares this with the commands that there are.
const GROUPS: &[(&str, &[&str])] = &[
    ("Find a plan", &["quickstart", "tune", "submit", "lookup"]),
    ("Use and keep plans", &["bundle", "pin", "unpin", "export", "import"]),
    ("Matrices", &["digest", "generate"]),
    ("Serve", &["serve", "worker", "ready", "doctor"]),
    ("Learn and compare", &["corpus", "train", "models", "bench", "study", "quarantine"]),
    ("Run a store", &["token", "audit", "backup", "restore", "fsck", "migrate", "retention"]),
    ("Shell", &["completions", "man"]),
];

/// What a newcomer types first.
const FIRST: &[&str] = &[
    "sparsetune quickstart",
    "sparsetune tune matrix.mtx --n 128 --bundle plan.stplan",
    "sparsetune bundle run plan.stplan",
    "sparsetune serve",
    "sparsetune submit matrix.mtx --n 128",
];

/// Examples of commands, a line each, shown at the end of the help of the command that is their second word, and of its subcommand that is
/// the third.
const EXAMPLES: &str = include_str!("examples.txt");

#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell that reads them
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// The folder to write them into, a page for each command; it is made if it is not there
    folder: PathBuf,
}

/// The program's commands and flags, with the texts of this file.
pub fn command() -> Command {
    let mut command = Args::command();
    let mut groups = String::new();
    let widest = command.get_subcommands().map(|one| one.get_name().len()).max().unwrap_or(0);
    for (title, names) in GROUPS {
        groups.push_str(&format!("{title}:\n"));
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            groups.push_str(&format!("  {name:widest$}  {}\n", about.trim_end_matches('.')));
        }
        groups.push('\n');
    }
    for (name, lines) in by_word(EXAMPLES.lines(), 1) {
        command = command.mut_subcommand(name, |one| with_examples(one, &lines));
    }
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}\n\n{}\n\n\
         `sparsetune COMMAND --help` says more of a command.\n",
        examples(FIRST)
    ))
}

/// Lines by one of their words.
fn by_word<'a>(lines: impl Iterator<Item = &'a str>, at: usize) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in lines {
        found.entry(line.split(' ').nth(at).unwrap_or_default()).or_default().push(line);
    }
    found
}

/// The command with its examples, and its subcommands with theirs.
fn with_examples(command: Command, lines: &[&str]) -> Command {
    let mut command = command.after_help(examples(lines));
    // What a command says at the end of its long help comes after the examples there.
    if let Some(more) = command.get_after_long_help().map(ToString::to_string) {
        command = command.after_long_help(format!("{}\n\n{more}", examples(lines)));
    }
    for (name, lines) in by_word(lines.iter().copied(), 2) {
        if command.find_subcommand(name).is_some() {
            command = command.mut_subcommand(name, |one| one.after_help(examples(&lines)));
        }
    }
    command
}

fn examples(lines: &[&str]) -> String {
    format!("Examples:\n  {}", lines.join("\n  "))
}

/// `sparsetune completions`: prints the script that a shell completes commands and flags by.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "sparsetune", &mut script);
    say(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// `sparsetune man`: writes manual pages.
pub fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let cannot = || format!("cannot write into {}", args.folder.display());
    std::fs::create_dir_all(&args.folder).with_context(cannot)?;
    clap_mangen::generate_to(command(), &args.folder).with_context(cannot)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::catalog::operation::fields;
    use std::collections::BTreeSet;

    #[test]
    fn each_command_is_in_one_group() {
        let all = Args::command();
        let seen = all.get_subcommands().filter(|one| !one.is_hide_set());
        let seen: BTreeSet<&str> = seen.map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), seen);
        assert_eq!(grouped.len(), seen.len(), "a command is in two groups");
        let help = command().render_help().to_string();
        for name in seen {
            assert!(help.contains(&format!("\n  {name} ")), "{name}:\n{help}");
        }
        assert!(help.contains("Find a plan:") && help.contains("Examples:"), "{help}");
    }

    /// The words of a line as a shell has them: quotes hold several together.
    fn words(line: &str) -> Vec<String> {
        let line = line.split(" > ").next().unwrap();
        let mut words = vec![String::new()];
        let mut quoted = false;
        for letter in line.chars() {
            match letter {
                '"' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                letter => words.last_mut().unwrap().push(letter),
            }
        }
        words
    }

    /// Every command and subcommand that the help lists, by its words.
    fn all() -> Vec<(String, Command)> {
        fn below(path: &str, command: &Command, found: &mut Vec<(String, Command)>) {
            for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
                let path = format!("{path} {}", one.get_name()).trim().to_owned();
                if one.get_name() != "help" {
                    below(&path, one, found);
                    found.push((path, one.clone()));
                }
            }
        }
        let mut command = command();
        command.build();
        let mut found = Vec::new();
        below("", &command, &mut found);
        found
    }

    #[test]
    fn every_example_is_a_command_line_that_is_taken() {
        for example in EXAMPLES.lines().chain(FIRST.iter().copied()) {
            let read = command().try_get_matches_from(words(example));
            assert!(read.is_ok(), "{example}: {}", read.unwrap_err());
        }
    }

    #[test]
    fn every_command_has_an_example_and_every_flag_says_what_it_is() {
        for (name, mut command) in all() {
            for help in [command.render_help(), command.render_long_help()] {
                let first = format!("Examples:\n  sparsetune {name}");
                assert!(help.to_string().contains(&first), "{name}:\n{help}");
            }
            let mute: Vec<&str> = command
                .get_arguments()
                .filter(|arg| arg.get_help().is_none() && !arg.is_hide_set())
                .map(|arg| arg.get_id().as_str())
                .collect();
            assert!(mute.is_empty(), "{name}: {mute:?}");
        }
    }

    /// The flags of a command under a heading.
    fn under<'a>(command: &'a Command, heading: Option<&str>) -> BTreeSet<&'a str> {
        let of = command.get_arguments().filter(|arg| arg.get_help_heading() == heading);
        of.filter(|arg| !arg.is_positional()).filter_map(|arg| arg.get_long()).collect()
    }

    #[test]
    fn flags_are_under_the_headings_that_they_belong_to() {
        let mut problem: BTreeSet<&str> = fields().iter().map(|field| field.name).collect();
        problem.extend(["op", "device"]);
        let search = BTreeSet::from([
            "strategy",
            "top-k",
            "seconds",
            "trials",
            "seed",
            "measure",
            "family",
            "fix",
            "exact",
            "clock",
            "expected-calls",
        ]);
        let server = BTreeSet::from(["server", "token-file"]);
        let sections = [("Problem", &problem), ("Search", &search), ("Server", &server)];
        let mut with: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (name, command) in all() {
            let headings: BTreeSet<&str> =
                command.get_arguments().filter_map(|arg| arg.get_help_heading()).collect();
            for heading in headings {
                let (section, flags) = sections.iter().find(|(it, _)| *it == heading).unwrap();
                assert_eq!(under(&command, Some(heading)), **flags, "{name}: {heading}");
                with.entry(*section).or_default().insert(name.clone());
            }
            // What belongs to a server or a search as a whole is nowhere without its heading.
            let plain = under(&command, None);
            for flag in ["server", "token-file", "strategy", "top-k", "triangle"] {
                assert!(!plain.contains(flag), "{name}: --{flag}");
            }
        }
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(with["Problem"], named(&["tune", "submit", "lookup"]));
        assert_eq!(with["Search"], named(&["tune", "submit", "bench"]));
        let asks_a_server = [
            "audit",
            "bench",
            "bundle export",
            "bundle import",
            "export",
            "import",
            "lookup",
            "models",
            "models activate",
            "models export",
            "models roll-back",
            "pin",
            "quarantine",
            "quarantine lift",
            "quarantine list",
            "ready",
            "submit",
            "token",
            "token create",
            "token list",
            "token revoke",
            "train",
            "unpin",
        ];
        assert_eq!(with["Server"], named(&asks_a_server));
    }
}
