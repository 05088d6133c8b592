//! Interprets a lowered recipe of the family `ag` as `kernels/sptrsv/ag.cuh` does, warp by warp, with its memory.

use sparsetune::domain::recipe::{Arg, ArrayData, CudaProgram, Program, Recipe, Step};
use sparsetune::ops::sptrsv::System;
use sparsetune::ops::sptrsv::ag::assemble::{COLLABORATES, PUBLISHES, STAGES};
use sparsetune::ops::sptrsv::ag::text::WAITING;

const ROW_BITS: u32 = STAGES - 1;

/// The memory of a device that runs one recipe repeatedly.
pub struct Device<'a> {
    system: &'a System,
    recipe: &'a Recipe,
    program: &'a CudaProgram,
    /// Work words, absent until published; two arrays that alternate, or one whose epochs make it absent at each call.
    work: Vec<Vec<Option<f64>>>,
    calls: u32,
}

/// One launch as described by its arguments.
struct Launch<'a> {
    row_ptr: Vec<u32>,
    cols: Vec<u32>,
    values: Vec<f64>,
    diagonal: Vec<f64>,
    rows_of: Option<Vec<u32>>,
    tasks: Vec<u32>,
    queues: &'a [u32],
    waits: bool,
    reversed: bool,
    ng: usize,
    stage: usize,
    span: usize,
}

impl<'a> Device<'a> {
    pub fn new(system: &'a System, recipe: &'a Recipe) -> Self {
        let Program::Cuda(program) = &recipe.program else { panic!("a CUDA program") };
        let rows = system.triangular.rows();
        let work = recipe.scratch.iter().map(|_| vec![None; rows]).collect();
        Self { system, recipe, program, work, calls: 0 }
    }

    /// x of one call, in the matrix's row order.
    pub fn call(&mut self, b: &[f64]) -> Vec<f64> {
        let mut x = vec![f64::NAN; b.len()];
        let turn = self.calls as usize % 2;
        let packed = self.work.len() == 1;
        let at = if packed { 0 } else { turn };
        let mut work = self.work.get_mut(at).map(std::mem::take).unwrap_or_default();
        if packed {
            work.fill(None);
        }
        assert!(work.iter().all(Option::is_none), "the call before must reset this one's words");
        let mut other = self.work.get_mut(1 - turn).filter(|_| !packed).map(std::mem::take);
        for step in &self.program.steps {
            let launch = self.launch(step);
            launch.run(b, &mut x, &mut work, other.as_deref_mut(), self.calls);
        }
        if let Some(other) = other {
            self.work[1 - turn] = other;
        }
        if !self.work.is_empty() {
            self.work[at] = work;
        }
        self.calls += 1;
        x
    }

    fn u32s(&self, arg: Arg) -> &'a [u32] {
        let Arg::Array(index) = arg else { panic!("{arg:?} is no array") };
        let ArrayData::U32(data) = &self.recipe.arrays[index].data else { panic!("u32 expected") };
        data
    }

    fn values(&self, arg: Arg) -> Vec<f64> {
        let system = &self.system.triangular;
        match arg {
            Arg::Values => system.values.clone(),
            Arg::Diagonal => system.diagonal.clone(),
            Arg::Array(index) => match &self.recipe.arrays[index].data {
                ArrayData::F32(data) => data.iter().map(|&value| f64::from(value)).collect(),
                ArrayData::F64(data) => data.to_vec(),
                other => panic!("{other:?} are no values"),
            },
            other => panic!("{other:?} are no values"),
        }
    }

    fn launch(&self, step: &Step) -> Launch<'a> {
        let system = &self.system.triangular;
        let number = |at: usize| match step.args[at] {
            Arg::U32(value) => value as usize,
            other => panic!("argument {at} is {other:?}"),
        };
        let (row_ptr, cols) = match step.args[0] {
            Arg::RowPtr => {
                let row_ptr = system.indptr.iter().map(|&at| at as u32).collect();
                (row_ptr, system.indices.clone())
            }
            own => (self.u32s(own).to_vec(), self.u32s(step.args[1]).to_vec()),
        };
        let rows_of = match step.args[6] {
            Arg::U64(0) => None,
            own => Some(self.u32s(own).to_vec()),
        };
        assert_eq!(number(12), system.rows());
        let (first, warps) = (number(14), number(15));
        assert_eq!(step.grid[0] as usize * step.block[0] as usize / 32, warps);
        assert_eq!(step.resident, step.entry == WAITING);
        assert!(!step.resident || step.grid[0] <= self.system.device.multiprocessors);
        let ng = self.recipe.candidate.int("ng").expect("ng") as usize;
        let value = if self.system.problem.dtype.bytes() == 8 { 8 } else { 4 };
        let (span, stage) = (number(16), number(17));
        let warps_per_block = step.block[0] as usize / 32;
        let shared = warps_per_block * (ng * span * value + stage * (value + 4));
        let device = &self.system.device;
        let padded = u64::from(step.shared_bytes);
        // One block of a waiting launch to a multiprocessor, unless the scheme is a study of what that is worth.
        let shares = self.recipe.candidate.text("without") == Some("exclusive");
        if step.resident && step.grid[0] > 1 && !shares {
            assert!(2 * padded > device.shared_bytes_per_multiprocessor && padded >= shared as u64);
        } else {
            assert_eq!(padded, shared as u64);
        }
        assert!(padded <= device.shared_bytes_per_block);
        Launch {
            row_ptr,
            cols,
            values: self.values(step.args[2]),
            diagonal: self.values(step.args[3]),
            rows_of,
            tasks: self.u32s(step.args[7]).to_vec(),
            queues: &self.u32s(step.args[8])[first..=first + warps],
            waits: step.entry == WAITING,
            reversed: number(13) == 1,
            ng,
            stage,
            span,
        }
    }
}

