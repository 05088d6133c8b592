//! The SpMM search space: every family's domains, as its kernel's header lists them.

use super::constraints::is_legal;
use super::family::{self, FAMILIES};
use super::{host, walk};
use crate::domain::catalog::vendor::BLOCK_SIZES;
use crate::domain::{Candidate, Device, DeviceKind, Dtype, Layout, Output, Spmm};
use crate::ops::vendor::candidate;
use crate::search::domain::Domain;
use crate::sparse::{Csr, blocks};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// What one family adds to the space.
pub struct Listed {
    /// All of its parameters with all of their values.
    pub domains: &'static [Domain],
    pub candidates: Vec<Candidate>,
}

/// All candidates of our own families for a problem, before any constraint: the products of their domains, without the
/// combinations that no kernel takes and the values that the problem determines. These are never formed (the products of
/// `row_split` and `nnz_split` alone have tens of thousands of members); `combinations` counts them.
pub fn listed(problem: &Spmm, kind: DeviceKind) -> Vec<Listed> {
    match kind {
        DeviceKind::Cpu => host::listed(),
        DeviceKind::Cuda => FAMILIES
            .iter()
            .map(|family| Listed {
                domains: family.domains(),
                candidates: family.candidates(problem),
            })
            .collect(),
    }
}

/// Those of all families.
pub fn enumerate(problem: &Spmm, kind: DeviceKind) -> Vec<Candidate> {
    listed(problem, kind).into_iter().flat_map(|family| family.candidates).collect()
}

/// Density from which a product with A made dense is tried: below it the product has more than fifty times the terms.
const DENSE_SHARE: f64 = 0.02;

/// Most bytes of A made dense, wholly or in blocks.
const MOST_DENSE_BYTES: f64 = (1u64 << 30) as f64;

/// Most elements that blocks may store for each nonzero: beyond, a product in blocks multiplies zeros most of the time.
const MOST_FILL: f64 = 4.0;

/// The vendor's routines (cuSPARSE's `default` is one of its three for CSR, so it is not tried again), with the likely best
/// first. They are always candidates, so a plan is never slower than the vendor. A product with one column is also tried as
/// one with a vector, and a matrix that fits blocks in each size of them that fits. If A is nearly dense, cuBLAS on A made
/// dense follows.
pub fn vendor(matrix: &Csr, problem: &Spmm, device: &Device) -> Vec<Candidate> {
    match device.kind {
        DeviceKind::Cpu => on_host(problem, device).iter().map(|name| candidate(name)).collect(),
        DeviceKind::Cuda if device.vendor.is_none() => Vec::new(),
        DeviceKind::Cuda => on_gpu(matrix, problem).iter().map(|name| candidate(name)).collect(),
    }
}

/// MKL's routines where it is installed, which refuse what has more entries than 32 bits count; the plain product elsewhere.
fn on_host(problem: &Spmm, device: &Device) -> &'static [&'static str] {
    match (&device.vendor, problem.n) {
        (None, _) => &["plain_csr"],
        (Some(_), 1) => &["mkl_mv", "mkl_mm"],
        (Some(_), _) => &["mkl_mm"],
    }
}

fn on_gpu(matrix: &Csr, problem: &Spmm) -> Vec<String> {
    let mut algorithms = ["csr_alg2", "csr_alg3", "csr_alg1"].map(str::to_owned).to_vec();
    if problem.n == 1 {
        algorithms.extend(["spmv_alg2", "spmv_alg1"].map(str::to_owned));
    }
    algorithms.extend(fitting_blocks(matrix, problem).map(|size| format!("bsr{size}")));
    let elements = matrix.rows() as f64 * matrix.cols() as f64;
    let bytes = elements * problem.dtype.bytes() as f64;
    let nearly_dense = matrix.nnz() as f64 >= DENSE_SHARE * elements && bytes <= MOST_DENSE_BYTES;
    if nearly_dense {
        algorithms.push("cublas_dense".to_owned());
        algorithms.extend(problem.tf32.then(|| "cublas_dense_tf32".to_owned()));
    }
    algorithms
}

