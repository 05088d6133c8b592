//! The kernel's lanes emulated on the CPU: the fragments of the PTX documentation, the table's tasks, and the path of the
//! diagonals to C.
//!
//! It walks the same arrays by the same formulas as `kernels/spmm/tca.cuh`, so that the mapping is proven without a device.

use super::table::{IDLE, Shape, WORDS, build};
use crate::domain::{Dtype, Layout, Spmm};
use crate::sparse::generate::Spec;
use crate::sparse::{Csr, operand, oracle};

const LANES: usize = 32;

/// PTX ISA, "Matrix Fragments for mma.m16n8k8", .f16: (row, k) of element `i` of A, 16 x 8.
fn dense_place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + if i < 2 { 0 } else { 8 }, lane % 4 * 2 + (i & 1))
}

/// The same for B, 8 x 8: (k, column).
fn sparse_place(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 2 + i, lane / 4)
}

/// The same for C and D, 16 x 8: (row, column).
fn sum_place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + if i < 2 { 0 } else { 8 }, lane % 4 * 2 + (i & 1))
}

type Sums = [[f64; 4]; LANES];

/// One instruction of a warp. In float64: what is tested is where values go.
fn mma(sums: &mut Sums, dense: &[[f64; 4]; LANES], sparse: &[[f64; 2]; LANES]) {
    let (mut left, mut right) = ([[0.0; 8]; 16], [[0.0; 8]; 8]);
    for lane in 0..LANES {
        for (i, value) in dense[lane].iter().enumerate() {
            let (row, k) = dense_place(lane, i);
            left[row][k] = *value;
        }
        for (i, value) in sparse[lane].iter().enumerate() {
            let (k, column) = sparse_place(lane, i);
            right[k][column] = *value;
        }
    }
    for (lane, own) in sums.iter_mut().enumerate() {
        for (i, sum) in own.iter_mut().enumerate() {
            let (row, column) = sum_place(lane, i);
            *sum += (0..8).map(|k| left[row][k] * right[k][column]).sum::<f64>();
        }
    }
}

#[test]
fn fragments_cover_their_matrices_once() {
    let all = |count: usize, place: fn(usize, usize) -> (usize, usize)| {
        let mut places: Vec<_> =
            (0..LANES).flat_map(|lane| (0..count).map(move |i| place(lane, i))).collect();
        places.sort_unstable();
        places
    };
    let grid =
        |rows: usize| (0..rows).flat_map(|r| (0..8).map(move |c| (r, c))).collect::<Vec<_>>();
    assert_eq!(all(4, dense_place), grid(16));
    assert_eq!(all(2, sparse_place), grid(8));
    assert_eq!(all(4, sum_place), grid(16));
}

/// An instance of the kernel on a matrix.
struct Emulated<'a> {
    matrix: &'a Csr,
    values: Vec<f64>,
    b: &'a [f32],
    shape: Shape,
    width: usize,
    aligned: bool,
    /// Whether C is f16: a warp of the last class then has less than a sector of it.
    collects: bool,
    /// NaN until written.
    c: Vec<f64>,
}

/// A warp's entry of the table.
#[derive(Clone, Copy, Debug)]
struct Task {
    row: usize,
    begin: usize,
    end: usize,
    eights: usize,
    part: usize,
    parts: usize,
}

impl Task {
    fn of(entry: &[u32]) -> Option<Self> {
        let word = entry[3] as usize;
        (entry[0] != IDLE).then_some(Self {
            row: entry[0] as usize,
            begin: entry[1] as usize,
            end: entry[2] as usize,
            eights: 1 << (word & 3),
            part: word >> 2 & 0x7fff,
            parts: (word >> 17) + 1,
        })
    }

    /// The first of a lane's two nonzeros in a step.
    fn mine(&self, lane: usize) -> usize {
        lane / 4 % self.eights * 8 + lane % 4 * 2
    }
}

