//! What the candidates of one matrix share while they are lowered: row orders, packed arrays, and the time that making them
//! took.

use super::family::RowOrder;
use super::inspect::rows_by_length;
use super::{radix, similarity};
use crate::domain::recipe::{Array, ArrayData, Program, Scratch};
use crate::domain::{Device, Spmm};
use crate::ops::Refusal;
use crate::sparse::{Csr, locality};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Most bytes of packed arrays that are kept for later candidates; what is dropped can be packed again.
pub const MOST_KEPT: u64 = 8 << 30;

/// Prefix of the names of row orders.
const ROWS_BY: &str = "rows_by_";

/// The matrix, the problem, the device, and what has been made of them so far.
pub struct Shared {
    pub matrix: Arc<Csr>,
    pub problem: Spmm,
    pub device: Device,
    kept: HashMap<String, Kept>,
    made: u64,
    /// Whether all values are equal, once it has been asked, and the milliseconds that it took.
    equal: Option<(bool, f64)>,
}

struct Kept {
    value: Arc<dyn Any + Send + Sync>,
    bytes: u64,
    ms: f64,
    /// Its number in the order in which results were made.
    made: u64,
}

/// A lowered candidate: its program, its arrays, and the time that preparing them took.
pub struct Lowered {
    pub program: Program,
    pub arrays: Vec<Array>,
    pub scratch: Vec<Scratch>,
    /// Host time of sorting and packing, even if an earlier candidate spent it.
    pub ms: f64,
    /// The part of it that new values require again; see `Recipe::update_ms`.
    pub update_ms: Option<f64>,
}

impl Lowered {
    /// A program without arrays.
    pub fn bare(program: Program) -> Self {
        Self { program, arrays: Vec::new(), scratch: Vec::new(), ms: 0.0, update_ms: None }
    }
}

impl Shared {
    pub fn new(matrix: Arc<Csr>, problem: Spmm, device: Device) -> Self {
        Self { matrix, problem, device, kept: HashMap::new(), made: 0, equal: None }
    }

    /// Returns the result of `make`, which runs once for all candidates that use this name, with the milliseconds it took:
    /// the preparation time of each of them includes it. `bytes` says how much memory the result holds.
    pub fn once<T: Send + Sync + 'static, E>(
        &mut self,
        name: &str,
        bytes: impl Fn(&T) -> u64,
        make: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<(Arc<T>, f64), E> {
        if let Some(kept) = self.kept.get(name)
            && let Ok(value) = kept.value.clone().downcast::<T>()
        {
            return Ok((value, kept.ms));
        }
        let started = Instant::now();
        let value = Arc::new(make(self)?);
        let ms = started.elapsed().as_secs_f64() * 1e3;
        let bytes = bytes(&value);
        self.make_room(bytes);
        self.made += 1;
        self.kept
            .insert(name.to_owned(), Kept { value: value.clone(), bytes, ms, made: self.made });
        Ok((value, ms))
    }

    /// Drops the oldest results until this many bytes fit. Row orders stay: they are small, and everything else is made from
    /// them.
    fn make_room(&mut self, bytes: u64) {
        while self.kept.values().map(|kept| kept.bytes).sum::<u64>() + bytes > MOST_KEPT {
            let droppable = self.kept.iter().filter(|(name, _)| !name.starts_with(ROWS_BY));
            let Some(name) = droppable.min_by_key(|(_, kept)| kept.made).map(|it| it.0.clone())
            else {
                return;
            };
            self.kept.remove(&name);
        }
    }

    /// Whether all values are equal, and the milliseconds that looking took.
    pub fn has_equal_values(&mut self) -> (bool, f64) {
        let matrix = &self.matrix;
        *self.equal.get_or_insert_with(|| {
            let started = Instant::now();
            let equal = matrix.has_equal_values();
            (equal, started.elapsed().as_secs_f64() * 1e3)
        })
    }

    /// Rows in an order (none for the natural one), with the milliseconds that sorting took.
    pub fn ordered(&mut self, order: RowOrder) -> (Option<Arc<[u32]>>, f64) {
        let (rows, ms) = match order {
            RowOrder::Natural => return (None, 0.0),
            RowOrder::Length => self.by_length(),
            RowOrder::Similarity => {
                self.sorted(order, |matrix, rows| similarity::order(&|row| cols(matrix, row), rows))
            }
            RowOrder::Radix => {
                self.sorted(order, |matrix, rows| radix::order(&|row| cols(matrix, row), rows))
            }
            RowOrder::Locality => self.sorted(order, |matrix, _| locality::order(matrix)),
        };
        (Some(rows), ms)
    }

