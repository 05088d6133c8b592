//! The flags that say what to tune for and how to search, and their wire forms. Those of a problem are made from the
//! descriptors of the operations.

use crate::domain::catalog::operation::{
    Draft, Fault, Field, Kind, Misfit, Op, Value, fields, owners,
};
use crate::domain::{Clock, Digest, Fixed, Param, Problem, SearchStrategy};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueEnum, value_parser};
use serde_json::{Map, json};
use std::fmt;
use std::sync::LazyLock;

/// The problem. Which flags belong together follows from `--op`.
#[derive(Clone, Debug)]
pub struct ProblemArgs {
    pub draft: Draft,
    pub device: String,
}

/// Flags that make no sense together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct Misuse {
    op: Op,
    misfit: Misfit,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, misfit: Misfit { field, fault } } = self;
        match fault {
            Fault::Foreign(owners) => {
                let owners: Vec<&str> = owners.iter().map(|owner| owner.name()).collect();
                write!(f, "--{field} belongs to --op {}, not to --op {op}", owners.join(" or "))
            }
            fault => write!(f, "--{field} {fault}"),
        }
    }
}

/// Under which the help lists the flags of a search. Each flag names it: a heading for all that follow would go on to flags of the command.
const SEARCH: &str = "Search";

/// The search. What is absent takes the server's defaults.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SearchArgs {
    /// How to choose what to measure
    #[arg(help_heading = SEARCH, long, value_enum)]
    pub strategy: Option<StrategyArg>,
    /// `ranked`: how many of the best-ranked candidates to measure
    #[arg(help_heading = SEARCH, long, value_parser = clap::value_parser!(u32).range(1..))]
    pub top_k: Option<u32>,
    /// Budget in seconds for loading, trials and finals together; the best so far is the answer when it ends
    #[arg(help_heading = SEARCH, long)]
    pub seconds: Option<f64>,
    /// Budget in trials
    #[arg(help_heading = SEARCH, long, value_parser = clap::value_parser!(u32).range(1..))]
    pub trials: Option<u32>,
    /// Seed of the random operands
    #[arg(help_heading = SEARCH, long)]
    pub seed: Option<u64>,
    /// `predicted`: have the plan measured in the background afterwards
    #[arg(help_heading = SEARCH, long)]
    pub measure: bool,
    /// Search only this kernel family; may be given several times
    #[arg(help_heading = SEARCH, long = "family", value_name = "FAMILY")]
    pub families: Vec<String>,
    /// Only candidates with this value of a parameter, where they have it: `order=length`, or `row_split.vec=4` for one
    /// family; may be given several times
    #[arg(help_heading = SEARCH, long = "fix", value_name = "PARAM=VALUE", value_parser = fix)]
    pub fixed: Vec<(String, Param)>,
    /// With one --family: only the candidate whose parameters are those of --fix, and no others
    #[arg(help_heading = SEARCH, long, requires = "families")]
    pub exact: bool,
    /// The clock by which candidates are timed and chosen: each call alone, or calls back to back
    #[arg(help_heading = SEARCH, long, value_enum)]
    pub clock: Option<ClockArg>,
    /// How often the kernel will be called; preprocessing counts by it
    #[arg(help_heading = SEARCH, long)]
    pub expected_calls: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StrategyArg {
    Ranked,
    Exhaustive,
    Predicted,
    Halving,
    Sampled,
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClockArg {
    Isolated,
    Pipelined,
}

/// Reads `order=length`: a parameter and its value.
fn fix(text: &str) -> Result<(String, Param), String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
        .ok_or_else(|| "expected PARAM=VALUE or FAMILY.PARAM=VALUE".to_owned())?;
    let value = value.parse().map_or_else(|_| Param::Text(value.to_owned()), Param::Int);
    Ok((name.to_owned(), value))
}

/// Reads the name of an operation, and lists the names in the help.
pub fn op_parser() -> impl TypedValueParser<Value = Op> {
    PossibleValuesParser::new(Op::ALL.map(Op::name)).try_map(|name: String| name.parse::<Op>())
}

