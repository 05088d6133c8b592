//! The flags that say what to tune for and how to search, and their wire forms.

use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Digest, Dtype, Layout, Problem, SearchStrategy, Spmm, Sptrsv};
use clap::ValueEnum;
use serde_json::{Map, Value, json};

/// The problem. Which flags belong together follows from `--op`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ProblemArgs {
    /// Operation: spmm is C = A B, sptrsv is T x = b
    #[arg(long, value_enum, default_value_t = OpArg::Spmm)]
    pub op: OpArg,
    /// spmm: columns of the dense matrix B [default: 32]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub n: Option<u32>,
    /// Type of the elements
    #[arg(long, value_enum, default_value_t = DtypeArg::F32)]
    pub dtype: DtypeArg,
    /// spmm: storage order of B and C [default: row]
    #[arg(long, value_enum)]
    pub layout: Option<LayoutArg>,
    /// spmm: C = alpha A B + beta C, with alpha and beta given at each call
    #[arg(long)]
    pub accumulate: bool,
    /// spmm in f32: products may be computed from operands rounded to tf32 (10 bits of fraction)
    #[arg(long)]
    pub tf32: bool,
    /// sptrsv: right-hand sides [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(Sptrsv::MAX_RHS)))]
    pub rhs: Option<u32>,
    /// sptrsv: the triangle of A that T is; entries of the other are passed over [default: lower]
    #[arg(long, value_enum)]
    pub triangle: Option<TriangleArg>,
    /// sptrsv: whether T's diagonal is ones or A's [default: non-unit]
    #[arg(long, value_enum)]
    pub diagonal: Option<DiagonalArg>,
    /// sptrsv: solve with the transpose of that triangle
    #[arg(long)]
    pub transpose: bool,
    /// Device: `auto`, `cpu`, `cuda:0`
    #[arg(long, default_value = "auto")]
    pub device: String,
}

/// Flags that make no sense together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag} belongs to --op {belongs}, not to --op {op}")]
pub struct Misuse {
    flag: &'static str,
    belongs: &'static str,
    op: &'static str,
}

