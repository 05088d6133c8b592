//! Suite files (TOML): matrices, from files or generated, and the problems that each of them is tuned for.

use crate::cli::client::matrix_name;
use crate::domain::catalog::operation::{Draft, Field, Misfit, Value, fields};
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Dtype, Op, Problem, Sptrsv};
use crate::sparse::generate::Spec;
use anyhow::Context;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::{Path, PathBuf};

/// The content of a suite file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    pub matrix: Vec<Entry>,
    /// If the file names no problems: SpTRSV in f64 and f32 with one right-hand side, and in f64 with 16.
    #[serde(default = "solves")]
    pub problem: Vec<Task>,
}

/// One matrix of a suite.
#[derive(Clone, Debug, Deserialize)]
pub struct Entry {
    /// Path relative to the folder of matrices; the alternative is `generate`.
    file: Option<PathBuf>,
    /// A specification, as `sparsetune generate` takes it.
    generate: Option<String>,
    name: Option<String>,
    /// The class, if rows do not depend on each other; otherwise it is computed from rows and levels.
    class: Option<String>,
    /// Fields that override those of the suite's problems for this matrix.
    #[serde(flatten)]
    changes: Changes,
}

/// Fields that differ from matrix to matrix; the tables mark them.
#[derive(Clone, Debug, Default)]
struct Changes(Vec<(&'static str, Value)>);

impl<'de> Deserialize<'de> for Changes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rest;

        impl<'de> Visitor<'de> for Rest {
            type Value = Changes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("fields of a problem")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Changes, A::Error> {
                let mut changes = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    let field =
                        fields().iter().find(|field| field.name == name && is_marked(field));
                    let field = field.ok_or_else(|| {
                        let own = ["file", "generate", "name", "class"];
                        let marked = fields().iter().filter(|field| is_marked(field));
                        let known: Vec<&str> =
                            own.into_iter().chain(marked.map(|field| field.name)).collect();
                        A::Error::custom(format!(
                            "unknown key `{name}` of a matrix; there are {}",
                            known.join(", ")
                        ))
                    })?;
                    changes.push((field.name, map.next_value_seed(&field.kind)?));
                }
                Ok(Changes(changes))
            }
        }

        deserializer.deserialize_map(Rest)
    }
}

fn is_marked(field: &Field) -> bool {
    let mut marks = Op::ALL.into_iter().flat_map(|op| op.descriptor().bench_marks);
    marks.any(|mark| mark.field == field.name)
}

/// The origin of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    File(PathBuf),
    Generated(Spec),
}

/// A problem of the suite: a matrix may change some of its fields.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "Draft")]
pub struct Task(Problem);

impl TryFrom<Draft> for Task {
    type Error = Misfit;

    /// Missing fields get the defaults of suites, or else those of the API.
    fn try_from(draft: Draft) -> Result<Self, Misfit> {
        let suite = draft.op.descriptor().suite;
        let absent = |field: &Field| {
            let named = suite.iter().find(|(name, _)| *name == field.name);
            named.map(|(_, value)| *value).or(field.default)
        };
        draft.read_with(absent).map(Self)
    }
}

impl Suite {
    /// Reads a suite and checks every entry, so that a mistake is reported before any measuring.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let suite: Self = toml::from_str(text)?;
        for (number, entry) in (1..).zip(&suite.matrix) {
            entry.source(None).with_context(|| format!("matrix {number}"))?;
            let both = |task: &Task| entry.problem(task).parts().is_some();
            anyhow::ensure!(
                !suite.problem.iter().any(both),
                "matrix {number}: a suite measures one triangle at a time, not `triangle = \"both\"`: list the matrix twice"
            );
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
            _ => anyhow::bail!("exactly one of `file` and `generate` is required"),
        }
    }

    /// The problem for this matrix.
    pub fn problem(&self, task: &Task) -> Problem {
        let changed = |name: &str| self.changes.0.iter().find(|(known, _)| *known == name);
        let values = task.0.fields().map(|(field, value)| match changed(field.name) {
            Some((_, changed)) if field.kind.takes(*changed) => *changed,
            _ => value,
        });
        Problem::from_values(task.0.op(), &values.collect::<Vec<_>>()).unwrap_or(task.0)
    }
}

impl Task {
    /// Whether its matrices are classed by rows per level instead of by the suite's classes.
    pub fn has_levels(&self) -> bool {
        self.0.op().descriptor().has_levels
    }

    /// The fields that all matrices of the suite share: `sptrsv f64 x16`, `spmm f32 n=32 row`, `spmm tf32 n=128 row`.
    pub fn label(&self) -> String {
        let operation = self.0.op().descriptor();
        format!("{} {}", operation.name, self.0.say(operation.bench).join(" "))
    }
}

fn solves() -> Vec<Task> {
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    let solve = |rhs, dtype| {
        Task(Problem::Sptrsv(Sptrsv {
            rhs,
            dtype,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        }))
    };
    vec![solve(1, Dtype::F64), solve(1, Dtype::F32), solve(16, Dtype::F64)]
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
        let slipped = slip("[[matrix]]\nfile = 'a'\nfiel = 'b'");
        assert!(slipped.contains("unknown key `fiel`"), "{slipped}");
        assert!(slipped.contains("file, generate, name, class") && slipped.contains("triangle"));
        for (text, named) in [
            ("[[matrx]]\nfile = 'a'", "`matrx`"),
            ("[[matrix]]\nfile = 'a'\n[[problem]]\nop = 'spmm'\nn = 1\nk = 2", "`k`"),
            ("[[matrix]]\nfile = 'a'\ntriangle = 'both'", "one triangle at a time"),
        ] {
            assert!(slip(text).contains(named), "{}", slip(text));
        }
        let spmm = "[[matrix]]\nfile = 'a'\n[[problem]]\nop = 'spmm'\n";
        assert!(slip(spmm).contains("n is needed for this op"));
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

    #[test]
    fn the_format_that_the_help_shows_is_read() {
        let suite = Suite::parse(crate::cli::bench::SUITE_FORMAT).unwrap();
        assert_eq!((suite.matrix.len(), suite.problem.len()), (2, 2));
        let [solve, ..] = &super::solves()[..] else { panic!("solves") };
        let problem = suite.matrix[1].problem(solve);
        assert_eq!(problem.value("triangle").unwrap().to_string(), "upper");
    }

    /// The suites that are part of the project.
    #[test]
    fn the_projects_suites_are_sound() {
        let solves = include_str!("../../../benches/suites/sptrsv.toml");
        let products = include_str!("../../../benches/suites/spmm.toml");
        let dots = include_str!("../../../benches/suites/tensor-dots.toml");
        let drawn = include_str!("../../../benches/suites/papers-spmm.toml");
        let schemes = include_str!("../../../benches/suites/papers-sptrsv.toml");
        let all = [(solves, 20), (products, 30), (dots, 13), (drawn, 12), (schemes, 10)];
        for (text, matrices) in all {
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
