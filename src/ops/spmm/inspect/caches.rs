//! How often columns recur among rows that share a cache.

use super::reuse;
use crate::sparse::Csr;
use crate::sparse::locality::{self, Promise};

/// Rows that run close in time on one multiprocessor, and on the whole device: their columns share L1 and L2.
pub const NEAR_ROWS: usize = 64;
const FAR_ROWS: usize = 8192;
/// Factor by which an order by locality must increase the estimated reuse. It is not even estimated where reuse could not grow
/// so much if every column were read once.
pub const LOCALITY_PAYS: f64 = 1.25;

/// How often a column recurs among rows that run close in time, in one of the two row orders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Locality {
    /// Entries over distinct columns in windows of 64 rows.
    pub near: f64,
    /// The same in windows of 8192 rows.
    pub far: f64,
}

/// What an order by locality promises, where it can promise anything: nothing if columns recur nearly as often as they can, or if
/// all rows share a cache anyway.
pub fn promise(matrix: &Csr, touched_cols: u64, natural: Locality) -> Promise {
    let most = matrix.nnz() as f64 / touched_cols.max(1) as f64;
    let few = matrix.rows() < 4 * NEAR_ROWS;
    if few || most < LOCALITY_PAYS * natural.near {
        return Promise::NONE;
    }
    locality::promise(matrix)
}

/// Rows this many times longer than the mean (and at least this long) read most of B once, whatever runs close to them:
/// windows leave them out, and their entries count as met once.
const LONG: f64 = 16.0;
const LONG_AT_LEAST: f64 = 1024.0;

/// Of an order of all rows.
pub fn locality(matrix: &Csr, order: &[u32]) -> Locality {
    let nnz = matrix.nnz() as f64;
    let most = (LONG * nnz / matrix.rows().max(1) as f64).max(LONG_AT_LEAST) as usize;
    let is_short = |row: &&u32| matrix.row_nnz(**row as usize) <= most;
    let short: Vec<u32> = order.iter().filter(is_short).copied().collect();
    let in_short = short.iter().map(|&row| matrix.row_nnz(row as usize)).sum::<usize>() as f64;
    let met = |size| {
        let once = in_short / reuse(matrix, &short, size).max(1.0) + (nnz - in_short);
        if once > 0.0 { nnz / once } else { 1.0 }
    };
    Locality { near: met(NEAR_ROWS), far: met(FAR_ROWS) }
}

#[cfg(test)]
mod tests {
    use super::super::Inspection;
    use super::LOCALITY_PAYS;
    use crate::ops::spmm::family::RowOrder;
    use crate::sparse::generate::Spec;
    use crate::sparse::locality;
    use crate::sparse::locality::tests::shuffled;

    #[test]
    fn an_order_by_locality_is_promised_where_it_gains() {
        let of = |text: &str| Spec::parse(text).unwrap().generate().unwrap();
        for text in [
            "banded:n=2e4,half=8,seed=1",
            "circuit:n=2e4,hubs=3,seed=1",
            "uniform:rows=2e4,cols=2e4,nnz=3e5,seed=1",
            "rmat:scale=14,edge_factor=8,seed=1",
        ] {
            let gain = Inspection::of(&of(text)).locality_gain();
            assert!(gain < LOCALITY_PAYS, "{text}: {gain}");
        }
        let [cube, mesh] =
            ["poisson3d:nx=24,ny=24,nz=24,seed=1", "mesh:nx=120,ny=120,seed=1"].map(of);
        // Places of roads are numbered at random within tiles, and lines of a grid are longer than what shares L1.
        let others = ["road:nx=120,ny=120,seed=1", "poisson2d:nx=200,ny=200,seed=1"].map(of);
        for matrix in [shuffled(&cube), shuffled(&mesh)].iter().chain(&others) {
            let seen = Inspection::of(matrix);
            let promised = seen.locality_in(RowOrder::Locality).near;
            let (natural, real) =
                (seen.locality(false), super::locality(matrix, &locality::order(matrix)));
            println!("{natural:?} {real:?}: promised {promised}");
            assert!(seen.locality_gain() > LOCALITY_PAYS);
            assert!((promised / real.near - 1.0).abs() < 0.25, "{promised} {real:?}");
        }
    }
}
