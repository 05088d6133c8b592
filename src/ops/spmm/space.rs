//! The SpMM search space: every family's domains, as its kernel's header lists them.

use super::constraints::is_legal;
use super::family::{self, FAMILIES};
use crate::domain::{Candidate, Device, DeviceKind, Dtype, Layout, Spmm};
use crate::search::domain::{Domain, product};

/// All candidates of our own families for a problem, before any constraint.
pub fn enumerate(problem: &Spmm, kind: DeviceKind) -> Vec<Candidate> {
    match kind {
        DeviceKind::Cpu => host(),
        DeviceKind::Cuda => FAMILIES.iter().flat_map(|family| family.candidates(problem)).collect(),
    }
}

/// The CPU subset of the same families; the tile sizes are those the host kernels are compiled for.
fn host() -> Vec<Candidate> {
    let mut all = product(
        "row_panel",
        &[Domain::ints("m1", &[1, 2, 4, 8]), Domain::ints("n1", &[8, 16, 32, 64])],
    );
    all.extend(product(
        "row_split",
        &[
            Domain::ints("n1", &[8, 16, 32, 64]),
            Domain::ints("rows_per_task", &[16, 64, 256, 1024]),
        ],
    ));
    all
}

/// The vendor's routines (cuSPARSE's `default` is one of its three for CSR, so it is not tried again), likeliest best first: always candidates, so a plan is never slower than the vendor.
pub fn vendor(device: &Device) -> Vec<Candidate> {
    let algorithms: &[&str] = match device.kind {
        _ if device.vendor.is_none() => &[],
        DeviceKind::Cuda => &["csr_alg2", "csr_alg3", "csr_alg1"],
        DeviceKind::Cpu => &["sprs"],
    };
    algorithms
        .iter()
        .map(|algorithm| Candidate::new("vendor").with_text("algorithm", algorithm))
        .collect()
}

/// Every distinct CUDA text that this space can ask a compiler for, with a label: what tests compile ahead of any GPU.
pub fn kernel_texts() -> Vec<(String, String, Option<u32>)> {
    let mut texts = std::collections::BTreeMap::new();
    for layout in [Layout::Row, Layout::Col] {
        for n in [1, 4, 20, 31, 32, 33, 36, 62, 64, 1024] {
            let problem = Spmm::new(n, Dtype::F32, layout);
            for candidate in enumerate(&problem, DeviceKind::Cuda) {
                let Some(kernel) = family::kernel(&candidate, &problem) else { continue };
                if is_legal(&kernel.tile(), &problem) {
                    texts.entry(kernel.source()).or_insert(candidate.to_string());
                }
            }
        }
    }
    texts.into_iter().map(|(source, label)| (label, source, None)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Param;

    /// `// tune: a 1 2 | b x y` of a kernel header, as domains.
    fn header_domains(text: &str) -> Vec<(String, Vec<String>)> {
        let line = text.lines().find_map(|line| line.strip_prefix("// tune:")).unwrap();
        line.split('|')
            .map(|part| {
                let mut words = part.split_whitespace().map(str::to_owned);
                (words.next().unwrap(), words.collect())
            })
            .collect()
    }

    fn space_domains(domains: &[Domain]) -> Vec<(String, Vec<String>)> {
        domains
            .iter()
            .map(|domain| {
                let values = domain.values.iter().map(|value| match value {
                    Param::Int(value) => value.to_string(),
                    Param::Text(value) => value.clone(),
                });
                (domain.name.to_owned(), values.collect())
            })
            .collect()
    }

    #[test]
    fn the_kernels_headers_list_the_families_domains() {
        for family in FAMILIES {
            assert_eq!(
                header_domains(family.header()),
                space_domains(&family.domains()),
                "{:?}",
                family.names()
            );
        }
    }

    #[test]
    fn spaces_stay_small_enough_to_be_searched_whole() {
        let wide = [(8, Dtype::F32), (32, Dtype::F32), (128, Dtype::F32), (33, Dtype::F32)];
        let others = [(512, Dtype::F32), (128, Dtype::F16), (32, Dtype::F64), (1, Dtype::F32)];
        for (n, dtype) in wide.into_iter().chain(others) {
            for layout in [Layout::Row, Layout::Col] {
                let problem = Spmm::new(n, dtype, layout);
                for family in FAMILIES {
                    let count = family.candidates(&problem).len();
                    println!("{n} {dtype} {layout} {:?}: {count}", family.names());
                    assert!(count <= 1000, "{n} {dtype} {layout} {:?}: {count}", family.names());
                }
            }
        }
    }

    #[test]
    fn candidates_are_distinct_and_all_have_a_kernel() {
        for layout in [Layout::Row, Layout::Col] {
            for dtype in [Dtype::F16, Dtype::F32, Dtype::F64] {
                let problem = Spmm::new(32, dtype, layout);
                let all = enumerate(&problem, DeviceKind::Cuda);
                let distinct: std::collections::BTreeSet<_> =
                    all.iter().map(Candidate::id).collect();
                assert_eq!(distinct.len(), all.len());
                assert!(all.iter().all(|candidate| family::kernel(candidate, &problem).is_some()));
                for family in FAMILIES {
                    for candidate in family.candidates(&problem) {
                        assert!(family.names().contains(&candidate.family.as_str()), "{candidate}");
                    }
                }
            }
        }
    }
}
