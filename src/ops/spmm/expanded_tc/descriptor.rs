//! The expanded tiles as a kernel of the catalogue.

use super::super::family::{SpmmFamily, gpu_family};
use super::{ExpandedTcs, FAMILY};
use crate::domain::Candidate;
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::ops::family::{Family, Keys, parameters};

impl Family for ExpandedTcs {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(FAMILY, Distinction::Alone)];
        let phrases = [
            ("columns", "columns of C that a block computes"),
            ("split", "blocks that share the tiles of 128 rows and add up their sums"),
        ];
        FamilyDescriptor {
            title: "Expanded tiles on tensor cores",
            summary: "Entries are loaded, expanded to dense tiles in shared memory, and multiplied as such by tensor cores.",
            source: Some("Flash-LLM (VLDB 2024) for loading sparse and computing dense"),
            parameters: parameters(self.domains(), &phrases),
            ..gpu_family("spmm.expanded_tc", STORED, true)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        true
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &[],
            tiled_by: &["columns", "split"],
            headers: &["spmm/expanded_tc.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}
