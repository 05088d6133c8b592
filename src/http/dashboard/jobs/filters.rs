//! The filters of the list as its address carries them.

use super::super::address::encoded;
use crate::domain::{DeviceId, Digest, JobState};
use crate::http::error::{Kind, Problem};
use crate::service::JobFilter;
use serde::Deserialize;

/// The query as a form sends it: what was left alone is there and empty.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Asked {
    state: String,
    device: String,
    matrix: String,
    cursor: String,
}

#[derive(Debug, Default)]
pub struct Filters {
    pub state: Option<JobState>,
    pub device: Option<DeviceId>,
    pub matrix: Option<Digest>,
    pub cursor: Option<String>,
}

/// One state in the list to choose from.
pub struct StateChoice {
    pub name: &'static str,
    pub chosen: bool,
}

impl Asked {
    pub fn read(self) -> Result<Filters, Problem> {
        let state = match self.state.as_str() {
            "" => None,
            name => Some(state(name)?),
        };
        let matrix = match self.matrix.trim() {
            "" => None,
            text => Some(text.to_ascii_lowercase().parse().map_err(|_| {
                refused("matrix", "the matrix filter takes a whole digest: 64 hex digits")
            })?),
        };
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        Ok(Filters {
            state,
            matrix,
            device: given(self.device).map(DeviceId),
            cursor: given(self.cursor),
        })
    }
}

fn state(name: &str) -> Result<JobState, Problem> {
    let found = JobState::ALL.into_iter().find(|state| state.name() == name);
    found.ok_or_else(|| refused("state", "there is no such state of a job"))
}

fn refused(parameter: &str, detail: &str) -> Problem {
    Problem::new(Kind::InvalidParameter, detail).with("parameter", Some(parameter))
}

impl Filters {
    pub fn job_filter(&self) -> JobFilter {
        JobFilter { state: self.state, matrix: self.matrix, device: self.device.clone() }
    }

    /// Whether it leaves jobs out.
    pub const fn narrows(&self) -> bool {
        self.state.is_some() || self.device.is_some() || self.matrix.is_some()
    }

    pub fn states(&self) -> Vec<StateChoice> {
        let choice =
            |state: JobState| StateChoice { name: state.name(), chosen: self.state == Some(state) };
        JobState::ALL.into_iter().map(choice).collect()
    }

    /// The chosen matrix, for its input.
    pub fn matrix_text(&self) -> String {
        self.matrix.as_ref().map(Digest::to_string).unwrap_or_default()
    }

    /// The same filters on another page of the list, or on another path.
    pub fn address(&self, path: &str, cursor: Option<&str>) -> String {
        let parts = [
            ("state", self.state.map(|state| state.name().to_owned())),
            ("device", self.device.as_ref().map(DeviceId::to_string)),
            ("matrix", self.matrix.as_ref().map(Digest::to_string)),
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
            state: "failed".to_owned(),
            device: "cuda:0".to_owned(),
            matrix: format!(" {digest} "),
            cursor: String::new(),
        };
        let filters = asked.read().unwrap();
        let lower = digest.to_lowercase();
        let address = format!("/jobs?state=failed&device=cuda%3A0&matrix={lower}");
        assert_eq!(filters.address("/jobs", None), address);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let with = |state: &str, matrix: &str| {
            let asked =
                Asked { state: state.to_owned(), matrix: matrix.to_owned(), ..Asked::default() };
            asked.read().unwrap_err().to_json(None)["parameter"].clone()
        };
        assert_eq!(with("lost", ""), "state");
        assert_eq!(with("", "abc"), "matrix");
    }
}
