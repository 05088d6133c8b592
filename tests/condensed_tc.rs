//! Family `condensed_tc` executed on the host: the recipes' own arrays, walked as the kernel's lanes walk them, with explicit
//! fragments of PTX's MMAs, and compared with the oracle.

#[path = "fixture/gpu.rs"]
mod fixture;

use half::{bf16, f16};
use rayon::prelude::*;
use sparsetune::domain::recipe::{Arg, ArrayData, Program, Recipe};
use sparsetune::domain::{Candidate, Dtype, Layout, Spmm};
use sparsetune::ops::TunableProblem;
use sparsetune::ops::spmm::condensed_tc::{CondensedTcs, pack::ODD};
use sparsetune::ops::spmm::family::SpmmFamily;
use sparsetune::sparse::generate::Spec;
use sparsetune::sparse::tolerance::{tolerance, weigh_rows};
use sparsetune::sparse::{Csr, operand, oracle};
use std::sync::Arc;

/// PTX ISA, m16n8k8 (tf32) and m16n8k16 (f16): row m and column k of element i of a lane's fragment of A, and row k and
/// column n of its fragment of B. Elements of f16 are counted one by one, two to a register.
fn place_a(half: bool, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    match half {
        false => (g + 8 * (i % 2), t + 4 * (i / 2)),
        true => (g + 8 * (i / 2 % 2), 2 * t + i % 2 + 8 * (i / 4)),
    }
}

fn place_b(half: bool, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    (if half { 2 * t + i % 2 + 8 * (i / 2) } else { t + 4 * i }, g)
}

/// Row m and column n of element i of a lane's sums, in both.
fn place_sum(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2)
}

/// To tf32, ties away from zero.
fn tf32(value: f32) -> f32 {
    f32::from_bits((value.to_bits() + 0x1000) & !0x1fff)
}

/// What tensor cores do with a sum that does not fit: they truncate it.
fn truncated(value: f64) -> f32 {
    let near = value as f32;
    if f64::from(near).abs() > value.abs() { f32::from_bits(near.to_bits() - 1) } else { near }
}

/// A warp's fragments of one MMA, by lane.
type Fragments = [Vec<f32>; 32];

/// d += a b over a warp.
fn mma(half: bool, d: &mut [[f32; 4]; 32], a: &Fragments, b: &Fragments) {
    let (mut left, mut right) = ([[0f64; 16]; 16], [[0f64; 8]; 16]);
    for lane in 0..32 {
        for (i, &value) in a[lane].iter().enumerate() {
            let (m, k) = place_a(half, lane, i);
            left[m][k] = value.into();
        }
        for (i, &value) in b[lane].iter().enumerate() {
            let (k, n) = place_b(half, lane, i);
            right[k][n] = value.into();
        }
    }
    for (lane, sums) in d.iter_mut().enumerate() {
        for (i, sum) in sums.iter_mut().enumerate() {
            let (m, n) = place_sum(lane, i);
            let products = (0..16).map(|k| left[m][k] * right[k][n]).sum::<f64>();
            *sum = truncated(f64::from(*sum) + products);
        }
    }
}

/// The recipe as the kernel's arguments.
struct Launch<'a> {
    problem: Spmm,
    steps: &'a [u32],
    cols: &'a [u32],
    values: Vec<f32>,
    residue_ptr: &'a [u32],
    residue: &'a [u32],
    order: &'a [u32],
    rows: usize,
    parts: usize,
    warps: usize,
    columns: usize,
}

