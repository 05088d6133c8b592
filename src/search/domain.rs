//! Domains: the values that a parameter may take, and the enumeration of a family's search space.

use crate::domain::{Candidate, Param};

/// One parameter and its values, in the order in which they are enumerated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    pub name: &'static str,
    pub values: Vec<Param>,
}

impl Domain {
    pub fn ints<I: Copy + Into<i64>>(name: &'static str, values: &[I]) -> Self {
        Self { name, values: values.iter().map(|&value| Param::Int(value.into())).collect() }
    }

    pub fn texts(name: &'static str, values: &[&str]) -> Self {
        Self { name, values: values.iter().map(|text| Param::Text((*text).to_owned())).collect() }
    }
}

/// Every combination of the domains' values, the last domain varying fastest.
pub fn product(family: &str, domains: &[Domain]) -> Vec<Candidate> {
    chosen(family, domains, |_| true)
}

/// The combinations that `keep` keeps, in the order of [`product`]. One candidate passes through all combinations, and only
/// those that are kept are copied: most spaces keep a few of a hundred.
pub fn chosen(
    family: &str,
    domains: &[Domain],
    mut keep: impl FnMut(&Candidate) -> bool,
) -> Vec<Candidate> {
    let mut kept = Vec::new();
    let mut current = Candidate::new(family);
    for domain in domains {
        let Some(first) = domain.values.first() else { return kept };
        current.params.insert(domain.name.to_owned(), first.clone());
    }
    let mut places = vec![0; domains.len()];
    loop {
        if keep(&current) {
            kept.push(current.clone());
        }
        // As a counter does: the last place that has another value takes it, and those after it begin again.
        let more = |(place, domain): (&usize, &Domain)| place + 1 < domain.values.len();
        let Some(turns) = places.iter().zip(domains).rposition(more) else { return kept };
        places[turns] += 1;
        places[turns + 1..].fill(0);
        for (place, domain) in places.iter().zip(domains).skip(turns) {
            if let Some(value) = current.params.get_mut(domain.name) {
                value.clone_from(&domain.values[*place]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Domain, chosen, product};

    #[test]
    fn enumerates_every_combination_once() {
        let domains = [Domain::ints("m1", &[1, 2]), Domain::texts("order", &["natural", "length"])];
        let names: Vec<String> = product("f", &domains).iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "f{m1=1,order=natural}",
                "f{m1=1,order=length}",
                "f{m1=2,order=natural}",
                "f{m1=2,order=length}"
            ]
        );
        assert_eq!(product("vendor", &[]).len(), 1);
        assert_eq!(product("f", &[Domain::ints::<i64>("m1", &[])]).len(), 0);
        let odd = chosen("f", &domains, |candidate| candidate.int("m1") == Some(1));
        assert_eq!(odd, product("f", &domains[..])[..2]);
    }
}
