//! How a loader tests itself: inputs drawn from a seed, and sampled outputs with the bounds of their errors.

use super::operand::in_type;
use super::tensors::{self, Tensor};
use crate::domain::bundle::{Check, CheckKind};
use crate::domain::element::Element;
use crate::domain::recipe::ArrayData;
use crate::domain::{Candidate, Dtype, Layout, Problem, Spmm, Sptrsv};
use crate::engine::{ALPHA, BETA};
use crate::ops::Refusal;
use crate::ops::sptrsv::approximate::{Known, known};
use crate::sparse::oracle::round;
use crate::sparse::tolerance::{element_bound, equation_weight, solution_tolerance, vendor_slack};
use crate::sparse::{Csr, TriangleError, Triangular, operand, random};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Outputs that are compared.
const SAMPLES: u64 = 64;

/// Mixed into the seed of the places that are sampled.
const PLACES: u64 = 0x5a3d_1e50_0b5e_55ed;

/// The dense operands of a check.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    pub b: ArrayData,
    /// The output before the call; zeros unless the problem accumulates.
    pub c: ArrayData,
}

impl Inputs {
    /// Draws the operands that a check names.
    pub fn draw(check: &Check, problem: &Problem, b_len: usize, c_len: usize) -> Self {
        let (dtype, result) = (problem.dtype(), problem.result());
        let c = if check.beta == 0.0 {
            in_type(&vec![0.0; c_len], result)
        } else {
            draw(result, c_len, check.seed.wrapping_add(1), 1.0)
        };
        Self { b: draw(dtype, b_len, check.seed, check.scale), c }
    }
}

fn draw(dtype: Dtype, len: usize, seed: u64, scale: f64) -> ArrayData {
    match dtype {
        Dtype::F16 => ArrayData::F16(operand::random_half(len, seed).into()),
        Dtype::Bf16 => ArrayData::Bf16(operand::random_bf16(len, seed).into()),
        Dtype::F32 => ArrayData::F32(operand::random(len, seed).into()),
        Dtype::F64 => {
            let all = operand::random_double(len, seed);
            ArrayData::F64(all.into_iter().map(|value| value * scale).collect::<Vec<_>>().into())
        }
    }
}

/// The hexadecimal SHA-256 of some bytes.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn wide(data: &ArrayData, at: usize) -> f64 {
    match data {
        ArrayData::F16(data) => half::f16::from_bits(data[at]).to_f64(),
        ArrayData::Bf16(data) => half::bf16::from_bits(data[at]).to_f64(),
        ArrayData::U16(data) => data[at].into(),
        ArrayData::U32(data) => data[at].into(),
        ArrayData::F32(data) => data[at].into(),
        ArrayData::F64(data) => data[at],
    }
}

