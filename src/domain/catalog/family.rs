//! Kernel families as plain data: what a kernel is, which parameters it has, and under which names candidates of it are
//! stored.
//!
//! A family *name* is what candidates, plans and learned models carry. A *kernel* is one implementation: the name `row_split`
//! stands for three of them. [`Catalogue::resolve`] goes from what is stored to the kernel.

use super::vendor::Library;
use crate::domain::candidate::VENDOR;
use crate::domain::{Candidate, DeviceKind, Op, Param};
use std::fmt;

/// Names one kernel among all operations and devices, such as `spmm.row_split`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelId(pub &'static str);

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Version of the stored forms of all kernels together: raised with each form that is added. Forms are never removed, so
/// candidates stored by any earlier version resolve.
pub const STORED_FORMS: u32 = 1;

/// One form in which candidates of a kernel are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredForm {
    /// The value of [`STORED_FORMS`] that this form came with.
    pub since: u32,
    /// The family name.
    pub family: &'static str,
    pub distinction: Distinction,
}

impl StoredForm {
    /// A form of the first version.
    pub const fn first(family: &'static str, distinction: Distinction) -> Self {
        Self { since: 1, family, distinction }
    }
}

/// What tells candidates of a kernel from others with the same family name, operation and kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinction {
    /// Nothing: no other kernel has the name there.
    Alone,
    /// They have this parameter.
    Has(&'static str),
    /// They have the first parameter and not the second.
    HasWithout(&'static str, &'static str),
    /// They have none of these parameters.
    Lacks(&'static [&'static str]),
    /// They name a routine of this library.
    Routine(Library),
}

impl Distinction {
    fn holds(self, candidate: &Candidate) -> bool {
        match self {
            Self::Alone => true,
            Self::Has(name) => candidate.params.contains_key(name),
            Self::HasWithout(name, other) => {
                candidate.params.contains_key(name) && !candidate.params.contains_key(other)
            }
            Self::Lacks(names) => !names.iter().any(|name| candidate.params.contains_key(*name)),
            Self::Routine(library) => {
                candidate.routine().is_some_and(|routine| routine.library == library)
            }
        }
    }
}

/// Whose code a kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// This program.
    Own,
    /// A vendor's library.
    Vendor,
}

/// One kernel in words and numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilyDescriptor {
    pub id: KernelId,
    pub op: Op,
    /// The kind of device it runs on.
    pub device: DeviceKind,
    pub provider: Provider,
    /// A few words.
    pub title: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// The publication it follows or extends, if any.
    pub source: Option<&'static str>,
    /// The forms in which its candidates are stored, the oldest first; candidates are written in the last.
    pub stored: &'static [StoredForm],
    pub parameters: Vec<Parameter>,
    pub flags: Flags,
}

/// Properties of a kernel that pages and decisions depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Plans are compared with it: a vendor's routine for the problem as it is given.
    pub baseline: bool,
    /// It first makes the sparse matrix dense.
    pub densifies: bool,
    /// Some of its candidates require that the dense operand is finite; which of them, `ops` tells.
    pub may_need_finite_dense: bool,
    /// It runs on one thread of the host whatever its parameters.
    pub single_thread: bool,
}

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: &'static str,
    pub values: Values,
    /// A phrase without a full stop.
    pub meaning: &'static str,
}

/// The values that a parameter may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// One of these, all of one type.
    Among(Vec<Param>),
    /// An integer of at least `least`; `most` says in words what bounds it from above.
    AtLeast { least: i64, most: &'static str },
}

impl Values {
    /// `integer` or `text`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Among(values) if values.iter().any(|value| matches!(value, Param::Text(_))) => {
                "text"
            }
            Self::Among(_) | Self::AtLeast { .. } => "integer",
        }
    }

    pub fn contains(&self, value: &Param) -> bool {
        match (self, value) {
            (Self::Among(values), value) => values.contains(value),
            (Self::AtLeast { least, .. }, Param::Int(value)) => value >= least,
            (Self::AtLeast { .. }, Param::Text(_)) => false,
        }
    }

    /// As [`Self::contains`], where a number and a text that read alike are equal.
    pub fn contains_alike(&self, value: &Param) -> bool {
        let read = value.to_string();
        match self {
            Self::Among(values) => values.iter().any(|known| known.to_string() == read),
            Self::AtLeast { .. } => {
                self.contains(value)
                    || read.parse().is_ok_and(|value| self.contains(&Param::Int(value)))
            }
        }
    }

    /// The values for a message.
    pub fn said(&self) -> Vec<String> {
        match self {
            Self::Among(values) => values.iter().map(Param::to_string).collect(),
            Self::AtLeast { least, most } => vec![format!("{least} to {most}")],
        }
    }
}

impl FamilyDescriptor {
    /// The family name that candidates of the kernel carry.
    pub fn family(&self) -> &'static str {
        self.stored.last().map_or(VENDOR, |form| form.family)
    }

    /// Whether candidates of the kernel carry or carried this family name.
    pub fn has_name(&self, family: &str) -> bool {
        self.stored.iter().any(|form| form.family == family)
    }

    /// The publication it follows, or whose it is.
    pub fn origin(&self) -> &'static str {
        let plain = |form: &StoredForm| match form.distinction {
            Distinction::Routine(library) => library.own_name().is_some(),
            _ => false,
        };
        match (self.source, self.provider) {
            (Some(source), _) => source,
            (None, Provider::Own) => "our own",
            (None, Provider::Vendor) if self.stored.iter().any(plain) => "part of this program",
            (None, Provider::Vendor) => "the vendor's",
        }
    }

    /// Whether it is this program's own code.
    pub fn is_own(&self) -> bool {
        self.provider == Provider::Own
    }

    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// Whether a candidate stored by this or an earlier version, for the operation on that kind of device, is of this kernel.
    pub fn stores(&self, op: Op, device: DeviceKind, candidate: &Candidate) -> bool {
        let form = |form: &StoredForm| {
            form.family == candidate.family && form.distinction.holds(candidate)
        };
        self.op == op && self.device == device && self.stored.iter().any(form)
    }
}

/// All kernels of this version.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalogue {
    families: Vec<FamilyDescriptor>,
}

impl Catalogue {
    pub const fn new(families: Vec<FamilyDescriptor>) -> Self {
        Self { families }
    }

    /// Every kernel, those of one operation side by side.
    pub fn families(&self) -> &[FamilyDescriptor] {
        &self.families
    }

    /// The kernels of an operation.
    pub fn of(&self, op: Op) -> impl Iterator<Item = &FamilyDescriptor> {
        self.families.iter().filter(move |family| family.op == op)
    }

    pub fn get(&self, id: &str) -> Option<&FamilyDescriptor> {
        self.families.iter().find(|family| family.id.0 == id)
    }

    /// The kernel of a candidate that this or an earlier version stored; `None` where no kernel is known by what it carries.
    pub fn resolve(
        &self,
        op: Op,
        device: DeviceKind,
        candidate: &Candidate,
    ) -> Option<&FamilyDescriptor> {
        self.families.iter().find(|family| family.stores(op, device, candidate))
    }
}