/// Under which the help lists the problem's flags.
const PROBLEM: &str = "Problem";

/// One flag of a problem's field.
fn flag((field, upper): (&'static Field, &'static str)) -> Arg {
    let arg = Arg::new(field.name).long(field.name).help_heading(PROBLEM);
    let owners: Vec<&str> = owners(field.name).map(Op::name).collect();
    let shared = owners.len() == Op::ALL.len();
    let mut help = clap::builder::StyledStr::new();
    let mut write = |text: fmt::Arguments<'_>| {
        // Text in memory: there is nothing that could fail.
        let _ = fmt::Write::write_fmt(&mut help, text);
    };
    // Operations may mean different things by one flag: then each says what.
    let meanings: Vec<(&str, &str)> = Op::ALL
        .into_iter()
        .filter_map(|op| Some((op.name(), op.descriptor().field(field.name)?.sentence)))
        .map(|(op, sentence)| (op, sentence.trim_end_matches('.')))
        .collect();
    if shared && meanings.iter().all(|(_, sentence)| *sentence == meanings[0].1) {
        write(format_args!("{}", meanings[0].1));
    } else {
        for (at, (op, sentence)) in meanings.iter().enumerate() {
            let (first, rest) = sentence.split_at(1);
            let then = if at > 0 { "; " } else { "" };
            write(format_args!("{then}{op}: {}{rest}", first.to_lowercase()));
        }
    }
    // Whether a flag of some operations was given must be seen, so what it usually is stands in the help alone.
    if !shared && field.kind != Kind::Boolean {
        write(format_args!(" [default: {}]", field.usual));
    }
    let arg = arg.help(help);
    let arg = match field.kind {
        Kind::Boolean => return arg.action(ArgAction::SetTrue),
        Kind::Integer { min, max, .. } => {
            arg.value_parser(value_parser!(u32).range(i64::from(min)..=i64::from(max)))
        }
        Kind::Choice(choices) => {
            let names = choices.iter().map(|choice| choice.name);
            arg.value_parser(PossibleValuesParser::new(names))
        }
    };
    match field.usual {
        Value::Choice(name) if shared => arg.value_name(upper).default_value(name),
        _ => arg.value_name(upper),
    }
}

