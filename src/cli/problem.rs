//! The flags that say what to tune for and how to search, and their wire forms.

use crate::domain::{Dtype, Layout, Strategy};
use clap::ValueEnum;
use serde_json::{Map, Value, json};

/// The problem: SpMM is what this version tunes.
#[derive(Clone, Debug, clap::Args)]
pub struct ProblemArgs {
    /// Columns of the dense matrix B
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub n: u32,
    /// Type of the elements
    #[arg(long, value_enum, default_value_t = DtypeArg::F32)]
    pub dtype: DtypeArg,
    /// Storage order of B and C
    #[arg(long, value_enum, default_value_t = LayoutArg::Row)]
    pub layout: LayoutArg,
    /// Device: `auto`, `cpu`, `cuda:0`
    #[arg(long, default_value = "auto")]
    pub device: String,
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
    /// How often the kernel will be called; preprocessing counts by it
    #[arg(long)]
    pub expected_calls: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DtypeArg {
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
pub enum StrategyArg {
    Ranked,
    Exhaustive,
    Predicted,
}

impl ProblemArgs {
    fn dtype(&self) -> Dtype {
        match self.dtype {
            DtypeArg::F32 => Dtype::F32,
            DtypeArg::F16 => Dtype::F16,
            DtypeArg::F64 => Dtype::F64,
        }
    }

    fn layout(&self) -> Layout {
        match self.layout {
            LayoutArg::Row => Layout::Row,
            LayoutArg::Col => Layout::Col,
        }
    }

    /// The query of `GET /v1/plans`, but for the matrix.
    pub fn query(&self) -> Vec<(&'static str, String)> {
        vec![
            ("op", "spmm".to_owned()),
            ("n", self.n.to_string()),
            ("dtype", self.dtype().to_string()),
            ("layout", self.layout().to_string()),
            ("device", self.device.clone()),
        ]
    }

    /// The body of `POST /v1/jobs`.
    pub fn job(&self, matrix: &crate::domain::Digest, search: &SearchArgs) -> Value {
        let mut job = Map::new();
        job.insert("matrix".to_owned(), json!(matrix));
        let problem =
            json!({"op": "spmm", "n": self.n, "dtype": self.dtype(), "layout": self.layout()});
        job.insert("problem".to_owned(), problem);
        job.insert("device".to_owned(), json!(self.device));
        job.insert("search".to_owned(), search.wire());
        if let Some(calls) = search.expected_calls {
            job.insert("expected_calls".to_owned(), json!(calls));
        }
        Value::Object(job)
    }
}

impl SearchArgs {
    /// The member `search` of a job; what was not said is absent.
    pub fn wire(&self) -> Value {
        let strategy = self.strategy.map(|strategy| match strategy {
            StrategyArg::Ranked => Strategy::Ranked,
            StrategyArg::Exhaustive => Strategy::Exhaustive,
            StrategyArg::Predicted => Strategy::Predicted,
        });
        let members = [
            ("strategy", strategy.map(|value| json!(value))),
            ("top_k", self.top_k.map(|value| json!(value))),
            ("seconds", self.seconds.map(|value| json!(value))),
            ("trials", self.trials.map(|value| json!(value))),
            ("seed", self.seed.map(|value| json!(value))),
        ];
        let given = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::Object(given.collect())
    }
}