    /// Rows by falling length.
    pub fn by_length(&mut self) -> (Arc<[u32]>, f64) {
        self.sorted(RowOrder::Length, |matrix, _| rows_by_length(matrix))
    }

    /// Rows in an order, sorted once; `sort` gets the matrix and its rows in natural order.
    fn sorted(
        &mut self,
        order: RowOrder,
        sort: impl FnOnce(&Csr, Vec<u32>) -> Vec<u32>,
    ) -> (Arc<[u32]>, f64) {
        let made = self.once(
            &format!("{ROWS_BY}{}", order.name()),
            |rows: &Arc<[u32]>| 4 * rows.len() as u64,
            |shared| {
                let rows = (0..shared.matrix.rows() as u32).collect();
                Ok::<_, std::convert::Infallible>(sort(&shared.matrix, rows).into())
            },
        );
        let Ok((rows, ms)) = made;
        ((*rows).clone(), ms)
    }
}

fn cols(matrix: &Csr, row: u32) -> &[u32] {
    matrix.row(row as usize).0
}

impl RowOrder {
    /// The name of the order in candidates.
    pub fn name(self) -> &'static str {
        match self {
            Self::Natural => "natural",
            Self::Length => "length",
            Self::Similarity => "similarity",
            Self::Radix => "radix",
            Self::Locality => "locality",
        }
    }

    /// An array of rows in this order.
    pub fn array(self, rows: Arc<[u32]>) -> Array {
        array(format!("{ROWS_BY}{}", self.name()), ArrayData::U32(rows))
    }
}

/// Scratch memory of a recipe; refused if it would leave no room for the operands.
pub fn scratch(what: &str, bytes: u64, device: &Device) -> Result<Scratch, Refusal> {
    let most = MOST_KEPT.min(device.memory_bytes / 4);
    if bytes > most {
        let why = format!(
            "{what} take {bytes} bytes of device memory; at most {most} are available to one candidate"
        );
        return Err(Refusal(why));
    }
    Ok(Scratch { bytes: bytes.max(16), fill: 0 })
}