impl<'a> Launch<'a> {
    fn of(recipe: &'a Recipe, problem: Spmm) -> Self {
        let Program::Cuda(program) = &recipe.program else { panic!("a CUDA program") };
        let [step] = program.steps.as_slice() else { panic!("one step") };
        let data = |at: usize| match step.args[at] {
            Arg::Array(array) => Some(&recipe.arrays[array].data),
            Arg::U64(0) => None,
            other => panic!("{other:?} where an array belongs"),
        };
        let words = |at| match data(at) {
            Some(ArrayData::U32(words)) => &words[..],
            None => &[],
            _ => panic!("words"),
        };
        let values = match data(2) {
            Some(ArrayData::F32(values)) => values.to_vec(),
            Some(ArrayData::F16(bits)) => {
                bits.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect()
            }
            Some(ArrayData::Bf16(bits)) => {
                bits.iter().map(|&bits| bf16::from_bits(bits).to_f32()).collect()
            }
            _ => panic!("values"),
        };
        let Arg::U32(rows) = step.args[6] else { panic!("rows") };
        let scaled: &[Arg] = if problem.accumulate { &[Arg::Alpha, Arg::Beta] } else { &[] };
        assert_eq!(step.args[7..10], [Arg::B, Arg::C, Arg::U32(problem.n)]);
        assert_eq!(step.args[12..], *scaled);
        assert!(!program.zero_output);
        let places = u64::from(rows.div_ceil(8) * step.grid[1]);
        let sums = 8 * 4 * recipe.candidate.int("columns").unwrap() as u64;
        match step.grid[2] {
            1 => assert!(recipe.scratch.is_empty() && step.args[10..12] == [Arg::U64(0); 2]),
            parts => {
                assert_eq!(step.args[10..12], [Arg::Scratch(0), Arg::Scratch(1)]);
                assert_eq!(recipe.scratch[0].bytes, u64::from(parts) * places * sums);
                assert!(recipe.scratch[1].bytes >= 4 * places && recipe.scratch[1].fill == 0);
            }
        }
        let int = |name| recipe.candidate.int(name).unwrap() as usize;
        Self {
            problem,
            steps: words(0),
            cols: words(1),
            values,
            residue_ptr: words(3),
            residue: words(4),
            order: words(5),
            rows: rows as usize,
            parts: step.grid[2] as usize,
            warps: step.grid[0] as usize * step.block[0] as usize / 32,
            columns: int("columns"),
        }
    }

    fn half(&self) -> bool {
        self.problem.dtype.is_half()
    }

    /// C = A B with the kernel's own walk; every element must be written by exactly one warp of each part.
    fn run(&self, b: &[f32]) -> Vec<f32> {
        let n = self.problem.n as usize;
        let panels = self.rows.div_ceil(8);
        assert!(self.warps >= panels && self.warps < panels.max(1) + 8);
        let tiles: Vec<(usize, usize, usize)> = (0..panels)
            .flat_map(|panel| (0..n.div_ceil(self.columns)).map(move |tile| (panel, tile)))
            .flat_map(|(panel, tile)| (0..self.parts).map(move |part| (panel, tile, part)))
            .collect();
        let done: Vec<Vec<(usize, f32)>> =
            tiles.par_iter().map(|&(panel, tile, part)| self.warp(b, panel, tile, part)).collect();
        let (mut c, mut written) = (vec![0f32; self.rows * n], vec![0; self.rows * n]);
        for (at, value) in done.into_iter().flatten() {
            c[at] += value;
            written[at] += 1;
        }
        assert!(written.iter().all(|&times| times == self.parts), "not every element is written");
        c.iter_mut().for_each(|c| {
            if self.half() {
                *c = f16::from_f32(*c).to_f32()
            }
        });
        c
    }

