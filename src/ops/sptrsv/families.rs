//! The kernels of SpTRSV: seven for GPUs, three for the host.

use super::{ag, chains, host, inverse, overlapped, slices, streamed, sweeps};
use crate::domain::catalog::family::{
    Distinction, FamilyDescriptor, Flags, KernelId, Parameter, Provider, StoredForm, Values,
};
use crate::domain::{Candidate, DeviceKind, Op};
use crate::ops::family::{Family, Keys, parameters};

/// All kernels of our own.
pub static OWN: [&dyn Family; 10] =
    [&Slices, &Overlapped, &Chained, &Streamed, &Ag, &Swept, &Inverted, &Serial, &Levels, &Merged];

/// The descriptor of a kernel of our own, without its texts and parameters.
const fn own_family(
    id: &'static str,
    device: DeviceKind,
    stored: &'static [StoredForm],
) -> FamilyDescriptor {
    FamilyDescriptor {
        id: KernelId(id),
        op: Op::Sptrsv,
        device,
        provider: Provider::Own,
        title: "",
        summary: "",
        source: None,
        stored,
        parameters: Vec::new(),
        flags: Flags {
            baseline: false,
            densifies: false,
            may_need_finite_dense: false,
            single_thread: false,
        },
    }
}

struct Slices;