impl clap::Args for ProblemArgs {
    fn augment_args(command: Command) -> Command {
        /// What the help calls the fields' values.
        static UPPER: LazyLock<Vec<String>> =
            LazyLock::new(|| fields().iter().map(|field| field.name.to_uppercase()).collect());
        let formulas = Op::ALL.map(|op| format!("{op} is {}", op.descriptor().formula)).join(", ");
        let mut help = clap::builder::StyledStr::new();
        let _ = fmt::Write::write_fmt(&mut help, format_args!("Operation: {formulas}"));
        let op = Arg::new("op")
            .long("op")
            .help_heading(PROBLEM)
            .value_name("OP")
            .value_parser(op_parser());
        let device = Arg::new("device")
            .long("device")
            .help_heading(PROBLEM)
            .value_name("DEVICE")
            .default_value("auto");
        let names = UPPER.iter().map(String::as_str);
        command
            .arg(op.help(help).default_value(Op::default().name()))
            .args(fields().iter().copied().zip(names).map(flag))
            .arg(device.help("Device: `auto`, `cpu`, `cuda:0`"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for ProblemArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |field: &Field| match field.kind {
            Kind::Integer { .. } => matches.get_one::<u32>(field.name).copied().map(Value::Integer),
            Kind::Boolean => matches.get_flag(field.name).then_some(Value::Boolean(true)),
            Kind::Choice(_) => field.kind.parse(matches.get_one::<String>(field.name)?),
        };
        let given = fields().iter().filter_map(|field| Some((field.name, value(field)?)));
        let op = matches.get_one::<Op>("op").copied().unwrap_or_default();
        let device = matches.get_one::<String>("device").cloned().unwrap_or_default();
        Ok(Self { draft: Draft { op, given: given.collect() }, device })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ProblemArgs {
    /// The problem that the flags name, absent ones filled in.
    pub fn problem(&self) -> Result<Problem, Misuse> {
        let usual = |field: &Field| Some(field.usual);
        self.draft.read_with(usual).map_err(|misfit| Misuse { op: self.draft.op, misfit })
    }

    /// [`query`] for the problem that the flags name.
    pub fn query(&self) -> Result<Vec<(&'static str, String)>, Misuse> {
        Ok(query(&self.problem()?, &self.device))
    }

    /// [`job`] for the problem that the flags name.
    pub fn job(&self, matrix: &Digest, search: &SearchArgs) -> Result<serde_json::Value, Misuse> {
        Ok(job(matrix, &self.problem()?, &self.device, search))
    }
}

/// The query of `GET /v1/plans`, but for the matrix. Fields that came later are named only where they are not at their
/// default: servers from before do not know them.
pub fn query(problem: &Problem, device: &str) -> Vec<(&'static str, String)> {
    let mut query = vec![("op", problem.op().to_string())];
    query.extend(problem.key_fields().map(|(field, value)| (field.name, value.to_string())));
    query.push(("device", device.to_owned()));
    query
}

/// The body of `POST /v1/jobs`.
pub fn job(
    matrix: &Digest,
    problem: &Problem,
    device: &str,
    search: &SearchArgs,
) -> serde_json::Value {
    let mut job = Map::new();
    job.insert("matrix".to_owned(), json!(matrix));
    job.insert("problem".to_owned(), json!(problem));
    job.insert("device".to_owned(), json!(device));
    job.insert("search".to_owned(), search.wire());
    if let Some(calls) = search.expected_calls {
        job.insert("expected_calls".to_owned(), json!(calls));
    }
    serde_json::Value::Object(job)
}

impl SearchArgs {
    /// Whether the plan is to be chosen by a model alone.
    pub fn predicts(&self) -> bool {
        self.strategy == Some(StrategyArg::Predicted)
    }

    /// The parameter values that are fixed; of several for one parameter the last.
    pub fn fixed(&self) -> Fixed {
        Fixed(self.fixed.iter().cloned().collect())
    }

    /// The member `search` of a job; what was not said is absent.
    pub fn wire(&self) -> serde_json::Value {
        let strategy = self.strategy.map(|strategy| match strategy {
            StrategyArg::Ranked => SearchStrategy::Ranked,
            StrategyArg::Exhaustive => SearchStrategy::Exhaustive,
            StrategyArg::Predicted => SearchStrategy::Predicted,
            StrategyArg::Halving => SearchStrategy::Halving,
            StrategyArg::Sampled => SearchStrategy::Sampled,
            StrategyArg::Full => SearchStrategy::Full,
        });
        let clock = self.clock.map(|clock| match clock {
            ClockArg::Isolated => Clock::Isolated,
            ClockArg::Pipelined => Clock::Pipelined,
        });
        let members = [
            ("strategy", strategy.map(|value| json!(value))),
            ("top_k", self.top_k.map(|value| json!(value))),
            ("seconds", self.seconds.map(|value| json!(value))),
            ("trials", self.trials.map(|value| json!(value))),
            ("seed", self.seed.map(|value| json!(value))),
            ("measure", self.measure.then_some(json!(true))),
            ("fixed", (!self.fixed.is_empty()).then(|| json!(self.fixed()))),
            ("exact", self.exact.then_some(json!(true))),
            ("clock", clock.map(|value| json!(value))),
            ("families", (!self.families.is_empty()).then(|| json!(self.families))),
        ];
        let given = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        serde_json::Value::Object(given.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        problem: ProblemArgs,
        #[command(flatten)]
        search: SearchArgs,
    }

    fn read(line: &str) -> Result<String, String> {
        let line = Line::try_parse_from(line.split(' ')).unwrap();
        line.problem.problem().map(|p| p.to_string()).map_err(|misuse| misuse.to_string())
    }

    #[test]
    fn the_clock_is_sent_if_it_is_named() {
        let sent =
            |line: &str| Line::try_parse_from(line.split(' ')).map(|line| line.search.wire());
        assert_eq!(sent("tune").unwrap(), json!({}));
        assert_eq!(sent("tune --clock isolated").unwrap(), json!({"clock": "isolated"}));
        assert_eq!(sent("tune --clock pipelined").unwrap(), json!({"clock": "pipelined"}));
        assert!(sent("tune --clock wall").is_err());
    }

    #[test]
    fn what_is_not_asked_for_is_not_sent() {
        let args = |line: &str| Line::try_parse_from(line.split(' ')).unwrap().problem;
        let job = |line: &str| {
            let job = args(line).job(&Digest::of(b"m"), &SearchArgs::default()).unwrap();
            job["problem"].clone()
        };
        let plain = json!({"op": "spmm", "n": 8, "dtype": "f32", "layout": "row"});
        assert_eq!(job("x --n 8"), plain);
        assert_eq!(job("x --n 8 --accumulate")["accumulate"], true);
        let names = |line: &str| -> Vec<&str> {
            args(line).query().unwrap().into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names("x"), ["op", "n", "dtype", "layout", "device"]);
        assert_eq!(names("x --tf32"), ["op", "n", "dtype", "layout", "tf32", "device"]);
    }

    #[test]
    fn each_operation_has_its_flags() {
        assert_eq!(read("x").unwrap(), "spmm;n=32;dtype=f32;layout=row");
        assert_eq!(read("x --n 8 --layout col").unwrap(), "spmm;n=8;dtype=f32;layout=col");
        let solve = "sptrsv;rhs=1;dtype=f32;triangle=lower;diagonal=non-unit;transpose=false";
        assert_eq!(read("x --op sptrsv").unwrap(), solve);
        let all = "x --op sptrsv --rhs 3 --dtype f64 --triangle upper --diagonal unit --transpose";
        let solve = "sptrsv;rhs=3;dtype=f64;triangle=upper;diagonal=unit;transpose=true";
        assert_eq!(read(all).unwrap(), solve);
        let both = "spmm;n=32;dtype=f32;layout=row;accumulate=true;tf32=true";
        assert_eq!(read("x --accumulate --tf32").unwrap(), both);
        for foreign in ["n 3", "layout row", "accumulate", "tf32"] {
            let wrong = read(&format!("x --op sptrsv --{foreign}")).unwrap_err();
            let flag = foreign.split(' ').next().unwrap();
            assert_eq!(wrong, format!("--{flag} belongs to --op spmm, not to --op sptrsv"));
        }
        let transposed = "spmm;n=32;dtype=f32;layout=row;transpose=true";
        assert_eq!(read("x --transpose").unwrap(), transposed);
        for foreign in ["--rhs 1", "--triangle lower", "--diagonal unit"] {
            let wrong = read(&format!("x {foreign}")).unwrap_err();
            assert!(wrong.contains("belongs to --op sptrsv"), "{wrong}");
        }
    }

    #[test]
    fn the_help_says_whose_each_flag_is_and_what_it_takes() {
        let help = Line::command().render_help().to_string();
        for line in [
            "--op <OP>",
            "Operation: spmm is C = A B, sptrsv is T x = b [default: spmm] [possible values: spmm, sptrsv]",
            "--n <N>",
            "spmm: columns of the dense matrix B [default: 32]",
            "[default: f32] [possible values: f32, f16, bf16, f64]",
            "spmm: storage order of B and C, both with tight leading dimensions [default: row] [possible values: row, col]",
            "sptrsv: number of right-hand sides [default: 1]",
            "[default: non-unit] [possible values: unit, non-unit]",
            "spmm: multiply with the transpose of A; sptrsv: solve with the transpose of that triangle",
        ] {
            assert!(help.contains(line), "{line}\n{help}");
        }
        for wrong in ["x --rhs 65", "x --n 0", "x --dtype f8", "x --op sddmm"] {
            assert!(Line::try_parse_from(wrong.split(' ')).is_err(), "{wrong}");
        }
    }
}
