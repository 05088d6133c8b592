//! What a plan's time is held against, in the same words on every page.
//!
//! A bound is no limit: what stays in a cache, or goes through fewer levels than the system has, is faster.

use super::format::{micros, percent, times};
use crate::domain::plan::{Bound, Limit};

/// `copy bandwidth`: what the time is held against.
pub const fn name(bound: Bound) -> &'static str {
    match bound {
        Bound::Bytes => "copy bandwidth",
        Bound::Latency => "levels × hop",
        Bound::Flops => "arithmetic",
    }
}

/// The time by the bound, named for what it is: `at copy bandwidth`.
pub const fn time_name(bound: Bound) -> &'static str {
    match bound {
        Bound::Bytes => "at copy bandwidth",
        Bound::Latency => "levels × hop",
        Bound::Flops => "at the rate of arithmetic",
    }
}

/// `at copy bandwidth: 11.8 µs`.
pub fn timed(limit: &Limit) -> String {
    format!("{}: {}", time_name(limit.bound), micros(limit.us))
}

/// One line on what a bound is and what beats it.
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
        Bound::Flops => "Arithmetic: all operations at the highest rate of the device.",
    }
}

/// The lines for those bounds that occur, each once.
pub fn meanings(bounds: impl IntoIterator<Item = Bound>) -> Vec<&'static str> {
    let mut lines = Vec::new();
    for bound in bounds {
        if !lines.contains(&meaning(bound)) {
            lines.push(meaning(bound));
        }
    }
    lines
}

/// How a time compares with its bound: a figure, and words that go behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    pub figure: String,
    pub words: &'static str,
}

/// A share up to the bound; beyond it a factor, and what makes it possible: more than the whole is nobody's share.
pub fn reach(limit: &Limit) -> Reach {
    // What rounds to the whole is the whole.
    let beyond = limit.fraction >= 1.005;
    let figure = if beyond { times(limit.fraction) } else { percent(limit.fraction) };
    let words = match (limit.bound, beyond) {
        (Bound::Bytes, false) => "of copy bandwidth",
        (Bound::Bytes, true) => "copy bandwidth: stays in cache",
        (Bound::Latency, false) => "of the speed level by level",
        (Bound::Latency, true) => "faster than level by level",
        (Bound::Flops, false) => "of the rate of arithmetic",
        (Bound::Flops, true) => "the rate of arithmetic",
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
    fn no_share_is_more_than_the_whole() {
        let said = |bound, fraction| {
            let reach = reach(&limit(bound, fraction));
            format!("{} {}", reach.figure, reach.words)
        };
        assert_eq!(said(Bound::Bytes, 0.72), "72 % of copy bandwidth");
        assert_eq!(said(Bound::Bytes, 1.004), "100 % of copy bandwidth");
        assert_eq!(said(Bound::Bytes, 1.4), "1.40× copy bandwidth: stays in cache");
        assert_eq!(said(Bound::Latency, 0.57), "57 % of the speed level by level");
        assert_eq!(said(Bound::Latency, 3.32), "3.32× faster than level by level");
    }

    #[test]
    fn a_bound_goes_by_its_name() {
        assert_eq!(timed(&limit(Bound::Bytes, 0.5)), "at copy bandwidth: 11.8 µs");
        assert_eq!(timed(&limit(Bound::Latency, 0.5)), "levels × hop: 11.8 µs");
        let lines = meanings([Bound::Bytes, Bound::Latency, Bound::Bytes]);
        assert_eq!(lines.len(), 2);
    }
}
