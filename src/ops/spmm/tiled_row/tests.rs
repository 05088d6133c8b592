//! The packed forms of `resident` and `tiled`, executed on the host as their kernels walk them, against the oracle.

use super::super::family::SpmmFamily as _;
use super::groups::GROUP;
use crate::domain::recipe::{Arg, Array, ArrayData, Program, Recipe};
use crate::domain::{Candidate, Device, DeviceKind, Dtype, Layout, Spmm};
use crate::ops::Lowerer as _;
use crate::ops::spmm::constraints::is_legal;
use crate::ops::spmm::inspect::Inspection;
use crate::ops::spmm::{SpmmLowerer, family, space};
use crate::sparse::generate::Spec;
use crate::sparse::{Csr, operand, oracle};
use std::sync::Arc;

fn device() -> Device {
    serde_json::from_value(serde_json::json!({
        "id": "cuda:0", "kind": "cuda", "name": "imagined", "compute_capability": "9.0",
        "multiprocessors": 132, "warp_size": 32, "max_threads_per_block": 1024,
        "max_threads_per_multiprocessor": 2048, "max_blocks_per_multiprocessor": 32,
        "registers_per_thread": 255, "registers_per_block": 65536,
        "registers_per_multiprocessor": 65536, "shared_bytes_per_block": 232448,
        "shared_bytes_per_multiprocessor": 233472, "l2_bytes": 52428800,
        "memory_bytes": 80_000_000_000u64, "copy_gbps": 2600.0, "driver": "", "compiler": ""
    }))
    .unwrap()
}

/// Rows of lengths 0, 1, 2, ... and one that is full, over a shape that divides by nothing.
fn ragged() -> Csr {
    let (rows, cols) = (201usize, 1301usize);
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        let length = match row {
            13 => cols,
            _ if row % 5 == 0 => 0,
            _ => row % 41,
        };
        for i in 0..length {
            indices.push((i * cols / length) as u32);
            values.push((row as f64 - i as f64) / 7.0);
        }
        indptr.push(indices.len());
    }
    Csr::new(rows, cols, indptr, indices, values).unwrap()
}

fn matrices() -> Vec<Csr> {
    let generated = |spec: &str| Spec::parse(spec).unwrap().generate().unwrap();
    vec![
        Csr::new(1, 1, vec![0, 1], vec![0], vec![2.5]).unwrap(),
        // A row block without entries in front of one with a single entry.
        Csr::new(130, 7, [vec![0; 130], vec![1]].concat(), vec![6], vec![-3.0]).unwrap(),
        ragged(),
        generated("rmat:scale=9,edge_factor=8,seed=3"),
    ]
}

fn u32s(array: &Array) -> &[u32] {
    match &array.data {
        ArrayData::U32(data) => data,
        _ => panic!("{} is not u32", array.name),
    }
}

fn u16s(array: &Array) -> &[u16] {
    match &array.data {
        ArrayData::U16(data) => data,
        _ => panic!("{} is not u16", array.name),
    }
}

fn values(array: &Array) -> Vec<f64> {
    match &array.data {
        ArrayData::F16(data) => {
            data.iter().map(|&bits| half::f16::from_bits(bits).to_f64()).collect()
        }
        ArrayData::Bf16(data) => {
            data.iter().map(|&bits| half::bf16::from_bits(bits).to_f64()).collect()
        }
        ArrayData::F32(data) => data.iter().map(|&value| value.into()).collect(),
        ArrayData::F64(data) => data.to_vec(),
        _ => panic!("{} holds no values", array.name),
    }
}

/// One group of entries, added to the sums of a row; `row_of` says which row of B a place holds.
fn add(
    sums: &mut [f64],
    places: &[u16],
    values: &[f64],
    group: u32,
    b: &[f32],
    row_of: impl Fn(u16) -> usize,
) {
    let n = sums.len();
    for i in group as usize * GROUP..(group as usize + 1) * GROUP {
        let from = &b[row_of(places[i]) * n..][..n];
        sums.iter_mut().zip(from).for_each(|(sum, &b)| *sum += values[i] * f64::from(b));
    }
}

