//! Executes lowered candidates on the CPU, from the very arrays and arguments the kernels get, against the oracle.

use super::super::family::{FAMILIES, SpmmFamily, SpmmKernel};
use super::super::shared::{Lowered, Shared};
use super::slots::{NO_ROW, PARTIAL};
use super::{Tiled, TiledColumns};
use crate::domain::recipe::{Arg, ArrayData, CudaProgram, Program};
use crate::domain::{Candidate, Device, DeviceId, DeviceKind, Dtype, Layout, Spmm};
use crate::sparse::generate::Spec;
use crate::sparse::{Csr, operand, oracle};
use std::sync::Arc;

pub fn device(multiprocessors: u32) -> Device {
    Device {
        id: DeviceId("cuda:0".to_owned()),
        kind: DeviceKind::Cuda,
        name: "imagined".to_owned(),
        compute_capability: "9.0".to_owned(),
        multiprocessors,
        warp_size: 32,
        max_threads_per_block: 1024,
        max_threads_per_multiprocessor: 2048,
        max_blocks_per_multiprocessor: 32,
        registers_per_thread: 255,
        registers_per_block: 65536,
        registers_per_multiprocessor: 65536,
        shared_bytes_per_block: 232_448,
        shared_bytes_per_multiprocessor: 233_472,
        l2_bytes: 50 << 20,
        memory_bytes: 80 << 30,
        copy_gbps: 3000.0,
        hop_ns: 263.0,
        driver: String::new(),
        compiler: String::new(),
        vendor: None,
        vendor_file: None,
        uuid: None,
        place: None,
        dense_vendor: None,
        kernels: Default::default(),
    }
}

struct Arguments<'a>(&'a Lowered, &'a [Arg]);

impl Arguments<'_> {
    fn words(&self, at: usize) -> Option<&[u32]> {
        match self.1[at] {
            Arg::Array(i) => match &self.0.arrays[i].data {
                ArrayData::U32(words) => Some(words),
                other => panic!("argument {at} is {other:?}"),
            },
            Arg::U64(0) => None,
            other => panic!("argument {at} is {other:?}"),
        }
    }

    fn indices(&self, at: usize) -> &[u16] {
        match self.1[at] {
            Arg::Array(i) => match &self.0.arrays[i].data {
                ArrayData::U16(indices) => indices,
                other => panic!("argument {at} is {other:?}"),
            },
            other => panic!("argument {at} is {other:?}"),
        }
    }

    fn values(&self, at: usize) -> Vec<f64> {
        let Arg::Array(i) = self.1[at] else { panic!("argument {at}") };
        match &self.0.arrays[i].data {
            ArrayData::F16(v) => {
                v.iter().map(|&bits| half::f16::from_bits(bits).to_f64()).collect()
            }
            ArrayData::Bf16(v) => {
                v.iter().map(|&bits| half::bf16::from_bits(bits).to_f64()).collect()
            }
            ArrayData::F32(v) => v.iter().map(|&v| f64::from(v)).collect(),
            ArrayData::F64(v) => v.to_vec(),
            other => panic!("argument {at} is {other:?}"),
        }
    }

    fn number(&self, at: usize) -> usize {
        let Arg::U32(number) = self.1[at] else { panic!("argument {at} is no number") };
        number as usize
    }
}

/// The lowered program on B, column-major; sums in float64. C starts as NaN.
fn execute(lowered: &Lowered, tiled: &Tiled, b: &[f32]) -> Vec<f64> {
    let Program::Cuda(CudaProgram { steps, .. }) = &lowered.program else { panic!("no program") };
    let args = Arguments(lowered, &steps[0].args);
    assert_eq!((args.1[7], args.1[8]), (Arg::B, Arg::C));
    let (partial_count, rows) = (args.number(10), args.number(11));
    let n = args.number(13);
    assert_eq!(steps[0].shared_bytes, tiled.shared_bytes());
    assert_eq!(steps[0].grid[1], tiled.problem.n.div_ceil(tiled.r));
    let mut c = vec![f64::NAN; rows * n];
    let mut partials = vec![f64::NAN; partial_count * n];
    for panel in 0..steps[0].grid[0] as usize {
        for first in (0..n).step_by(tiled.r as usize) {
            block(&args, tiled, panel, first, b, (&mut c, &mut partials));
        }
    }
    let Some(step) = steps.get(1) else { return c };
    let args = Arguments(lowered, &step.args);
    let (long, ptr) = (args.words(0).unwrap(), args.words(1).unwrap());
    assert_eq!((args.1[2], args.number(3), args.1[4]), (Arg::Scratch(0), partial_count, Arg::C));
    assert_eq!((args.number(5), args.number(7)), (rows, long.len()));
    // Every row is some lanes' of some block's warps.
    let lanes = args.number(8);
    assert!(lanes.is_power_of_two() && lanes <= 32);
    assert_eq!(step.grid[0] as usize, long.len().div_ceil(32 / lanes));
    for (i, row) in long.iter().enumerate() {
        for column in 0..n {
            let range = ptr[i] as usize..ptr[i + 1] as usize;
            c[column * rows + *row as usize] =
                range.map(|at| partials[column * partial_count + at]).sum();
        }
    }
    c
}

