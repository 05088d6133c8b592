//! Recorded searches as a study reads them, and the file that carries them from the machine that measured.
//!
//! The file has one JSON value a line: the format, then for each search an object followed by one array for each tried
//! candidate. It is compressed if its name ends with `.gz`.

use crate::domain::candidate::{VENDOR, WITHOUT};
use crate::domain::{Clock, FunnelStep, funnel};
use anyhow::{Context, ensure};
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

/// Names the format and its version.
const FORMAT: &str = "sparsetune study 1";

/// Longest line that is read; a search's object is far shorter.
const LONGEST: u64 = 1 << 20;

/// One search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    pub matrix: String,
    pub class: String,
    /// As in a plan's key: `spmm;n=32;dtype=f32;layout=row`.
    pub problem: String,
    pub device: String,
    pub strategy: String,
    pub rows: u64,
    pub cols: u64,
    pub nnz: u64,
    /// Candidates that can run, of which those of `tried` were drawn; only of a full search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<u64>,
    pub funnel: Vec<FunnelStep>,
    /// Search time according to the plan.
    pub seconds: f64,
    /// The winner's median of the paired finals, and the baseline's.
    pub plan_us: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_us: Option<f64>,
    /// The clock of all times; absent if isolated, as in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// The learned model that `Tried::learned_us` is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<String>,
    /// Number of the lines that follow.
    pub trials: usize,
    #[serde(skip)]
    pub tried: Vec<Tried>,
    /// Of a full search: the other searches of the same problem of the same matrix on the same device.
    #[serde(skip)]
    pub others: Vec<Self>,
}

/// One tried candidate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub struct Tried {
    /// `row_split{block=128,lanes=8}`.
    pub candidate: String,
    pub state: String,
    /// Median, microseconds; absent if it was not measured.
    pub us: Option<f64>,
    /// By the analytic model.
    pub predicted_us: Option<f64>,
    /// The order of the learned model, as times.
    pub learned_us: Option<f64>,
    /// From the end of the trial before to the end of this one: compiling and measuring.
    pub seconds: Option<f64>,
    /// The rule that would have removed it, with its value and limit.
    pub rule: Option<String>,
    pub value: Option<f64>,
    pub limit: Option<f64>,
}

/// A tried candidate as a line.
#[derive(Serialize, Deserialize)]
struct Row(
    String,
    String,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<String>,
    Option<f64>,
    Option<f64>,
);

impl From<Row> for Tried {
    fn from(row: Row) -> Self {
        let Row(candidate, state, us, predicted_us, learned_us, seconds, rule, value, limit) = row;
        Self { candidate, state, us, predicted_us, learned_us, seconds, rule, value, limit }
    }
}

impl From<Tried> for Row {
    fn from(tried: Tried) -> Self {
        let [us, predicted, learned, seconds, value, limit] = [
            tried.us,
            tried.predicted_us,
            tried.learned_us,
            tried.seconds,
            tried.value,
            tried.limit,
        ]
        .map(|number| number.filter(|number| number.is_finite()).map(short));
        Self(
            tried.candidate,
            tried.state,
            us,
            predicted,
            learned,
            seconds,
            tried.rule,
            value,
            limit,
        )
    }
}

/// Five digits: more than a measurement has.
fn short(number: f64) -> f64 {
    format!("{number:.4e}").parse().unwrap_or(number)
}

impl Tried {
    pub fn family(&self) -> &str {
        self.candidate.split('{').next().unwrap_or_default()
    }

    /// Names and values of its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        let inner = self.candidate.split_once('{').map_or("", |(_, inner)| inner);
        inner.trim_end_matches('}').split(',').filter_map(|pair| pair.split_once('='))
    }

    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Whether its times can be compared.
    fn is_sound(&self) -> bool {
        let others = [self.predicted_us, self.learned_us, self.seconds];
        self.us.is_none_or(|us| us > 0.0) && others.into_iter().flatten().all(|time| time >= 0.0)
    }

    pub fn is_vendor(&self) -> bool {
        self.family() == VENDOR
    }

    /// The technique that it is without, to measure the technique's worth.
    pub fn without(&self) -> Option<&str> {
        self.parameter(WITHOUT)
    }

    /// The same candidate with every technique.
    pub fn whole(&self) -> String {
        let with = self.parameters().filter(|(name, _)| *name != WITHOUT);
        let with: Vec<String> = with.map(|(name, value)| format!("{name}={value}")).collect();
        format!("{}{{{}}}", self.family(), with.join(","))
    }
}

