//! The mathematical problem on the wire, read by jobs (a JSON object) and by lookups (query parameters) alike.

use super::error::{Kind, Problem as Refusal};
use super::extract::given;
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Dtype, Layout, Problem, Spmm, Sptrsv};
use serde::Deserialize;

/// Which operation; decides which of the other members are needed and which are out of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    Spmm,
    Sptrsv,
}

/// One flat object rather than a tagged enum: serde loses the path of a mistake inside a tagged enum, and a query
/// string cannot hold one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemIn {
    pub op: Op,
    #[serde(default, deserialize_with = "given")]
    pub n: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    pub dtype: Option<Dtype>,
    #[serde(default, deserialize_with = "given")]
    pub layout: Option<Layout>,
    #[serde(default, deserialize_with = "given")]
    pub accumulate: Option<bool>,
    #[serde(default, deserialize_with = "given")]
    pub tf32: Option<bool>,
    #[serde(default, deserialize_with = "given")]
    pub rhs: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    pub triangle: Option<Triangle>,
    #[serde(default, deserialize_with = "given")]
    pub diagonal: Option<Diagonal>,
    #[serde(default, deserialize_with = "given")]
    pub transpose: Option<bool>,
}

/// A member that is missing, out of place or out of range, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Misfit {
    pub member: &'static str,
    pub why: &'static str,
}

impl Misfit {
    /// As a refusal of a JSON body that holds the problem under `/problem`.
    pub fn in_body(self) -> Refusal {
        Refusal::new(Kind::InvalidBody, self.why)
            .with("pointer", Some(format!("/problem/{}", self.member)))
    }

    /// As a refusal of a query.
    pub fn in_query(self) -> Refusal {
        Refusal::new(Kind::InvalidParameter, self.why).with("parameter", Some(self.member))
    }
}

impl TryFrom<ProblemIn> for Problem {
    type Error = Misfit;

    fn try_from(input: ProblemIn) -> Result<Self, Misfit> {
        match input.op {
            Op::Spmm => spmm(input),
            Op::Sptrsv => sptrsv(input),
        }
    }
}

fn spmm(input: ProblemIn) -> Result<Problem, Misfit> {
    let solve_only = [
        ("rhs", input.rhs.is_some()),
        ("triangle", input.triangle.is_some()),
        ("diagonal", input.diagonal.is_some()),
        ("transpose", input.transpose.is_some()),
    ];
    refuse(&solve_only, "belongs to op sptrsv")?;
    Ok(Problem::Spmm(Spmm {
        n: count("n", input.n)?,
        dtype: input.dtype.unwrap_or_default(),
        layout: input.layout.unwrap_or_default(),
        accumulate: input.accumulate.unwrap_or_default(),
        tf32: input.tf32.unwrap_or_default(),
    }))
}

fn sptrsv(input: ProblemIn) -> Result<Problem, Misfit> {
    let product_only = [
        ("n", input.n.is_some()),
        ("layout", input.layout.is_some()),
        ("accumulate", input.accumulate.is_some()),
        ("tf32", input.tf32.is_some()),
    ];
    refuse(&product_only, "belongs to op spmm")?;
    let rhs = count("rhs", input.rhs)?;
    if rhs > Sptrsv::MAX_RHS {
        return Err(Misfit { member: "rhs", why: "must be 1 to 64" });
    }
    Ok(Problem::Sptrsv(Sptrsv {
        rhs,
        dtype: input.dtype.unwrap_or_default(),
        triangle: needed("triangle", input.triangle)?,
        diagonal: needed("diagonal", input.diagonal)?,
        transpose: input.transpose.unwrap_or_default(),
    }))
}

fn refuse(members: &[(&'static str, bool)], why: &'static str) -> Result<(), Misfit> {
    match members.iter().find(|(_, given)| *given) {
        Some(&(member, _)) => Err(Misfit { member, why }),
        None => Ok(()),
    }
}

fn needed<T>(member: &'static str, value: Option<T>) -> Result<T, Misfit> {
    value.ok_or(Misfit { member, why: "is needed for this op" })
}

fn count(member: &'static str, value: Option<u32>) -> Result<u32, Misfit> {
    match needed(member, value)? {
        0 => Err(Misfit { member, why: "must be at least 1" }),
        value => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::{Misfit, Problem, ProblemIn, Sptrsv};

    fn read(text: &str) -> Result<Problem, Misfit> {
        serde_json::from_str::<ProblemIn>(text).unwrap().try_into()
    }

    #[test]
    fn members_of_the_other_operation_are_refused() {
        assert_eq!(read(r#"{"op":"spmm","n":3,"rhs":1}"#).unwrap_err().member, "rhs");
        assert_eq!(read(r#"{"op":"sptrsv","rhs":1,"n":3}"#).unwrap_err().member, "n");
        for member in ["accumulate", "tf32"] {
            let solve = format!(r#"{{"op":"sptrsv","rhs":1,"{member}":false}}"#);
            let why = "belongs to op spmm";
            assert_eq!(read(&solve).unwrap_err(), Misfit { member, why });
        }
    }

    #[test]
    fn what_is_missing_is_named_and_the_rest_has_defaults() {
        assert_eq!(read(r#"{"op":"spmm"}"#).unwrap_err().member, "n");
        assert_eq!(read(r#"{"op":"spmm","n":0}"#).unwrap_err().why, "must be at least 1");
        let problem = read(r#"{"op":"spmm","n":7}"#).unwrap();
        assert_eq!(problem.to_string(), "spmm;n=7;dtype=f32;layout=row");
        let problem = read(r#"{"op":"spmm","n":7,"accumulate":true,"tf32":true}"#).unwrap();
        assert!(problem.to_string().ends_with(";layout=row;accumulate=true;tf32=true"));
        let solve = r#"{"op":"sptrsv","rhs":1,"diagonal":"unit"}"#;
        assert_eq!(read(solve).unwrap_err().member, "triangle");
        let wide = |rhs: u32| {
            read(&solve.replace("\"rhs\":1", &format!("\"triangle\":\"lower\",\"rhs\":{rhs}")))
        };
        assert!(wide(Sptrsv::MAX_RHS).is_ok());
        assert_eq!(wide(65).unwrap_err().why, "must be 1 to 64");
    }
}
