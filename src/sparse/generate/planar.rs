//! Adjacency matrices of planar graphs: road networks and triangulated meshes on a grid, numbered like real ones, with
//! neighbours close to each other but in no regular order.

use super::build::{bounded, build};
use super::{GenerateError, dimension};
use crate::sparse::Csr;
use crate::sparse::random::{Stream, bits, unit};

/// Side of the square tiles within which the numbering is random.
const TILE: usize = 32;

/// Probability of a road in addition to the spanning tree: 2.4 neighbours on average, as in the DIMACS road networks.
const EXTRA_ROADS: f64 = 0.2;

#[derive(Clone, Copy)]
enum Kind {
    Road,
    Mesh,
}

/// Points of a grid and their numbers; x varies fastest.
struct Plane {
    kind: Kind,
    sizes: [usize; 2],
    seed: u64,
    /// Number of each point, and point of each number.
    number: Vec<u32>,
    point: Vec<u32>,
}

/// A road network of nx x ny places: a random spanning tree and a few more roads, with 1 to 4 neighbours each,
/// symmetric, with lengths in [0.5, 1.5).
pub fn road(sizes: [u64; 2], seed: u64) -> Result<Csr, GenerateError> {
    adjacency(Kind::Road, sizes, seed)
}

/// A triangulated grid of nx x ny points, with each cell divided along a random diagonal: 2 to 8 neighbours each, 6 on
/// average, symmetric, with weights in [0.5, 1.5).
pub fn mesh(sizes: [u64; 2], seed: u64) -> Result<Csr, GenerateError> {
    adjacency(Kind::Mesh, sizes, seed)
}

fn adjacency(kind: Kind, sizes: [u64; 2], seed: u64) -> Result<Csr, GenerateError> {
    let plane = Plane::of(kind, sizes, seed)?;
    let fill = |row: usize, columns: &mut [u32], values: &mut [f64]| {
        let mut neighbours: Vec<(u32, f64)> =
            plane.neighbours(row).map(|other| (other as u32, plane.weight(row, other))).collect();
        neighbours.sort_unstable_by_key(|(column, _)| *column);
        for ((column, value), neighbour) in columns.iter_mut().zip(values).zip(neighbours) {
            (*column, *value) = neighbour;
        }
    };
    let rows = plane.point.len();
    build(rows, rows, |row| plane.neighbours(row).count(), fill)
}

impl Plane {
    fn of(kind: Kind, sizes: [u64; 2], seed: u64) -> Result<Self, GenerateError> {
        for (name, size) in ["nx", "ny"].into_iter().zip(sizes) {
            dimension(name, size)?;
        }
        // Each is below 2^31, so the product fits into a u64.
        let points = dimension("points of the grid", sizes[0] * sizes[1])?;
        let most = match kind {
            Kind::Road => 4,
            Kind::Mesh => 8,
        };
        bounded(most * points as u64)?;
        let sizes = sizes.map(|size| size as usize);
        let point = numbering(sizes, seed);
        let mut number = vec![0; points];
        for (place, &point) in point.iter().enumerate() {
            number[point as usize] = place as u32;
        }
        Ok(Self { kind, sizes, seed, number, point })
    }

    /// The numbers of a vertex's neighbours, unordered.
    fn neighbours(&self, row: usize) -> impl Iterator<Item = usize> {
        let point = self.point[row] as usize;
        let (x, y) = ((point % self.sizes[0]) as isize, (point / self.sizes[0]) as isize);
        let around = (-1..=1).flat_map(|dy| (-1..=1).map(move |dx| (dx, dy)));
        around.filter_map(move |(dx, dy)| {
            let (x, y) = (usize::try_from(x + dx).ok()?, usize::try_from(y + dy).ok()?);
            let other = y * self.sizes[0] + x;
            let inside = x < self.sizes[0] && y < self.sizes[1];
            (inside && self.joined(point, other)).then(|| self.number[other] as usize)
        })
    }

    /// Whether two points of one cell are connected. The decision must be the same for both, so it depends on the later
    /// point or on the cell.
    fn joined(&self, one: usize, two: usize) -> bool {
        let (low, high) = (one.min(two), one.max(two));
        let width = self.sizes[0];
        let (from, to) = (low % width, high % width);
        let (straight, aligned) = (low / width == high / width, from == to);
        match self.kind {
            _ if low == high => false,
            // Each point except the first has one road of the spanning tree, to the left or down.
            Kind::Road if straight => self.tree_is_left(high) || self.extra(high),
            Kind::Road if aligned => !self.tree_is_left(high) || self.extra(high),
            Kind::Road => false,
            Kind::Mesh if straight || aligned => true,
            // The cell is identified by its lower left point; one random bit chooses the diagonal.
            Kind::Mesh => {
                let cell = low / width * width + from.min(to);
                (bits(self.seed, cell as u64) & 1 == 1) == (from < to)
            }
        }
    }

    /// Whether the tree edge goes left, for a point with neighbours both to the left and below.
    fn tree_is_left(&self, point: usize) -> bool {
        let (x, y) = (point % self.sizes[0], point / self.sizes[0]);
        y == 0 || (x > 0 && bits(self.seed, point as u64) & 1 == 1)
    }

    fn extra(&self, point: usize) -> bool {
        unit(bits(!self.seed, point as u64)) < EXTRA_ROADS
    }

    fn weight(&self, one: usize, two: usize) -> f64 {
        let edge = (one.min(two) * self.point.len() + one.max(two)) as u64;
        0.5 + unit(bits(self.seed ^ 0xed6e, edge))
    }
}

/// The points in the order of their numbers: tile by tile, shuffled within each tile.
fn numbering([nx, ny]: [usize; 2], seed: u64) -> Vec<u32> {
    let mut points = Vec::with_capacity(nx * ny);
    for top in (0..ny).step_by(TILE) {
        for left in (0..nx).step_by(TILE) {
            let first = points.len();
            for y in top..(top + TILE).min(ny) {
                points.extend((left..(left + TILE).min(nx)).map(|x| (y * nx + x) as u32));
            }
            let mut stream = Stream::new(seed ^ 0x711e, first as u64);
            let tile = &mut points[first..];
            for last in (1..tile.len()).rev() {
                tile.swap(last, stream.below(last as u64 + 1) as usize);
            }
        }
    }
    points
}
