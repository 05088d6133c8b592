//! The corpus: generated matrices and problems drawn at random over structures, sizes and sparsities, as LO-SpMM trains on
//! synthetic matrices (section 3.5). Draw `i` of a seed is always the same, so a corpus can be continued; only another
//! version of sparsetune may draw differently.

use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Dtype, Layout, Op, Problem, Spmm, Sptrsv};
use crate::sparse::random::Stream;

/// A matrix to be generated, and the problem to tune it for.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// The specification, as `sparsetune generate` takes it.
    pub spec: String,
    pub problem: Problem,
}

impl Draw {
    /// Draw `index` of an operation.
    pub fn of(op: Op, seed: u64, index: u64) -> Self {
        match op {
            Op::Spmm => spmm(seed, index),
            Op::Sptrsv => sptrsv(seed, index),
        }
    }
}

/// Number of entries, log-uniformly distributed.
const NNZ: [f64; 2] = [4e3, 6e6];
/// Number of entries of triangular systems, which take longer to lower than to solve.
const TRIANGLE_NNZ: [f64; 2] = [4e3, 1.5e6];
/// The range of most real systems in the benchmarks, and of most draws.
const USUAL_NNZ: [f64; 2] = [1e4, 3e5];
/// Maximum number of rows of a chain, since each row is a dependency step.
const CHAIN: f64 = 4e4;
/// Maximum product of entries and columns: larger problems take long and add nothing new.
const MOST_WORK: f64 = 3e8;

/// Widths of B; common widths are listed several times.
const WIDTHS: [u32; 20] =
    [1, 2, 4, 8, 8, 16, 16, 32, 32, 32, 64, 64, 64, 128, 128, 128, 256, 512, 33, 96];

fn spmm(seed: u64, index: u64) -> Draw {
    let mut stream = Stream::new(seed, index);
    let nnz = log(&mut stream, NNZ);
    let spec = any(&mut stream, nnz);
    let mut n = WIDTHS[stream.below(WIDTHS.len() as u64) as usize];
    while n > 8 && f64::from(n) * nnz > MOST_WORK {
        n /= 2;
    }
    let dtype = match stream.unit() {
        x if x < 0.72 => Dtype::F32,
        x if x < 0.88 => Dtype::F16,
        _ => Dtype::F64,
    };
    let layout = if stream.unit() < 0.8 { Layout::Row } else { Layout::Col };
    let (rare, consent) = (stream.unit() < 0.04, stream.unit() < 0.08);
    let tf32 = consent && dtype == Dtype::F32;
    Draw {
        spec,
        problem: Problem::Spmm(Spmm { accumulate: rare, tf32, ..Spmm::new(n, dtype, layout) }),
    }
}

fn sptrsv(seed: u64, index: u64) -> Draw {
    let mut stream = Stream::new(!seed, index);
    let usual = stream.unit() < 0.55;
    let nnz = log(&mut stream, if usual { USUAL_NNZ } else { TRIANGLE_NNZ });
    let spec = system(&mut stream, nnz);
    let (rhs, dtype) = match stream.unit() {
        x if x < 0.5 => (1, Dtype::F64),
        x if x < 0.8 => (1, Dtype::F32),
        x if x < 0.86 => (4, Dtype::F64),
        x if x < 0.96 => (16, Dtype::F64),
        _ => (64, Dtype::F32),
    };
    let solve = Sptrsv {
        rhs,
        dtype,
        triangle: Triangle::Lower,
        diagonal: if stream.unit() < 0.2 { Diagonal::Unit } else { Diagonal::NonUnit },
        transpose: stream.unit() < 0.2,
        ..Sptrsv::PLAIN
    };
    Draw { spec, problem: Problem::Sptrsv(solve) }
}

fn log(stream: &mut Stream, [low, high]: [f64; 2]) -> f64 {
    stream.range(low.ln(), high.ln()).exp()
}

/// An integer, log-uniformly distributed.
fn whole(stream: &mut Stream, low: f64, high: f64) -> u64 {
    log(stream, [low, high]).round() as u64
}

/// The two sides of a grid with about this many points, with an aspect ratio of up to four.
fn sides(stream: &mut Stream, points: f64) -> (u64, u64) {
    let ratio = log(stream, [0.5, 2.0]);
    let side = points.max(4.0).sqrt();
    ((side * ratio).ceil() as u64, (side / ratio).ceil() as u64)
}

fn seed(stream: &mut Stream) -> u64 {
    1 + stream.below(1 << 20)
}

