//! The space of the `inverse` family: every scheme counted, and of those that suffice the ones worth trying, each with a time.

use super::compute::{Denied, Inverse, VISITS};
use super::pattern::MOST_ENTRIES;
use super::scheme::{FAMILY, LANES, Map, POWERS, STEPS, Scheme};
use crate::domain::{Candidate, Dtype, Fixed, Param, Removal, funnel};
use crate::ops::sptrsv::approximate::{Tried, asked, lacking, lanes, launch_us};
use crate::ops::sptrsv::{Share, System};
use crate::search::Draw;
use crate::search::domain::Domain;
use crate::sparse::Triangular;

/// For each number of steps the least power that suffices is listed, and the next.
const LISTED: usize = 2;

/// The parameters with their values, in the order in which they vary.
pub fn domains() -> Vec<Domain> {
    vec![
        Domain::ints("power", &POWERS),
        Domain::ints("steps", &STEPS),
        Domain::ints("lanes", &LANES),
    ]
}

/// Schemes of the whole product with the fixed parameter values.
pub fn admitted(fixed: &Fixed) -> u64 {
    Scheme::every().iter().filter(|scheme| fixed.admits(&scheme.candidate())).count() as u64
}

fn nothing(rules: Vec<String>, full: u64) -> Share {
    Share { family: FAMILY, full, rules, ..Share::default() }
}

/// The family's part of the space. `other` is the system of the other solve of a pair, which is to have the same power and steps.
pub fn share(system: &System, fixed: &Fixed, other: Option<&Triangular>) -> Share {
    let full = Scheme::every().len() as u64;
    if let Some(why) = lacking(system) {
        return nothing(vec![format!("{FAMILY}: {why}")], full);
    }
    let found = Found::of(&systems(system, other), system.problem.dtype, fixed);
    let mut scored: Vec<(Candidate, f64)> =
        found.listed(system).map(|(scheme, us)| (scheme.candidate(), us)).collect();
    scored.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    Share { scored, ..nothing(found.rules(fixed, other.is_some()), full) }
}

/// Schemes of the whole product that suffice, for both solves if there is a pair, with the fixed parameter values: drawn at random, each
/// with the rule that would have removed it.
pub fn whole(system: &System, fixed: &Fixed, other: Option<&Triangular>, draw: &Draw) -> Share {
    if lacking(system).is_some() {
        return nothing(Vec::new(), 0);
    }
    let found = Found::of(&systems(system, other), system.problem.dtype, fixed);
    let listed: Vec<(Scheme, f64)> = found.listed(system).collect();
    let schemes = found.enough.iter().flat_map(|enough| {
        LANES.map(|lanes| (Scheme { map: enough.map, lanes }, enough.us(system, lanes)))
    });
    let asked = |(scheme, _): &(Scheme, f64)| fixed.admits(&scheme.candidate());
    let running: Vec<(Scheme, f64)> = schemes.filter(asked).collect();
    let full = running.len() as u64;
    let mut share = nothing(Vec::new(), full);
    for number in draw.numbers(FAMILY, full).take(draw.most) {
        let (scheme, us) = running[number as usize];
        if !listed.iter().any(|(other, _)| *other == scheme) {
            share.despite.insert(scheme.candidate().id(), Removal::by(funnel::REDUCTION));
        }
        share.scored.push((scheme.candidate(), us));
    }
    share
}

fn systems<'a>(system: &'a System, other: Option<&'a Triangular>) -> Vec<&'a Triangular> {
    std::iter::once(&*system.triangular).chain(other).collect()
}

/// A map that satisfies the equations of all systems nearly enough.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Enough {
    map: Map,
    /// Entries of M of the first system, and of what it leaves.
    entries: [f64; 2],
    /// Entries of the longest row of either.
    longest: usize,
}

/// What each entry of a row beyond those that any row of M may have takes, microseconds of its lane: two loads from L2, one after the other,
/// for four of them at a time.
const LONG_US: f64 = 0.125;

impl Enough {
    fn us(&self, system: &System, lanes: u32) -> f64 {
        let [map, rest] = self.entries;
        let first = launch_us(system, map, 2.0, lanes);
        let beyond = self.longest.saturating_sub(MOST_ENTRIES) as f64 / f64::from(lanes);
        match self.map.steps {
            1 => first,
            _ => first + launch_us(system, rest, 3.0, lanes) + beyond * LONG_US,
        }
    }
}

