//! The mathematical problem on the wire, used by jobs (a JSON object) and lookups (query parameters).

use super::error::{Kind, Problem as Refusal};
use crate::domain::Problem;
use crate::domain::catalog::operation::{Draft, Misfit};
use serde::Deserialize;

/// A problem as clients write it: one flat object, whose `op` decides which other members are required or not permitted.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct ProblemIn(pub Draft);

impl ProblemIn {
    /// The problem under `/problem` in a JSON body.
    pub fn of_body(&self) -> Result<Problem, Refusal> {
        self.0.read().map_err(|Misfit { field, fault }| {
            Refusal::new(Kind::InvalidBody, fault.to_string())
                .with("pointer", Some(format!("/problem/{field}")))
        })
    }

    /// The problem in the parameters of a query.
    pub fn of_query(&self) -> Result<Problem, Refusal> {
        self.0.read().map_err(|Misfit { field, fault }| {
            Refusal::new(Kind::InvalidParameter, fault.to_string()).with("parameter", Some(field))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misfit_is_named_by_pointer_or_parameter() {
        let input: ProblemIn = serde_json::from_str(r#"{"op":"spmm","n":0}"#).unwrap();
        let refused = input.of_body().unwrap_err().to_json(None);
        assert_eq!([&refused["pointer"], &refused["detail"]], ["/problem/n", "must be at least 1"]);
        let input: ProblemIn = serde_json::from_str(r#"{"op":"spmm","n":3,"rhs":1}"#).unwrap();
        let refused = input.of_query().unwrap_err().to_json(None);
        assert_eq!([&refused["parameter"], &refused["detail"]], ["rhs", "belongs to op sptrsv"]);
    }
}
