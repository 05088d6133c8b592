//! To be written by its own hand: the family `slices`.

use super::{Share, System, no_candidate};
use crate::domain::Candidate;
use crate::domain::recipe::Recipe;
use crate::ops::Refusal;

pub fn share(_system: &System) -> Share {
    Share { scored: Vec::new(), full: 0, rules: Vec::new() }
}

#[derive(Default)]
pub struct Lowerer {}

impl Lowerer {
    pub fn lower(&mut self, candidate: &Candidate, _system: &System) -> Result<Recipe, Refusal> {
        Err(no_candidate(candidate))
    }
}
