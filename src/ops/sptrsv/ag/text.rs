//! The text of a scheme's program, and what its kernels are given.

use super::prepare::Sync;
use crate::domain::Dtype;
use crate::domain::recipe::Arg;
use crate::ops::program::{
    EntryPoint, Setting, aggregate, number, parameter, parameter_as, program, settings,
};

/// Name of the kernel whose tasks may wait for one another.
pub const WAITING: &str = "ag_waiting";

/// Modes that occur among the nodes of a launch, as `AgConfig::kModes` counts them.
pub const INDIVIDUAL: u32 = 1;
pub const COLLABORATIVE: u32 = 2;

/// Warps per block of a level's kernel. Nothing waits in it, so blocks may be many and small.
pub const LEVEL_WARPS: u32 = 8;

/// What determines the text of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Text {
    pub dtype: Dtype,
    pub sync: Sync,
    pub ng: u32,
    pub nw: u32,
    /// Modes of the waiting launches and of the launches of single levels; 0 if there is no such launch.
    pub waiting_modes: u32,
    pub level_modes: u32,
    /// Whether some group is read through shared memory.
    pub staged: bool,
    /// Whether the division is done before the wait.
    pub early: bool,
}

/// Operands of a launch that depend on the matrix; the default serves if only the text is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    pub rows: u32,
    /// Whether the system is permuted by level: the permuted system is then array 2 and those after it.
    pub permuted: bool,
    /// Whether row s of the system is row `rows - 1 - s` of the matrix.
    pub reversed: bool,
    /// Whether some node publishes, so that there are work arrays.
    pub publishes: bool,
    /// Where the launch's queues begin among all queues.
    pub queue: u32,
    /// Warps of the launch.
    pub warps: u32,
    /// Rows of the largest node; 0 if every node has one row.
    pub span: u32,
    /// Entries of a warp's buffer.
    pub stage: u32,
}

/// The two kinds of launches: tasks that may wait for one another, and tasks of a single level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Waiting,
    Level,
}

/// The program's text: one instance for each kind of launch that occurs.
pub fn source(text: &Text) -> String {
    let kinds = [(Kind::Waiting, text.waiting_modes), (Kind::Level, text.level_modes)];
    let (mut definitions, mut kernels) = (String::new(), Vec::new());
    for (kind, _) in kinds.into_iter().filter(|(_, modes)| *modes != 0) {
        definitions += &text.settings(kind);
        kernels.push(text.kernel(kind, Bound::default()));
    }
    program(&["sptrsv/ag.cuh"], &definitions, &kernels)
}

impl Text {
    /// The kernel for launches of one kind.
    pub fn kernel(&self, kind: Kind, bound: Bound) -> EntryPoint {
        let settings = kind.settings();
        let value = self.value();
        let values = format!("const {value}*");
        let either = |at, operand| if bound.permuted { Arg::Array(at) } else { operand };
        let [work, other, epoch] = match self.sync {
            _ if !bound.publishes => [Arg::NULL, Arg::NULL, Arg::U32(0)],
            Sync::Sentinel => {
                [Arg::Turn { even: 0, odd: 1 }, Arg::Turn { even: 1, odd: 0 }, Arg::U32(0)]
            }
            Sync::Packed => [Arg::Scratch(0), Arg::NULL, Arg::Epoch],
        };
        // Typed only in the call: with typed parameters the compiler would choose other registers.
        let slots = |name, argument| {
            let passed = format!("static_cast<{settings}::Sync::Slot*>({name})");
            parameter_as("void*", name, argument, passed)
        };
        let arguments = vec![
            parameter("const u32*", "row_ptr", either(2, Arg::RowPtr)),
            parameter("const u32*", "cols", either(3, Arg::ColIdx)),
            parameter(&values, "vals", either(4, Arg::Values)),
            parameter(&values, "diagonal", either(5, Arg::Diagonal)),
            parameter(&values, "b", Arg::B),
            parameter(format!("{value}*"), "x", Arg::C),
            parameter("const u32*", "rows_of", either(6, Arg::NULL)),
            parameter("const uint2*", "tasks", Arg::Array(0)),
            parameter_as("const u32*", "queue_ptr", Arg::Array(1), "queue_ptr + queue"),
            slots("work", work),
            slots("other", other),
            parameter("u32", "epoch", epoch),
            number("rows", bound.rows),
            number("reversed", u32::from(bound.reversed)),
            parameter_as("u32", "queue", Arg::U32(bound.queue), ""),
            number("warps", bound.warps),
            number("span", bound.span),
            number("stage", bound.stage),
        ];
        let operands = vec![
            aggregate(format!("AgArguments<AgConfig<{settings}>>"), arguments),
            parameter("u64", "deadline_ns", Arg::DeadlineNs),
            parameter("u32*", "status", Arg::Status),
        ];
        let (threads, blocks) = self.launch_bounds(kind);
        EntryPoint {
            name: if kind == Kind::Waiting { WAITING } else { "ag_level" },
            launch_bounds: Some(format!("{threads}, {blocks}")),
            cluster: 1,
            function: format!("ag<AgConfig<{settings}>>"),
            operands,
        }
    }

    fn value(&self) -> &'static str {
        if self.dtype == Dtype::F64 { "double" } else { "float" }
    }

    /// Threads per block, and the blocks per multiprocessor that the registers must leave room for.
    fn launch_bounds(&self, kind: Kind) -> (u32, u32) {
        match kind {
            // 32 warps per block leave 64 registers per thread; with half of them the registers of a multiprocessor suffice.
            Kind::Waiting => (if self.nw > 16 { 1024 } else { 512 }, 1),
            Kind::Level => (LEVEL_WARPS * 32, 4),
        }
    }

    /// The settings of the kernel for launches of one kind.
    fn settings(&self, kind: Kind) -> String {
        let (value, (threads, blocks)) = (self.value(), self.launch_bounds(kind));
        let sync = match (self.sync, value) {
            (Sync::Sentinel, "double") => "Sentinel<double>",
            (Sync::Sentinel, _) => "Sentinel<float>",
            (Sync::Packed, "double") => "Packed<double>",
            (Sync::Packed, _) => "Packed<float>",
        };
        let modes = match kind {
            Kind::Waiting => self.waiting_modes,
            Kind::Level => self.level_modes,
        };
        let members = [
            ("Value", Setting::Type(value)),
            ("Sync", Setting::Type(sync)),
            ("kNg", self.ng.into()),
            ("kWaits", (kind == Kind::Waiting).into()),
            ("kModes", modes.into()),
            ("kStages", self.staged.into()),
            ("kEarly", self.early.into()),
            ("kTight", (threads * blocks > 512).into()),
        ];
        settings(kind.settings(), &members)
    }
}

impl Kind {
    /// Name of the settings of its kernel.
    fn settings(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Level => "Level",
        }
    }
}
