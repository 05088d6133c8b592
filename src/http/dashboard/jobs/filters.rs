//! The filters of the list of jobs, as encoded in its address.

use super::super::address::encoded;
use super::super::heading::{Headings, parameters};
use crate::domain::{DeviceId, Digest, JobState, LONGEST_NAME, Op, WorkKind};
use crate::http::behalf::Served;
use crate::http::error::{Kind, Problem};
use crate::service::{Column, Direction, JobColumn, JobFilter, JobOrder, PageRequest, meant};
use serde::Deserialize;

/// The query of a submitted form: fields left alone are present but empty.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Asked {
    kind: String,
    state: String,
    device: String,
    op: String,
    matrix: String,
    sort: String,
    order: String,
    cursor: String,
}

#[derive(Debug, Default)]
pub struct Filters {
    pub kind: Option<WorkKind>,
    pub state: Option<JobState>,
    pub device: Option<DeviceId>,
    pub op: Option<Op>,
    pub matrix: MatrixFilter,
    pub order: JobOrder,
    pub cursor: Option<String>,
}

/// A matrix filter: a name or a part of it, a digest or its first digits.
#[derive(Debug, Default)]
pub struct MatrixFilter {
    /// As written.
    pub text: String,
    /// The matrix, if exactly one matches.
    pub digest: Option<Digest>,
    /// The reason if not exactly one matches.
    pub trouble: Option<String>,
    /// The first matches, if there are several.
    pub several: Vec<Meant>,
}

/// One of several matrices that a text may mean.
#[derive(Debug)]
pub struct Meant {
    pub name: String,
    pub digest: String,
    /// The list filtered by this matrix, with the same other filters.
    pub address: String,
}

/// Maximum number of matches shown.
const NAMED: u32 = 6;

/// A kind or state in a selection list.
pub struct NamedChoice {
    pub name: &'static str,
    pub chosen: bool,
}

impl Asked {
    pub fn read(self) -> Result<Filters, Problem> {
        let kind = named("kind", &self.kind, &WorkKind::ALL, WorkKind::name)?;
        let state = named("state", &self.state, &JobState::ALL, JobState::name)?;
        let op = named("op", &self.op, &Op::ALL, Op::name)?;
        let by = chosen("sort", &self.sort, JobColumn::ALL, JobColumn::name, "the list has no")?;
        let way =
            chosen("order", &self.order, &Direction::ALL, Direction::name, "the list has no")?;
        let mut text = self.matrix.trim().to_owned();
        // A complete digest needs no match: its matrix may have been deleted while its jobs still exist.
        let digest: Option<Digest> = text.to_ascii_lowercase().parse().ok();
        if let Some(digest) = &digest {
            text = digest.to_string();
        }
        let matrix = MatrixFilter { digest, text, ..MatrixFilter::default() };
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        Ok(Filters {
            kind,
            state,
            op,
            matrix,
            order: JobOrder::asked(by, way),
            device: given(self.device).map(DeviceId),
            cursor: given(self.cursor),
        })
    }
}

