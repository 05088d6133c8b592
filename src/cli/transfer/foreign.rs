//! Trials for other tuners: one file for each operation, matrix, problem and class of device, since these are what their formats
//! call a kernel with its input.

use super::{Format, kernel_tuner, t4};
use crate::domain::transfer::{SentJob, SentTrial};
use crate::domain::{Candidate, DeviceClass, Digest, Outcome, Param, Problem, Timestamp};
use crate::service::transfer::{Piece, Reader, Record};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

/// The parameter that names the kernel family.
pub const FAMILY: &str = "family";
/// The value of parameters that the family does not have.
pub const LACKING: &str = "-";

/// What the files hold.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Made {
    pub files: u64,
    pub results: u64,
}

/// What one file is about.
#[derive(Clone, Debug)]
pub struct Subject {
    pub problem: Problem,
    pub matrix: Digest,
    pub matrix_name: Option<String>,
    /// Rows, columns, entries; unknown if neither the matrix nor a plan of it is stored.
    pub shape: Option<[u64; 3]>,
    pub device_class: DeviceClass,
    pub environment: Option<String>,
}

/// One candidate with its outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub candidate: Candidate,
    pub outcome: Outcome,
    pub predicted_us: Option<f64>,
    pub at: Timestamp,
}

/// The results of one file, with the parameters of all families.
pub struct Group {
    pub subject: Subject,
    /// The values of each parameter that occur.
    pub params: BTreeMap<String, BTreeSet<Param>>,
    pub rows: Vec<Row>,
}

impl Group {
    fn of(subject: Subject, rows: Vec<Row>) -> Self {
        let mut params: BTreeMap<String, BTreeSet<Param>> = BTreeMap::new();
        let names: BTreeSet<&String> =
            rows.iter().flat_map(|row| row.candidate.params.keys()).collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        for row in &rows {
            params.entry(FAMILY.to_owned()).or_default().insert(value(row, FAMILY));
            for name in &names {
                params.entry(name.clone()).or_default().insert(value(row, name));
            }
        }
        Self { subject, params, rows }
    }

    /// The names of the parameters: the family first, then by name.
    pub fn names(&self) -> Vec<&str> {
        let others = self.params.keys().map(String::as_str).filter(|name| *name != FAMILY);
        std::iter::once(FAMILY).chain(others).collect()
    }

    /// A row's value of every parameter.
    pub fn configuration(&self, row: &Row) -> serde_json::Map<String, Value> {
        let values = self.names().into_iter();
        values.map(|name| (name.to_owned(), serde_json::json!(value(row, name)))).collect()
    }
}

pub fn value(row: &Row, name: &str) -> Param {
    match name {
        FAMILY => Param::Text(row.candidate.family.clone()),
        _ => row.candidate.params.get(name).cloned().unwrap_or(Param::Text(LACKING.to_owned())),
    }
}

/// Milliseconds, the unit of both formats.
pub fn ms(us: f64) -> f64 {
    us / 1000.0
}

/// Reads an export and writes its trials to a folder. In memory is one file at a time.
pub fn write(from: &Path, folder: &Path, format: Format) -> anyhow::Result<Made> {
    let spool = tempfile::Builder::new().prefix(".spool-").tempdir_in(folder)?;
    let subjects = spooled(from, spool.path())?;
    let mut made = Made::default();
    for (name, subject) in subjects {
        let rows = read(&spool.path().join(&name))?;
        if rows.is_empty() {
            continue;
        }
        let group = Group::of(subject, rows);
        let contents = match format {
            Format::KernelTuner => kernel_tuner::cache(&group),
            Format::T4 | Format::Sparsetune => t4::results(&group),
        };
        let path = folder.join(format!("{name}.json"));
        let mut file = BufWriter::new(
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?,
        );
        serde_json::to_writer(&mut file, &contents)?;
        writeln!(file)?;
        file.flush()?;
        made.files += 1;
        made.results += group.rows.len() as u64;
    }
    if format == Format::T4 {
        let file = File::create(folder.join("metadata.json"))?;
        serde_json::to_writer_pretty(file, &t4::metadata())?;
    }
    Ok(made)
}

/// Writes the rows of each subject to a file of its own, in the order of the export.
fn spooled(from: &Path, spool: &Path) -> anyhow::Result<BTreeMap<String, Subject>> {
    let mut subjects = BTreeMap::new();
    let mut out: Option<BufWriter<File>> = None;
    let mut reader = Reader::open(from, u64::MAX)?;
    while let Some(entry) = reader.next_entry()? {
        match entry.piece {
            Piece::Record(Record::Job(job)) => {
                let name = name_of(&job);
                let path = spool.join(&name);
                if let Some(mut before) = out.take() {
                    before.flush()?;
                }
                out = Some(BufWriter::new(File::options().append(true).create(true).open(path)?));
                subjects.entry(name).or_insert_with(|| subject(*job));
            }
            Piece::Record(Record::Trial(sent)) => {
                let SentTrial { trial, .. } = *sent;
                if let (Some(out), Some(outcome)) = (&mut out, trial.state.outcome()) {
                    let row = Row {
                        outcome: outcome.clone(),
                        candidate: trial.candidate,
                        predicted_us: trial.predicted_us,
                        at: trial.created_at,
                    };
                    serde_json::to_writer(&mut *out, &row)?;
                    writeln!(out)?;
                }
            }
            _ => {}
        }
    }
    if let Some(mut last) = out {
        last.flush()?;
    }
    Ok(subjects)
}

fn subject(job: SentJob) -> Subject {
    Subject {
        problem: job.request.problem,
        matrix: job.request.matrix,
        matrix_name: job.matrix_name,
        shape: job.shape,
        device_class: job.device_class,
        environment: job.environment,
    }
}

/// The name of a file: readable at its beginning, and different for different subjects.
fn name_of(job: &SentJob) -> String {
    let problem = &job.request.problem;
    let key = format!("{problem}|{}|{}", job.request.matrix, job.device_class);
    let known = job.matrix_name.as_deref().unwrap_or_default().chars();
    let known: String = known.filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(40).collect();
    let matrix = job.request.matrix.short();
    let matrix = if known.is_empty() { matrix } else { format!("{known}-{matrix}") };
    format!("{}-{matrix}-{}", problem.op(), &Digest::of(key.as_bytes()).to_string()[..8])
}

/// The rows, of candidates that were measured again the last one.
fn read(path: &Path) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut places: HashMap<Candidate, usize> = HashMap::new();
    for line in BufReader::new(File::open(path)?).lines() {
        let row: Row = serde_json::from_str(&line?)?;
        match places.get(&row.candidate) {
            Some(place) => {
                if let Some(known) = rows.get_mut(*place).filter(|known| known.at <= row.at) {
                    *known = row;
                }
            }
            None => {
                places.insert(row.candidate.clone(), rows.len());
                rows.push(row);
            }
        }
    }
    Ok(rows)
}