/// An array for a recipe.
pub fn array(name: impl Into<String>, data: ArrayData) -> Array {
    Array { name: name.into(), data }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{DeviceKind, Dtype, Layout};
    use crate::ops::spmm::{family, space};
    use crate::sparse::generate::Spec;
    use crate::sparse::locality::tests::shuffled;
    use crate::sparse::{operand, oracle};
    use std::convert::Infallible;

    #[test]
    fn the_oldest_goes_first_and_row_orders_stay() {
        let matrix = Csr::new(2, 2, vec![0, 1, 2], vec![0, 1], vec![1.0; 2]).unwrap();
        let problem = Spmm::new(8, Dtype::F32, Layout::Row);
        let device = super::super::tiled::tests::device(1);
        let mut shared = Shared::new(Arc::new(matrix), problem, device);
        shared.by_length();
        let mut make = |name: &str| {
            let mut made = false;
            let third = |(): &()| MOST_KEPT / 3;
            let Ok(_) = shared.once(name, third, |_| {
                made = true;
                Ok::<_, Infallible>(())
            });
            made
        };
        // Two thirds fit beside the order; a third third drops the first alone.
        assert!(make("a") && make("b") && !make("a") && make("c"));
        assert!(!make("b") && make("a"));
        assert!(shared.kept.contains_key("rows_by_length"));
    }

    /// Rows that are empty, one that is long, and a mesh between in random order.
    fn disordered() -> Csr {
        let mesh = Spec::parse("mesh:nx=17,ny=13,seed=1").unwrap().generate().unwrap();
        let (_, cols, values) = shuffled(&mesh).into_parts();
        let cut = [0, 0, cols.len().min(3), cols.len() / 2].to_vec();
        let rest = (cut[3]..=cols.len()).step_by(5).skip(1).chain([cols.len(), cols.len()]);
        let indptr: Vec<usize> = cut.iter().copied().chain(rest).collect();
        let mut rows: Vec<Vec<u32>> =
            indptr.windows(2).map(|pair| cols[pair[0]..pair[1]].to_vec()).collect();
        rows.iter_mut().for_each(|row| {
            row.sort_unstable();
            row.dedup();
        });
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        });
        let indptr = [0].into_iter().chain(ends).collect();
        let indices = rows.concat();
        let values = values[..indices.len()].to_vec();
        Csr::new(rows.len(), mesh.cols(), indptr, indices, values).unwrap()
    }

    fn u32s(array: &Array) -> &[u32] {
        match &array.data {
            ArrayData::U32(data) => data,
            _ => panic!("{} is not u32", array.name),
        }
    }

    /// Panels of `m1` rows multiplied as `row_panel.cuh` does: every output stored once, in the matrix's own order.
    fn panels(arrays: &[Array], m1: usize, rows: usize, b: &[f32], n: usize) -> Vec<f64> {
        let [ptr, cols, order] = [0, 1, 3].map(|at| u32s(&arrays[at]));
        let ArrayData::F32(values) = &arrays[2].data else { panic!("not f32") };
        let mut c = vec![f64::NAN; rows * n];
        for (panel, rows) in order.chunks(m1).enumerate() {
            for (m, &row) in rows.iter().enumerate() {
                let out = &mut c[row as usize * n..][..n];
                assert!(n == 0 || out[0].is_nan(), "row {row} is stored twice");
                out.fill(0.0);
                for at in ptr[panel] as usize..ptr[panel + 1] as usize {
                    let (value, from) = (values[at * m1 + m], &b[cols[at] as usize * n..][..n]);
                    out.iter_mut()
                        .zip(from)
                        .for_each(|(c, b)| *c += f64::from(value) * f64::from(*b));
                }
            }
        }
        c
    }

    #[test]
    fn every_family_by_rows_takes_them_by_locality() {
        let matrix = Arc::new(disordered());
        let (rows, expected) = (matrix.rows(), locality::order(&matrix));
        assert_ne!(expected, (0..rows as u32).collect::<Vec<_>>());
        let mut families = std::collections::BTreeSet::new();
        for layout in [Layout::Row, Layout::Col] {
            let problem = Spmm::new(33, Dtype::F32, layout);
            let b = operand::random(matrix.cols() * 33, 3);
            let product = oracle::spmm(&matrix, &b, &problem);
            let all = space::enumerate(&problem, DeviceKind::Cuda).into_iter();
            let device = super::super::tiled::tests::device(132);
            let mut shared = Shared::new(matrix.clone(), problem, device);
            for candidate in all.filter(family::is_local).step_by(7) {
                let kernel = family::kernel(&candidate, &problem).unwrap();
                // What is refused is refused in any order.
                let Ok(lowered) = kernel.lower(&mut shared) else { continue };
                assert!(lowered.ms > 0.0, "{candidate}");
                families.insert(candidate.family.clone());
                let named = lowered.arrays.iter().find(|it| it.name == "rows_by_locality");
                // Tiled panels have an order of their own within each block, and slots: their tests execute them.
                let Some(order) = named else {
                    assert_eq!(candidate.family, "tiled");
                    continue;
                };
                assert_eq!(u32s(order), expected, "{candidate}");
                if candidate.family == "row_panel" {
                    let m1 = candidate.int("m1").unwrap() as usize;
                    let c = panels(&lowered.arrays, m1, rows, &b, 33);
                    let close = |(i, c): (usize, &f64)| {
                        (c - product.value[i]).abs() <= 1e-6 * (1.0 + f64::from(product.scale[i]))
                    };
                    assert!(c.iter().enumerate().all(close), "{candidate}");
                }
            }
        }
        let all = ["condensed_tc", "nnz_split", "row_panel", "row_split", "tiled"];
        assert!(families.iter().eq(all.iter()), "{families:?}");
    }

    #[test]
    fn scratch_beyond_a_quarter_of_the_device_is_refused() {
        let mut device = super::super::tiled::tests::device(1);
        device.memory_bytes = 1 << 20;
        assert_eq!(scratch("sums", 1 << 18, &device).unwrap().bytes, 1 << 18);
        let Refusal(why) = scratch("sums", (1 << 18) + 1, &device).unwrap_err();
        assert!(why.contains("sums take 262145 bytes"), "{why}");
    }
}
