//! The vendors' libraries as kernels: each runs the routine that the candidate names, and prepares what the routine needs.

use super::family::{Family, Keys};
use crate::domain::candidate::{ALGORITHM, VENDOR};
use crate::domain::catalog::family::{
    Distinction, FamilyDescriptor, Flags, KernelId, Parameter, Provider, StoredForm, Values,
};
use crate::domain::catalog::vendor::Library;
use crate::domain::{Candidate, DeviceKind, Op, Param};

/// A library's routines for one operation.
pub struct VendorLibrary {
    pub id: &'static str,
    pub op: Op,
    pub device: DeviceKind,
    pub library: Library,
    pub title: &'static str,
    pub summary: &'static str,
    pub stored: &'static [StoredForm],
}

/// The form in which candidates of a library are stored.
pub const fn stored(library: Library) -> StoredForm {
    StoredForm::first(VENDOR, Distinction::Routine(library))
}

/// A candidate that runs the routine.
pub fn candidate(algorithm: &str) -> Candidate {
    Candidate::new(VENDOR).with_text(ALGORITHM, algorithm)
}

impl Family for VendorLibrary {
    fn descriptor(&self) -> FamilyDescriptor {
        let Self { id, op, device, library, title, summary, stored } = *self;
        let routines = library.routines().map(|name| Param::Text(name.to_owned())).collect();
        FamilyDescriptor {
            id: KernelId(id),
            op,
            device,
            provider: Provider::Vendor,
            title,
            summary,
            source: None,
            stored,
            parameters: vec![Parameter {
                name: ALGORITHM,
                values: Values::Among(routines),
                meaning: "the name of the routine",
            }],
            flags: Flags {
                baseline: library.is_baseline(),
                densifies: library.densifies(),
                may_need_finite_dense: library.densifies(),
                single_thread: library.is_single_threaded(),
            },
        }
    }

    /// A zero of a matrix that was made dense is multiplied like any other element.
    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        self.library.densifies()
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &[], headers: &[] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        if self.library.is_baseline() { 0 } else { 3 }
    }
}