/// C, poisoned before, as `resident.cuh` computes it: subwarp by subwarp, one loop over the groups of its rows.
fn resident(recipe: &Recipe, b: &[f32], rows: usize, n: usize) -> Vec<f64> {
    let (ptr, cols, cuts) =
        (u32s(&recipe.arrays[0]), u16s(&recipe.arrays[1]), u32s(&recipe.arrays[3]));
    let values = values(&recipe.arrays[2]);
    let mut c = vec![f64::NAN; rows * n];
    let step = step(recipe);
    let lanes = recipe.candidate.int("n1").unwrap() / recipe.candidate.int("vec").unwrap();
    assert_eq!(cuts.len(), (step.grid[0] * (step.block[0] / lanes as u32)) as usize + 1);
    for slot in 0..cuts.len() - 1 {
        let (mut row, last) = (cuts[slot] as usize, cuts[slot + 1] as usize);
        if row >= last {
            continue;
        }
        let (mut group, mut sums) = (ptr[row], vec![0.0; n]);
        loop {
            if group == ptr[row + 1] {
                assert!(c[row * n].is_nan(), "row {row} is stored twice");
                c[row * n..(row + 1) * n].copy_from_slice(&sums);
                sums.fill(0.0);
                row += 1;
                if row == last {
                    break;
                }
                continue;
            }
            add(&mut sums, cols, &values, group, b, usize::from);
            group += 1;
        }
    }
    c
}

/// C, poisoned before, as `tiled_row.cuh` computes it: part by part of every row block, parts added in their order.
fn tiled(recipe: &Recipe, b: &[f32], rows: usize, n: usize) -> Vec<f64> {
    let (height, buffer) =
        (recipe.candidate.int("rows").unwrap() as usize, recipe.candidate.int("buffer").unwrap());
    let split = recipe.candidate.int("split").unwrap() as u32;
    let [order, block_stages, stage_map, map, bounds] =
        [0, 1, 2, 3, 4].map(|i| u32s(&recipe.arrays[i]));
    let (places, values) = (u16s(&recipe.arrays[5]), values(&recipe.arrays[6]));
    assert_eq!(order.len(), rows);
    let mut c = vec![f64::NAN; rows * n];
    assert_eq!(step(recipe).grid[0], (block_stages.len() - 1) as u32 * split);
    for block in 0..block_stages.len() - 1 {
        let (begin, count) = (block_stages[block], block_stages[block + 1] - block_stages[block]);
        let mut total = vec![0.0; height * n];
        for part in 0..split {
            let mut sums = vec![0.0; height * n];
            for stage in (begin + count * part / split) as usize
                ..(begin + count * (part + 1) / split) as usize
            {
                let gathered = &map[stage_map[stage] as usize..stage_map[stage + 1] as usize];
                assert!(!gathered.is_empty() && gathered.len() <= buffer as usize);
                for (r, sums) in sums.chunks_mut(n).enumerate() {
                    for group in bounds[stage * height + r]..bounds[stage * height + r + 1] {
                        add(sums, places, &values, group, b, |place| {
                            gathered[usize::from(place)] as usize
                        });
                    }
                }
            }
            total.iter_mut().zip(&sums).for_each(|(total, sum)| *total += sum);
        }
        for (total, &row) in total.chunks(n).zip(&order[block * height..]) {
            let c = &mut c[row as usize * n..][..n];
            assert!(c[0].is_nan(), "row {row} is stored twice");
            c.copy_from_slice(total);
        }
    }
    c
}

fn step(recipe: &Recipe) -> &crate::domain::recipe::Step {
    match &recipe.program {
        Program::Cuda(program) => &program.steps[0],
        _ => panic!("not a program for a GPU"),
    }
}

fn ours(problem: &Spmm) -> Vec<Candidate> {
    let all = space::enumerate(problem, DeviceKind::Cuda).into_iter();
    all.filter(|c| {
        matches!(c.family.as_str(), "resident" | "tiled")
            && family::kernel(c, problem).is_some_and(|k| is_legal(&k.tile(), problem))
    })
    .collect()
}

