//! The text of a scheme's program, and the operands of its kernels.

use super::scheme::Scheme;
use crate::domain::Sptrsv;
use crate::domain::recipe::Arg;
use crate::ops::program::{EntryPoint, Setting, aggregate, number, parameter, program, settings};
use crate::ops::sptrsv::operands::value;

/// Where a launch is among those of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// No unknown was computed before.
    pub first: bool,
    /// x is written.
    pub last: bool,
}

impl Place {
    /// That of sweep `at` of `sweeps`.
    pub const fn of(at: u32, sweeps: u32) -> Self {
        Self { first: at == 0, last: at + 1 == sweeps }
    }

    /// Names of the kernel and of its settings.
    const fn names(self) -> (&'static str, &'static str) {
        match (self.first, self.last) {
            (true, true) => ("only_sweep", "Only"),
            (true, false) => ("first_sweep", "First"),
            (false, false) => ("sweep", "Inner"),
            (false, true) => ("last_sweep", "Last"),
        }
    }
}

/// What a launch works on; the default serves if only the text is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound {
    pub rows: u32,
    pub reversed: bool,
    /// The places in scratch memory of the unknowns before the sweep, and after it.
    pub before: usize,
    pub after: usize,
}

/// The program of a scheme: a kernel for each place that a launch of it has. The matrix is data, so one text serves all.
pub fn source(scheme: &Scheme, problem: &Sptrsv) -> String {
    let mut places: Vec<Place> = Vec::new();
    for at in 0..scheme.sweeps {
        let place = Place::of(at, scheme.sweeps);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let definitions: String = places.iter().map(|place| set(scheme, problem, *place)).collect();
    let kernels: Vec<EntryPoint> =
        places.iter().map(|place| kernel(scheme, problem, *place, Bound::default())).collect();
    program(&["sptrsv/sweeps.cuh"], &definitions, &kernels)
}

fn set(scheme: &Scheme, problem: &Sptrsv, place: Place) -> String {
    let members = [
        ("Value", Setting::Type(value(problem))),
        ("kLanes", scheme.lanes.into()),
        ("kRows", scheme.blocking.rows.into()),
        ("kInner", scheme.blocking.inner.into()),
        ("kFirst", place.first.into()),
        ("kLast", place.last.into()),
    ];
    settings(place.names().1, &members)
}

/// The kernel of a launch at this place.
pub fn kernel(scheme: &Scheme, problem: &Sptrsv, place: Place, bound: Bound) -> EntryPoint {
    let value = value(problem);
    let values = || format!("const {value}*");
    let (name, set) = place.names();
    let before = if place.first { Arg::NULL } else { Arg::Scratch(bound.before) };
    let after = if place.last { Arg::C } else { Arg::Scratch(bound.after) };
    let system = vec![
        parameter("const u32*", "row_ptr", Arg::RowPtr),
        parameter("const u32*", "cols", Arg::ColIdx),
        parameter(values(), "vals", Arg::Values),
        parameter(values(), "diagonal", Arg::Diagonal),
        parameter(values(), "b", Arg::B),
        parameter(values(), "before", before),
        parameter(format!("{value}*"), "after", after),
        number("rows", bound.rows),
        number("reversed", bound.reversed.into()),
    ];
    EntryPoint {
        name,
        launch_bounds: Some(scheme.threads().to_string()),
        cluster: 1,
        function: format!("sweeps<SweepsConfig<{set}>>"),
        operands: vec![aggregate(format!("Sweep<{value}>"), system)],
    }
}
