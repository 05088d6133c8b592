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

/// Examples of commands, a line each, shown at the end of the help of the command that is their second word.
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
    let mut by_command: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in EXAMPLES.lines() {
        let name = line.split(' ').nth(1).unwrap_or_default();
        by_command.entry(name).or_default().push(line);
    }
    for (name, lines) in by_command {
        command = command.mut_subcommand(name, |one| one.after_help(examples(&lines)));
    }
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}\n\n{}\n\n\
         `sparsetune COMMAND --help` says more of a command.\n",
        examples(FIRST)
    ))
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

    #[test]
    fn every_example_is_a_command_line_that_is_taken() {
        for example in EXAMPLES.lines().chain(FIRST.iter().copied()) {
            let words = example.split(" > ").next().unwrap().split(' ');
            let read = command().try_get_matches_from(words);
            assert!(read.is_ok(), "{example}: {}", read.unwrap_err());
        }
        let help = command().find_subcommand_mut("tune").unwrap().render_help().to_string();
        for heading in ["Problem:", "Search:", "Examples:"] {
            assert!(help.contains(heading), "{heading}\n{help}");
        }
    }
}