/// The sizes of blocks whose fill is within its limit, and which the shape is a multiple of: the library takes B and C in
/// whole blocks. A larger block contains smaller ones, so its fill is no less.
fn fitting_blocks(matrix: &Csr, problem: &Spmm) -> impl Iterator<Item = usize> {
    let most = MOST_DENSE_BYTES / (matrix.nnz() as f64 * problem.dtype.bytes() as f64);
    let fits = move |size: &usize| {
        blocks::fill(matrix, *size).is_some_and(|fill| fill <= MOST_FILL.min(most))
    };
    BLOCK_SIZES.into_iter().take_while(fits)
}

/// Columns of C for which [`kernel_texts`] has those for matrices of equal values, too: in one tile, in tiles with a tail, in whole tiles.
const EQUAL_COLUMNS: [u32; 3] = [8, 33, 128];

/// Columns of C for which it has the texts that read near columns, too.
const NEAR_PROBLEMS: [u32; 2] = [1, 8];

/// The distinct CUDA texts that this space compiles for typical problems, with a label: tests compile them without a GPU.
pub fn kernel_texts() -> Vec<(String, String, Option<u32>)> {
    let of_problem = |problem: &Spmm| {
        let mut texts = BTreeMap::new();
        let mut all = enumerate(problem, DeviceKind::Cuda);
        if EQUAL_COLUMNS.contains(&problem.n) {
            let mut equal = all.clone();
            walk::with_equal(&mut equal);
            all.extend(equal);
        }
        if NEAR_PROBLEMS.contains(&problem.n) {
            let mut near = all.clone();
            walk::with_near(&mut near, &Csr::empty(), problem, false);
            all.extend(near);
        }
        for candidate in all {
            let Some(kernel) = family::kernel(&candidate, problem) else { continue };
            if is_legal(&kernel.tile(), problem) {
                texts.entry(kernel.source()).or_insert_with(|| format!("{problem:?} {candidate}"));
            }
        }
        texts
    };
    // Of two labels of one text the first stays, so that the list is the same however many threads make it.
    let first = |mut texts: BTreeMap<String, String>, more: BTreeMap<String, String>| {
        for (source, label) in more {
            texts.entry(source).or_insert(label);
        }
        texts
    };
    let texts = typical_problems().par_iter().map(of_problem).reduce(BTreeMap::new, first);
    texts.into_iter().map(|(source, label)| (label, source, None)).collect()
}

