//! Suite files (TOML): matrices, from files or generated, and the problems that each of them is tuned for.

use crate::cli::client::matrix_name;
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Dtype, Layout, Problem, Spmm, Sptrsv};
use crate::sparse::generate::Spec;
use anyhow::Context;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A suite as written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    pub matrix: Vec<Entry>,
    /// SpTRSV in f64 and f32 with one right-hand side, and in f64 with 16, where the file names none.
    #[serde(default = "solves")]
    pub problem: Vec<Task>,
}

/// One matrix of a suite.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Relative to the folder of matrices; or else `generate`.
    file: Option<PathBuf>,
    /// A specification, as `sparsetune generate` takes it.
    generate: Option<String>,
    name: Option<String>,
    /// The class for SpMM. For SpTRSV it is computed from rows and levels.
    class: Option<String>,
    // What this matrix has instead of what an SpTRSV problem says.
    triangle: Option<Triangle>,
    diagonal: Option<Diagonal>,
    transpose: Option<bool>,
}

/// Where a matrix comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    File(PathBuf),
    Generated(Spec),
}

/// A problem as written: a matrix of the suite may change its triangle.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    Spmm {
        n: u32,
        #[serde(default)]
        dtype: Dtype,
        #[serde(default)]
        layout: Layout,
        #[serde(default)]
        accumulate: bool,
        #[serde(default)]
        tf32: bool,
    },
    Sptrsv {
        #[serde(default = "one")]
        rhs: u32,
        #[serde(default = "double")]
        dtype: Dtype,
        #[serde(default = "lower")]
        triangle: Triangle,
        #[serde(default = "non_unit")]
        diagonal: Diagonal,
        #[serde(default)]
        transpose: bool,
    },
}

impl Suite {
    /// Reads a suite and checks every entry, so that a slip is told before the first hour of measuring.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let suite: Self = toml::from_str(text)?;
        for (number, entry) in (1..).zip(&suite.matrix) {
            entry.source(None).with_context(|| format!("matrix {number}"))?;
        }
        Ok(suite)
    }
}

impl Entry {
    pub fn name(&self) -> String {
        let of_file = || self.file.as_deref().and_then(matrix_name);
        self.name.clone().or_else(of_file).or_else(|| self.generate.clone()).unwrap_or_default()
    }

    pub fn class(&self) -> Option<&str> {
        self.class.as_deref()
    }

    /// The file, in `folder` if there is one, or the specification.
    pub fn source(&self, folder: Option<&Path>) -> anyhow::Result<Source> {
        match (&self.file, &self.generate) {
            (Some(file), None) => {
                Ok(Source::File(folder.map_or_else(|| file.clone(), |folder| folder.join(file))))
            }
            (None, Some(text)) => {
                Ok(Source::Generated(Spec::parse(text).with_context(|| format!("`{text}`"))?))
            }
            _ => anyhow::bail!("exactly one of `file` and `generate` must be there"),
        }
    }

    /// The problem for this matrix.
    pub fn problem(&self, task: &Task) -> Problem {
        match *task {
            Task::Spmm { n, dtype, layout, accumulate, tf32 } => {
                Problem::Spmm(Spmm { n, dtype, layout, accumulate, tf32 })
            }
            Task::Sptrsv { rhs, dtype, triangle, diagonal, transpose } => Problem::Sptrsv(Sptrsv {
                rhs,
                dtype,
                triangle: self.triangle.unwrap_or(triangle),
                diagonal: self.diagonal.unwrap_or(diagonal),
                transpose: self.transpose.unwrap_or(transpose),
            }),
        }
    }
}

impl Task {
    /// What all matrices of the suite have in common in it: `sptrsv f64 x16`, `spmm f32 n=32 row`, `spmm tf32 n=128 row`.
    pub fn label(&self) -> String {
        match self {
            Self::Spmm { n, dtype, layout, accumulate, tf32 } => {
                let element = if *tf32 { "tf32".to_owned() } else { dtype.to_string() };
                let sum = if *accumulate { " +C" } else { "" };
                format!("spmm {element} n={n} {layout}{sum}")
            }
            Self::Sptrsv { rhs, dtype, .. } => format!("sptrsv {dtype} x{rhs}"),
        }
    }
}