/// What was found out about the powers of a system, or of both systems of a pair.
#[derive(Debug, Default, PartialEq)]
struct Found {
    enough: Vec<Enough>,
    /// The first powers for which there is nothing to be multiplied by, and why: for two steps, and for any.
    denied: Vec<(Map, Denied)>,
}

impl Found {
    /// Tries one power after the other, until there are enough of them for each number of steps or more hops change nothing.
    fn of(systems: &[&Triangular], dtype: Dtype, fixed: &Fixed) -> Self {
        let admits = |name, value: u32| match asked(fixed, FAMILY, name) {
            Some(Param::Int(asked)) => *asked == i64::from(value),
            Some(Param::Text(_)) => false,
            None => true,
        };
        let steps: Vec<u32> = STEPS.into_iter().filter(|it| admits("steps", *it)).collect();
        let Some(&(mut most)) = steps.last() else { return Self::default() };
        let tried: Vec<Tried> = systems.iter().map(|system| Tried::of(system)).collect();
        let mut found = Self::default();
        let (mut before, mut visits) = (None, VISITS);
        for power in POWERS.into_iter().filter(|it| admits("power", *it)) {
            let wanting = |steps: u32| steps <= most && found.with(steps).count() < LISTED;
            if !steps.iter().any(|&steps| wanting(steps)) {
                break;
            }
            let mut made = |map: Map| -> Result<Vec<Inverse>, (Map, Denied)> {
                let each = systems.iter();
                let each = each.map(|system| Inverse::counted(system, dtype, map, &mut visits));
                each.collect::<Result<_, _>>().map_err(|denied| (map, denied))
            };
            let all = made(Map { power, steps: most }).or_else(|(map, denied)| {
                found.denied.push((map, denied));
                // What M leaves of the identity may have many more entries than M.
                let once = denied == Denied::Entries && most > steps[0];
                if once {
                    most = steps[0];
                    made(Map { power, steps: most })
                        .inspect_err(|denied| found.denied.push(*denied))
                } else {
                    Err((map, denied))
                }
            });
            let Ok(all) = all else { break };
            let sizes: Vec<usize> = all.iter().map(|it| it.map.indices.len()).collect();
            if before.as_ref() == Some(&sizes) {
                break;
            }
            let mut near = [true; STEPS.len()];
            for ((inverse, system), tried) in all.iter().zip(systems).zip(&tried) {
                let (once, twice) = inverse.approximations(&tried.b);
                let enough = |x: &[f64]| tried.error(system, x) <= tried.bound;
                near[0] &= enough(&once);
                near[1] &= twice.is_some_and(|twice| enough(&twice));
            }
            for (steps, near) in STEPS.into_iter().zip(near) {
                if near && admits("steps", steps) {
                    let rest = all[0].rest.as_ref().map_or(0, |rest| rest.indices.len());
                    let entries = [all[0].map.indices.len() as f64, rest as f64];
                    let longest = all[0].longest();
                    found.enough.push(Enough { map: Map { power, steps }, entries, longest });
                }
            }
            before = Some(sizes);
        }
        found
    }

    fn with(&self, steps: u32) -> impl Iterator<Item = &Enough> {
        self.enough.iter().filter(move |enough| enough.map.steps == steps)
    }

    /// The reduced list with predicted microseconds.
    fn listed(&self, system: &System) -> impl Iterator<Item = (Scheme, f64)> {
        let all = STEPS.into_iter().flat_map(|steps| self.with(steps).take(LISTED));
        all.flat_map(|enough| {
            let lanes = lanes(&LANES, enough.entries[0], system.triangular.rows());
            let scheme = |lanes| (Scheme { map: enough.map, lanes }, enough.us(system, lanes));
            lanes.into_iter().map(scheme).collect::<Vec<_>>()
        })
    }