fn block(
    args: &Arguments,
    tiled: &Tiled,
    panel: usize,
    first: usize,
    b: &[f32],
    (c, partials): (&mut [f64], &mut [f64]),
) {
    let (stages, map_ptr) = (args.words(0).unwrap(), args.words(1).unwrap());
    let (map, ell_ptr) = (args.words(2).unwrap(), args.words(3).unwrap());
    let (index, value, keys) = (args.indices(4), args.values(5), args.words(6));
    let (partial_count, rows, b_rows, n) =
        (args.number(10), args.number(11), args.number(12), args.number(13));
    let (threads, buffer) = (tiled.rows as usize, tiled.buffer as usize);
    let (warps, width) = (threads / 32, (tiled.r as usize).min(n - first));
    let mut acc = vec![vec![0f64; width]; threads];
    for stage in stages[panel] as usize..stages[panel + 1] as usize {
        let staged = &map[map_ptr[stage] as usize..map_ptr[stage + 1] as usize];
        assert!(staged.len() <= buffer && staged.is_sorted());
        for (thread, acc) in acc.iter_mut().enumerate() {
            let at = stage * warps + thread / 32;
            for step in ell_ptr[at] as usize..ell_ptr[at + 1] as usize {
                let entry = step * 32 + thread % 32;
                let local = index[entry] as usize;
                if local == buffer {
                    assert_eq!(value[entry], 0.0);
                    continue;
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    *acc +=
                        value[entry] * f64::from(b[(first + r) * b_rows + staged[local] as usize]);
                }
            }
        }
    }
    for thread in 0..threads {
        let slot = panel * threads + thread;
        let key = match keys {
            None => slot as u32,
            Some(keys) if slot < keys.len() => keys[slot],
            Some(_) => NO_ROW,
        };
        if key == NO_ROW || (keys.is_none() && slot >= rows) {
            assert!(acc[thread].iter().all(|sum| *sum == 0.0));
            continue;
        }
        let key_at =
            |lane: usize| keys.map_or(slot as u32 + 1, |keys| keys[panel * threads + lane]);
        if thread % 32 > 0 && tiled.cuts() && key_at(thread - 1) == key {
            continue;
        }
        let end = (thread + 1).next_multiple_of(32);
        let run =
            (thread..end).take_while(|&lane| lane == thread || tiled.cuts() && key_at(lane) == key);
        let run: Vec<usize> = run.collect();
        for r in 0..width {
            let sum = run.iter().map(|&lane| acc[lane][r]).sum();
            let to = match key & PARTIAL != 0 {
                true => &mut partials[(first + r) * partial_count + (key & !PARTIAL) as usize],
                false => &mut c[(first + r) * rows + key as usize],
            };
            assert!(to.is_nan(), "written twice");
            *to = sum;
        }
    }
}

/// Rows of many lengths, every fifth empty, one full, over a shape that divides by nothing.
fn ragged(rows: usize, cols: usize, full: usize) -> Csr {
    let (mut ptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        let length = match row {
            _ if row == full => cols,
            _ if row % 5 == 0 => 0,
            _ => (row * 7) % 41,
        };
        for i in 0..length {
            indices.push((i * cols / length + row % (cols / length.max(1))) as u32);
            values.push((row as f64 - i as f64) / 7.0);
        }
        ptr.push(indices.len());
    }
    Csr::new(rows, cols, ptr, indices, values).expect("canonical")
}

/// Lowers and executes a candidate; `false` where it was refused.
fn agrees(matrix: &Arc<Csr>, candidate: &Candidate, problem: Spmm, device: &Device) -> bool {
    let tiled = parsed(candidate, problem);
    let mut shared = Shared::new(matrix.clone(), problem, device.clone());
    let lowered = match tiled.lower(&mut shared) {
        Ok(lowered) => lowered,
        Err(refusal) => {
            assert!(tiled.cuts(), "{candidate}: {refusal}");
            return false;
        }
    };
    let b = operand::random(matrix.cols() * problem.n as usize, 3);
    let expected = oracle::spmm(matrix, &b, &problem);
    let c = execute(&lowered, &tiled, &b);
    let wrong =
        c.iter().zip(expected.value.iter().zip(&expected.scale)).position(|(c, (value, scale))| {
            let error = (c - value).abs();
            error.is_nan() || error > 1e-10 * f64::from(*scale)
        });
    assert_eq!(wrong, None, "{candidate} {problem:?}");
    true
}

