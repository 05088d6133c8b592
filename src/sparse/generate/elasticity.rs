//! Linear elasticity on trilinear bricks (e.g. Hughes, The Finite Element Method, 3.9): three unknowns per node, so 3 x
//! 3 blocks, with up to 27 blocks per block row.

use super::build::{bounded, build};
use super::stencil::lower_row;
use super::{GenerateError, dimension, within};
use crate::sparse::Csr;
use crate::sparse::random::{bits, unit};

const YOUNG: f64 = 1.0;
const POISSON: f64 = 0.3;

/// Stiffness of one unit cube: blocks `[a][b]` between its corners, corner = x + 2 y + 4 z.
type Element = [[[[f64; 3]; 3]; 8]; 8];

/// The free nodes; x varies fastest. Element (i, j, k) has the nodes i-1..=i along x, since the layer x = -1 is
/// clamped, and j..=j+1, k..=k+1 along y and z.
struct Brick {
    sizes: [usize; 3],
    seed: u64,
    element: Element,
}

/// The stiffness matrix of nx x ny x nz free nodes: symmetric positive definite.
pub fn brick(sizes: [u64; 3], seed: u64) -> Result<Csr, GenerateError> {
    let (brick, rows) = Brick::of(sizes, seed)?;
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let (node, axis) = (brick.coordinates(row / 3), row % 3);
        let entries = columns.chunks_exact_mut(3).zip(values.chunks_exact_mut(3));
        for (other, (columns, values)) in brick.neighbours(node).zip(entries) {
            let first = 3 * brick.number(other) as u32;
            columns.copy_from_slice(&[first, first + 1, first + 2]);
            values.copy_from_slice(&brick.coupling(node, other, axis));
        }
    };
    build(rows, rows, |row| 3 * brick.neighbours(brick.coordinates(row / 3)).count(), fill)
}

/// A lower triangle with the pattern of the stiffness matrix and the bounded values of `lower_row`.
pub fn factor(sizes: [u64; 3], seed: u64) -> Result<Csr, GenerateError> {
    let (brick, rows) = Brick::of(sizes, seed)?;
    // Complete blocks of earlier nodes, then the diagonal block up to the diagonal.
    let earlier = |row: usize| {
        let node = row / 3;
        let numbers = brick.neighbours(brick.coordinates(node)).map(|other| brick.number(other));
        numbers.take_while(move |&other| other < node)
    };
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let blocks = earlier(row).flat_map(|other| 3 * other..3 * other + 3);
        let lower = blocks.chain(row - row % 3..=row);
        columns.iter_mut().zip(lower).for_each(|(to, column)| *to = column as u32);
        lower_row(seed, row, values);
    };
    build(rows, rows, |row| 3 * earlier(row).count() + row % 3 + 1, fill)
}

impl Brick {
    /// The brick and its number of unknowns; refused if its matrix would be too large.
    fn of(sizes: [u64; 3], seed: u64) -> Result<(Self, usize), GenerateError> {
        for (name, size) in ["nx", "ny", "nz"].into_iter().zip(sizes) {
            dimension(name, size)?;
        }
        for (name, size) in [("ny", sizes[1]), ("nz", sizes[2])] {
            within(name, size, 2, Csr::MAX_DIMENSION, "at least 2: bricks lie between nodes")?;
        }
        let nodes = sizes.iter().map(|&size| u128::from(size)).product::<u128>();
        let rows = dimension("unknowns", u64::try_from(3 * nodes).unwrap_or(u64::MAX))?;
        bounded(81 * rows as u64)?;
        Ok((Self { sizes: sizes.map(|size| size as usize), seed, element: element() }, rows))
    }

    fn number(&self, [x, y, z]: [usize; 3]) -> usize {
        (z * self.sizes[1] + y) * self.sizes[0] + x
    }

    fn coordinates(&self, node: usize) -> [usize; 3] {
        let [nx, ny, _] = self.sizes;
        [node % nx, node / nx % ny, node / (nx * ny)]
    }

    /// The node and its neighbours, in ascending order of their numbers.
    fn neighbours(&self, node: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
        let range =
            |axis: usize| node[axis].saturating_sub(1)..(node[axis] + 2).min(self.sizes[axis]);
        let (xs, ys, zs) = (range(0), range(1), range(2));
        zs.flat_map(move |z| {
            let xs = xs.clone();
            ys.clone().flat_map(move |y| xs.clone().map(move |x| [x, y, z]))
        })
    }

    /// Row `axis` of the block between two nodes: the sum over the elements that have both.
    fn coupling(&self, node: [usize; 3], other: [usize; 3], axis: usize) -> [f64; 3] {
        let mut sum = [0.0; 3];
        // An element is identified by its upper corner.
        for shift in 0..8 {
            let offset = [shift & 1, shift >> 1 & 1, shift >> 2];
            let upper: [usize; 3] = std::array::from_fn(|i| node[i] + offset[i]);
            let inside = (0..3).all(|i| {
                let free = if i == 0 {
                    upper[0] < self.sizes[0]
                } else {
                    (1..self.sizes[i]).contains(&upper[i])
                };
                free && (other[i] == upper[i] || other[i] + 1 == upper[i])
            });
            if inside {
                let corner = |at: [usize; 3]| {
                    (0..3).map(|i| usize::from(at[i] == upper[i]) << i).sum::<usize>()
                };
                let block = &self.element[corner(node)][corner(other)];
                let modulus = self.modulus(upper);
                sum.iter_mut().zip(block[axis]).for_each(|(sum, k)| *sum += modulus * k);
            }
        }
        sum
    }

    /// Relative stiffness of an element: 1, or drawn from [0.5, 1.5) with a seed.
    fn modulus(&self, upper: [usize; 3]) -> f64 {
        if self.seed == 0 { 1.0 } else { 0.5 + unit(bits(self.seed, self.number(upper) as u64)) }
    }
}

/// Integrates B' D B over the unit cube with 2 x 2 x 2 Gauss points, which is exact for it.
fn element() -> Element {
    let lame = YOUNG * POISSON / ((1.0 + POISSON) * (1.0 - 2.0 * POISSON));
    let shear = YOUNG / (2.0 * (1.0 + POISSON));
    let mut element = [[[[0.0; 3]; 3]; 8]; 8];
    for point in 0..8 {
        let at: [f64; 3] = std::array::from_fn(|i| {
            0.5 + if point >> i & 1 == 1 { 0.5 } else { -0.5 } / 3f64.sqrt()
        });
        let gradients: [[f64; 3]; 8] = std::array::from_fn(|corner| gradient(corner, at));
        for (a, row) in element.iter_mut().enumerate() {
            for (b, block) in row.iter_mut().enumerate() {
                let (ga, gb) = (gradients[a], gradients[b]);
                let dot: f64 = ga.iter().zip(gb).map(|(x, y)| x * y).sum();
                for i in 0..3 {
                    for j in 0..3 {
                        let diagonal = if i == j { shear * dot } else { 0.0 };
                        block[i][j] +=
                            (lame * ga[i] * gb[j] + shear * ga[j] * gb[i] + diagonal) / 8.0;
                    }
                }
            }
        }
    }
    element
}

/// Gradient of a corner's trilinear shape function.
fn gradient(corner: usize, at: [f64; 3]) -> [f64; 3] {
    let upper = |i: usize| corner >> i & 1 == 1;
    let value = |i: usize| if upper(i) { at[i] } else { 1.0 - at[i] };
    let slope = |i: usize| if upper(i) { 1.0 } else { -1.0 };
    std::array::from_fn(|i| (0..3).map(|j| if i == j { slope(j) } else { value(j) }).product())
}
