//! The text of a scheme's program, and the operands of its kernels.

use super::scheme::{Columns, Scheme, Scope, Sync, Take};
use crate::domain::recipe::Arg;
use crate::domain::{Dtype, Sptrsv};
use crate::ops::program::{
    EntryPoint, Operand, Setting, aggregate, number, parameter, program, settings,
};

/// Most warps per block; a multiprocessor with more warps has several blocks.
pub const WARPS_A_BLOCK: u32 = 16;

/// Threads of a block of the kernel that computes the residual: `kResidualThreads` of `kernels/sptrsv/refine.cuh`.
pub const RESIDUAL_THREADS: u32 = 256;

/// Most entry lanes of a row of the residual. Rows of systems that are solved level by level are short.
const RESIDUAL_LANES: u32 = 8;

/// Steps of terms in b that a warp copies of its next slice: an equation that is not rewritten has one.
const KNOWN_STEPS: u32 = 2;

/// Name of the settings of the kernel that computes the residual.
const RESIDUAL: &str = "OfResidual";

/// Which solve of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// For b: the only one without refinement.
    First,
    /// For the residual; the solution is added to x.
    Again,
}

impl Pass {
    /// Names of the kernel that waits and of its settings.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::First => ("solve", "Solve"),
            Self::Again => ("solve_again", "SolveAgain"),
        }
    }

    /// Names of the kernel for one window, which does not need to wait, and of its settings.
    const fn names_of_window(self) -> (&'static str, &'static str) {
        match self {
            Self::First => ("solve_window", "SolveWindow"),
            Self::Again => ("solve_window_again", "SolveWindowAgain"),
        }
    }
}

/// What a launch works on; the default serves if only the text is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range {
    /// The first slice, and the one behind the last.
    pub first: u32,
    pub end: u32,
    /// Unknowns and partial sums of the whole system.
    pub slots: u32,
}

/// The kernels of one scheme for one problem.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    pub scheme: &'a Scheme,
    pub problem: &'a Sptrsv,
}