fn cube(points: f64) -> u64 {
    (points.max(8.0)).cbrt().round() as u64
}

/// Number of rows of a recursive graph, and its specification, for about this many draws.
fn rmat(stream: &mut Stream, kind: &str, nnz: f64) -> (f64, String) {
    let factor = 1 << (1 + stream.below(5));
    let scale = ((nnz / factor as f64).log2().round() as u64).clamp(7, 21);
    let a = (log(stream, [0.3, 0.68]) * 100.0).round() / 100.0;
    let b = ((1.0 - a) * 0.4 * 100.0).round() / 100.0;
    let d = ((1.0 - a - 2.0 * b) * 100.0).round() / 100.0;
    let seed = seed(stream);
    let spec =
        format!("{kind}:scale={scale},edge_factor={factor},a={a},b={b},c={b},d={d},seed={seed}");
    ((1u64 << scale) as f64, spec)
}

/// A matrix with about this many entries.
fn any(stream: &mut Stream, nnz: f64) -> String {
    let kind = stream.below(16);
    let seed = seed(stream);
    match kind {
        0 => {
            let (nx, ny) = sides(stream, nnz / 5.0);
            format!("poisson2d:nx={nx},ny={ny},seed={seed}")
        }
        1 => {
            let n = cube(nnz / 7.0);
            let nz = whole(stream, 0.5 * n as f64 + 1.0, 2.0 * n as f64);
            format!("poisson3d:nx={n},ny={n},nz={nz},seed={seed}")
        }
        2 => {
            let n = cube(nnz / 243.0);
            format!("elasticity:nx={n},ny={n},nz={n},seed={seed}")
        }
        3..=5 => rmat(stream, "rmat", nnz).1,
        6 => {
            let half = whole(stream, 1.0, 60.0);
            let n = (nnz / (2 * half + 1) as f64).max(2.0 * half as f64) as u64;
            format!("banded:n={n},half={half},seed={seed}")
        }
        7 | 8 => {
            let per_row = log(stream, [1.5, 120.0]);
            let rows = (nnz / per_row).max(16.0);
            let cols = rows * log(stream, [0.2, 5.0]);
            let (rows, cols) = (rows as u64, (cols.max(2.0 * per_row)) as u64);
            format!("uniform:rows={rows},cols={cols},nnz={},seed={seed}", nnz as u64)
        }
        9 | 10 => {
            let sparsity = (1.0 - log(stream, [0.02, 0.5])) * 1000.0;
            let sparsity = sparsity.round() / 1000.0;
            let (rows, cols) = sides(stream, nnz.min(3e6) / (1.0 - sparsity));
            format!("pruned:rows={rows},cols={cols},sparsity={sparsity},seed={seed}")
        }
        11 => {
            let density = (log(stream, [0.01, 0.3]) * 1000.0).round() / 1000.0;
            let block = 1 << (1 + stream.below(5));
            let (rows, cols) = sides(stream, nnz.min(3e6) / density);
            format!("blocks:rows={rows},cols={cols},block={block},density={density},seed={seed}")
        }
        12 => {
            let (nx, ny) = sides(stream, nnz / 2.4);
            format!("road:nx={nx},ny={ny},seed={seed}")
        }
        13 => {
            let (nx, ny) = sides(stream, nnz / 6.0);
            format!("mesh:nx={nx},ny={ny},seed={seed}")
        }
        14 => {
            let per_row = whole(stream, 2.0, 40.0);
            let rows = (nnz / per_row as f64).max(50.0);
            let cols = (rows * log(stream, [0.3, 4.0])).max(60.0) as u64;
            let rows = rows as u64;
            if stream.unit() < 0.5 {
                format!("dense_row:n={rows},per_row={per_row},seed={seed}")
            } else {
                format!("long_row:rows={rows},cols={cols},per_row={per_row},seed={seed}")
            }
        }
        _ => {
            let n = (nnz / 6.0).max(64.0) as u64;
            let hubs = 1 + stream.below(6);
            format!("circuit:n={n},hubs={hubs},seed={seed}")
        }
    }
}

/// A triangular system with about this many entries.
fn system(stream: &mut Stream, nnz: f64) -> String {
    if stream.unit() < 0.6 { lower(stream, nnz) } else { factor(stream, nnz) }
}

