//! The SpMM kernels of the host: the same family names as on GPUs, in the tile sizes that the CPU engine is compiled for.

use super::family::RowOrder;
use super::family::count;
use super::phrases;
use super::shared::{Lowered, Shared};
use super::space::Listed;
use crate::domain::catalog::family::{
    Distinction, FamilyDescriptor, Flags, KernelId, Provider, StoredForm,
};
use crate::domain::recipe::{HostProgram, Program, Stores};
use crate::domain::{Candidate, DeviceKind, Op};
use crate::ops::family::{Family, Keys, parameters};
use crate::search::domain::{Domain, product};
use std::sync::LazyLock;

/// All SpMM kernels of the host, in the order in which they are enumerated.
pub static HOST_FAMILIES: &[&dyn HostFamily] = &[&HostRowPanels, &HostRowSplits];

/// The host kernels of a family. Its candidates are all combinations of the domains.
pub trait HostFamily: Family {
    /// The family name of its candidates.
    fn name(&self) -> &'static str;

    fn domains(&self) -> &'static [Domain];

    /// The lowered candidate; `None` if a parameter is missing or out of range.
    fn lower(&self, candidate: &Candidate, shared: &mut Shared) -> Option<Lowered>;
}

/// All candidates of the host, by family.
pub fn listed() -> Vec<Listed> {
    let whole = |family: &&dyn HostFamily| {
        let domains = family.domains();
        Listed { domains, candidates: product(family.name(), domains) }
    };
    HOST_FAMILIES.iter().map(whole).collect()
}

/// Lowers the candidate by the family that it names; `None` if there is none, or the candidate is not of that family.
pub fn lower(candidate: &Candidate, shared: &mut Shared) -> Option<Lowered> {
    let family = HOST_FAMILIES.iter().find(|family| family.name() == candidate.family)?;
    family.lower(candidate, shared)
}

/// Columns of C that tiles of several rows have.
const N1: [i64; 4] = [8, 16, 32, 64];

/// Columns of C that single rows are computed in.
const ROW_N1: [i64; 5] = [8, 16, 32, 64, 128];

/// How C is written.
const STORES: [&str; 2] = [Stores::Cached.name(), Stores::Streamed.name()];

/// How far ahead rows of B are asked for, in entries; the kernel takes any number.
const AHEAD: [i64; 2] = [0, 16];

/// How the candidate writes C. Those of earlier versions do not say: they wrote through the caches.
pub fn stores(candidate: &Candidate) -> Option<Stores> {
    match candidate.text("stores") {
        None if !candidate.params.contains_key("stores") => Some(Stores::Cached),
        name => [Stores::Cached, Stores::Streamed].into_iter().find(|it| Some(it.name()) == name),
    }
}

/// The order of the candidate's rows, which tiles of several rows take by length. Those of earlier versions do not say: they
/// took them as they are.
pub fn order(candidate: &Candidate) -> Option<RowOrder> {
    match candidate.text("order") {
        None if candidate.family == "row_panel" => Some(RowOrder::Length),
        None if !candidate.params.contains_key("order") => Some(RowOrder::Natural),
        name => ORDERS.into_iter().find(|it| Some(it.name()) == name),
    }
}

/// Orders in which single rows are computed.
const ORDERS: [RowOrder; 2] = [RowOrder::Natural, RowOrder::Locality];

/// The descriptor of a host kernel, without its texts and parameters.
fn host_family(id: &'static str, stored: &'static [StoredForm]) -> FamilyDescriptor {
    FamilyDescriptor {
        id: KernelId(id),
        op: Op::Spmm,
        device: DeviceKind::Cpu,
        provider: Provider::Own,
        title: "",
        summary: "",
        source: None,
        stored,
        parameters: Vec::new(),
        flags: Flags::default(),
    }
}

pub struct HostRowPanels;

impl HostFamily for HostRowPanels {
    fn name(&self) -> &'static str {
        "row_panel"
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("m1", &[1, 2, 4, 8]),
                Domain::ints("n1", &N1),
                Domain::texts("stores", &STORES),
            ]
        });
        &DOMAINS
    }

    fn lower(&self, candidate: &Candidate, shared: &mut Shared) -> Option<Lowered> {
        let (m1, n1) = (count(candidate, "m1")?, count(candidate, "n1")?);
        let (rows, ms) = shared.by_length();
        let arrays = vec![RowOrder::Length.array(rows)];
        let stores = stores(candidate)?;
        let program = Program::Host(HostProgram::RowPanel { m1, n1, stores });
        Some(Lowered { arrays, ms, ..Lowered::bare(program) })
    }
}

impl Family for HostRowPanels {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first("row_panel", Distinction::Alone)];
        FamilyDescriptor {
            title: "Row panels on the host",
            summary: "Rows of similar length are computed together, a tile of C in vector registers.",
            source: Some("LO-SpMM (TACO 2024), section 3"),
            parameters: parameters(
                self.domains(),
                &[("m1", "rows of a tile"), phrases::N1, phrases::STORES],
            ),
            ..host_family("spmm.host_row_panel", STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &["m1", "n1"], headers: &[] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

pub struct HostRowSplits;

impl HostFamily for HostRowSplits {
    fn name(&self) -> &'static str {
        "row_split"
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("n1", &ROW_N1),
                Domain::ints("rows_per_task", &[16, 64, 256, 1024]),
                Domain::ints("ahead", &AHEAD),
                Domain::texts("stores", &STORES),
                Domain::texts("order", &ORDERS.map(RowOrder::name)),
            ]
        });
        &DOMAINS
    }

    fn lower(&self, candidate: &Candidate, shared: &mut Shared) -> Option<Lowered> {
        let (n1, rows_per_task) = (count(candidate, "n1")?, count(candidate, "rows_per_task")?);
        let ahead = match candidate.params.contains_key("ahead") {
            true => u32::try_from(candidate.int("ahead")?).ok()?,
            false => 0,
        };
        let (order, stores) = (order(candidate)?, stores(candidate)?);
        let (rows, ms) = shared.ordered(order);
        let arrays = rows.map(|rows| order.array(rows)).into_iter().collect();
        let program = Program::Host(HostProgram::RowSplit { n1, rows_per_task, ahead, stores });
        Some(Lowered { arrays, ms, ..Lowered::bare(program) })
    }
}

impl Family for HostRowSplits {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first("row_split", Distinction::Alone)];
        let rows_per_task = ("rows_per_task", "rows that a thread takes at a time");
        let ahead = ("ahead", "entries by which rows of B are asked for ahead; 0 for not at all");
        FamilyDescriptor {
            title: "Row split on the host",
            summary: "Threads take tasks of consecutive rows and compute them one after the other.",
            parameters: parameters(
                self.domains(),
                &[phrases::N1, rows_per_task, ahead, phrases::STORES, phrases::ORDER],
            ),
            ..host_family("spmm.host_row_split", STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &["order"], tiled_by: &["n1"], headers: &[] }
    }

    fn complexity(&self, candidate: &Candidate) -> u32 {
        match order(candidate) {
            Some(RowOrder::Natural) => 1,
            _ => 3,
        }
    }
}