    /// What one warp stores: places in C, and values.
    fn warp(&self, b: &[f32], panel: usize, tile: usize, part: usize) -> Vec<(usize, f32)> {
        let n = self.problem.n as usize;
        let (group, vec) = if self.half() { (64, 8) } else { (32, 4) };
        let share = |from: u32, to: u32| {
            let (from, count) = (from as usize, (to - from) as usize);
            from + count * part / self.parts..from + count * (part + 1) / self.parts
        };
        let mut stored = Vec::new();
        for first in (tile * self.columns..(tile + 1) * self.columns).step_by(group) {
            let base = |lane: usize| first + lane / 4 * vec;
            let element = |lane: usize, col: u32, v: usize| match base(lane) < n {
                true => b[col as usize * n + base(lane) + v],
                false => 0.0,
            };
            let mut acc = vec![[[0f32; 4]; 32]; vec / 2];
            for step in share(self.steps[panel], self.steps[panel + 1]) {
                self.step(step, &element, &mut acc);
            }
            for lane in (0..32).filter(|_| !self.residue_ptr.is_empty()) {
                let list = panel * 4 + lane % 4;
                for at in share(self.residue_ptr[list], self.residue_ptr[list + 1]) {
                    let (word, value) =
                        (self.residue[2 * at], f32::from_bits(self.residue[2 * at + 1]));
                    for v in 0..vec {
                        let sum = &mut acc[v / 2][lane][v % 2 * 2 + usize::from(word & ODD != 0)];
                        *sum = value.mul_add(element(lane, word & !ODD, v), *sum);
                    }
                }
            }
            for (lane, odd) in (0..64).map(|at| (at / 2, at % 2)) {
                let slot = panel * 8 + lane % 4 * 2 + odd;
                if slot < self.rows && base(lane) < n {
                    let row = self.order.get(slot).map_or(slot, |&row| row as usize);
                    stored
                        .extend((0..vec).map(|v| {
                            (row * n + base(lane) + v, acc[v / 2][lane][v % 2 * 2 + odd])
                        }));
                }
            }
        }
        stored
    }

    /// One step: what each lane loads, and the MMAs it feeds.
    fn step(
        &self,
        step: usize,
        element: &impl Fn(usize, u32, usize) -> f32,
        acc: &mut [[[f32; 4]; 32]],
    ) {
        let half = self.half();
        let fetch = if half { 4 } else { 2 };
        let col = |lane: usize, i: usize| self.cols[(step * 4 + lane % 4) * fetch + i];
        let b: Fragments = std::array::from_fn(|lane| {
            let at = (step * 32 + lane) * fetch;
            self.values[at..at + fetch].to_vec()
        });
        for (j, sums) in acc.iter_mut().enumerate() {
            let a: Fragments = std::array::from_fn(|lane| {
                // Columns 2j and 2j + 1 of the lane's rows; of f16, two rows side by side in a register.
                let order: &[(usize, usize)] = match half {
                    false => &[(0, 0), (0, 1), (1, 0), (1, 1)],
                    true => &[(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)],
                };
                order.iter().map(|&(i, v)| element(lane, col(lane, i), 2 * j + v)).collect()
            });
            let each = |f: &Fragments, of: fn(f32) -> f32| -> Fragments {
                std::array::from_fn(|lane| f[lane].iter().map(|&value| of(value)).collect())
            };
            let low = |value| tf32(value - tf32(value));
            match (half, self.problem.tf32) {
                (true, _) => mma(true, sums, &a, &b),
                (false, true) => mma(false, sums, &each(&a, tf32), &each(&b, tf32)),
                (false, false) => {
                    let mut sum = [[0f32; 4]; 32];
                    mma(false, &mut sum, &each(&a, low), &each(&b, tf32));
                    mma(false, &mut sum, &each(&a, tf32), &each(&b, low));
                    mma(false, &mut sum, &each(&a, tf32), &each(&b, tf32));
                    let pairs = sums.iter_mut().flatten().zip(sum.iter().flatten());
                    pairs.for_each(|(total, sum)| *total += sum);
                }
            }
        }
    }
}

/// Rows of the given lengths over `cols` columns, drawn so that some columns are shared by many rows.
fn of_lengths(lengths: &[usize], cols: usize) -> Csr {
    let (mut indices, mut indptr) = (Vec::new(), vec![0]);
    for (row, &length) in lengths.iter().enumerate() {
        let stride = if row % 3 == 0 { 1 } else { (cols / length.max(1)).max(1) };
        let mut columns: Vec<u32> =
            (0..length).map(|i| ((row % 5 + i * stride) % cols) as u32).collect();
        columns.sort_unstable();
        columns.dedup();
        indices.extend(columns);
        indptr.push(indices.len());
    }
    let values = operand::random_double(indices.len(), 3);
    Csr::new(lengths.len(), cols, indptr, indices, values).unwrap()
}

