//! The filters of the list of jobs, as encoded in its address.

use super::super::address::encoded;
use crate::domain::{DeviceId, Digest, JobState, WorkKind};
use crate::http::behalf::Served;
use crate::http::error::{Kind, Problem};
use crate::service::JobFilter;
use serde::Deserialize;

/// The query of a submitted form: fields left alone are present but empty.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Asked {
    kind: String,
    state: String,
    device: String,
    matrix: String,
    cursor: String,
}

#[derive(Debug, Default)]
pub struct Filters {
    pub kind: Option<WorkKind>,
    pub state: Option<JobState>,
    pub device: Option<DeviceId>,
    pub matrix: MatrixFilter,
    pub cursor: Option<String>,
}

/// A matrix filter: a digest or its first digits.
#[derive(Debug, Default)]
pub struct MatrixFilter {
    /// As written, in lower case.
    pub text: String,
    /// The matrix, if exactly one matches.
    pub digest: Option<Digest>,
    /// The reason if not exactly one matches.
    pub trouble: Option<String>,
    /// The first matches, if there are several.
    pub several: Vec<Meant>,
}

/// One of several matrices whose digests begin with the same digits.
#[derive(Debug)]
pub struct Meant {
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
        let text = self.matrix.trim().to_ascii_lowercase();
        // A complete digest needs no match: its matrix may have been deleted while its jobs still exist.
        let matrix = MatrixFilter { digest: text.parse().ok(), text, ..MatrixFilter::default() };
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        Ok(Filters {
            kind,
            state,
            matrix,
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
    if given.is_empty() {
        return Ok(None);
    }
    let found = all.iter().find(|value| name(**value) == given).copied();
    found
        .map(Some)
        .ok_or_else(|| refused(parameter, &format!("no job has the {parameter} {given:?}")))
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
        }
    }

    /// Whether the filters exclude any jobs.
    pub const fn narrows(&self) -> bool {
        self.kind.is_some()
            || self.state.is_some()
            || self.device.is_some()
            || !self.matrix.text.is_empty()
    }

    pub fn kinds(&self) -> Vec<NamedChoice> {
        let choice =
            |kind: WorkKind| NamedChoice { name: kind.name(), chosen: self.kind == Some(kind) };
        WorkKind::ALL.into_iter().map(choice).collect()
    }

    pub fn states(&self) -> Vec<NamedChoice> {
        let choice =
            |state: JobState| NamedChoice { name: state.name(), chosen: self.state == Some(state) };
        JobState::ALL.into_iter().map(choice).collect()
    }

    /// Finds the matrix for the first digits of a digest.
    pub async fn find_matrix(&mut self, app: &Served) -> Result<(), Problem> {
        let text = self.matrix.text.clone();
        if text.is_empty() || self.matrix.digest.is_some() {
            return Ok(());
        }
        if text.len() > 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let trouble = "A digest has up to 64 digits, 0 to 9 and a to f.";
            self.matrix.trouble = Some(trouble.to_owned());
            return Ok(());
        }
        match app.service.matrices_starting(&text, NAMED + 1).await?.as_slice() {
            [] => {
                self.matrix.trouble = Some("No matrix here has a digest that starts so.".to_owned())
            }
            [one] => self.matrix.digest = Some(*one),
            many => {
                self.matrix.trouble =
                    Some("Several matrices have digests that start so:".to_owned());
                let meant = |digest: &Digest| Meant {
                    digest: digest.to_string(),
                    address: self.with_matrix("/jobs", &digest.to_string(), None),
                };
                self.matrix.several = many.iter().take(NAMED as usize).map(meant).collect();
            }
        }
        Ok(())
    }

    /// The same filters on another page of the list, or on another path.
    pub fn address(&self, path: &str, cursor: Option<&str>) -> String {
        self.with_matrix(path, &self.matrix.text, cursor)
    }

    fn with_matrix(&self, path: &str, matrix: &str, cursor: Option<&str>) -> String {
        let parts = [
            ("kind", self.kind.map(|kind| kind.name().to_owned())),
            ("state", self.state.map(|state| state.name().to_owned())),
            ("device", self.device.as_ref().map(DeviceId::to_string)),
            ("matrix", Some(matrix.to_owned()).filter(|text| !text.is_empty())),
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
            cursor: String::new(),
        };
        let filters = asked.read().unwrap();
        let lower = digest.to_lowercase();
        let address = format!("/jobs?kind=tune&state=failed&device=cuda%3A0&matrix={lower}");
        assert_eq!(filters.address("/jobs", None), address);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let asked = Asked { state: "lost".to_owned(), ..Asked::default() };
        assert_eq!(asked.read().unwrap_err().to_json(None)["parameter"], "state");
    }
}