impl Emulated<'_> {
    fn n(&self) -> usize {
        self.shape.n as usize
    }

    fn column(&self, octets: usize, first: usize, octet: usize, e: usize) -> usize {
        if self.aligned { first + octet * self.width + e } else { first + e * octets + octet }
    }

    /// `width` columns of the row of B of nonzero `at`, zero outside.
    fn fetch(&self, at: usize, end: usize, octets: usize, first: usize, octet: usize) -> Vec<f64> {
        let element = |e| {
            let column = self.column(octets, first, octet, e);
            let inside = at < end && column < self.n();
            let row = || self.matrix.indices()[at] as usize;
            if inside { f64::from(self.b[row() * self.n() + column]) } else { 0.0 }
        };
        (0..self.width).map(element).collect()
    }

    fn multiply(&self, sums: &mut [Sums], rows: &[[Vec<f64>; 2]], task: &Task, k: usize) {
        let value = |at: usize| if at < task.end { self.values[at] } else { 0.0 };
        let sparse: [[f64; 2]; LANES] =
            std::array::from_fn(|lane| [0, 1].map(|i| value(k + task.mine(lane) + i)));
        for (m, sums) in sums.iter_mut().enumerate() {
            let dense = std::array::from_fn(|lane| {
                let [low, high] = &rows[lane];
                [low[2 * m], high[2 * m], low[2 * m + 1], high[2 * m + 1]]
            });
            mma(sums, &dense, &sparse);
        }
    }

    /// The outputs of a warp's sums: `act` gets each with its column. `octet0` is the warp's first octet.
    fn outputs(
        &self,
        sums: &[Sums],
        task: &Task,
        (octets, first, octet0): (usize, usize, usize),
        mut act: impl FnMut(usize, f64),
    ) {
        let width = self.width;
        let upper = |lane: usize, bit: usize| (lane / 4) & bit != 0;
        let mut held: Vec<Vec<f64>> = (0..LANES)
            .map(|lane| {
                let element = |e: usize| sums[e / 2][lane][e % 2 * 2 + usize::from(upper(lane, 1))];
                (0..width).map(element).collect()
            })
            .collect();
        let mut offset = [0; LANES];
        let mut count = width;
        for (bit, partner) in [(1, 4), (2, 9), (4, 18)] {
            if task.eights <= bit {
                break;
            }
            let before = held.clone();
            for lane in 0..LANES {
                let (mine, theirs) = (&before[lane], &before[lane ^ partner]);
                if count == 1 {
                    held[lane][0] = mine[0] + theirs[0];
                } else {
                    // The partner gives the half that this lane keeps.
                    let from = if upper(lane, bit) { count / 2 } else { 0 };
                    assert_ne!(upper(lane, bit), upper(lane ^ partner, bit));
                    held[lane] = (from..from + count / 2).map(|i| mine[i] + theirs[i]).collect();
                    offset[lane] += from;
                }
            }
            count = (count / 2).max(1);
        }
        for lane in 0..LANES {
            let repeated = width < task.eights && upper(lane, 4);
            if lane % 4 != lane / 8 || repeated {
                continue;
            }
            for (i, sum) in held[lane].iter().enumerate().take(count) {
                let octet = octet0 + lane / 4 / task.eights;
                act(self.column(octets, first, octet, offset[lane] + i), *sum);
            }
        }
    }

    fn store(&mut self, task: &Task, column: usize, sum: f64) {
        if column < self.n() {
            let to = &mut self.c[task.row * self.shape.n as usize + column];
            assert!(to.is_nan(), "{task:?} writes column {column} again");
            *to = sum;
        }
    }

    fn finish(&mut self, sums: &[Sums], task: &Task, octets: usize, first: usize, octet0: usize) {
        let mut all = Vec::new();
        self.outputs(sums, task, (octets, first, octet0), |column, sum| all.push((column, sum)));
        all.into_iter().for_each(|(column, sum)| self.store(task, column, sum));
    }

    /// `collect` of all warps of a group, then `write` of the first: each of the 64 places is filled once.
    fn collect_and_write(&mut self, sums: &[Vec<Sums>], tasks: &[Task], first: usize) {
        let mut collected = [f64::NAN; 64];
        for (member, sums) in sums.iter().enumerate() {
            let place = (8, 0, member * (8 / tasks[0].eights));
            self.outputs(sums, &tasks[member], place, |column, sum| {
                assert!(collected[column].is_nan(), "two sums in place {column}");
                collected[column] = sum;
            });
        }
        assert!(collected.iter().all(|sum| !sum.is_nan()), "a place is left out");
        for lane in 0..LANES {
            let places = if self.aligned { [2 * lane, 2 * lane + 1] } else { [lane, lane + 32] };
            if self.aligned {
                // Pairs are stored at once, so both must be inside or neither.
                let [inside, other] = places.map(|place| first + place < self.n());
                assert_eq!(inside, other);
            }
            for place in places {
                self.store(&tasks[0], first + place, collected[place]);
            }
        }
    }

    fn walk_registers(&mut self, task: &Task) {
        let octets = 8 / task.eights;
        let own = octets * self.width;
        for first in (task.part * own..self.n()).step_by(task.parts * own) {
            let mut sums = vec![[[0.0; 4]; LANES]; self.width / 2];
            for k in (task.begin..task.end).step_by(8 * task.eights) {
                let row = |lane: usize, i| {
                    let at = k + task.mine(lane) + i;
                    self.fetch(at, task.end, octets, first, lane / 4 / task.eights)
                };
                let rows: Vec<_> = (0..LANES).map(|lane| [row(lane, 0), row(lane, 1)]).collect();
                self.multiply(&mut sums, &rows, task, k);
            }
            self.finish(&sums, task, octets, first, 0);
        }
    }

    /// All warps of a group at once.
    fn walk_shared(&mut self, tasks: &[Task]) {
        let task = tasks[0];
        for first in (task.part / task.eights * 64..self.n()).step_by(task.parts / task.eights * 64)
        {
            let mut sums = vec![vec![[[0.0; 4]; LANES]; 4]; task.eights];
            let mut k = task.begin;
            loop {
                let buffer = self.gather(&task, k, first);
                for (member, sums) in sums.iter_mut().enumerate() {
                    let row = |lane: usize, i| {
                        let octet = member * (8 / task.eights) + lane / 4 / task.eights;
                        buffer[place(task.eights, task.mine(lane) + i, octet)].clone()
                    };
                    let rows: Vec<_> =
                        (0..LANES).map(|lane| [row(lane, 0), row(lane, 1)]).collect();
                    self.multiply(sums, &rows, &tasks[member], k);
                }
                k += 8 * task.eights;
                if k >= task.end {
                    break;
                }
            }
            if self.collects && task.eights == 8 {
                self.collect_and_write(&sums, tasks, first);
                continue;
            }
            for (member, sums) in sums.iter().enumerate() {
                self.finish(sums, &tasks[member], 8, first, member * (8 / task.eights));
            }
        }
    }

    fn gather(&self, task: &Task, k: usize, first: usize) -> Vec<Vec<f64>> {
        let mut buffer = vec![Vec::new(); 64 * task.eights];
        for thread in 0..LANES * task.eights {
            for i in 0..2 {
                let nonzero = thread / 8 + i * 4 * task.eights;
                // The column comes by shuffle from the lane whose nonzeros these are.
                assert_eq!(task.mine(nonzero / 2) + nonzero % 2, nonzero);
                let vector = self.fetch(k + nonzero, task.end, 8, first, thread % 8);
                let to = &mut buffer[place(task.eights, nonzero, thread % 8)];
                assert!(to.is_empty(), "two vectors in one place");
                *to = vector;
            }
        }
        buffer
    }

    fn run(&mut self) {
        let table = build(self.matrix, &self.shape).unwrap();
        let tasks: Vec<Option<Task>> = table.chunks(WORDS).map(Task::of).collect();
        for (slot, task) in tasks.iter().enumerate() {
            let Some(task) = task else { continue };
            if !self.shape.grouped {
                self.walk_registers(task);
            } else if task.part.is_multiple_of(task.eights) {
                let group: Vec<Task> =
                    tasks[slot..slot + task.eights].iter().flatten().copied().collect();
                let parts: Vec<usize> = group.iter().map(|task| task.part).collect();
                assert_eq!(parts, (task.part..task.part + task.eights).collect::<Vec<_>>());
                assert!(group.iter().all(|other| other.row == task.row));
                self.walk_shared(&group);
            }
        }
    }
}