impl Search {
    pub fn is_full(&self) -> bool {
        self.strategy == "full"
    }

    /// Whether only some of the candidates were asked for. Rules that prefer do not hide those.
    pub fn asks(&self) -> bool {
        let asked = [funnel::REQUESTED, funnel::FIXED];
        self.funnel.iter().any(|step| asked.contains(&step.constraint.as_str()))
    }

    /// `spmm` or `sptrsv`.
    pub fn op(&self) -> &str {
        self.problem.split(';').next().unwrap_or_default()
    }

    /// A family's kernel in this search; the two of the name `tiled` are told apart.
    pub fn kernel(&self, family: &str) -> String {
        match (family, self.problem.contains("layout=col")) {
            ("tiled", true) => format!("{family}, column-major"),
            _ => family.to_owned(),
        }
    }

    /// Candidates of our own, with or without a time.
    pub fn own(&self) -> impl Iterator<Item = &Tried> {
        self.tried.iter().filter(|tried| !tried.is_vendor())
    }

    /// Candidates of our own that this search or one of the others tried, but for those without a technique, which are no
    /// part of the space. One that several tried is here several times.
    pub fn known(&self) -> impl Iterator<Item = &Tried> {
        let others = self.others.iter().flat_map(Self::own);
        self.own().chain(others).filter(|tried| tried.without().is_none())
    }

    /// Those that pass every rule: what another search tried does, unless it was asked for.
    pub fn passing(&self) -> impl Iterator<Item = &Tried> {
        let others = self.others.iter().filter(|other| !other.asks()).flat_map(Self::own);
        self.own().chain(others).filter(|tried| tried.rule.is_none())
    }

    /// The least time of our own candidates in any search.
    pub fn best_us(&self) -> Option<f64> {
        best(self.known())
    }

    /// The part of the candidates that can run which was tried.
    pub fn drawn(&self) -> f64 {
        let tried = self.own().count().max(1) as f64;
        self.space.map_or(1.0, |space| (tried / space as f64).min(1.0))
    }
}

/// The full searches, each with the others of its problem by the same clock. One without a technique is among the others.
pub fn joined(searches: Vec<Search>) -> Vec<Search> {
    let whole =
        |search: &Search| search.is_full() && search.own().all(|tried| tried.without().is_none());
    let (mut full, others): (Vec<_>, Vec<_>) = searches.into_iter().partition(whole);
    for search in &mut full {
        let same = |other: &&Search| {
            (&other.matrix, &other.problem, &other.device, other.clock)
                == (&search.matrix, &search.problem, &search.device, search.clock)
        };
        search.others = others.iter().filter(same).cloned().collect();
    }
    full
}

/// The least time of some candidates.
pub fn best<'a>(tried: impl Iterator<Item = &'a Tried>) -> Option<f64> {
    tried.filter_map(|tried| tried.us).min_by(f64::total_cmp)
}

/// Writes searches to a file.
pub fn export(file: &Path, searches: &[Search]) -> anyhow::Result<()> {
    let say = || format!("cannot write {}", file.display());
    let out = BufWriter::new(File::create(file).with_context(say)?);
    if is_packed(file) {
        let mut packed = GzEncoder::new(out, Compression::best());
        write(&mut packed, searches).with_context(say)?;
        packed.finish().and_then(|mut out| out.flush()).with_context(say)
    } else {
        let mut out = out;
        write(&mut out, searches).and_then(|()| Ok(out.flush()?)).with_context(say)
    }
}

fn write(out: &mut impl Write, searches: &[Search]) -> anyhow::Result<()> {
    writeln!(out, "{}", serde_json::to_string(FORMAT)?)?;
    for search in searches {
        let trials = search.tried.len();
        writeln!(out, "{}", serde_json::to_string(&Search { trials, ..search.clone() })?)?;
        for tried in &search.tried {
            writeln!(out, "{}", serde_json::to_string(tried)?)?;
        }
    }
    Ok(())
}

/// Reads what [`export`] wrote.
pub fn import(file: &Path) -> anyhow::Result<Vec<Search>> {
    let say = || format!("cannot read {}", file.display());
    let raw = BufReader::new(File::open(file).with_context(say)?);
    if is_packed(file) {
        read(BufReader::new(GzDecoder::new(raw))).with_context(say)
    } else {
        read(raw).with_context(say)
    }
}

