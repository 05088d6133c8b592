//! Domains: the values that a parameter may take, and the enumeration of a family's search space.

use crate::domain::{Candidate, Param};

/// One parameter and its values, in the order in which they are enumerated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    pub name: &'static str,
    pub values: Vec<Param>,
}

impl Domain {
    pub fn ints(name: &'static str, values: &[i64]) -> Self {
        Self { name, values: values.iter().copied().map(Param::Int).collect() }
    }

    pub fn texts(name: &'static str, values: &[&str]) -> Self {
        Self { name, values: values.iter().map(|text| Param::Text((*text).to_owned())).collect() }
    }
}

/// Every combination of the domains' values, the last domain varying fastest.
pub fn product(family: &str, domains: &[Domain]) -> Vec<Candidate> {
    let mut all = vec![Candidate::new(family)];
    for domain in domains {
        all = all
            .into_iter()
            .flat_map(|partial| {
                domain.values.iter().map(move |value| {
                    let mut candidate = partial.clone();
                    candidate.params.insert(domain.name.to_owned(), value.clone());
                    candidate
                })
            })
            .collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Domain, product};

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
    }
}