#[test]
fn packed_forms_give_the_oracles_product() {
    let mut walked = std::collections::BTreeMap::<String, usize>::new();
    for matrix in matrices().into_iter().map(Arc::new) {
        for (n, dtype) in [
            (3, Dtype::F32),
            (33, Dtype::F16),
            (33, Dtype::Bf16),
            (64, Dtype::F32),
            (8, Dtype::F64),
        ] {
            let problem = Spmm::new(n, dtype, Layout::Row);
            let b = operand::random(matrix.cols() * n as usize, 7);
            let expected = oracle::spmm(&matrix, &b, &problem);
            let mut lowerer = SpmmLowerer::new(matrix.clone(), problem, device());
            let candidates = ours(&problem);
            assert!(candidates.len() > 20, "{dtype}: {}", candidates.len());
            // A step that is prime to the domains' sizes visits every value of every parameter.
            for candidate in candidates.iter().step_by(7) {
                let Ok(recipe) = lowerer.lower(candidate) else { continue };
                let execute = if candidate.family == "tiled" { tiled } else { resident };
                let c = execute(&recipe, &b, matrix.rows(), n as usize);
                let close = |(i, c): (usize, &f64)| {
                    (c - expected.value[i]).abs() <= 1e-12 * (1.0 + f64::from(expected.scale[i]))
                };
                assert!(c.iter().enumerate().all(close), "{candidate}, n={n}, {dtype}");
                *walked.entry(candidate.family.clone()).or_default() += 1;
            }
        }
    }
    assert!(walked["resident"] > 40 && walked["tiled"] > 40, "{walked:?}");
}

#[test]
fn what_does_not_fit_or_pay_is_refused() {
    let problem = Spmm::new(64, Dtype::F32, Layout::Row);
    let tall = Csr::new(2, 5000, vec![0, 1, 2], vec![7, 4999], vec![1.0, 2.0]).unwrap();
    let seen = Inspection::of(&tall);
    let mut lowerer = SpmmLowerer::new(Arc::new(tall), problem, device());
    for candidate in ours(&problem) {
        let kernel = family::kernel(&candidate, &problem).unwrap();
        let fits = kernel.shared_bytes(&seen) <= device().shared_bytes_per_block;
        let split = candidate.int("split").unwrap_or(1) > 1;
        if candidate.family == "resident" || split {
            assert_eq!(lowerer.lower(&candidate).is_ok(), fits && !split, "{candidate}");
        }
        assert!(kernel.predict_us(&seen, &problem, &device()).is_finite());
    }
}

#[test]
fn names_parse_for_their_own_layout_and_domains() {
    let row = Spmm::new(64, Dtype::F32, Layout::Row);
    for candidate in ours(&row) {
        for other in [Spmm::new(64, Dtype::F32, Layout::Col), Spmm::new(1, Dtype::F32, Layout::Row)]
        {
            assert!(super::TiledRows.kernel(&candidate, &other).is_none());
            assert!(super::super::resident::Residents.kernel(&candidate, &other).is_none());
        }
        let mut off = candidate.clone();
        off.params.insert("n1".to_owned(), crate::domain::Param::Int(0));
        assert!(super::TiledRows.kernel(&off, &row).is_none());
        assert!(super::super::resident::Residents.kernel(&off, &row).is_none());
    }
}

#[test]
fn accumulate_adds_arguments_and_split_adds_scratch() {
    let problem = Spmm { accumulate: true, ..Spmm::new(64, Dtype::F16, Layout::Row) };
    let mut lowerer = SpmmLowerer::new(Arc::new(ragged()), problem, device());
    let mut parts = 0;
    for candidate in ours(&problem) {
        let Ok(recipe) = lowerer.lower(&candidate) else { continue };
        let args = &step(&recipe).args;
        assert_eq!(args[args.len() - 2..], [Arg::Alpha, Arg::Beta]);
        let split = candidate.int("split").unwrap_or(1);
        assert_eq!(recipe.scratch.len(), if split > 1 { 2 } else { 0 });
        if split > 1 {
            parts += 1;
            let tiles = u64::from(step(&recipe).grid[0] * step(&recipe).grid[1]) / split as u64;
            assert_eq!(recipe.scratch[1].bytes, 4 * tiles);
        }
    }
    assert!(parts > 0);
}

/// A pruned layer of 7 million entries packs in a fraction of a second: `cargo test --release -- --ignored --nocapture packs`.
#[test]
#[ignore = "times an optimised build"]
fn packs_millions_of_entries_in_time() {
    let matrix =
        Spec::parse("uniform:rows=16384,cols=4096,nnz=7000000,seed=1").unwrap().generate().unwrap();
    for (rows, buffer) in [(64, 256), (128, 512)] {
        let started = std::time::Instant::now();
        let natural: Vec<u32> = (0..matrix.rows() as u32).collect();
        let order = super::pack::blockwise(&matrix, &natural, rows);
        let shape = super::pack::Shape { rows, buffer };
        let packed = super::pack::pack(&matrix, order, shape, Dtype::F32).unwrap();
        println!("{rows} x {buffer}: {} bytes in {:?}", packed.bytes(), started.elapsed());
    }
}