impl Family for Slices {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(slices::scheme::FAMILY, Distinction::Alone)];
        let phrases = [
            (
                "window_ns",
                "assumed cost of a window of levels in nanoseconds; the higher it is, the more levels are rewritten away; 0 rewrites none",
            ),
            ("terms", "most terms of a rewritten equation"),
            (
                "refine",
                "whether the solution is refined: the residual is solved for, too, and added, which systems that amplify need where equations are rewritten",
            ),
            ("lanes", "lanes per equation; 0 chooses for each slice"),
            ("warps", "solving warps per multiprocessor"),
            ("unroll", "unknowns that a lane loads before it tests the first"),
            (
                "take",
                "how slices are assigned to warps: to neighbours in a block, across multiprocessors, or by an atomic ticket",
            ),
            (
                "sync",
                "how an unknown is marked as available: it differs from a sentinel, or an epoch is stored beside it",
            ),
            (
                "scope",
                "where unknowns are exchanged: global memory, or shared memory of one multiprocessor or cluster",
            ),
            ("pause", "whether a waiting thread sleeps between tests"),
            (
                "alpha",
                "windows with more slices per warp than this are launched separately; 0 makes one launch",
            ),
            (
                "ahead",
                "whether the first terms of a warp's next slice are copied to shared memory while it waits for the present one's",
            ),
        ];
        FamilyDescriptor {
            title: "Slices",
            summary: "Levels are rewritten away, and equations are split and packed into slices, the work of one warp.",
            parameters: parameters(&slices::space::domains(), &phrases),
            ..own_family("sptrsv.slices", DeviceKind::Cuda, STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &["window_ns", "terms", "refine", "lanes"],
            tiled_by: &["window_ns", "terms", "refine", "lanes", "warps"],
            headers: &["sptrsv/slices.cuh", "sptrsv/refine.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

struct Overlapped;

impl Family for Overlapped {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(overlapped::scheme::FAMILY, Distinction::Alone)];
        let phrases = [
            (
                "levels",
                "most levels of a window, through which a warp takes its rows without waiting",
            ),
            ("lanes", "lanes per row"),
            ("unroll", "terms of a lane; longer rows are summed in parts"),
            ("awaited", "unknowns of earlier windows that a lane awaits"),
            ("warps", "solving warps per multiprocessor"),
        ];
        FamilyDescriptor {
            title: "Overlapped windows",
            summary: "A warp solves a group of rows through several levels, and computes again what it needs of other groups' rows.",
            parameters: parameters(&overlapped::space::domains(), &phrases),
            ..own_family("sptrsv.overlapped", DeviceKind::Cuda, STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        let shape = &["levels", "lanes", "unroll", "awaited"];
        Keys { prepared_by: shape, tiled_by: shape, headers: &["sptrsv/overlapped.cuh"] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

struct Chained;

impl Family for Chained {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(chains::scheme::FAMILY, Distinction::Alone)];
        let phrases = [
            ("rows", "most rows of a chain, which one warp solves"),
            (
                "terms",
                "most values of a warp's panel, or the columns of two whole chains; the early columns of a larger one are summed by other warps",
            ),
            ("unroll", "columns of a panel that a lane has under way"),
            ("warps", "solving warps per multiprocessor"),
            (
                "substitute",
                "whether the rows of a chain are substituted in each other beforehand, so that none waits for another",
            ),
            (
                "staged",
                "whether panels of such chains are copied to shared memory a task ahead, `terms` values at once",
            ),
        ];
        FamilyDescriptor {
            title: "Chains",
            summary: "Rows of which each needs the one before it are solved by one warp, with one dense panel of what they need of others.",
            parameters: parameters(&chains::space::domains(), &phrases),
            ..own_family("sptrsv.chains", DeviceKind::Cuda, STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        let shape = &["rows", "terms", "substitute", "staged"];
        Keys {
            prepared_by: shape,
            tiled_by: shape,
            headers: &["sptrsv/chains.cuh", "sptrsv/staged.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

struct Streamed;

impl Family for Streamed {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(streamed::scheme::FAMILY, Distinction::Alone)];
        let phrases = [
            (
                "entries",
                "terms of a lane; a run of rows has at most 32 times as many, and longer rows are summed in parts",
            ),
            ("warps", "solving warps per multiprocessor"),
        ];
        FamilyDescriptor {
            title: "Streamed rows",
            summary: "A warp solves a run of neighbouring rows, whose terms lie one after the other, and adds their products in shared memory.",
            parameters: parameters(&streamed::space::domains(), &phrases),
            ..own_family("sptrsv.streamed", DeviceKind::Cuda, STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        let shape = &["entries"];
        Keys { prepared_by: shape, tiled_by: shape, headers: &["sptrsv/streamed.cuh"] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        2
    }
}

struct Ag;

impl Family for Ag {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(ag::FAMILY, Distinction::Alone)];
        let phrases = [
            (
                "nw",
                "warps per multiprocessor in launches that wait, in one block that has it for itself",
            ),
            ("ng", "nodes that a warp solves at a time"),
            ("sw_rnnz", "lanes share a row with more entries than this"),
            ("read", "whether lanes read the entries themselves or together into shared memory"),
            (
                "sync",
                "how an unknown is marked as available: it differs from a sentinel, or an epoch is stored beside it",
            ),
            ("merge", "how rows are merged into nodes"),
            ("reorder", "whether rows are first renumbered by level"),
            ("rg", "how the nodes of a level become groups"),
            ("ws", "how groups are assigned to warps"),
            (
                "alpha",
                "levels with more groups than this times the resident warps are launched separately",
            ),
            (
                "without",
                "a technique that is left out, to measure its worth; schemes of the search have none",
            ),
        ];
        FamilyDescriptor {
            title: "AG-SpTRSV",
            summary: "Rows are merged to nodes of the dependency graph, and nodes are grouped, scheduled to warps and \
                      cut into launches.",
            source: Some("AG-SpTRSV (TACO 2024), section 4"),
            parameters: parameters(&ag::select::domains(), &phrases),
            ..own_family("sptrsv.ag", DeviceKind::Cuda, STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &["merge", "reorder"],
            tiled_by: &["merge", "reorder"],
            headers: &["sptrsv/ag.cuh"],
        }
    }

    /// A schedule for the warps beside the groups.
    fn complexity(&self, _: &Candidate) -> u32 {
        4
    }
}

struct Swept;

impl Family for Swept {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(sweeps::scheme::FAMILY, Distinction::Alone)];
        let phrases = [
            ("sweeps", "launches, each of which computes every row from what its unknowns were"),
            ("inner", "sweeps among the rows of a block in each launch"),
            ("rows", "rows of a block"),
            ("lanes", "lanes per row"),
        ];
        FamilyDescriptor {
            title: "Sweeps",
            summary: "All rows are computed at once, again and again, without waiting: approximate, so only with `approximate`.",
            parameters: parameters(&sweeps::space::domains(), &phrases),
            ..own_family("sptrsv.sweeps", DeviceKind::Cuda, STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &["rows", "lanes"], headers: &["sptrsv/sweeps.cuh"] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        1
    }
}

struct Inverted;

impl Family for Inverted {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(inverse::scheme::FAMILY, Distinction::Alone)];
        let phrases = [
            (
                "power",
                "hops through entries of the triangle over which a row of the inverse reaches, as far as it has 64 entries",
            ),
            ("steps", "2 multiplies what the first product leaves of b, too, and adds"),
            ("lanes", "lanes per row"),
        ];
        FamilyDescriptor {
            title: "Approximate inverse",
            summary: "A product with a sparse matrix that is nearly the inverse, without waiting: approximate, so only with `approximate`.",
            source: Some(
                "Incomplete sparse approximate inverses (Parallel Computing 2018), section 2",
            ),
            parameters: parameters(&inverse::space::domains(), &phrases),
            ..own_family("sptrsv.inverse", DeviceKind::Cuda, STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        let shape = &["power", "steps"];
        Keys { prepared_by: shape, tiled_by: shape, headers: &["sptrsv/inverse.cuh"] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        2
    }
}

fn threads() -> Parameter {
    let most = "the threads of the device";
    Parameter {
        name: "threads",
        values: Values::AtLeast { least: 2, most },
        meaning: "threads of the host",
    }
}

struct Serial;

impl Family for Serial {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first("serial", Distinction::Alone)];
        let family = own_family("sptrsv.host_serial", DeviceKind::Cpu, STORED);
        FamilyDescriptor {
            title: "Serial",
            summary: "One thread solves row by row.",
            flags: Flags { single_thread: true, ..family.flags },
            ..family
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &[], headers: &[] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        1
    }
}

struct Levels;

impl Family for Levels {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first("levels", Distinction::Alone)];
        let phrases = [("narrow", "levels with fewer rows than this are left to one thread")];
        let narrow = parameters(&host::level_domains(), &phrases);
        FamilyDescriptor {
            title: "Level by level",
            summary: "The host's threads share each wide level and meet at a barrier after it.",
            parameters: [threads()].into_iter().chain(narrow).collect(),
            ..own_family("sptrsv.host_levels", DeviceKind::Cpu, STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &[], headers: &[] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        2
    }
}

struct Merged;

impl Family for Merged {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first("merged", Distinction::Alone)];
        let rows = parameters(&host::merged_domains(), &[("rows", "rows of a group")]);
        FamilyDescriptor {
            title: "Merged rows",
            summary: "The host's threads solve groups of rows, each of which waits for the groups that it needs.",
            parameters: [threads()].into_iter().chain(rows).collect(),
            ..own_family("sptrsv.host_merged", DeviceKind::Cpu, STORED)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &["rows"], headers: &[] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}