/// `buffer_place` of the kernel.
fn place(eights: usize, nonzero: usize, octet: usize) -> usize {
    let turn = if eights == 1 { nonzero & !1 } else { nonzero / 2 % 8 };
    nonzero * 8 + (octet ^ turn)
}

/// Quarters of a warp, whose 16-byte accesses the banks serve at a time, touch each of the eight bank groups once.
#[test]
fn the_shared_buffer_has_no_bank_conflicts() {
    for eights in [1, 2, 4, 8] {
        let task = Task { row: 0, begin: 0, end: 0, eights, part: 0, parts: eights };
        let distinct = |places: Vec<usize>| {
            let banks: std::collections::BTreeSet<_> = places.iter().map(|at| at % 8).collect();
            assert_eq!(banks.len(), 8, "{eights}: {places:?}");
        };
        for quarter in 0..4 * eights {
            let lanes = quarter * 8..quarter * 8 + 8;
            for i in 0..2 {
                let written = |thread| place(eights, thread / 8 + i * 4 * eights, thread % 8);
                distinct(lanes.clone().map(written).collect());
                let read = |thread: usize| {
                    let (member, lane) = (thread / LANES, thread % LANES);
                    let octet = member * (8 / eights) + lane / 4 / eights;
                    place(eights, task.mine(lane) + i, octet)
                };
                distinct(lanes.clone().map(read).collect());
            }
        }
    }
}

