//! What every kernel must answer about itself, and the registry of all kernels.

use super::operation::OPERATIONS;
use crate::domain::catalog::family::{Catalogue, FamilyDescriptor, Parameter, Values};
use crate::domain::{Candidate, DeviceKind, Op, Problem};
use crate::search::domain::Domain;
use std::sync::LazyLock;

/// One kernel: our own for GPUs, our own for the host, or a vendor's. Every method is required, so that a new kernel has to
/// answer each question.
pub trait Family: Sync {
    /// The kernel as plain data; the registry calls this once.
    fn descriptor(&self) -> FamilyDescriptor;

    /// Whether this candidate multiplies padding by elements of the dense operand, so that an infinity there would spread.
    fn needs_finite_dense(&self, candidate: &Candidate) -> bool;

    fn keys(&self) -> Keys;

    /// Effort of deploying this candidate, which decides where speed does not: 0 for a vendor's routine, 1 for a kernel that
    /// takes the matrix as it is, more for each array it needs.
    fn complexity(&self, candidate: &Candidate) -> u32;
}

/// What a kernel's candidates have in common, as names of parameters, and where the kernel's text is.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// Parameters whose values determine the part of the lowering that candidates share. A search tries candidates that agree
    /// in them one after another, so that the shared part is made once.
    pub prepared_by: &'static [&'static str],
    /// Parameters that make up the main tile: rows, columns, and the threads that share them. Candidates that agree in them
    /// are variants of one kernel, and a ranked search spreads its trials over tiles.
    pub tiled_by: &'static [&'static str],
    /// Headers under `kernels/` that hold the kernel's text; empty if nothing is compiled at run time.
    pub headers: &'static [&'static str],
}

impl dyn Family {
    /// The family name with the values of the parameters that name the shared preparation.
    pub fn preparation(&self, candidate: &Candidate) -> String {
        named(candidate, self.keys().prepared_by)
    }

    /// The family name with the values of the parameters that make up the tile.
    pub fn variety(&self, candidate: &Candidate) -> String {
        named(candidate, self.keys().tiled_by)
    }

    /// Whether the kernel takes the matrix as it is, with nothing prepared or uploaded before the first call.
    pub fn needs_no_preparation(&self, candidate: &Candidate) -> bool {
        self.complexity(candidate) <= 1
    }
}

fn named(candidate: &Candidate, parameters: &[&str]) -> String {
    let values = parameters.iter().filter_map(|name| Some((name, candidate.params.get(*name)?)));
    values.fold(candidate.family.clone(), |text, (name, value)| format!("{text} {name}={value:?}"))
}

/// All kernels, each beside its descriptor.
struct Registry {
    catalogue: Catalogue,
    /// In the order of the catalogue.
    families: Vec<&'static dyn Family>,
}

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let families: Vec<&'static dyn Family> =
        OPERATIONS.iter().flat_map(|operation| operation.families()).collect();
    let descriptors = families.iter().map(|family| family.descriptor()).collect();
    Registry { catalogue: Catalogue::new(descriptors), families }
});

/// Every kernel as plain data.
pub fn catalog() -> &'static Catalogue {
    &REGISTRY.catalogue
}

/// The kernel of a candidate for an operation on a kind of device; `None` if no known kernel matches the candidate.
pub fn family(op: Op, device: DeviceKind, candidate: &Candidate) -> Option<&'static dyn Family> {
    let Registry { catalogue, families } = &*REGISTRY;
    let stores = |family: &FamilyDescriptor| family.stores(op, device, candidate);
    let at = catalogue.families().iter().position(stores)?;
    families.get(at).copied()
}

/// The kernels of an operation on a kind of device, queried by candidate. For a candidate without a known kernel the answers
/// are the safe ones: it shares nothing with others, needs a finite operand and is the hardest to deploy.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    pub op: Op,
    pub device: DeviceKind,
}

impl Kernels {
    pub const fn of(problem: &Problem, device: DeviceKind) -> Self {
        Self { op: problem.op(), device }
    }

    pub fn find(self, candidate: &Candidate) -> Option<&'static dyn Family> {
        family(self.op, self.device, candidate)
    }

    /// See [`Keys::prepared_by`].
    pub fn preparation(self, candidate: &Candidate) -> String {
        self.find(candidate).map_or_else(|| candidate.to_string(), |it| it.preparation(candidate))
    }

    /// See [`Keys::tiled_by`].
    pub fn variety(self, candidate: &Candidate) -> String {
        self.find(candidate).map_or_else(|| candidate.to_string(), |it| it.variety(candidate))
    }

    pub fn needs_no_preparation(self, candidate: &Candidate) -> bool {
        self.find(candidate).is_some_and(|family| family.needs_no_preparation(candidate))
    }

    pub fn complexity(self, candidate: &Candidate) -> u32 {
        self.find(candidate).map_or(u32::MAX, |family| family.complexity(candidate))
    }

    pub fn needs_finite_dense(self, candidate: &Candidate) -> bool {
        self.find(candidate).is_none_or(|family| family.needs_finite_dense(candidate))
    }
}