fn read(mut from: impl BufRead) -> anyhow::Result<Vec<Search>> {
    let mut number = 0;
    let mut line = || {
        let mut text = String::new();
        let length = from.by_ref().take(LONGEST).read_line(&mut text)?;
        ensure!(text.ends_with('\n') || length == 0, "a line is cut short or too long");
        number += 1;
        anyhow::Ok((text, number))
    };
    let (format, _) = line()?;
    let format: String = serde_json::from_str(&format).unwrap_or_default();
    ensure!(
        format == FORMAT,
        "this is no file of `sparsetune study --export`, or of another version"
    );
    let mut searches = Vec::new();
    loop {
        let (text, number) = line()?;
        if text.is_empty() {
            return Ok(searches);
        }
        let mut search: Search =
            serde_json::from_str(&text).with_context(|| format!("line {number}"))?;
        for _ in 0..search.trials {
            let (text, number) = line()?;
            let tried: Tried =
                serde_json::from_str(&text).with_context(|| format!("line {number}"))?;
            ensure!(tried.is_sound(), "line {number}: a time that no trial has");
            search.tried.push(tried);
        }
        searches.push(search);
    }
}

fn is_packed(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "gz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_exported_is_read_again_packed_or_plain() {
        let folder = tempfile::tempdir().unwrap();
        let tried = Tried {
            candidate: "row_split{lanes=8,order=length}".to_owned(),
            state: "measured".to_owned(),
            us: Some(12.345_678),
            rule: Some("load_balance".to_owned()),
            value: Some(0.5),
            limit: Some(f64::INFINITY),
            ..Tried::default()
        };
        assert_eq!((tried.family(), tried.parameter("order")), ("row_split", Some("length")));
        assert_eq!(tried.parameters().count(), 2);
        let search = Search {
            matrix: "a".to_owned(),
            problem: "spmm;n=8".to_owned(),
            space: Some(4),
            tried: vec![tried.clone(), tried.clone()],
            ..Search::default()
        };
        assert_eq!((search.op(), search.drawn()), ("spmm", 0.5));
        for name in ["plain.jsonl", "packed.jsonl.gz"] {
            let file = folder.path().join(name);
            export(&file, &[search.clone(), search.clone()]).unwrap();
            let read = import(&file).unwrap();
            assert_eq!((read.len(), read[1].tried.len()), (2, 2));
            assert_eq!((read[0].tried[1].us, read[0].tried[1].limit), (Some(12.346), None));
        }
        let without = Tried { candidate: "ag{alpha=0,without=x,ws=rr}".to_owned(), ..tried };
        assert_eq!((without.without(), &*without.whole()), (Some("x"), "ag{alpha=0,ws=rr}"));
        let cut = folder.path().join("cut.jsonl");
        let text = std::fs::read_to_string(folder.path().join("plain.jsonl")).unwrap();
        std::fs::write(&cut, &text[..text.len() - 20]).unwrap();
        assert!(format!("{:#}", import(&cut).unwrap_err()).contains("cut short"));
        std::fs::write(&cut, text.replace("12.346", "-1.0")).unwrap();
        assert!(format!("{:#}", import(&cut).unwrap_err()).contains("line 3: a time"));
        std::fs::write(&cut, "{}\n").unwrap();
        assert!(format!("{:#}", import(&cut).unwrap_err()).contains("is no file of"));
    }

    #[test]
    fn searches_by_different_clocks_are_not_put_together() {
        let search = |strategy: &str, clock| Search {
            strategy: strategy.to_owned(),
            clock,
            ..Search::default()
        };
        let row = Some(Clock::Pipelined);
        let others = |searches| joined(searches)[0].others.len();
        let all = vec![search("full", row), search("ranked", row), search("ranked", None)];
        assert_eq!(
            (others(all), others(vec![search("full", None), search("ranked", row)])),
            (1, 0)
        );
        // A file of before the clocks is read, and one with isolated times is written as then.
        let said = serde_json::to_string(&search("full", None)).unwrap();
        assert!(!said.contains("clock"), "{said}");
        assert_eq!(serde_json::from_str::<Search>(&said).unwrap().clock, None);
        let said = serde_json::to_string(&search("full", row)).unwrap();
        assert_eq!(serde_json::from_str::<Search>(&said).unwrap().clock, row);
    }
}