/// Rows at every boundary of a class, and a long one, over columns that wrap.
fn bounds() -> Csr {
    let cols = 1000;
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for (row, length) in [0, 1, 8, 9, 16, 17, 32, 33, 64, 65, 1000, 3, 0].into_iter().enumerate() {
        indices.extend((0..length).map(|i| (i * cols / length) as u32));
        values.extend((0..length).map(|i| (row as f64 - i as f64 * 0.37).sin()));
        indptr.push(indices.len());
    }
    Csr::new(indptr.len() - 1, cols, indptr, indices, values).unwrap()
}

fn agrees(matrix: &Csr, shape: Shape, collects: bool) {
    let Shape { span: columns, n, .. } = shape;
    let width = columns / 8;
    let problem = Spmm::new(n, Dtype::F16, Layout::Row);
    let b = operand::random(matrix.cols() * n as usize, 7);
    let expected = oracle::spmm(matrix, &b, &problem);
    let rounded = |&value: &f64| operand::round_to_half(value);
    let mut emulated = Emulated {
        matrix,
        values: matrix.values().iter().map(rounded).collect(),
        b: &b,
        shape,
        width: width as usize,
        aligned: n.is_multiple_of(width),
        collects,
        c: vec![f64::NAN; matrix.rows() * n as usize],
    };
    emulated.run();
    for (at, (&c, &value)) in emulated.c.iter().zip(&expected.value).enumerate() {
        let close = (c - value).abs() <= 1e-9 * f64::from(expected.scale[at]).max(1e-9);
        assert!(close, "{shape:?}: element {at} is {c}, not {value}");
    }
}

#[test]
fn diagonal_sums_are_the_dot_products() {
    let generated = |spec: &str| Spec::parse(spec).unwrap().generate().unwrap();
    let matrices = [bounds(), generated("rmat:scale=6,edge_factor=12,seed=3")];
    for matrix in &matrices {
        for thresholds in ["paper", "eightfold"].map(|name| super::thresholds(name).unwrap()) {
            for n in [2, 8, 31, 40, 130] {
                let of = |span, warps, grouped| Shape { warps, span, thresholds, grouped, n };
                for (columns, warps) in [(32, 4), (64, 8), (128, 4)] {
                    agrees(matrix, of(columns, warps, false), false);
                }
                agrees(matrix, of(64, 8, true), false);
                agrees(matrix, of(64, 8, true), true);
            }
        }
    }
}