/// Makes the check of a plan, with the file of its tensors.
///
/// # Errors
/// The matrix has no such triangle, the tensors cannot be written, or what the candidate makes of b is not known well enough.
pub fn make(
    operand: &Csr,
    problem: &Problem,
    candidate: &Candidate,
    seed: u64,
) -> Result<(Check, Vec<u8>), MakeError> {
    match problem {
        Problem::Spmm(spmm) => product(operand, problem, spmm, candidate, seed),
        Problem::Sptrsv(solve) if candidate.is_approximate() => {
            approximation(operand, problem, (solve, candidate), seed)
        }
        Problem::Sptrsv(solve) => equations(operand, problem, solve, candidate, seed),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    #[error(transparent)]
    Triangle(#[from] TriangleError),
    #[error(transparent)]
    Tensors(#[from] safetensors::SafeTensorError),
    #[error(
        "the rounding errors of {steps} of this system may be as large as what the last of them changes, so that no check could \
         tell whether it was lost"
    )]
    Vague { steps: String },
    #[error("what the candidate makes of b is not known: {}", .0.0)]
    Unknown(Refusal),
}

/// Rows that are sampled in any case, then places drawn at random; of `rows` by `cols`.
fn places(always: &[usize], rows: usize, cols: usize, seed: u64) -> BTreeSet<(usize, usize)> {
    let mut places: BTreeSet<(usize, usize)> = always.iter().map(|&row| (row, 0)).collect();
    if rows == 0 || cols == 0 {
        return BTreeSet::new();
    }
    let mut stream = random::Stream::new(seed ^ PLACES, 0);
    for _ in 0..SAMPLES.saturating_sub(places.len() as u64) {
        let row = stream.below(rows as u64) as usize;
        places.insert((row, stream.below(cols as u64) as usize));
    }
    places
}

/// The longest row, the shortest one, and the last.
fn telling(rows: usize, entries: impl Fn(usize) -> usize) -> Vec<usize> {
    let longest = (0..rows).max_by_key(|&row| entries(row));
    let shortest = (0..rows).min_by_key(|&row| entries(row));
    longest.into_iter().chain(shortest).chain(rows.checked_sub(1)).collect()
}

fn product(
    operand: &Csr,
    problem: &Problem,
    spmm: &Spmm,
    candidate: &Candidate,
    seed: u64,
) -> Result<(Check, Vec<u8>), MakeError> {
    let (rows, cols, n) = (operand.rows(), operand.cols(), spmm.n as usize);
    let (alpha, beta) = if spmm.accumulate { (ALPHA, BETA) } else { (1.0, 0.0) };
    let scale = match spmm.dtype {
        Dtype::F64 => operand::balancing(operand),
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 => 1.0,
    };
    let kind = CheckKind::Product;
    let mut check = Check { kind, seed, scale, b_sha256: String::new(), alpha, beta, samples: 0 };
    let inputs = Inputs::draw(&check, problem, cols * n, rows * n);
    check.b_sha256 = sha256(inputs.b.bytes());
    let sampled = places(&telling(rows, |row| operand.row_nnz(row)), rows, n, seed);
    let (mut index, mut value, mut bound) = (Vec::new(), Vec::new(), Vec::new());
    let slack = vendor_slack(candidate);
    for &(row, col) in &sampled {
        let (columns, values) = operand.row(row);
        let (mut sum, mut scale) = (0.0, 0.0);
        for (&k, &a) in columns.iter().zip(values) {
            let at = at(spmm.layout, k as usize, col, cols, n);
            let term = alpha * round(a, spmm.dtype) * wide(&inputs.b, at);
            sum += term;
            scale += f64::abs(term);
        }
        let place = at(spmm.layout, row, col, rows, n);
        let initial = beta * wide(&inputs.c, place);
        index.push(place as u64);
        value.push(sum + initial);
        bound.push(slack * element_bound(spmm, columns.len(), scale + f64::abs(initial)));
    }
    check.samples = index.len() as u32;
    let file = tensors::write(&[
        Tensor::of("index", Element::U64, &index),
        Tensor::of("value", Element::F64, &value),
        Tensor::of("bound", Element::F64, &bound),
    ])?;
    Ok((check, file))
}

/// The place of an element of a dense matrix in memory.
fn at(layout: Layout, row: usize, col: usize, rows: usize, cols: usize) -> usize {
    match layout {
        Layout::Row => row * cols + col,
        Layout::Col => col * rows + row,
    }
}

fn equations(
    matrix: &Csr,
    problem: &Problem,
    solve: &Sptrsv,
    candidate: &Candidate,
    seed: u64,
) -> Result<(Check, Vec<u8>), MakeError> {
    let system = Triangular::of(matrix, solve)?;
    let len = system.rows() * solve.rhs as usize;
    let kind = CheckKind::Equations;
    let (scale, alpha, beta) = (1.0, 1.0, 0.0);
    let mut check = Check { kind, seed, scale, b_sha256: String::new(), alpha, beta, samples: 0 };
    check.b_sha256 = sha256(Inputs::draw(&check, problem, len, 0).b.bytes());
    let entries = |s: usize| system.row(s).0.len();
    let sampled = places(&telling(system.rows(), entries), system.rows(), 1, seed);
    let (mut row, mut row_ptr, mut col) = (Vec::new(), vec![0u64], Vec::new());
    let (mut value, mut diagonal, mut bound) = (Vec::new(), Vec::new(), Vec::new());
    let tolerance = solution_tolerance(solve.dtype) * vendor_slack(candidate);
    for &(s, _) in &sampled {
        let (columns, values) = system.row(s);
        row.push(system.original(s) as u64);
        col.extend(columns.iter().map(|&k| system.original(k as usize) as u64));
        value.extend_from_slice(values);
        row_ptr.push(col.len() as u64);
        diagonal.push(system.diagonal[s]);
        bound.push(tolerance * equation_weight(columns.len()));
    }
    check.samples = row.len() as u32;
    let file = tensors::write(&[
        Tensor::of("row", Element::U64, &row),
        Tensor::of("row_ptr", Element::U64, &row_ptr),
        Tensor::of("col", Element::U64, &col),
        Tensor::of("value", Element::F64, &value),
        Tensor::of("diagonal", Element::F64, &diagonal),
        Tensor::of("bound", Element::F64, &bound),
    ])?;
    Ok((check, file))
}

/// As many samples of an approximate solve, unless its last step changed fewer rows, can tell that it was lost.
const TELLING: usize = 4;

/// The equations do not hold by design, but what comes out is known: the same steps in float64. Bounds grow with the sizes of all terms,
/// and those of some systems by a factor with every step, so only such rows are samples as have a bound that is small beside x or
/// beside what the last step changed.
fn approximation(
    matrix: &Csr,
    problem: &Problem,
    (solve, candidate): (&Sptrsv, &Candidate),
    seed: u64,
) -> Result<(Check, Vec<u8>), MakeError> {
    let system = Triangular::of(matrix, solve)?;
    let rows = system.rows();
    let (kind, scale, alpha, beta) = (CheckKind::Product, 1.0, 1.0, 0.0);
    let mut check = Check { kind, seed, scale, b_sha256: String::new(), alpha, beta, samples: 0 };
    let inputs = Inputs::draw(&check, problem, rows, 0);
    check.b_sha256 = sha256(inputs.b.bytes());
    let b: Vec<f64> = (0..rows).map(|s| wide(&inputs.b, system.original(s))).collect();
    let known = known(&system, solve.dtype, &b, candidate).map_err(MakeError::Unknown)?;
    let Some(Known { before, x: value, error: bound, steps }) = known else {
        let why = format!("{candidate} is not a candidate of this problem");
        return Err(MakeError::Unknown(Refusal(why)));
    };
    let entries = |s: usize| system.row(s).0.len();
    let sampled = places(&telling(rows, entries), rows, 1, seed);
    let changed = |s: usize| (value[s] - before[s]).abs();
    // False for bounds that are no numbers, too.
    let tells = |s: &usize| bound[*s] < changed(*s) / 4.0;
    let mut kept: BTreeSet<usize> = sampled.iter().map(|&(s, _)| s).collect();
    kept.retain(|s| tells(s) || bound[*s] < value[*s].abs() / 4.0);
    // Most rows of a system may have settled long before the last sweep.
    let wanted = (0..rows).filter(|&s| changed(s) != 0.0).take(TELLING).count();
    let lacking = wanted.saturating_sub(kept.iter().filter(|s| tells(s)).count());
    let others: Vec<usize> =
        (0..rows).rev().filter(|s| tells(s) && !kept.contains(s)).take(lacking).collect();
    if others.len() < lacking || (kept.is_empty() && others.is_empty() && rows > 0) {
        return Err(MakeError::Vague { steps });
    }
    kept.extend(others);
    let index: Vec<u64> = kept.iter().map(|&s| system.original(s) as u64).collect();
    let of = |all: &[f64]| kept.iter().map(|&s| all[s]).collect::<Vec<f64>>();
    check.samples = index.len() as u32;
    let file = tensors::write(&[
        Tensor::of("index", Element::U64, &index),
        Tensor::of("value", Element::F64, &of(&value)),
        Tensor::of("bound", Element::F64, &of(&bound)),
    ])?;
    Ok((check, file))
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct CheckReport {
    pub samples: u32,
    /// The largest error of a sample as a share of its bound; infinite for a result that is no number.
    pub worst: f64,
}

impl CheckReport {
    pub fn passed(&self) -> bool {
        self.worst <= 1.0
    }
}

/// The tensors of a check, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    whole: BTreeMap<String, Vec<u64>>,
    real: BTreeMap<String, Vec<f64>>,
}

impl Samples {
    /// Reads and validates the tensors: every place that is compared exists.
    pub fn read(
        file: &[u8],
        check: &Check,
        b_len: usize,
        c_len: usize,
        rhs: usize,
    ) -> Result<Self, String> {
        let mut samples = Self::default();
        for (name, (element, place)) in tensors::read(file)? {
            let bytes = file.get(place).ok_or("a tensor lies outside the file")?;
            match element {
                Element::U64 => {
                    samples.whole.insert(name, bytemuck::pod_collect_to_vec(bytes));
                }
                Element::F64 => {
                    samples.real.insert(name, bytemuck::pod_collect_to_vec(bytes));
                }
                other => return Err(format!("tensor `{name}` has the type {}", other.name())),
            }
        }
        let count = check.samples as usize;
        let lengths = match check.kind {
            CheckKind::Product => {
                let all = |index: &[u64]| index.iter().all(|&at| at < c_len as u64);
                samples.whole("index").len() == count
                    && samples.real("value").len() == count
                    && all(samples.whole("index"))
            }
            CheckKind::Equations => {
                let (row, ptr, col) =
                    (samples.whole("row"), samples.whole("row_ptr"), samples.whole("col"));
                let rows = (b_len / rhs.max(1)) as u64;
                row.len() == count
                    && ptr.len() == count + 1
                    && ptr.is_sorted()
                    && ptr.first() == Some(&0)
                    && ptr.last() == Some(&(col.len() as u64))
                    && samples.real("value").len() == col.len()
                    && samples.real("diagonal").len() == count
                    && row.iter().chain(col).all(|&at| at < rows)
            }
        };
        if lengths && samples.real("bound").len() == count {
            Ok(samples)
        } else {
            Err("its tensors do not belong together".to_owned())
        }
    }

    fn whole(&self, name: &str) -> &[u64] {
        self.whole.get(name).map_or(&[], Vec::as_slice)
    }

    fn real(&self, name: &str) -> &[f64] {
        self.real.get(name).map_or(&[], Vec::as_slice)
    }

    /// Compares an output with the samples; `rhs` is the number of right-hand sides.
    pub fn compare(&self, check: &Check, b: &ArrayData, c: &ArrayData, rhs: usize) -> CheckReport {
        let worst = match check.kind {
            CheckKind::Product => {
                let samples = self.whole("index").iter().zip(self.real("value"));
                let errors = samples.map(|(&at, value)| (wide(c, at as usize) - value).abs());
                worst(errors.zip(self.real("bound").iter().copied()))
            }
            CheckKind::Equations => {
                let samples =
                    (0..self.whole("row").len()).flat_map(|k| (0..rhs).map(move |j| (k, j)));
                worst(samples.map(|(k, j)| self.equation(k, j, rhs, b, c)))
            }
        };
        CheckReport { samples: check.samples, worst }
    }

    /// Residual and bound of one equation for one right-hand side.
    fn equation(&self, k: usize, j: usize, rhs: usize, b: &ArrayData, x: &ArrayData) -> (f64, f64) {
        let at = |row: u64| row as usize * rhs + j;
        let row = self.whole("row")[k];
        let ptr = self.whole("row_ptr");
        let known = wide(b, at(row));
        let own = self.real("diagonal")[k] * wide(x, at(row));
        let (mut residual, mut scale) = (own - known, own.abs() + known.abs());
        for e in ptr[k] as usize..ptr[k + 1] as usize {
            let term = self.real("value")[e] * wide(x, at(self.whole("col")[e]));
            residual += term;
            scale += term.abs();
        }
        (residual.abs(), self.real("bound")[k] * scale)
    }
}

/// The largest error as a share of its bound.
fn worst(errors: impl Iterator<Item = (f64, f64)>) -> f64 {
    let share = |(error, bound): (f64, f64)| match error <= bound {
        true if error == 0.0 => 0.0,
        true => error / bound,
        // Also for a NaN, which is on no side of a bound.
        false if error.is_finite() && bound > 0.0 => error / bound,
        false => f64::INFINITY,
    };
    errors.map(share).fold(0.0, f64::max)
}