fn solves() -> Vec<Task> {
    let solve = |rhs, dtype| Task::Sptrsv {
        rhs,
        dtype,
        triangle: lower(),
        diagonal: non_unit(),
        transpose: false,
    };
    vec![solve(1, Dtype::F64), solve(1, Dtype::F32), solve(16, Dtype::F64)]
}

fn one() -> u32 {
    1
}

fn double() -> Dtype {
    Dtype::F64
}

fn lower() -> Triangle {
    Triangle::Lower
}

fn non_unit() -> Diagonal {
    Diagonal::NonUnit
}

#[cfg(test)]
mod tests {
    use super::{Source, Suite};
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};

    #[test]
    fn matrices_may_change_the_triangle_of_a_problem() {
        let suite = Suite::parse(
            "[[matrix]]\nfile = 'a.mtx.gz'\ndiagonal = 'unit'\ntriangle = 'upper'\n\
             [[matrix]]\ngenerate = 'poisson2d:nx=3,ny=3'\n",
        )
        .unwrap();
        let labels: Vec<String> = suite.problem.iter().map(|task| task.label()).collect();
        assert_eq!(labels, ["sptrsv f64 x1", "sptrsv f32 x1", "sptrsv f64 x16"]);
        let [a, b] = &suite.matrix[..] else { panic!("two matrices") };
        assert_eq!((a.name(), b.name()), ("a".to_owned(), "poisson2d:nx=3,ny=3".to_owned()));
        let file = a.source(Some(Path::new("there"))).unwrap();
        assert_eq!(file, Source::File(PathBuf::from("there/a.mtx.gz")));
        let problem = |entry: &super::Entry| entry.problem(&suite.problem[2]).to_string();
        assert_eq!(
            problem(a),
            "sptrsv;rhs=16;dtype=f64;triangle=upper;diagonal=unit;transpose=false"
        );
        assert!(problem(b).contains("triangle=lower;diagonal=non-unit"));
    }

    #[test]
    fn slips_are_told() {
        let slip = |text: &str| format!("{:#}", Suite::parse(text).unwrap_err());
        assert!(slip("[[matrix]]\nname = 'x'").contains("matrix 1: exactly one of"));
        assert!(slip("[[matrix]]\ngenerate = 'x:n=3'").contains("unknown variant `x`"));
        assert!(slip("[[matrix]]\nfile = 'a'\nfiel = 'b'").contains("fiel"));
        let spmm = "[[matrix]]\nfile = 'a'\n[[problem]]\nop = 'spmm'\n";
        assert!(slip(spmm).contains("missing field `n`"));
        assert_eq!(
            Suite::parse(&format!("{spmm}n = 8")).unwrap().problem[0].label(),
            "spmm f32 n=8 row"
        );
        let both = format!("{spmm}n = 8\nlayout = 'col'\naccumulate = true\ntf32 = true");
        let suite = Suite::parse(&both).unwrap();
        assert_eq!(suite.problem[0].label(), "spmm tf32 n=8 col +C");
        let problem = suite.matrix[0].problem(&suite.problem[0]).to_string();
        assert!(problem.ends_with(";layout=col;accumulate=true;tf32=true"), "{problem}");
    }

    /// The suites that come with the project.
    #[test]
    fn the_projects_suites_are_sound() {
        let solves = include_str!("../../../benches/suites/sptrsv.toml");
        let products = include_str!("../../../benches/suites/spmm.toml");
        for (text, matrices) in [(solves, 20), (products, 30)] {
            let suite = Suite::parse(text).unwrap();
            assert!(suite.matrix.len() >= matrices);
            let names: BTreeSet<String> = suite.matrix.iter().map(|entry| entry.name()).collect();
            assert_eq!(names.len(), suite.matrix.len(), "names tell the runs apart");
            let tasks: BTreeSet<String> = suite.problem.iter().map(|task| task.label()).collect();
            assert_eq!(tasks.len(), suite.problem.len(), "labels tell the problems apart");
        }
        let suite = Suite::parse(products).unwrap();
        let mut classes: BTreeMap<&str, u32> = BTreeMap::new();
        for entry in &suite.matrix {
            *classes.entry(entry.class().unwrap()).or_default() += 1;
        }
        assert!(classes.len() == 6 && classes.values().all(|count| *count >= 5), "{classes:?}");
    }
}
