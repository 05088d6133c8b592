//! To be written by its own hand: the family `host`.

use super::{Share, System, no_candidate};
use crate::domain::Candidate;
use crate::domain::recipe::Recipe;
use crate::ops::Refusal;

pub fn share(_system: &System) -> Share {
    Share { scored: Vec::new(), full: 0, rules: Vec::new() }
}

pub fn lower(candidate: &Candidate, _system: &System) -> Result<Recipe, Refusal> {
    Err(no_candidate(candidate))
}
