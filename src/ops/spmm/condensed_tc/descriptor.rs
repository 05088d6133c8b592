//! The condensed panels as a kernel of the catalogue.

use super::super::family::{SpmmFamily, gpu_family};
use super::super::phrases;
use super::{CondensedTcs, FAMILY};
use crate::domain::Candidate;
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::ops::family::{Family, Keys, parameters};

impl Family for CondensedTcs {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(FAMILY, Distinction::Alone)];
        let residue = "columns with at most this many entries go to ordinary cores; 0: none";
        let own = [("stages", "tiles of B that are loaded ahead"), ("residue", residue)];
        let phrases =
            [&own[..], &[phrases::COLUMNS_A_WARP, phrases::WARPS, phrases::ORDER]].concat();
        FamilyDescriptor {
            title: "Condensed panels on tensor cores",
            summary: "Panels of eight rows are condensed to full tiles for the tensor cores.",
            source: Some("FlashSparse (PPoPP 2025) for the swapped operands"),
            parameters: parameters(self.domains(), &phrases),
            ..gpu_family("spmm.condensed_tc", STORED, true)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        true
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &["order", "residue"],
            tiled_by: &["columns", "warps"],
            headers: &["spmm/condensed_tc.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}
