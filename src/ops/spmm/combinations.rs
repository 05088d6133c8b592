//! Combinations of parameter values that no family lists for a problem: counted by reason, never formed.

use super::space::Listed;
use crate::domain::{Candidate, FunnelStep, funnel};
use crate::search::domain::Domain;

/// The first step of the funnel: of all combinations of every family's values, those that are no candidates. `None` if all are.
/// It depends on the problem alone, not on the matrix.
pub fn step(listed: &[Listed]) -> Option<FunnelStep> {
    let (mut without, mut outside, mut others, mut left) = (0, 0, 0, 0);
    for family in listed {
        let all = product(family.domains.iter().map(|domain| domain.values.len()));
        let own = family.candidates.len() as u64;
        if own == 0 {
            without += all;
            continue;
        }
        let suited = product(family.domains.iter().map(|domain| used(domain, family)));
        outside += all.saturating_sub(suited);
        // Those with parameters of their own, beside the domains', are no members of the product.
        let plain = |it: &&Candidate| it.params.len() == family.domains.len();
        others += suited.saturating_sub(family.candidates.iter().filter(plain).count() as u64);
        left += own;
    }
    let removed = without + outside + others;
    let reasons = [
        (without, "of families without a kernel for this problem"),
        (
            outside,
            "with values that have no use for this problem, such as other widths of vectors and tiles",
        ),
        (others, "that a kernel does not take together, or that do the same as another"),
    ];
    let reasons: Vec<String> = reasons
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, why)| format!("{number} {why}"))
        .collect();
    (removed > 0).then(|| FunnelStep {
        constraint: funnel::COMBINATIONS.to_owned(),
        removed,
        left,
        detail: Some(reasons.join("; ")),
    })
}

fn product(lengths: impl Iterator<Item = usize>) -> u64 {
    lengths.map(|length| length as u64).product()
}

/// How many of a parameter's values any candidate has.
fn used(domain: &Domain, family: &Listed) -> usize {
    let mut seen = vec![false; domain.values.len()];
    let mut missing = seen.len();
    for candidate in &family.candidates {
        let value = candidate.params.get(domain.name);
        let at = domain.values.iter().position(|known| Some(known) == value);
        if let Some(seen) = at.and_then(|at| seen.get_mut(at)).filter(|seen| !**seen) {
            *seen = true;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    seen.len() - missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{DeviceKind, Dtype, Layout, Spmm};
    use crate::ops::spmm::space::listed;

    #[test]
    fn what_is_not_listed_is_counted_by_reason() {
        let families = |problem: &Spmm| listed(problem, DeviceKind::Cuda);
        for (n, dtype, layout) in [
            (32, Dtype::F32, Layout::Row),
            (33, Dtype::F16, Layout::Row),
            (1, Dtype::F64, Layout::Row),
            (3, Dtype::F32, Layout::Col),
        ] {
            let problem = Spmm::new(n, dtype, layout);
            let listed = families(&problem);
            let step = step(&listed).unwrap();
            let own: usize = listed.iter().map(|family| family.candidates.len()).sum();
            // The products of the domains, and the candidates with parameters beside these.
            let all = listed.iter().map(|family| {
                let beside = |it: &&Candidate| it.params.len() > family.domains.len();
                product(family.domains.iter().map(|domain| domain.values.len()))
                    + family.candidates.iter().filter(beside).count() as u64
            });
            assert_eq!((step.left, step.removed + step.left), (own as u64, all.sum::<u64>()));
            let detail = step.detail.unwrap();
            let numbers = detail.split("; ").map(|reason| {
                let (number, why) = reason.split_once(' ').unwrap();
                assert!(!why.is_empty());
                number.parse::<u64>().unwrap()
            });
            assert_eq!(numbers.sum::<u64>(), step.removed, "{detail}");
        }
        // Every family of the host lists all of its combinations.
        let host = Spmm::new(32, Dtype::F32, Layout::Row);
        assert_eq!(step(&listed(&host, DeviceKind::Cpu)), None);
    }
}
