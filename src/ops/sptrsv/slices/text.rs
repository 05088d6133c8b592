//! The text of a scheme's program, and the operands of its kernels.

use super::scheme::{Columns, Scheme, Scope, Sync, Take};
use crate::domain::recipe::Arg;
use crate::domain::{Dtype, Sptrsv};
use crate::ops::program::{
    EntryPoint, Operand, Setting, aggregate, number, parameter, program, settings,
};

/// Names of the settings of the kernel that waits, and of the kernel for one window, which does not need to.
const SOLVE: &str = "Solve";
const SOLVE_WINDOW: &str = "SolveWindow";

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
    let header = &["sptrsv/slices.cuh"];
    match scheme.scope {
        Scope::Shared { blocks } => {
            let solve = text.settings(SOLVE, Take::Spread, true);
            program(header, &solve, &[text.shared(blocks, range)])
        }
        Scope::Global => {
            let mut definitions = text.settings(SOLVE, scheme.take, true);
            let mut kernels = vec![text.waiting(range)];
            if scheme.alpha > 0 {
                definitions += &text.settings(SOLVE_WINDOW, Take::Block, false);
                kernels.push(text.window(range));
            }
            program(header, &definitions, &kernels)
        }
    }
}

impl Text<'_> {
    /// The kernel of a cluster of `blocks` blocks that keeps its unknowns in shared memory.
    pub fn shared(&self, blocks: u32, range: Range) -> EntryPoint {
        let operands = vec![
            self.slices(range),
            number("slots", range.slots),
            parameter("u64", "deadline_ns", Arg::DeadlineNs),
            parameter("u32*", "status", Arg::Status),
        ];
        let function = format!("slices_shared<SlicesConfig<{SOLVE}>, {blocks}>");
        EntryPoint { name: "solve", launch_bounds: None, cluster: blocks, function, operands }
    }

    /// The kernel whose warps wait for unknowns in global memory.
    pub fn waiting(&self, range: Range) -> EntryPoint {
        self.global("solve", SOLVE, range)
    }

    /// The kernel for one window, which does not need to wait.
    pub fn window(&self, range: Range) -> EntryPoint {
        self.global("solve_window", SOLVE_WINDOW, range)
    }

    fn global(&self, name: &'static str, settings: &str, range: Range) -> EntryPoint {
        let [work, other, epoch] = match self.scheme.sync {
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
            self.slices(range),
            parameter(&slot, "work", work),
            parameter(&slot, "other", other),
            parameter("u32", "epoch", epoch),
            parameter("u32*", "ticket", ticket),
            parameter("u32*", "other_ticket", other_ticket),
            parameter("u64", "deadline_ns", Arg::DeadlineNs),
            parameter("u32*", "status", Arg::Status),
        ];
        let function = format!("slices_global<SlicesConfig<{settings}>>");
        EntryPoint { name, launch_bounds: None, cluster: 1, function, operands }
    }

    /// Work arrays in scratch; the tickets' counters follow them.
    pub fn work_arrays(&self) -> usize {
        match self.scheme.sync {
            Sync::Sentinel => 2,
            Sync::Packed => 1,
        }
    }

    fn value(&self) -> &'static str {
        if self.problem.dtype == Dtype::F64 { "double" } else { "float" }
    }

    fn slices(&self, range: Range) -> Operand {
        let value = self.value();
        aggregate(
            format!("Slices<{value}>"),
            vec![
                parameter("const uint4*", "meta", Arg::Array(0)),
                parameter("const u32*", "cols", Arg::Array(1)),
                parameter(format!("const {value}*"), "vals", Arg::Array(2)),
                parameter("const int*", "rows", Arg::Array(3)),
                parameter(format!("const {value}*"), "b", Arg::B),
                parameter(format!("{value}*"), "x", Arg::C),
                number("first", range.first),
                number("end", range.end),
                number("rhs", self.problem.rhs),
            ],
        )
    }

    /// The settings `name` of a kernel.
    fn settings(&self, name: &str, take: Take, waits: bool) -> String {
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
            // Two right-hand sides per lane are two loads per step.
            ("kUnroll", (self.scheme.unroll / a_lane).into()),
            ("kTake", Setting::Enumerator("Take", take)),
            ("kWaits", waits.into()),
            ("kPause", self.scheme.pause.into()),
        ];
        settings(name, &members)
    }
}
