//! The SpMM search space: every family's domains, as its kernel's header lists them.

use super::shape::{Shape, effective_layout};
use crate::domain::{Candidate, Device, DeviceKind, Layout, Spmm};
use crate::search::domain::{Domain, product};

/// Domains of the row-split family on a GPU, row-major (`kernels/spmm/row_split.cuh`).
pub fn row_split_row_major() -> Vec<Domain> {
    vec![
        Domain::ints("lanes", &[4, 8, 16, 32]),
        Domain::ints("vec", &[1, 2, 4]),
        Domain::ints("cols", &[1, 2, 4]),
        Domain::ints("unroll", &[2, 4, 8]),
        Domain::ints("block", &[128, 256]),
        Domain::texts("fetch", &["direct", "shuffle"]),
        Domain::texts("order", &["natural", "length"]),
    ]
}

/// Domains of the row-panel family on a GPU, row-major (`kernels/spmm/row_panel.cuh`).
pub fn row_panel_row_major() -> Vec<Domain> {
    vec![
        Domain::ints("m1", &[1, 2, 4, 8, 16, 32]),
        Domain::ints("n1", &[32, 64, 128, 256]),
        Domain::ints("vec", &[1, 2, 4]),
        Domain::ints("unroll", &[1, 2, 4]),
        Domain::ints("tiles", &[1, 2, 4, 8]),
    ]
}

/// Domains of both families on a GPU, column-major (`kernels/spmm/column_major.cuh`); `m1` is 1 for row-split.
pub fn column_major() -> Vec<Domain> {
    vec![
        Domain::ints("m1", &[1, 2, 4]),
        Domain::ints("lanes", &[1, 2, 4, 8, 16, 32]),
        Domain::ints("r", &[1, 2, 4, 8]),
        Domain::ints("unroll", &[1, 2, 4]),
        Domain::ints("block", &[128, 256]),
        Domain::texts("order", &["natural", "length"]),
    ]
}

/// All candidates of our own families for a problem, before any constraint.
pub fn enumerate(problem: &Spmm, kind: DeviceKind) -> Vec<Candidate> {
    match (kind, effective_layout(problem)) {
        (DeviceKind::Cpu, _) => host(),
        (DeviceKind::Cuda, Layout::Row) => {
            let mut all = product("row_panel", &row_panel_row_major());
            all.extend(product("row_split", &row_split_row_major()));
            all
        }
        (DeviceKind::Cuda, Layout::Col) => product("", &column_major())
            .into_iter()
            .filter_map(|mut candidate| {
                let panel = candidate.int("m1") != Some(1);
                if panel {
                    // Panels are cut from rows ordered by length: there is no natural order to choose.
                    if candidate.text("order") == Some("natural") {
                        return None;
                    }
                    candidate.params.remove("order");
                } else {
                    candidate.params.remove("m1");
                }
                candidate.family = if panel { "row_panel" } else { "row_split" }.to_owned();
                Some(candidate)
            })
            .collect(),
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

/// Whether a shape can be compiled and launched for a problem on any device; what is not never leaves the funnel.
pub fn is_legal(shape: &Shape, problem: &Spmm) -> bool {
    super::constraints::fits_registers(shape) && shape.fills_warps() && shape.is_aligned(problem)
}

/// Every distinct CUDA text that this space can ask a compiler for, with a label: what tests compile ahead of any GPU.
pub fn kernel_texts() -> Vec<(String, String, Option<u32>)> {
    let mut texts = std::collections::BTreeMap::new();
    for layout in [Layout::Row, Layout::Col] {
        for n in [1, 4, 20, 31, 32, 33, 36, 62, 64, 1024] {
            let problem = Spmm { n, dtype: crate::domain::Dtype::F32, layout };
            for candidate in enumerate(&problem, DeviceKind::Cuda) {
                let Some(shape) = Shape::of(&candidate, &problem) else { continue };
                if is_legal(&shape, &problem) {
                    texts.entry(super::lower::cuda_source(&shape)).or_insert(candidate.to_string());
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
    fn the_kernels_headers_list_these_domains() {
        let row_split = include_str!("../../../kernels/spmm/row_split.cuh");
        let row_panel = include_str!("../../../kernels/spmm/row_panel.cuh");
        let column = include_str!("../../../kernels/spmm/column_major.cuh");
        assert_eq!(header_domains(row_split), space_domains(&row_split_row_major()));
        assert_eq!(header_domains(row_panel), space_domains(&row_panel_row_major()));
        assert_eq!(header_domains(column), space_domains(&column_major()));
    }

    #[test]
    fn candidates_are_distinct_and_all_have_a_shape() {
        for layout in [Layout::Row, Layout::Col] {
            let problem = Spmm { n: 32, dtype: crate::domain::Dtype::F32, layout };
            let all = enumerate(&problem, DeviceKind::Cuda);
            let distinct: std::collections::BTreeSet<_> = all.iter().map(Candidate::id).collect();
            assert_eq!(distinct.len(), all.len());
            assert!(all.iter().all(|candidate| Shape::of(candidate, &problem).is_some()));
        }
    }
}
