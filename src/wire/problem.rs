//! The problem in responses: with every field of its operation, defaults filled in.

use crate::domain;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

/// A problem that is written with all its fields; missing fields are read as their defaults. The stored form omits fields
/// that were added later, so that keys of old plans remain unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Problem(pub domain::Problem);

impl From<domain::Problem> for Problem {
    fn from(problem: domain::Problem) -> Self {
        Self(problem)
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("op", self.0.op().name())?;
        for (field, value) in self.0.fields() {
            map.serialize_entry(field.name, &value)?;
        }
        map.end()
    }
}