fn matrices() -> Vec<(&'static str, Csr)> {
    let lengths: Vec<usize> = (0..75).map(|row| [0, 1, 2, 7, 17][row % 5]).collect();
    let mut huge = vec![3; 29];
    huge[11] = 900;
    let spec = |text| Spec::parse(text).unwrap().generate().unwrap();
    vec![
        ("one entry", of_lengths(&[0, 1], 1)),
        ("nothing", of_lengths(&[0; 9], 4)),
        ("mixed", of_lengths(&lengths, 61)),
        ("a huge row", of_lengths(&huge, 1000)),
        ("few long rows", of_lengths(&[400; 5], 700)),
        ("pruned", spec("pruned:rows=61,cols=130,sparsity=0.8,seed=1")),
        ("stencil", spec("poisson2d:nx=13,ny=9,seed=2")),
        ("graph", spec("rmat:scale=7,edge_factor=6,seed=3")),
    ]
}

fn candidates(problem: &Spmm) -> Vec<Candidate> {
    let all = CondensedTcs.candidates(problem).into_iter();
    // Stages and warps do not change results, so one of each is enough; so is one packing for the other widths.
    let packed =
        |it: &Candidate| it.text("order") == Some("length") && it.int("residue") == Some(2);
    all.filter(|it| it.int("stages") == Some(2) && it.int("warps") == Some(2))
        .filter(|it| it.int("columns") == Some(64) || packed(it))
        .collect()
}

#[test]
fn packed_panels_multiply_as_the_oracle() {
    for (name, matrix) in matrices() {
        let matrix = Arc::new(matrix);
        for (n, dtype, tf32, accumulate) in [
            (8, Dtype::F32, false, false),
            (36, Dtype::F32, true, false),
            (72, Dtype::F16, false, true),
            (72, Dtype::Bf16, false, true),
            (16, Dtype::Bf16, false, false),
            (132, Dtype::F32, false, true),
            (8, Dtype::F16, false, false),
        ] {
            let problem = Spmm { tf32, accumulate, ..Spmm::new(n, dtype, Layout::Row) };
            let mut b = operand::random(matrix.cols() * n as usize, 5);
            b.iter_mut().for_each(|b| *b = oracle::round(f64::from(*b), dtype) as f32);
            let mut expected = oracle::spmm(&matrix, &b, &problem);
            weigh_rows(&matrix, &problem, &mut expected.scale);
            let bound = tolerance(&problem);
            let mut lowerer = problem.lowerer(matrix.clone(), &fixture::gpu()).unwrap();
            for candidate in candidates(&problem) {
                let recipe = lowerer.lower(&candidate).unwrap();
                let c = Launch::of(&recipe, problem).run(&b);
                for (at, &c) in c.iter().enumerate() {
                    let error = (f64::from(c) - expected.value[at]).abs();
                    let most = bound * f64::from(expected.scale[at]);
                    assert!(
                        error <= most,
                        "{name} {candidate} {problem:?}: {c} at {at}, {error} > {most}"
                    );
                }
            }
        }
    }
}

#[test]
fn few_long_rows_are_cut_in_parts_whatever_the_type() {
    let matrix = Arc::new(of_lengths(&[400; 5], 700));
    for (dtype, accumulate) in
        [(Dtype::F32, false), (Dtype::F32, true), (Dtype::F16, true), (Dtype::Bf16, true)]
    {
        let problem = Spmm { accumulate, ..Spmm::new(64, dtype, Layout::Row) };
        let mut lowerer = problem.lowerer(matrix.clone(), &fixture::gpu()).unwrap();
        let cut = candidates(&problem).iter().any(|candidate| {
            let recipe = lowerer.lower(candidate).unwrap();
            Launch::of(&recipe, problem).parts > 1
        });
        assert!(cut, "{problem:?}");
    }
}

#[test]
fn only_row_major_problems_of_eight_columns_have_candidates() {
    let count = |n, dtype, layout| CondensedTcs.candidates(&Spmm::new(n, dtype, layout)).len();
    assert_eq!(count(7, Dtype::F32, Layout::Row), 0);
    assert_eq!(count(32, Dtype::F32, Layout::Col), 0);
    assert_eq!(count(32, Dtype::F64, Layout::Row), 0);
    assert_eq!((count(8, Dtype::F32, Layout::Row), count(8, Dtype::F16, Layout::Row)), (96, 60));
}
