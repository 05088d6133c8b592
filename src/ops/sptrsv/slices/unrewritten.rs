//! Equations that are not rewritten, for the families that solve row by row.

use super::equations::Equations;
use super::rewrite::{Rewrite, rewrite};
use super::split::{Parts, split};
use crate::ops::sptrsv::System;
use std::sync::Arc;

/// Only the diagonal is divided out.
const PLAIN: Rewrite = Rewrite::of(0, 64);

/// Most equations that are kept, so that memory stays bounded: as many as `streamed` has lengths of runs.
const MOST: usize = 3;

/// Keeps the equations of a system by the longest row that they leave.
#[derive(Default)]
pub struct Unrewritten {
    kept: Vec<(usize, Arc<Equations>)>,
}

impl Unrewritten {
    /// Equations of at most `longest` terms in unknowns; longer rows are summed in parts.
    pub fn of(&mut self, longest: usize, system: &System) -> Arc<Equations> {
        if let Some((_, known)) = self.kept.iter().find(|(known, _)| *known == longest) {
            return known.clone();
        }
        let equations = Arc::new(split(rewrite(system, PLAIN), Parts::of_rows(longest)));
        if self.kept.len() == MOST {
            self.kept.remove(0);
        }
        self.kept.push((longest, equations.clone()));
        equations
    }
}