    /// What reduced the list, as sentences.
    fn rules(&self, fixed: &Fixed, paired: bool) -> Vec<String> {
        let whose = if paired { "both systems' equations" } else { "the system's equations" };
        let fixes: Vec<String> = ["power", "steps"]
            .iter()
            .filter_map(|name| Some(format!("{name}={}", asked(fixed, FAMILY, name)?)))
            .collect();
        let mut rules = vec![match (self.enough.is_empty(), fixes.is_empty()) {
            (true, true) => {
                format!(
                    "{FAMILY}: no approximate inverse was found to satisfy {whose} nearly enough"
                )
            }
            (true, false) => format!(
                "{FAMILY}: with {}, which the request fixes, none satisfied {whose} nearly enough",
                fixes.join(" and ")
            ),
            (false, _) => format!(
                "{FAMILY}: for each number of steps the least power that satisfied {whose} nearly enough for a right-hand side at random, \
                 and the next; lanes by the mean length of rows"
            ),
        }];
        if paired {
            rules.push(format!("{FAMILY}: what both solves of a pair can have in common"));
        }
        for (Map { power, steps }, denied) in &self.denied {
            // Two steps alone may have too many entries.
            let steps = match denied {
                Denied::Entries => format!(" with steps={steps}"),
                Denied::Visits | Denied::Range => String::new(),
            };
            rules.push(format!("{FAMILY}: no power of {power} or more{steps}: {denied}"));
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::problem::Triangle;
    use crate::domain::{Device, DeviceKind, Problem, Sptrsv};
    use crate::ops::{self, Narrowing, of};
    use crate::sparse::Csr;
    use crate::sparse::generate::Spec;
    use std::collections::BTreeSet;

    const NEAR: Sptrsv = Sptrsv { approximate: true, ..Sptrsv::PLAIN };

    fn system(matrix: &Csr, problem: &Sptrsv) -> System {
        let device = Device { kind: DeviceKind::Cuda, multiprocessors: 132, ..Device::NONE };
        System::of(matrix, problem, &device).unwrap()
    }

    fn generated(spec: &str) -> Csr {
        Spec::parse(spec).unwrap().generate().unwrap()
    }

    fn maps(share: &Share) -> Vec<(i64, i64)> {
        let of = |it: &Candidate| (it.int("steps").unwrap(), it.int("power").unwrap());
        let mut all: Vec<_> = share.scored.iter().map(|(candidate, _)| of(candidate)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn fixing(name: &str, value: i64) -> Fixed {
        Fixed([(name.to_owned(), Param::Int(value))].into())
    }

    #[test]
    fn the_least_powers_that_suffice_are_listed() {
        let system = system(&generated("ilu0_poisson2d:nx=40,ny=40,seed=1"), &NEAR);
        let none = Fixed::default();
        let found = share(&system, &none, None);
        assert_eq!(maps(&found), [(1, 2), (1, 3), (2, 1), (2, 2)]);
        assert!(found.scored.iter().all(|(_, us)| us.is_finite() && *us > 0.0));
        let asked = share(&system, &fixing("inverse.power", 8), None);
        assert_eq!(maps(&asked), [(1, 8), (2, 8)]);
        assert_eq!(maps(&share(&system, &fixing("steps", 2), None)), [(2, 1), (2, 2)]);
        let mut fixed = fixing("power", 1);
        fixed.0.insert("inverse.steps".to_owned(), Param::Int(1));
        let few = share(&system, &fixed, None);
        assert!(few.scored.is_empty());
        let why = few.rules.join("; ");
        assert!(
            why.contains("with power=1 and steps=1, which the request fixes, none satisfied"),
            "{why}"
        );
        let draw = Draw { most: 1000, seed: 1 };
        let all = whole(&system, &none, None, &draw);
        assert_eq!(all.full, all.scored.len() as u64);
        assert!(
            all.full > found.scored.len() as u64
                && all.despite.len() as u64 + found.scored.len() as u64 == all.full
        );
        let exact = self::system(&generated("banded:n=9,half=1"), &Sptrsv::PLAIN);
        assert!(share(&exact, &none, None).rules[0].contains("`approximate`"));
        assert_eq!(whole(&exact, &none, None, &draw).full, 0);
    }

    /// A system of which each row needs the one before it by nearly its whole diagonal is near nowhere.
    #[test]
    fn what_does_not_come_near_is_told() {
        let rows = 500;
        let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..rows as u32 {
            if row > 0 {
                indices.push(row - 1);
                values.push(-1.98);
            }
            indices.push(row);
            values.push(2.0);
            indptr.push(indices.len());
        }
        let matrix = Csr::new(rows, rows, indptr, indices, values).unwrap();
        let share = share(&system(&matrix, &NEAR), &Fixed::default(), None);
        assert!(share.scored.is_empty() && share.full > 0);
        let why = share.rules.join("; ");
        assert!(why.contains("no approximate inverse was found to satisfy"), "{why}");
    }

    /// Each of many rows needs one that needs many others, by little: two steps would be a product with nearly all of that row for each.
    #[test]
    fn where_two_steps_take_too_much_one_is_tried() {
        let (before, after) = (3000u32, 3000u32);
        let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..before + 1 + after {
            let others = if row < before {
                0..0
            } else if row == before {
                0..before
            } else {
                before..before + 1
            };
            values.extend(others.clone().map(|_| if row == before { 1e-5 } else { 0.2 }));
            values.push(1.0);
            indices.extend(others.chain([row]));
            indptr.push(indices.len());
        }
        let rows = indptr.len() - 1;
        let matrix = Csr::new(rows, rows, indptr, indices, values).unwrap();
        let share = share(&system(&matrix, &NEAR), &Fixed::default(), None);
        assert_eq!(maps(&share), [(1, 1)]);
        let why = share.rules.join("; ");
        assert!(why.contains("no power of 1 or more with steps=2: it would have"), "{why}");
    }

    #[test]
    fn a_pair_has_what_suffices_for_both() {
        let matrix = generated("ilu0_poisson2d:nx=40,ny=40,seed=1");
        let upper = Sptrsv { triangle: Triangle::Upper, ..NEAR };
        let [first, second] = [NEAR, upper].map(|problem| system(&matrix, &problem));
        let none = Fixed::default();
        let pair = share(&first, &none, Some(&second.triangular));
        let other = share(&second, &none, Some(&first.triangular));
        assert_eq!(maps(&pair), maps(&other));
        assert!(pair.rules.iter().any(|rule| rule.contains("both solves of a pair")));
        // A diagonal is solved by whatever suffices for the other.
        let diagonal = Triangular::of(&generated("banded:n=1600,half=0"), &NEAR).unwrap();
        assert_eq!(maps(&share(&first, &none, Some(&diagonal))), maps(&share(&first, &none, None)));
    }

    #[test]
    fn where_more_hops_change_nothing_none_are_tried() {
        let diagonal = system(&generated("banded:n=100,half=0"), &NEAR);
        assert_eq!(maps(&share(&diagonal, &Fixed::default(), None)), [(1, 1), (2, 1)]);
    }

    /// Beside sweeps, by the same consent. A pair lists what suffices for both solves.
    #[test]
    fn approximate_inverses_are_for_those_who_consent() {
        let matrix = generated("poisson2d:nx=40,ny=40,seed=1");
        let lower = NEAR;
        let upper = Sptrsv { triangle: Triangle::Upper, ..lower };
        let maps = |solve: Sptrsv, then: Option<Sptrsv>, kind| {
            let then = then.map(Problem::Sptrsv);
            let narrowing = Narrowing { then, ..Narrowing::default() };
            let problem = Problem::Sptrsv(solve);
            let space = of(&problem).space(&matrix, &ops::tests::device(kind), &narrowing).unwrap();
            let such = space.scored.iter().filter(|(candidate, _)| candidate.family == "inverse");
            such.map(|(it, _)| (it.int("power").unwrap(), it.int("steps").unwrap())).collect()
        };
        let of_pair: BTreeSet<_> = maps(lower, Some(upper), DeviceKind::Cuda);
        assert_eq!(maps(upper, Some(lower), DeviceKind::Cuda), of_pair);
        assert!(of_pair.iter().any(|it| it.1 == 1) && of_pair.iter().any(|it| it.1 == 2));
        let exact = Sptrsv { approximate: false, ..lower };
        assert!(maps(exact, None, DeviceKind::Cuda).is_empty());
        assert!(maps(lower, None, DeviceKind::Cpu).is_empty());
    }
}