fn parsed(candidate: &Candidate, problem: Spmm) -> Tiled {
    let int = |name| candidate.int(name).unwrap() as u32;
    assert!(TiledColumns.kernel(candidate, &problem).is_some());
    Tiled {
        r: int("r"),
        buffer: int("buffer"),
        rows: int("rows"),
        segment: super::segment(candidate).unwrap(),
        order: super::order(candidate).unwrap(),
        problem,
    }
}

#[test]
fn every_candidate_agrees_with_the_oracle() {
    let matrices = [ragged(67, 301, 13), ragged(333, 2501, 300), ragged(1, 1, 0)];
    let generated = ["poisson2d:nx=23,ny=19", "rmat:scale=9,edge_factor=8,seed=3"];
    let generated = generated.map(|spec| Spec::parse(spec).unwrap().generate().unwrap());
    let mut segmented = 0;
    for matrix in matrices.into_iter().chain(generated).map(Arc::new) {
        for (n, dtype) in [
            (2, Dtype::F32),
            (3, Dtype::F64),
            (33, Dtype::F16),
            (33, Dtype::Bf16),
            (33, Dtype::F32),
        ] {
            let problem = Spmm::new(n, dtype, Layout::Col);
            for candidate in TiledColumns.candidates(&problem).iter().step_by(5) {
                for multiprocessors in [2, 132] {
                    let done = agrees(&matrix, candidate, problem, &device(multiprocessors));
                    segmented += u32::from(done && candidate.text("segment") != Some("none"));
                }
            }
        }
    }
    assert!(segmented > 20, "{segmented}");
}

#[test]
fn a_huge_row_is_summed_by_the_second_step() {
    // 3000 rows, of which one has 20,000 entries: at a mean of about 24 it takes 834 segments, 27 warps.
    let matrix = Arc::new(ragged(3000, 20_000, 1777));
    for (n, order) in
        [(2, "natural"), (3, "length"), (33, "radix"), (4, "similarity"), (34, "locality")]
    {
        let problem = Spmm { accumulate: true, ..Spmm::new(n, Dtype::F32, Layout::Col) };
        let candidate = TiledColumns
            .candidates(&problem)
            .into_iter()
            .find(|c| c.text("segment") == Some("auto") && c.text("order") == Some(order))
            .unwrap();
        let device = device(1);
        assert!(agrees(&matrix, &candidate, problem, &device));
        let together = matches!(order, "natural" | "length" | "locality");
        let mut shared = Shared::new(matrix.clone(), problem, device);
        let lowered = parsed(&candidate, problem).lower(&mut shared).unwrap();
        let Program::Cuda(program) = &lowered.program else { panic!("no program") };
        assert_eq!((program.steps.len(), lowered.scratch.len()), (2, 1));
        assert_eq!(program.steps[1].args[9..], [Arg::Alpha, Arg::Beta]);
        // One row in many pieces; ordered by columns, the segments of all cut rows part.
        let blocks = program.steps[1].grid;
        assert_eq!((blocks[0] == 1, blocks[1]), (together, n.div_ceil(8)));
    }
}

#[test]
fn an_infinity_of_b_stays_in_its_rows() {
    // Padding points to the zero column: no stored place but a real entry's names a staged one.
    let matrix = Arc::new(ragged(67, 301, 13));
    let problem = Spmm::new(4, Dtype::F32, Layout::Col);
    let candidate = &TiledColumns.candidates(&problem)[0];
    let tiled = parsed(candidate, problem);
    let lowered = tiled.lower(&mut Shared::new(matrix.clone(), problem, device(2))).unwrap();
    let Program::Cuda(program) = &lowered.program else { panic!("no program") };
    let args = Arguments(&lowered, &program.steps[0].args);
    let real = args.indices(4).iter().filter(|&&local| local != tiled.buffer as u16).count();
    assert_eq!(real, matrix.nnz());
}

#[test]
fn the_space_is_small_and_its_tiles_fit() {
    for (dtype, most) in [(Dtype::F16, 108), (Dtype::F32, 180), (Dtype::F64, 180)] {
        let problem = Spmm::new(32, dtype, Layout::Col);
        let all = TiledColumns.candidates(&problem);
        assert!((16..=most).contains(&all.len()), "{dtype}: {}", all.len());
        for candidate in &all {
            let tile = TiledColumns.kernel(candidate, &problem).unwrap().tile();
            assert!(super::super::constraints::is_legal(&tile, &problem), "{candidate}");
            assert!(u64::from(tile.shared_bytes) < 100 << 10, "{candidate}");
        }
    }
    let of = |n, layout| TiledColumns.candidates(&Spmm::new(n, Dtype::F32, layout));
    assert!(of(1, Layout::Col).is_empty() && of(32, Layout::Row).is_empty());
    assert!(FAMILIES.iter().any(|family| family.name() == "tiled"));
}
