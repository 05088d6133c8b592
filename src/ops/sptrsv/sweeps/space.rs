//! The space of the `sweeps` family: every scheme counted, and of those whose sweeps suffice the ones worth trying, each with a time.

use super::estimate::{Spent, VISITS, least_sweeps};
use super::scheme::{Blocking, FAMILY, INNER, LANES, ROWS, SWEEPS, Scheme};
use crate::domain::{Candidate, Fixed, Param, Removal, funnel};
use crate::ops::sptrsv::approximate::{asked, lacking, lanes, launch_us, waves};
use crate::ops::sptrsv::{Share, System};
use crate::search::Draw;
use crate::search::domain::Domain;
use crate::sparse::Triangular;

/// A further sweep among the rows of a block: two barriers' worth of waiting, and loads from L1.
const INNER_US: f64 = 0.6;

/// The parameters with their values, in the order in which they vary.
pub fn domains() -> Vec<Domain> {
    vec![
        Domain::ints("sweeps", &SWEEPS),
        Domain::ints("inner", &INNER),
        Domain::ints("rows", &ROWS),
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

/// The family's part of the space. `other` is the system of the other solve of a pair, which is to have the same sweeps.
pub fn share(system: &System, fixed: &Fixed, other: Option<&Triangular>) -> Share {
    let full = Scheme::every().len() as u64;
    if let Some(why) = lacking(system) {
        return nothing(vec![format!("{FAMILY}: {why}")], full);
    }
    let needs = Needs::of_pair(&system.triangular, other, fixed, VISITS);
    let listed = listed(system, fixed, &needs);
    let rules = needs.rules(fixed, &listed);
    let mut scored: Vec<(Candidate, f64)> =
        listed.iter().map(|scheme| (scheme.candidate(), us(scheme, system))).collect();
    scored.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    Share { scored, ..nothing(rules, full) }
}

/// Schemes of the whole product with the fixed parameter values, drawn at random, each with the rule that would have removed it. Those
/// of a pair are such as suffice for both solves.
pub fn whole(system: &System, fixed: &Fixed, other: Option<&Triangular>, draw: &Draw) -> Share {
    if lacking(system).is_some() {
        return nothing(Vec::new(), 0);
    }
    let needs = Needs::of_pair(&system.triangular, other, fixed, VISITS);
    let asked = |scheme: &Scheme| {
        (fixed.is_empty() || fixed.admits(&scheme.candidate()))
            && (other.is_none() || needs.satisfied_by(scheme))
    };
    let running: Vec<Scheme> = Scheme::every().into_iter().filter(asked).collect();
    let full = running.len() as u64;
    let drawn = draw.numbers(FAMILY, full).take(draw.most);
    let drawn: Vec<Scheme> = drawn.map(|number| running[number as usize]).collect();
    let listed = listed(system, fixed, &needs);
    let mut share = nothing(Vec::new(), full);
    for scheme in &drawn {
        if !listed.contains(scheme) {
            share.despite.insert(scheme.candidate().id(), Removal::by(funnel::REDUCTION));
        }
        share.scored.push((scheme.candidate(), us(scheme, system)));
    }
    share
}

/// The reduced list. A request that fixes the number of sweeps gets it if it suffices.
fn listed(system: &System, fixed: &Fixed, needs: &Needs) -> Vec<Scheme> {
    let counts = if asked(fixed, FAMILY, "sweeps").is_some() { SWEEPS.len() } else { 2 };
    let (entries, rows) = (system.triangular.nnz() as f64, system.triangular.rows());
    let lanes = lanes(&LANES, entries, rows);
    let mut all = Vec::new();
    for &(blocking, least) in &needs.least {
        let enough = SWEEPS.into_iter().filter(|&sweeps| sweeps >= least).take(counts);
        for sweeps in enough {
            for &lanes in &lanes {
                let scheme = Scheme { sweeps, blocking, lanes };
                // Blocks that are too large are no schemes.
                all.extend(Scheme::of(&scheme.candidate()));
            }
        }
    }
    all
}

/// How many sweeps a system needs, or both systems of a pair.
#[derive(Debug, PartialEq)]
struct Needs {
    /// For each way of cutting the rows in which some number suffices, the least.
    least: Vec<(Blocking, u32)>,
    /// Ways of cutting them that were not tried, since too many entries would have been visited.
    skipped: usize,
    paired: bool,
}

impl Needs {
    /// With another system, what suffices for both. Unless a request fixes the inner sweeps, a pair has none: blocks of its two solves
    /// begin at different ends of the matrix, so that they would make no symmetric map of b.
    fn of_pair(
        system: &Triangular,
        other: Option<&Triangular>,
        fixed: &Fixed,
        visits: u64,
    ) -> Self {
        let most_inner =
            if other.is_some() && asked(fixed, FAMILY, "inner").is_none() { 1 } else { u32::MAX };
        let mut needs = Self::of(system, most_inner, visits);
        if let Some(other) = other {
            needs.paired = true;
            let second = Self::of(other, most_inner, visits);
            let both = |&(blocking, first): &(Blocking, u32)| {
                let second = second.least.iter().find(|(of, _)| *of == blocking)?;
                Some((blocking, first.max(second.1)))
            };
            needs.least = needs.least.iter().filter_map(both).collect();
            needs.skipped = needs.skipped.max(second.skipped);
        }
        needs
    }

    /// Tries blocks with fewer inner sweeps first, and smaller ones: what costs the least, since these are the only entries that are
    /// visited again.
    fn of(system: &Triangular, most_inner: u32, mut visits: u64) -> Self {
        let mut needs = Self { least: Vec::new(), skipped: 0, paired: false };
        // Without inner sweeps, blocks of any size compute the same.
        let mut alone = None;
        for inner in INNER.into_iter().filter(|&inner| inner <= most_inner) {
            for rows in ROWS {
                let blocking = Blocking { rows, inner };
                let found = match alone {
                    Some(known) if inner == 1 => known,
                    _ if visits == 0 => Err(Spent),
                    _ => least_sweeps(system, blocking, &mut visits),
                };
                if inner == 1 {
                    alone = Some(found);
                }
                match found {
                    Ok(least) => needs.least.extend(least.map(|least| (blocking, least))),
                    Err(Spent) => needs.skipped += 1,
                }
            }
        }
        needs
    }

    fn satisfied_by(&self, scheme: &Scheme) -> bool {
        let enough =
            |&(of, least): &(Blocking, u32)| of == scheme.blocking && scheme.sweeps >= least;
        self.least.iter().any(enough)
    }

    /// What reduced the list, as sentences.
    fn rules(&self, fixed: &Fixed, listed: &[Scheme]) -> Vec<String> {
        let whose = if self.paired { "both systems' equations" } else { "the system's equations" };
        let most = SWEEPS[SWEEPS.len() - 1];
        let mut rules = vec![match self.least.is_empty() {
            true => {
                format!(
                    "{FAMILY}: no number of sweeps up to {most} satisfied {whose} nearly enough"
                )
            }
            false => format!(
                "{FAMILY}: the least number of sweeps that satisfied {whose} nearly enough for a right-hand side at random, and the \
                 next; lanes by the mean length of rows"
            ),
        }];
        if self.paired {
            rules.push(format!("{FAMILY}: what both solves of a pair can have in common"));
        }
        if self.skipped > 0 {
            rules.push(format!(
                "{FAMILY}: {} ways to cut the rows into blocks were not tried, since more than {VISITS} entries would be visited",
                self.skipped
            ));
        }
        // With the other values that are fixed.
        let suit = |blocking: &Blocking, sweeps: u32| {
            let scheme = |lanes| Scheme { sweeps, blocking: *blocking, lanes };
            LANES.iter().any(|&lanes| fixed.admits(&scheme(lanes).candidate()))
        };
        if let Some(Param::Int(few)) = asked(fixed, FAMILY, "sweeps")
            && let Ok(few) = u32::try_from(*few)
            && !listed.iter().any(|scheme| fixed.admits(&scheme.candidate()))
            && let Some(least) =
                self.least.iter().filter(|it| suit(&it.0, few)).map(|it| it.1).min()
            && few < least
        {
            let least = SWEEPS.into_iter().find(|&sweeps| sweeps >= least).unwrap_or(most);
            rules.push(format!(
                "{FAMILY}: the request fixes sweeps={few}, but {whose} need sweeps={least} at least"
            ));
        }
        rules
    }
}

/// Predicted microseconds of one call: launches, and what each moves.
fn us(scheme: &Scheme, system: &System) -> f64 {
    let launch = launch_us(system, system.triangular.nnz() as f64, 4.0, scheme.lanes);
    let inner = f64::from(scheme.blocking.inner - 1) * INNER_US * waves(system, scheme.lanes);
    f64::from(scheme.sweeps) * (launch + inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Sptrsv;
    use crate::sparse::generate::Spec;

    fn system(spec: &str) -> Triangular {
        let matrix = Spec::parse(spec).unwrap().generate().unwrap();
        Triangular::of(&matrix, &Sptrsv::PLAIN).unwrap()
    }

    /// The plain sweeps are counted first, and the others as long as there is something left.
    #[test]
    fn what_is_not_tried_is_told() {
        let system = system("ilu0_poisson2d:nx=40,ny=40,seed=1");
        let all = Needs::of(&system, u32::MAX, VISITS);
        assert_eq!((all.least.len(), all.skipped), (9, 0));
        let none = Needs::of(&system, u32::MAX, 100);
        assert_eq!((none.least.len(), none.skipped), (0, 9));
        let each = 2 * system.nnz() as u64 + system.rows() as u64;
        let plain = each * u64::from(all.least[0].1);
        let some = Needs::of(&system, u32::MAX, plain + each);
        assert_eq!((some.least.as_slice(), some.skipped), (&all.least[..3], 6));
        assert!(some.least.iter().all(|(blocking, _)| blocking.inner == 1));
        let told = some.rules(&Fixed::default(), &[]).join("; ");
        assert!(told.contains("6 ways to cut the rows into blocks were not tried"), "{told}");
        assert!(!all.rules(&Fixed::default(), &[]).join("; ").contains("not tried"));
    }

    #[test]
    fn a_pair_has_what_suffices_for_both() {
        let [near, far] = ["ilu0_poisson2d:nx=40,ny=40,seed=1", "poisson2d:nx=40,ny=40,seed=1"];
        let (near, far) = (system(near), system(far));
        let least = |needs: Needs| needs.least.iter().map(|it| it.1).collect::<Vec<_>>();
        let of = |system| Needs::of(system, 1, VISITS);
        let [of_near, of_far] = [of(&near), of(&far)].map(least);
        let none = Fixed::default();
        let pair = Needs::of_pair(&near, Some(&far), &none, VISITS);
        assert!(pair.least.iter().all(|(blocking, _)| blocking.inner == 1));
        let both: Vec<u32> = of_near.iter().zip(&of_far).map(|(a, b)| *a.max(b)).collect();
        assert_eq!(least(pair), both);
        let fixed = Fixed([("sweeps.inner".to_owned(), Param::Int(2))].into());
        let pair = Needs::of_pair(&near, Some(&far), &fixed, VISITS);
        assert!(pair.least.iter().any(|(blocking, _)| blocking.inner == 2));
    }
}