/// Whether the operation has a kernel of our own with this family name, on any device.
pub fn has_own_family(op: Op, name: &str) -> bool {
    catalog().of(op).any(|family| family.is_own() && family.has_name(name))
}

/// The family names of an operation on a kind of device, each once, that of the vendors' routines last.
pub fn family_names(op: Op, device: DeviceKind) -> Vec<&'static str> {
    let mut names = Vec::new();
    for family in catalog().of(op).filter(|family| family.device == device) {
        if !names.contains(&family.family()) {
            names.push(family.family());
        }
    }
    names
}

/// Family names with kernel text on a GPU, each with all the headers that hold it.
pub fn kernel_headers() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut names: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
    for (descriptor, family) in REGISTRY.catalogue.families().iter().zip(&REGISTRY.families) {
        let headers = family.keys().headers;
        match names.iter_mut().find(|(name, _)| *name == descriptor.family()) {
            _ if headers.is_empty() => {}
            Some((_, known)) => known.extend(headers),
            None => names.push((descriptor.family(), headers.to_vec())),
        }
    }
    names
}

/// The name of a parameter and its meaning, without a full stop.
pub type Meaning = (&'static str, &'static str);

/// Parameters from their domains and the phrases that explain them.
pub fn parameters(domains: &[Domain], phrases: &[Meaning]) -> Vec<Parameter> {
    let phrase = |name| phrases.iter().find(|(known, _)| *known == name).map_or("", |(_, it)| *it);
    let parameter = |domain: &Domain| Parameter {
        name: domain.name,
        values: Values::Among(domain.values.clone()),
        meaning: phrase(domain.name),
    };
    domains.iter().map(parameter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Param;
    use crate::domain::catalog::family::STORED_FORMS;
    use crate::ops::tests::everything;
    use std::collections::{BTreeSet, HashMap};

    #[test]
    fn every_kernel_is_described_whole() {
        let ids: BTreeSet<_> = catalog().families().iter().map(|family| family.id).collect();
        assert_eq!(ids.len(), catalog().families().len());
        for family in catalog().families() {
            let id = family.id;
            assert!(id.0.starts_with(&format!("{}.", family.op)), "{id}");
            assert!(!family.title.is_empty() && family.summary.ends_with('.'), "{id}");
            assert!(!family.stored.is_empty(), "{id}");
            assert!(family.stored.iter().all(|form| form.since <= STORED_FORMS), "{id}");
            for parameter in &family.parameters {
                let (name, meaning) = (parameter.name, parameter.meaning);
                assert!(!meaning.is_empty() && !meaning.ends_with('.'), "{id}: {name}");
            }
        }
    }

    #[test]
    fn every_listed_candidate_is_of_one_kernel_with_values_that_it_may_have() {
        let mut seen = HashMap::new();
        for (problem, kind, candidate) in everything() {
            let op = problem.op();
            let stores = |family: &&FamilyDescriptor| family.stores(op, kind, &candidate);
            let known: Vec<_> = catalog().families().iter().filter(stores).collect();
            assert_eq!(known.len(), 1, "{problem} {kind:?} {candidate}");
            *seen.entry(known[0].id).or_insert(0) += 1;
            // What only a request gives a scheme is listed for none, and only a scheme that refines, copies ahead, substitutes or
            // stages, a walk for a matrix of equal values or near columns, teams with rows in turn, and blocks that take heavy rows
            // say so.
            let listed = |name: &&str| match *name {
                crate::domain::candidate::WITHOUT => false,
                "refine" | "ahead" | "substitute" | "staged" | "equal" | "near" | "turns"
                | "heavy" => candidate.params.contains_key(*name),
                _ => true,
            };
            let names = known[0].parameters.iter().map(|known| known.name);
            let names: Vec<&str> = names.filter(listed).collect();
            assert_eq!(names.len(), candidate.params.len(), "{candidate}: {names:?}");
            for (name, value) in &candidate.params {
                let parameter = known[0].parameter(name);
                let fits = parameter.is_some_and(|known| known.values.contains(value));
                assert!(fits, "{candidate}: {name} {parameter:?}");
            }
        }
        for family in catalog().families() {
            assert!(seen.contains_key(&family.id), "no candidate is of {}", family.id);
        }
    }

    #[test]
    fn families_have_one_name_each() {
        let names = family_names(Op::Spmm, DeviceKind::Cpu);
        assert_eq!(names, ["row_panel", "row_split", "vendor"]);
        assert_eq!(
            family_names(Op::Sptrsv, DeviceKind::Cuda),
            ["slices", "overlapped", "chains", "streamed", "ag", "sweeps", "inverse", "vendor"]
        );
    }

    #[test]
    fn unknown_candidates_have_no_kernel() {
        let none = |op, kind, candidate: &Candidate| family(op, kind, candidate).is_none();
        let (gpu, host) = (DeviceKind::Cuda, DeviceKind::Cpu);
        for candidate in [
            Candidate::new("column_major"),
            Candidate::new("hostile").with_text("kind", "hang"),
            Candidate::new("vendor"),
            Candidate::new("vendor").with_text("algorithm", "cublas_sparse"),
            Candidate::new(""),
        ] {
            for op in Op::ALL {
                assert!(none(op, gpu, &candidate) && none(op, host, &candidate), "{candidate}");
            }
        }
        // Each is known, but not for this operation or device.
        assert!(none(Op::Spmm, gpu, &Candidate::new("slices")));
        assert!(none(Op::Sptrsv, gpu, &Candidate::new("serial")));
        let spsv = Candidate::new("vendor").with_text("algorithm", "spsv");
        assert!(none(Op::Spmm, gpu, &spsv) && !none(Op::Sptrsv, gpu, &spsv));
    }

    #[test]
    fn names_in_shipped_models_and_stored_plans_are_known() {
        let plan: crate::domain::Plan =
            serde_json::from_str(include_str!("../../tests/http/plan.json")).unwrap();
        let second = plan.runner_up.as_ref().map(|second| &second.candidate);
        for candidate in [&plan.candidate].into_iter().chain(second).chain(&plan.alternatives) {
            let kernel = family(plan.problem.op(), plan.device.kind, candidate);
            assert!(kernel.is_some(), "{candidate}");
        }
        for (op, model) in [
            (Op::Spmm, include_str!("../../config/models/h100-80gb-spmm.json")),
            (Op::Sptrsv, include_str!("../../config/models/h100-80gb-sptrsv.json")),
        ] {
            let model: serde_json::Value = serde_json::from_str(model).unwrap();
            let names = model["own"].as_array().unwrap().iter().filter_map(|name| name.as_str());
            let (mut families, mut parameters) = (0, 0);
            for name in names {
                if let Some(name) = name.strip_prefix("is_") {
                    families += 1;
                    assert!(catalog().of(op).any(|family| family.has_name(name)), "{name}");
                } else if let Some(name) = name.strip_prefix("parameter_") {
                    parameters += 1;
                    // The size that ends the values of `merge`.
                    let name = if name == "merge_size" { "merge" } else { name };
                    assert!(
                        catalog().of(op).any(|family| family.parameter(name).is_some()),
                        "{name}"
                    );
                }
            }
            assert!(families >= 6 && parameters > 10, "{op}: {families} {parameters}");
        }
    }

    #[test]
    fn orders_and_residues_are_variants_of_one_tile() {
        let of = |candidate: Candidate| {
            family(Op::Spmm, DeviceKind::Cuda, &candidate).unwrap().variety(&candidate)
        };
        for name in ["condensed_tc", "tiled"] {
            let tile = |columns| {
                Candidate::new(name).with("rows", 8).with("columns", columns).with("r", columns)
            };
            let variant = |order: &str, residue| {
                of(tile(64).with_text("order", order).with("residue", residue))
            };
            assert_eq!(variant("natural", 0), variant("length", 2));
            assert_ne!(variant("natural", 0), of(tile(32)));
        }
    }

    #[test]
    fn any_order_but_the_natural_one_is_prepared() {
        let of = |candidate: Candidate| {
            let family = family(Op::Spmm, DeviceKind::Cuda, &candidate).unwrap();
            family.needs_no_preparation(&candidate)
        };
        let row_split = || Candidate::new("row_split");
        assert!(of(row_split().with_text("order", "natural")) && of(row_split()));
        assert!(!of(row_split().with_text("order", "length")));
        assert!(!of(row_split().with_text("order", "similarity")));
    }

    #[test]
    fn values_have_one_type() {
        for parameter in catalog().families().iter().flat_map(|family| &family.parameters) {
            if let Values::Among(values) = &parameter.values {
                let texts = values.iter().filter(|value| matches!(value, Param::Text(_))).count();
                assert!(texts == 0 || texts == values.len(), "{}", parameter.name);
            }
        }
    }
}