/// The lower triangle of a matrix in its own order or reordered. Coefficients may grow, which ends windows early.
fn lower(stream: &mut Stream, nnz: f64) -> String {
    // Unknowns per row of the drawn structure; in a third of the draws, a node of a mesh has several.
    let several = |stream: &mut Stream| match stream.unit() {
        x if x < 0.65 => 1,
        _ => 2 + stream.below(5),
    };
    let seed = seed(stream);
    // Number of rows, and of their entries below and on the diagonal, for blocks with this many unknowns.
    let rows =
        |unknowns: u64, per_row: f64| (nnz / per_row / (unknowns * unknowns) as f64).max(40.0);
    let kind = stream.below(16);
    let (unknowns, nodes, of) = match kind {
        0..=2 => {
            let (unknowns, kind) = (several(stream), if kind < 2 { "mesh" } else { "poisson2d" });
            let nodes = rows(unknowns, if kind == "mesh" { 4.0 } else { 3.0 });
            let (nx, ny) = sides(stream, nodes);
            (unknowns, nodes, format!("{kind}:nx={nx},ny={ny},seed={seed}"))
        }
        3 => {
            let unknowns = several(stream);
            let (nodes, n) = (rows(unknowns, 4.0), cube(rows(unknowns, 4.0)));
            (unknowns, nodes, format!("poisson3d:nx={n},ny={n},nz={n},seed={seed}"))
        }
        4 | 5 => {
            let (nx, ny) = sides(stream, rows(1, 2.2));
            (1, rows(1, 2.2), format!("road:nx={nx},ny={ny},seed={seed}"))
        }
        6..=8 => {
            let hubs = stream.below(7);
            let n = rows(1, 4.0 + hubs.min(2) as f64);
            (1, n, format!("circuit:n={},hubs={hubs},seed={seed}", n as u64))
        }
        9 | 10 => {
            let (rows, spec) = rmat(stream, "rmat", 1.6 * nnz);
            (1, rows, spec)
        }
        11 | 12 => {
            let per_row = log(stream, [2.0, 60.0]);
            let n = rows(1, 1.0 + per_row / 2.0).max(2.0 * per_row) as u64;
            let entries = (n as f64 * per_row) as u64;
            (1, n as f64, format!("uniform:rows={n},cols={n},nnz={entries},seed={seed}"))
        }
        13 => {
            let half = whole(stream, 2.0, 100.0);
            let n = rows(1, half as f64 * 0.6).clamp(2.0 * half as f64, CHAIN);
            (1, n, format!("banded:n={},half={half},seed={seed}", n as u64))
        }
        14 => {
            let n = cube(rows(1, 120.0)).max(3);
            (1, 3.0 * (n * n * n) as f64, format!("elasticity:nx={n},ny={n},nz={n},seed={seed}"))
        }
        _ => {
            let (nx, ny) = sides(stream, rows(1, 12.0));
            (1, rows(1, 12.0), format!("cholesky_poisson2d:nx={nx},ny={ny},seed={seed}"))
        }
    };
    let n = nodes * unknowns as f64;
    let growth = growth(stream);
    let mut spec = format!("lower:growth={growth},seed={seed}");
    // In most systems with growing coefficients the amplification is so large that nothing is rewritten, as in systems from
    // files without values.
    if (growth == 0.0 || growth > 1.0) && stream.unit() < 0.7 {
        spec += &format!(",largest=1e{}", 7 + stream.below(14));
    }
    if stream.unit() < 0.7 {
        spec += &format!(",spread={}", hundredths(stream.range(0.1, 2.0)));
    }
    if unknowns > 1 {
        spec += &format!(",unknowns={unknowns}");
    }
    if kind == 13 || stream.unit() < 0.1 {
        spec += &format!(",keep={}", hundredths(stream.range(0.25, 0.95)));
    }
    if stream.unit() < 0.15 {
        spec += &format!(",constraints={}", (n * log(stream, [0.02, 0.8])) as u64);
    }
    if stream.unit() < 0.25 {
        spec += &format!(",tail={}", whole(stream, 1.0, (0.5 * nnz).sqrt().min(400.0)));
    }
    let order = match stream.unit() {
        x if x < 0.45 => "natural",
        x if x < 0.57 => "random",
        x if x < 0.72 => "rcm",
        x if x < 0.87 => "depth",
        _ => "degree",
    };
    spec += &format!(",order={order}");
    // Long depth-first chains are broken.
    if stream.unit() < 0.35 || order == "depth" && n > CHAIN {
        spec += &format!(",window={}", whole(stream, 4.0, 2048.0));
    }
    format!("{spec},of={of}")
}