/// The search. What is absent takes the server's defaults.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SearchArgs {
    /// How to choose what to measure
    #[arg(long, value_enum)]
    pub strategy: Option<StrategyArg>,
    /// `ranked`: how many of the best-ranked candidates to measure
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub top_k: Option<u32>,
    /// Budget in seconds; the best so far is the answer when it ends
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Budget in trials
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub trials: Option<u32>,
    /// Seed of the random operands
    #[arg(long)]
    pub seed: Option<u64>,
    /// `predicted`: have the plan measured in the background afterwards
    #[arg(long)]
    pub measure: bool,
    /// How often the kernel will be called; preprocessing counts by it
    #[arg(long)]
    pub expected_calls: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OpArg {
    #[default]
    Spmm,
    Sptrsv,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DtypeArg {
    #[default]
    F32,
    F16,
    F64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayoutArg {
    Row,
    Col,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TriangleArg {
    Lower,
    Upper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiagonalArg {
    Unit,
    NonUnit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StrategyArg {
    Ranked,
    Exhaustive,
    Predicted,
    Halving,
    Sampled,
}

impl ProblemArgs {
    /// The problem that the flags name, absent ones filled in.
    pub fn problem(&self) -> Result<Problem, Misuse> {
        let product = [
            ("n", self.n.is_some()),
            ("layout", self.layout.is_some()),
            ("accumulate", self.accumulate),
            ("tf32", self.tf32),
        ];
        let solve = [
            ("rhs", self.rhs.is_some()),
            ("triangle", self.triangle.is_some()),
            ("diagonal", self.diagonal.is_some()),
            ("transpose", self.transpose),
        ];
        let (foreign, op, belongs) = match self.op {
            OpArg::Spmm => (&solve[..], "spmm", "sptrsv"),
            OpArg::Sptrsv => (&product[..], "sptrsv", "spmm"),
        };
        if let Some(&(flag, _)) = foreign.iter().find(|(_, given)| *given) {
            return Err(Misuse { flag, belongs, op });
        }
        Ok(match self.op {
            OpArg::Spmm => Problem::Spmm(Spmm {
                n: self.n.unwrap_or(32),
                dtype: self.dtype(),
                layout: self.layout.map_or(Layout::Row, |layout| match layout {
                    LayoutArg::Row => Layout::Row,
                    LayoutArg::Col => Layout::Col,
                }),
                accumulate: self.accumulate,
                tf32: self.tf32,
            }),
            OpArg::Sptrsv => Problem::Sptrsv(Sptrsv {
                rhs: self.rhs.unwrap_or(1),
                dtype: self.dtype(),
                triangle: self.triangle.map_or(Triangle::Lower, |triangle| match triangle {
                    TriangleArg::Lower => Triangle::Lower,
                    TriangleArg::Upper => Triangle::Upper,
                }),
                diagonal: self.diagonal.map_or(Diagonal::NonUnit, |diagonal| match diagonal {
                    DiagonalArg::Unit => Diagonal::Unit,
                    DiagonalArg::NonUnit => Diagonal::NonUnit,
                }),
                transpose: self.transpose,
            }),
        })
    }

    fn dtype(&self) -> Dtype {
        match self.dtype {
            DtypeArg::F32 => Dtype::F32,
            DtypeArg::F16 => Dtype::F16,
            DtypeArg::F64 => Dtype::F64,
        }
    }

    /// The query of `GET /v1/plans`, but for the matrix.
    pub fn query(&self) -> Result<Vec<(&'static str, String)>, Misuse> {
        let mut query = match self.problem()? {
            Problem::Spmm(spmm) => {
                let mut query = vec![
                    ("op", "spmm".to_owned()),
                    ("n", spmm.n.to_string()),
                    ("dtype", spmm.dtype.to_string()),
                    ("layout", spmm.layout.to_string()),
                ];
                query.extend(consents(&spmm).map(|name| (name, "true".to_owned())));
                query
            }
            Problem::Sptrsv(Sptrsv { rhs, dtype, triangle, diagonal, transpose }) => vec![
                ("op", "sptrsv".to_owned()),
                ("rhs", rhs.to_string()),
                ("dtype", dtype.to_string()),
                ("triangle", triangle.to_string()),
                ("diagonal", diagonal.to_string()),
                ("transpose", transpose.to_string()),
            ],
        };
        query.push(("device", self.device.clone()));
        Ok(query)
    }

    /// The body of `POST /v1/jobs`.
    pub fn job(&self, matrix: &Digest, search: &SearchArgs) -> Result<Value, Misuse> {
        let mut job = Map::new();
        job.insert("matrix".to_owned(), json!(matrix));
        let problem = match self.problem()? {
            Problem::Spmm(spmm) => {
                let Spmm { n, dtype, layout, .. } = spmm;
                let mut problem = json!({"op": "spmm", "n": n, "dtype": dtype, "layout": layout});
                consents(&spmm).for_each(|name| problem[name] = json!(true));
                problem
            }
            Problem::Sptrsv(Sptrsv { rhs, dtype, triangle, diagonal, transpose }) => json!({
                "op": "sptrsv", "rhs": rhs, "dtype": dtype, "triangle": triangle, "diagonal": diagonal,
                "transpose": transpose,
            }),
        };
        job.insert("problem".to_owned(), problem);
        job.insert("device".to_owned(), json!(self.device));
        job.insert("search".to_owned(), search.wire());
        if let Some(calls) = search.expected_calls {
            job.insert("expected_calls".to_owned(), json!(calls));
        }
        Ok(Value::Object(job))
    }
}

/// Members that are false where they are absent, which is how servers that do not know them have them.
fn consents(spmm: &Spmm) -> impl Iterator<Item = &'static str> + use<> {
    let named = [("accumulate", spmm.accumulate), ("tf32", spmm.tf32)];
    named.into_iter().filter(|(_, given)| *given).map(|(name, _)| name)
}

impl SearchArgs {
    /// The member `search` of a job; what was not said is absent.
    pub fn wire(&self) -> Value {
        let strategy = self.strategy.map(|strategy| match strategy {
            StrategyArg::Ranked => SearchStrategy::Ranked,
            StrategyArg::Exhaustive => SearchStrategy::Exhaustive,
            StrategyArg::Predicted => SearchStrategy::Predicted,
            StrategyArg::Halving => SearchStrategy::Halving,
            StrategyArg::Sampled => SearchStrategy::Sampled,
        });
        let members = [
            ("strategy", strategy.map(|value| json!(value))),
            ("top_k", self.top_k.map(|value| json!(value))),
            ("seconds", self.seconds.map(|value| json!(value))),
            ("trials", self.trials.map(|value| json!(value))),
            ("seed", self.seed.map(|value| json!(value))),
            ("measure", self.measure.then_some(json!(true))),
        ];
        let given = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(given.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        problem: ProblemArgs,
    }

    fn read(line: &str) -> Result<String, String> {
        let line = Line::try_parse_from(line.split(' ')).unwrap();
        line.problem.problem().map(|p| p.to_string()).map_err(|misuse| misuse.to_string())
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
        for foreign in ["--rhs 1", "--triangle lower", "--diagonal unit", "--transpose"] {
            let wrong = read(&format!("x {foreign}")).unwrap_err();
            assert!(wrong.contains("belongs to --op sptrsv"), "{wrong}");
        }
    }
}