/// The value of this parameter; `None` if it is absent or empty.
fn named<T: Copy>(
    parameter: &str,
    given: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<Option<T>, Problem> {
    chosen(parameter, given, all, name, "no job has the")
}

/// [`named`], refused in these words.
fn chosen<T: Copy>(
    parameter: &str,
    given: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    words: &str,
) -> Result<Option<T>, Problem> {
    if given.is_empty() {
        return Ok(None);
    }
    let found = all.iter().find(|value| name(**value) == given).copied();
    found.map(Some).ok_or_else(|| refused(parameter, &format!("{words} {parameter} {given:?}")))
}

fn refused(parameter: &str, detail: &str) -> Problem {
    Problem::new(Kind::InvalidParameter, detail).with("parameter", Some(parameter))
}

impl Filters {
    pub fn job_filter(&self) -> JobFilter {
        JobFilter {
            kind: self.kind,
            state: self.state,
            matrix: self.matrix.digest,
            device: self.device.clone(),
            op: self.op,
        }
    }

    /// Whether the filters exclude any jobs.
    pub const fn narrows(&self) -> bool {
        self.kind.is_some()
            || self.state.is_some()
            || self.device.is_some()
            || self.op.is_some()
            || !self.matrix.text.is_empty()
    }

    pub fn kinds(&self) -> Vec<NamedChoice> {
        let choice =
            |kind: WorkKind| NamedChoice { name: kind.name(), chosen: self.kind == Some(kind) };
        WorkKind::ALL.into_iter().map(choice).collect()
    }

    pub fn ops(&self) -> Vec<NamedChoice> {
        let choice = |op: Op| NamedChoice { name: op.name(), chosen: self.op == Some(op) };
        Op::ALL.into_iter().map(choice).collect()
    }

    pub fn states(&self) -> Vec<NamedChoice> {
        let choice =
            |state: JobState| NamedChoice { name: state.name(), chosen: self.state == Some(state) };
        JobState::ALL.into_iter().map(choice).collect()
    }

    /// Finds the matrix for a name or the first digits of a digest.
    pub async fn find_matrix(&mut self, app: &Served) -> Result<(), Problem> {
        let text = self.matrix.text.clone();
        if text.is_empty() || self.matrix.digest.is_some() {
            return Ok(());
        }
        let found = match text.chars().count() > LONGEST_NAME {
            true => Vec::new(),
            false => app.service.matrices_like(&text, &PageRequest::first(NAMED + 1)).await?.items,
        };
        if let Some(one) = meant(&found, &text) {
            self.matrix.digest = Some(one.digest);
            return Ok(());
        }
        if found.is_empty() {
            let trouble = "No matrix here has a name with this in it, or a digest that starts so.";
            self.matrix.trouble = Some(trouble.to_owned());
            return Ok(());
        }
        self.matrix.trouble = Some("Several matrices match:".to_owned());
        let several = found.iter().take(NAMED as usize).map(|matrix| Meant {
            name: matrix.name.clone().unwrap_or_default(),
            digest: matrix.digest.to_string(),
            address: self.with_matrix("/jobs", &matrix.digest.to_string(), None),
        });
        self.matrix.several = several.collect();
        Ok(())
    }

    /// The same filters on another page of the list, or on another path.
    pub fn address(&self, path: &str, cursor: Option<&str>) -> String {
        self.with(path, &self.matrix.text, self.order, cursor)
    }

    /// The headings of the list, with the same filters.
    pub fn headings(&self) -> Headings {
        Headings::of(self.order, |to| self.with("/jobs", &self.matrix.text, to, None))
    }

    fn with_matrix(&self, path: &str, matrix: &str, cursor: Option<&str>) -> String {
        self.with(path, matrix, self.order, cursor)
    }

    fn with(&self, path: &str, matrix: &str, order: JobOrder, cursor: Option<&str>) -> String {
        let [sort, way] = parameters(order).map(|(name, value)| (name, value.map(str::to_owned)));
        let parts = [
            ("kind", self.kind.map(|kind| kind.name().to_owned())),
            ("state", self.state.map(|state| state.name().to_owned())),
            ("device", self.device.as_ref().map(DeviceId::to_string)),
            ("op", self.op.map(|op| op.name().to_owned())),
            ("matrix", Some(matrix.to_owned()).filter(|text| !text.is_empty())),
            sort,
            way,
            ("cursor", cursor.map(str::to_owned)),
        ];
        let mut address = path.to_owned();
        for (name, value) in parts.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            address.push(if address.len() == path.len() { '?' } else { '&' });
            address.push_str(&format!("{name}={}", encoded(&value)));
        }
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_form_leaves_empty_is_no_filter() {
        let filters = Asked::default().read().unwrap();
        assert!(!filters.narrows());
        assert_eq!(filters.address("/jobs", None), "/jobs");
        assert_eq!(filters.address("/jobs", Some("a&b")), "/jobs?cursor=a%26b");
    }

    #[test]
    fn filters_stay_in_the_address() {
        let digest = "AB".repeat(32);
        let asked = Asked {
            kind: "tune".to_owned(),
            state: "failed".to_owned(),
            device: "cuda:0".to_owned(),
            matrix: format!(" {digest} "),
            op: "sptrsv".to_owned(),
            ..Asked::default()
        };
        let filters = asked.read().unwrap();
        let lower = digest.to_lowercase();
        let address =
            format!("/jobs?kind=tune&state=failed&device=cuda%3A0&op=sptrsv&matrix={lower}");
        assert_eq!(filters.address("/jobs", None), address);
    }

    #[test]
    fn an_order_stays_in_the_address_and_a_heading_turns_it() {
        let asked = Asked { op: "spmm".to_owned(), sort: "took".to_owned(), ..Asked::default() };
        let filters = asked.read().unwrap();
        assert!(filters.narrows());
        assert_eq!(filters.address("/jobs", None), "/jobs?op=spmm&sort=took&order=desc");
        let headings = filters.headings();
        let took = headings.get("took").unwrap();
        assert_eq!(took.address, "/jobs?op=spmm&sort=took&order=asc");
        assert_eq!(headings.get("created_at").unwrap().address, "/jobs?op=spmm");
        let asked = Asked { sort: "colour".to_owned(), ..Asked::default() };
        assert_eq!(asked.read().unwrap_err().to_json(None)["parameter"], "sort");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let asked = Asked { state: "lost".to_owned(), ..Asked::default() };
        assert_eq!(asked.read().unwrap_err().to_json(None)["parameter"], "state");
    }
}