/// The sum of a row below the diagonal divided by the diagonal; 0 means that all coefficients are equal, as in files without
/// values.
fn growth(stream: &mut Stream) -> f64 {
    if stream.unit() < 0.22 { 0.0 } else { hundredths(log(stream, [0.3, 6.0])) }
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// A lower factor with about this many entries; its values stay bounded however long its chains are.
fn factor(stream: &mut Stream, nnz: f64) -> String {
    let kind = stream.below(14);
    let seed = seed(stream);
    match kind {
        0 | 1 => {
            let (nx, ny) = sides(stream, nnz / 3.0);
            format!("ilu0_poisson2d:nx={nx},ny={ny},seed={seed}")
        }
        2 => {
            let n = cube(nnz / 4.0);
            format!("ilu0_poisson3d:nx={n},ny={n},nz={n},seed={seed}")
        }
        3 | 4 => {
            let per_row = whole(stream, 3.0, 40.0);
            let n = (2.0 * nnz / per_row as f64).max(100.0) as u64;
            format!("ilu0_random:n={n},per_row={per_row},seed={seed}")
        }
        5 => {
            let n = cube(nnz / 120.0).max(3);
            format!("ilu0_elasticity:nx={n},ny={n},nz={n},seed={seed}")
        }
        6 | 7 => rmat(stream, "ilu0_rmat", 2.0 * nnz).1,
        8 => {
            let (nx, ny) = sides(stream, nnz / 20.0);
            format!("cholesky_poisson2d:nx={nx},ny={ny},seed={seed}")
        }
        9 => {
            let n = cube(nnz.min(4e5) / 60.0).max(4);
            format!("cholesky_poisson3d:nx={n},ny={n},nz={n},seed={seed}")
        }
        10 => {
            let half = whole(stream, 1.0, 60.0);
            // A chain has few rows, because each row is a dependency step.
            let n = (nnz / half as f64).clamp(2.0 * half as f64, CHAIN) as u64;
            format!("cholesky_banded:n={n},half={half},seed={seed}")
        }
        _ => {
            let per_row = whole(stream, 2.0, 30.0);
            let n = (nnz / per_row as f64).max(200.0);
            let levels = whole(stream, 2.0, (n / 2.0).min(2e4));
            format!("lower_levels:n={},levels={levels},per_row={per_row},seed={seed}", n as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::generate::Spec;
    use std::collections::BTreeSet;

    #[test]
    fn every_draw_is_a_matrix_and_the_same_each_time() {
        let mut kinds = BTreeSet::new();
        for index in 0..200 {
            for draw in [spmm, sptrsv] {
                let one = draw(7, index);
                assert_eq!(one, draw(7, index));
                assert_ne!(one, draw(8, index));
                Spec::parse(&one.spec).unwrap_or_else(|error| panic!("{}: {error}", one.spec));
                kinds.insert(one.spec.split(':').next().unwrap().to_owned());
            }
        }
        assert!(kinds.len() >= 22, "{kinds:?}");
    }

    #[test]
    fn most_systems_are_lower_triangles_of_usual_size_and_some_have_a_unit_diagonal() {
        let draws: Vec<Draw> = (0..1000).map(|index| sptrsv(5, index)).collect();
        let share = |of: &dyn Fn(&Draw) -> bool| draws.iter().filter(|draw| of(draw)).count();
        let lower = share(&|draw| draw.spec.starts_with("lower:"));
        assert!((550..650).contains(&lower), "{lower}");
        let unit = share(
            &|draw| matches!(draw.problem, Problem::Sptrsv(solve) if solve.diagonal == Diagonal::Unit),
        );
        assert!((150..250).contains(&unit), "{unit}");
        for order in ["natural", "random", "rcm", "depth", "degree"] {
            let order = format!("order={order}");
            let drawn = share(&|draw| draw.spec.contains(&order));
            assert!(drawn > 40, "{order}: {drawn}");
        }
    }

    #[test]
    fn small_draws_can_be_generated() {
        let mut generated = 0;
        for index in 0..400 {
            for draw in [spmm, sptrsv] {
                // The same draws with few entries: every kind, at the lower end of its parameters.
                let mut stream = Stream::new(3, index);
                let spec = match draw(3, index).problem {
                    Problem::Spmm(_) => any(&mut stream, 4e3),
                    Problem::Sptrsv(_) => system(&mut stream, 4e3),
                };
                let matrix = Spec::parse(&spec).unwrap().generate();
                let matrix = matrix.unwrap_or_else(|error| panic!("{spec}: {error}"));
                assert!((100..400_000).contains(&matrix.nnz()), "{spec}: {}", matrix.nnz());
                generated += 1;
            }
        }
        assert_eq!(generated, 800);
    }
}