/// Problems of every type, layout and consent, with aligned, unaligned and single columns, and columns that fill a tile or
/// leave a tail: templates depend on n by its alignment and by which tiles it fills.
fn typical_problems() -> Vec<Spmm> {
    let mut problems = Vec::new();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F64] {
        for layout in [Layout::Row, Layout::Col] {
            for n in [1, 2, 8, 12, 32, 33, 48, 64, 96, 128, 130, 512] {
                let plain = Spmm::new(n, dtype, layout);
                problems.push(plain);
                if n == 32 || n == 33 || n == 128 {
                    problems.push(Spmm { accumulate: true, ..plain });
                }
                if n == 128 && dtype == Dtype::F32 {
                    problems.push(Spmm { tf32: true, ..plain });
                }
                if (n == 33 || n == 128) && dtype.is_half() {
                    let wide = Spmm { output: Output::F32, ..plain };
                    problems.extend([wide, Spmm { accumulate: true, ..wide }]);
                }
            }
        }
    }
    problems
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
                space_domains(family.domains()),
                "{:?}",
                family.name()
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
                    println!("{n} {dtype} {layout} {:?}: {count}", family.name());
                    assert!(count <= 1000, "{n} {dtype} {layout} {:?}: {count}", family.name());
                }
            }
        }
    }

    #[test]
    fn candidates_are_distinct_and_all_have_a_kernel() {
        for layout in [Layout::Row, Layout::Col] {
            for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::F64] {
                let problem = Spmm::new(32, dtype, layout);
                let all = enumerate(&problem, DeviceKind::Cuda);
                let distinct: std::collections::BTreeSet<_> =
                    all.iter().map(Candidate::id).collect();
                assert_eq!(distinct.len(), all.len());
                assert!(all.iter().all(|candidate| family::kernel(candidate, &problem).is_some()));
                for family in FAMILIES {
                    for candidate in family.candidates(&problem) {
                        assert!(family.name() == candidate.family, "{candidate}");
                    }
                }
            }
        }
    }

    fn gpu() -> Device {
        let device = r#"{"id":"cuda:0","kind":"cuda","name":"x","compute_capability":"9.0",
            "multiprocessors":1,"warp_size":32,"max_threads_per_block":1,"max_threads_per_multiprocessor":1,
            "max_blocks_per_multiprocessor":1,"registers_per_thread":1,"registers_per_block":1,
            "registers_per_multiprocessor":1,"shared_bytes_per_block":1,"shared_bytes_per_multiprocessor":1,
            "l2_bytes":1,"memory_bytes":1,"copy_gbps":1.0,"driver":"","compiler":"","vendor":"cuSPARSE 12"}"#;
        serde_json::from_str(device).unwrap()
    }

    #[test]
    fn blocks_are_tried_where_they_fit_and_vectors_for_one_column() {
        let routines = |matrix: &Csr, n| -> Vec<String> {
            let all = vendor(matrix, &Spmm::new(n, Dtype::F32, Layout::Row), &gpu());
            assert!(all.iter().filter(|it| !it.is_densified()).all(Candidate::is_baseline));
            all.iter().filter_map(|it| it.text("algorithm")).map(str::to_owned).collect()
        };
        let csr = ["csr_alg2", "csr_alg3", "csr_alg1"];
        // Four blocks of 16 x 16 along the diagonal: fills of 1, 1, 1 and 2.
        let (rows, cols) = (64usize, 4096usize);
        let indptr = (0..=rows).map(|row| row * 16).collect();
        let indices = (0..rows).flat_map(|row| (row / 16 * 16) as u32..(row / 16 * 16 + 16) as u32);
        let blocks = Csr::new(rows, cols, indptr, indices.collect(), vec![1.0; rows * 16]).unwrap();
        let expected: Vec<&str> =
            csr.into_iter().chain(["bsr4", "bsr8", "bsr16", "bsr32"]).collect();
        assert_eq!(routines(&blocks, 8), expected);
        // Two entries of each block of 4 x 4.
        let scattered = Csr::new(4, 400, vec![0, 1, 1, 2, 2], vec![0, 1], vec![1.0; 2]).unwrap();
        assert_eq!(routines(&scattered, 8), csr);
        assert_eq!(routines(&scattered, 1)[3..], ["spmv_alg2", "spmv_alg1"]);
        // Its shape is of whole blocks of 4, its entries fill one of them.
        let whole = Csr::new(4, 404, vec![0, 4, 8, 12, 16], [0, 1, 2, 3].repeat(4), vec![1.0; 16]);
        assert_eq!(routines(&whole.unwrap(), 8)[3..], ["bsr4"]);
        let empty = Csr::new(4, 400, vec![0; 5], vec![], vec![]).unwrap();
        assert_eq!(routines(&empty, 8), csr);
    }

    #[test]
    fn a_dense_product_is_tried_where_a_is_nearly_dense() {
        let mut device = gpu();
        let dense = |device: &Device, cols: usize, tf32| {
            let matrix = Csr::new(1, cols, vec![0, 2], vec![0, 1], vec![1.0; 2]).unwrap();
            let problem = Spmm { tf32, ..Spmm::new(8, Dtype::F32, Layout::Row) };
            let all = vendor(&matrix, &problem, device);
            assert!(all.is_empty() || all[0].is_baseline());
            all.iter().filter(|candidate| !candidate.is_baseline()).count()
        };
        assert_eq!([100, 101].map(|cols| dense(&device, cols, false)), [1, 0]);
        assert_eq!(dense(&device, 100, true), 2);
        device.vendor = None;
        assert_eq!(dense(&device, 100, true), 0);
        device = Device { kind: DeviceKind::Cpu, vendor: Some("MKL 2026.2".to_owned()), ..device };
        assert_eq!(dense(&device, 100, true), 0);
    }
}
