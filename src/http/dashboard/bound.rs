//! The performance bound that a plan's time is compared with, in the same words on every page.
//!
//! A kernel can beat the bound if its data stays in a cache, or if it goes through fewer levels than the system has.

use super::format::{micros, percent, times};
use crate::domain::plan::{Bound, Limit};

/// Name of the bound, such as `copy bandwidth`.
pub const fn name(bound: Bound) -> &'static str {
    match bound {
        Bound::Bytes => "copy bandwidth",
        Bound::Latency => "levels × hop",
        Bound::Flops => "arithmetic",
    }
}

/// Label of the time that the bound implies, such as `at copy bandwidth`.
pub const fn time_name(bound: Bound) -> &'static str {
    match bound {
        Bound::Bytes => "at copy bandwidth",
        Bound::Latency => "levels × hop",
        Bound::Flops => "at peak arithmetic throughput",
    }
}

/// `at copy bandwidth: 11.8 µs`.
pub fn timed(limit: &Limit) -> String {
    format!("{}: {}", time_name(limit.bound), micros(limit.us))
}

/// One line that explains a bound and what can beat it.
pub const fn meaning(bound: Bound) -> &'static str {
    match bound {
        Bound::Bytes => {
            "Copy bandwidth: each input read once and each output written once, at the rate at which the device copies \
             memory. What stays in a cache between calls is faster."
        }
        Bound::Latency => {
            "Levels × hop: the levels of the system as given, one after the other, each the time in which a value gets to \
             another processor. A solver that rewrites levels away is faster."
        }
        Bound::Flops => "Arithmetic: all operations at the device's peak throughput.",
    }
}

/// The explanations of the bounds that occur, each once.
pub fn meanings(bounds: impl IntoIterator<Item = Bound>) -> Vec<&'static str> {
    let mut lines = Vec::new();
    for bound in bounds {
        if !lines.contains(&meaning(bound)) {
            lines.push(meaning(bound));
        }
    }
    lines
}

/// How a time compares with its bound: a figure and the words that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    pub figure: String,
    pub words: &'static str,
}

/// A percentage up to the bound; beyond it a factor, with the reason why that is possible.
pub fn reach(limit: &Limit) -> Reach {
    // Whatever rounds to 100 % counts as 100 %.
    let beyond = limit.fraction >= 1.005;
    let figure = if beyond { times(limit.fraction) } else { percent(limit.fraction) };
    let words = match (limit.bound, beyond) {
        (Bound::Bytes, false) => "of copy bandwidth",
        (Bound::Bytes, true) => "copy bandwidth: data stays in cache",
        (Bound::Latency, false) => "of level-by-level speed",
        (Bound::Latency, true) => "faster than level by level",
        (Bound::Flops, false) => "of peak arithmetic throughput",
        (Bound::Flops, true) => "peak arithmetic throughput",
    };
    Reach { figure, words }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(bound: Bound, fraction: f64) -> Limit {
        Limit { us: 11.8, bound, fraction, bytes: 1 }
    }

    #[test]
    fn beyond_the_bound_a_factor_replaces_the_percentage() {
        let said = |bound, fraction| {
            let reach = reach(&limit(bound, fraction));
            format!("{} {}", reach.figure, reach.words)
        };
        assert_eq!(said(Bound::Bytes, 0.72), "72 % of copy bandwidth");
        assert_eq!(said(Bound::Bytes, 1.004), "100 % of copy bandwidth");
        assert_eq!(said(Bound::Bytes, 1.4), "1.40× copy bandwidth: data stays in cache");
        assert_eq!(said(Bound::Latency, 0.57), "57 % of level-by-level speed");
        assert_eq!(said(Bound::Latency, 3.32), "3.32× faster than level by level");
    }

    #[test]
    fn bounds_are_named_and_explained_once() {
        assert_eq!(timed(&limit(Bound::Bytes, 0.5)), "at copy bandwidth: 11.8 µs");
        assert_eq!(timed(&limit(Bound::Latency, 0.5)), "levels × hop: 11.8 µs");
        let lines = meanings([Bound::Bytes, Bound::Latency, Bound::Bytes]);
        assert_eq!(lines.len(), 2);
    }
}