/// A warp: its current group, and which rows of that group are solved.
struct Warp {
    group: usize,
    end: usize,
    local: Vec<Vec<Option<f64>>>,
}

impl Launch<'_> {
    /// Warps run in turn, in an order that changes with the call; each goes on as far as it can. A launch that does not wait
    /// may run in any order, so its warps run one after the other, the last first.
    fn run(
        &self,
        b: &[f64],
        x: &mut [f64],
        work: &mut [Option<f64>],
        mut other: Option<&mut [Option<f64>]>,
        call: u32,
    ) {
        let mut warps: Vec<Warp> = self
            .queues
            .windows(2)
            .map(|ends| Warp { group: ends[0] as usize, end: ends[1] as usize, local: Vec::new() })
            .collect();
        if call % 2 == 1 || !self.waits {
            warps.reverse();
        }
        loop {
            let mut moved = false;
            for warp in &mut warps {
                moved |= self.advance(warp, b, x, work, &mut other);
            }
            if warps.iter().all(|warp| warp.group == warp.end) {
                return;
            }
            assert!(moved, "all warps wait: a deadlock");
        }
    }

    /// One visit: every lane of the current group takes the values that are available.
    fn advance(
        &self,
        warp: &mut Warp,
        b: &[f64],
        x: &mut [f64],
        work: &mut [Option<f64>],
        other: &mut Option<&mut [Option<f64>]>,
    ) -> bool {
        if warp.group == warp.end {
            return false;
        }
        let tasks = &self.tasks[2 * warp.group * self.ng..2 * (warp.group + 1) * self.ng];
        self.check_stage(tasks);
        warp.local.resize(self.ng, Vec::new());
        let (mut moved, mut done) = (false, true);
        for (task, local) in tasks.chunks(2).zip(&mut warp.local) {
            let (first, end) = (task[0] as usize, (task[1] & ROW_BITS) as usize);
            local.resize(end - first, None);
            assert!(end - first <= self.span.max(1), "a node larger than its shared memory");
            for row in first..end {
                if local[row - first].is_some() {
                    continue;
                }
                let Some(value) = self.solve(row, first, local, b, x, work) else {
                    // A subwarp that shares rows takes them in order; lanes with separate rows go on.
                    if task[1] & COLLABORATES != 0 {
                        break;
                    }
                    continue;
                };
                local[row - first] = Some(value);
                x[self.matrix_row(row)] = value;
                if task[1] & PUBLISHES != 0 {
                    assert!(work[row].replace(value).is_none(), "row {row} is solved twice");
                    if let Some(other) = other {
                        other[row] = None;
                    }
                }
                moved = true;
            }
            done &= local.iter().all(Option::is_some);
        }
        if done {
            warp.group += 1;
            warp.local.clear();
        }
        moved || done
    }

    fn check_stage(&self, tasks: &[u32]) {
        let staged = tasks[1] & STAGES != 0;
        assert!(tasks.chunks(2).all(|task| (task[1] & STAGES != 0) == staged));
        let entries: u32 = tasks
            .chunks(2)
            .map(|task| {
                self.row_ptr[(task[1] & ROW_BITS) as usize] - self.row_ptr[task[0] as usize]
            })
            .sum();
        assert!(!staged || entries as usize <= self.stage, "the buffer is too small");
    }

    fn matrix_row(&self, row: usize) -> usize {
        match &self.rows_of {
            Some(rows_of) => rows_of[row] as usize,
            None if self.reversed => self.diagonal.len() - 1 - row,
            None => row,
        }
    }

    /// The row's value, if all values that it needs are available.
    fn solve(
        &self,
        row: usize,
        first: usize,
        local: &[Option<f64>],
        b: &[f64],
        x: &[f64],
        work: &[Option<f64>],
    ) -> Option<f64> {
        let mut sum = 0.0;
        for at in self.row_ptr[row] as usize..self.row_ptr[row + 1] as usize {
            let col = self.cols[at] as usize;
            let value = if col >= first {
                local[col - first]?
            } else if self.waits {
                work[col]?
            } else if self.rows_of.is_some() {
                work[col].expect("a launch that does not wait finds everything published")
            } else {
                let value = x[self.matrix_row(col)];
                assert!(!value.is_nan(), "a launch that does not wait finds everything solved");
                value
            };
            sum += self.values[at] * value;
        }
        Some((b[self.matrix_row(row)] - sum) * (1.0 / self.diagonal[row]))
    }
}