/// The text that the compiler sees. The matrix is data, so one text serves all matrices of a problem.
pub fn source(scheme: &Scheme, problem: &Sptrsv) -> String {
    let text = Text { scheme, problem };
    let range = Range::default();
    let (mut definitions, mut kernels) = (String::new(), Vec::new());
    for &pass in scheme.passes() {
        let (_, settings) = pass.names();
        match scheme.scope {
            Scope::Shared { blocks } => {
                definitions += &text.settings(settings, Take::Spread, true, pass);
                kernels.push(text.shared(blocks, pass, range));
            }
            Scope::Global => {
                definitions += &text.settings(settings, scheme.take, true, pass);
                kernels.push(text.waiting(pass, range));
                if scheme.alpha > 0 {
                    let (_, settings) = pass.names_of_window();
                    definitions += &text.settings(settings, Take::Block, false, pass);
                    kernels.push(text.window(pass, range));
                }
            }
        }
    }
    let mut headers = vec!["sptrsv/slices.cuh"];
    if scheme.rewrite.refine {
        headers.push("sptrsv/refine.cuh");
        definitions += &text.residual_settings();
        kernels.push(text.residual(0, false));
    }
    program(&headers, &definitions, &kernels)
}
impl Text<'_> {
    /// The kernel of a cluster of `blocks` blocks that keeps its unknowns in shared memory.
    pub fn shared(&self, blocks: u32, pass: Pass, range: Range) -> EntryPoint {
        let (name, settings) = pass.names();
        let operands = vec![
            self.slices(pass, range),
            number("slots", range.slots),
            parameter("u64", "deadline_ns", Arg::DeadlineNs),
            parameter("u32*", "status", Arg::Status),
        ];
        let function = format!("slices_shared<SlicesConfig<{settings}>, {blocks}>");
        EntryPoint { name, launch_bounds: None, cluster: blocks, function, operands }
    }

    /// The kernel whose warps wait for unknowns in global memory.
    pub fn waiting(&self, pass: Pass, range: Range) -> EntryPoint {
        self.global(pass.names(), pass, range)
    }

    /// Bytes of shared memory of a warp that copies its next slice's terms: `Ahead::kBytes` of `kernels/sptrsv/slice.cuh`.
    pub fn copied_bytes(&self) -> u32 {
        let entry = 4 + self.value_bytes();
        (KNOWN_STEPS + self.unroll()) * 32 * entry
    }

    /// Steps whose terms are in flight at once. Two right-hand sides per lane are two loads per step.
    fn unroll(&self) -> u32 {
        self.scheme.unroll / Columns::of(self.problem.rhs).a_lane
    }

    /// The kernel for one window, which does not need to wait.
    pub fn window(&self, pass: Pass, range: Range) -> EntryPoint {
        self.global(pass.names_of_window(), pass, range)
    }

    fn global(
        &self,
        (name, settings): (&'static str, &str),
        pass: Pass,
        range: Range,
    ) -> EntryPoint {
        let [work, other, epoch] = match self.scheme.sync {
            // Each solve of a refined call clears what the other one fills, so that nothing alternates from call to call.
            Sync::Sentinel if self.scheme.rewrite.refine => {
                let own = usize::from(pass == Pass::Again);
                [Arg::Scratch(own), Arg::Scratch(1 - own), Arg::U32(0)]
            }
            Sync::Sentinel => {
                [Arg::Turn { even: 0, odd: 1 }, Arg::Turn { even: 1, odd: 0 }, Arg::U32(0)]
            }
            // Never reset, so there is no second array.
            Sync::Packed => [Arg::Scratch(0), Arg::NULL, Arg::Epoch],
        };
        let [ticket, other_ticket] = match self.scheme.take {
            Take::Ticket => {
                let even = self.work_arrays();
                let odd = even + 1;
                [Arg::Turn { even, odd }, Arg::Turn { even: odd, odd: even }]
            }
            Take::Block | Take::Spread => [Arg::NULL; 2],
        };
        let slot = format!("{settings}::Sync::Slot*");
        let operands = vec![
            self.slices(pass, range),
            parameter(&slot, "work", work),
            parameter(&slot, "other", other),
            parameter("u32", "epoch", epoch),
            parameter("u32*", "ticket", ticket),
            parameter("u32*", "other_ticket", other_ticket),
            parameter("u64", "deadline_ns", Arg::DeadlineNs),
            parameter("u32*", "status", Arg::Status),
        ];
        let function = format!("slices_global<SlicesConfig<{settings}>>");
        // Copying takes a few registers more than 64, which are as many as 32 warps leave each thread.
        let full = self.scheme.ahead && self.scheme.warps > WARPS_A_BLOCK;
        let bounds = format!("{}, {}", WARPS_A_BLOCK * 32, self.scheme.warps / WARPS_A_BLOCK);
        EntryPoint { name, launch_bounds: full.then_some(bounds), cluster: 1, function, operands }
    }

    /// The kernel that computes the residual of a system of `rows` rows.
    pub fn residual(&self, rows: u32, reversed: bool) -> EntryPoint {
        let value = self.value();
        let values = || format!("const {value}*");
        let left = Arg::Scratch(self.residual_array());
        let operands = vec![
            parameter("const u32*", "row_ptr", Arg::RowPtr),
            parameter("const u32*", "cols", Arg::ColIdx),
            parameter(values(), "vals", Arg::Values),
            parameter(values(), "diagonal", Arg::Diagonal),
            parameter(values(), "b", Arg::B),
            parameter(values(), "x", Arg::C),
            parameter(format!("{value}*"), "left", left),
            number("rows", rows),
            number("reversed", reversed.into()),
            number("rhs", self.problem.rhs),
        ];
        EntryPoint {
            name: "residual_of",
            launch_bounds: Some(RESIDUAL_THREADS.to_string()),
            cluster: 1,
            function: format!("residual<ResidualConfig<{RESIDUAL}>>"),
            operands: vec![aggregate(format!("Residual<{value}>"), operands)],
        }
    }

    /// Rows of a block of that kernel.
    pub fn residual_rows(&self) -> u32 {
        RESIDUAL_THREADS / (self.residual_lanes() * Columns::of(self.problem.rhs).lanes)
    }

    fn residual_lanes(&self) -> u32 {
        RESIDUAL_LANES.min(Columns::of(self.problem.rhs).width())
    }

    fn residual_settings(&self) -> String {
        let Columns { lanes, a_lane } = Columns::of(self.problem.rhs);
        let members = [
            ("Value", Setting::Type(self.value())),
            ("kLanes", self.residual_lanes().into()),
            ("kRhsLanes", lanes.into()),
            ("kColumns", a_lane.into()),
        ];
        settings(RESIDUAL, &members)
    }

    /// Where the residual is in scratch memory: behind the work arrays, if those are not in shared memory.
    fn residual_array(&self) -> usize {
        match self.scheme.scope {
            Scope::Global => self.work_arrays(),
            Scope::Shared { .. } => 0,
        }
    }

    /// Work arrays in scratch; the tickets' counters follow them.
    pub fn work_arrays(&self) -> usize {
        match self.scheme.sync {
            Sync::Sentinel => 2,
            Sync::Packed => 1,
        }
    }

    fn value_bytes(&self) -> u32 {
        if self.problem.dtype == Dtype::F64 { 8 } else { 4 }
    }

    fn value(&self) -> &'static str {
        if self.problem.dtype == Dtype::F64 { "double" } else { "float" }
    }

    fn slices(&self, pass: Pass, range: Range) -> Operand {
        let value = self.value();
        let b = match pass {
            Pass::First => Arg::B,
            Pass::Again => Arg::Scratch(self.residual_array()),
        };
        aggregate(
            format!("Slices<{value}>"),
            vec![
                parameter("const uint4*", "meta", Arg::Array(0)),
                parameter("const u32*", "cols", Arg::Array(1)),
                parameter(format!("const {value}*"), "vals", Arg::Array(2)),
                parameter("const int*", "rows", Arg::Array(3)),
                parameter(format!("const {value}*"), "b", b),
                parameter(format!("{value}*"), "x", Arg::C),
                number("first", range.first),
                number("end", range.end),
                number("rhs", self.problem.rhs),
            ],
        )
    }

    /// The settings `name` of a kernel.
    fn settings(&self, name: &str, take: Take, waits: bool, pass: Pass) -> String {
        let value = self.value();
        let sync = match (self.scheme.sync, value) {
            (Sync::Sentinel, "double") => "Sentinel<double>",
            (Sync::Sentinel, _) => "Sentinel<float>",
            (Sync::Packed, "double") => "Packed<double>",
            (Sync::Packed, _) => "Packed<float>",
        };
        let take = match take {
            Take::Block => "kBlock",
            Take::Spread => "kSpread",
            Take::Ticket => "kTicket",
        };
        let Columns { lanes, a_lane } = Columns::of(self.problem.rhs);
        let members = [
            ("Value", Setting::Type(value)),
            ("Sync", Setting::Type(sync)),
            ("kRhsLanes", lanes.into()),
            ("kColumns", a_lane.into()),
            ("kUnroll", self.unroll().into()),
            ("kTake", Setting::Enumerator("Take", take)),
            ("kWaits", waits.into()),
            ("kPause", self.scheme.pause.into()),
            ("kAdds", (pass == Pass::Again).into()),
            ("kAhead", (self.scheme.ahead && waits).into()),
            ("kKnown", KNOWN_STEPS.into()),
        ];
        settings(name, &members)
    }
}
