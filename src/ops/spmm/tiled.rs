//! Family `tiled` on column-major operands: Tiled SpMM as published (sections 2.5 and 4; `kernels/spmm/tiled.cuh`).

pub mod arrange;
pub mod lower;
pub mod pack;
pub mod slots;
#[cfg(test)]
pub(super) mod tests;

use super::family::{
    RowOrder, SpmmFamily, SpmmKernel, Tile, among, count, effective_layout, gpu_family, is_local,
    order, order_serves,
};
use super::inspect::Inspection;
use super::model::{SECTOR, Work};
use super::phrases;
use super::shared::{Lowered, Shared};
use super::tiled_model::sample::{Cut, Sampled};
use super::tiled_model::{self, Geometry, Terms};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::{Candidate, Device, Dtype, Intensity, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys, parameters};
use crate::search::domain::{Domain, chosen};
use std::sync::LazyLock;

/// Bytes of staged columns of B that a block may ask for: less leaves the map's reuse unused, more leaves a
/// multiprocessor with one block that waits for its own gathers.
const STAGED: std::ops::RangeInclusive<u64> = (24 << 10)..=(96 << 10);

pub struct TiledColumns;

#[derive(Clone, Copy, Debug)]
pub struct Tiled {
    /// Columns of C per thread (R).
    pub r: u32,
    /// Columns of A per stage.
    pub buffer: u32,
    /// Rows per block, one per thread.
    pub rows: u32,
    /// Where long rows are cut if the decision chart says so, in lengths of the chart; `None` leaves them whole.
    pub segment: Option<f64>,
    pub order: RowOrder,
    pub problem: Spmm,
}

impl SpmmFamily for TiledColumns {
    fn name(&self) -> &'static str {
        "tiled"
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/tiled.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("r", &[4, 8, 16]),
                Domain::ints("buffer", &[512, 1024, 2048]),
                Domain::ints("rows", &[128, 256]),
                Domain::texts("segment", &["none", "half", "auto", "double"]),
                Domain::texts("order", &["natural", "length", "similarity", "radix", "locality"]),
            ]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        if effective_layout(problem) != Layout::Col {
            return Vec::new();
        }
        let staged = |candidate: &Candidate| {
            let columns =
                u64::from(count(candidate, "buffer")?) * u64::from(count(candidate, "r")?);
            Some(STAGED.contains(&(columns * problem.dtype.bytes())))
        };
        // By locality rows are ordered whole: short segments would not be.
        let cut = |candidate: &Candidate| {
            !is_local(candidate) || matches!(candidate.text("segment"), Some("none" | "auto"))
        };
        let serves = |candidate: &Candidate| order_serves(candidate, problem) && cut(candidate);
        chosen("tiled", self.domains(), |candidate| {
            problem.n >= 2 && staged(candidate) == Some(true) && serves(candidate)
        })
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        let ours = candidate.family == "tiled" && effective_layout(problem) == Layout::Col;
        if !ours || problem.n < 2 || !among(candidate, self.domains()) {
            return None;
        }
        Some(Box::new(Tiled {
            r: count(candidate, "r")?,
            buffer: count(candidate, "buffer")?,
            rows: count(candidate, "rows")?,
            segment: segment(candidate)?,
            order: order(candidate)?,
            problem: *problem,
        }))
    }
}

impl Family for TiledColumns {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first("tiled", Distinction::Lacks(&["n1"]))];
        FamilyDescriptor {
            title: "Tiled SpMM, column-major",
            summary: "Panels of rows gather the rows of column-major B that they need into shared memory.",
            source: Some("Tiled SpMM, sections 2.5 and 4"),
            parameters: parameters(
                self.domains(),
                &[
                    phrases::R,
                    ("buffer", "rows of B that are gathered in shared memory at a time"),
                    ("rows", "rows of a panel"),
                    (
                        "segment",
                        "how long the segments are that long rows are cut into: half, once or twice what the chart of Tiled SpMM says",
                    ),
                    phrases::ORDER,
                ],
            ),
            ..gpu_family("spmm.tiled_column", STORED, false)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &["rows", "buffer", "segment", "order"],
            tiled_by: &["rows", "r", "buffer"],
            headers: &["spmm/tiled.cuh"],
        }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

/// The parameter `segment`, in lengths of the decision chart.
fn segment(candidate: &Candidate) -> Option<Option<f64>> {
    match candidate.text("segment")? {
        "none" => Some(None),
        "half" => Some(Some(0.5)),
        "auto" => Some(Some(1.0)),
        "double" => Some(Some(2.0)),
        _ => None,
    }
}

impl Tiled {
    /// Whether the kernel is the one for segments.
    pub fn cuts(&self) -> bool {
        self.segment.is_some()
    }

    /// Entries after which rows are cut; whether they are is for the decision chart (section 4.1).
    pub fn segment(&self, rows: u64, mean: f64, sigma: f64, device: &Device) -> Option<u32> {
        let tiles = u64::from(self.problem.n.div_ceil(self.r));
        let blocks = rows.div_ceil(u64::from(self.rows)) * tiles;
        let utilization = slots::utilization(blocks, device.multiprocessors);
        let length = slots::chart(utilization, mean, sigma)?;
        Some(slots::segment_length(length, self.segment?))
    }

    fn geometry(&self, seen: &Sampled, device: &Device) -> Geometry {
        Geometry {
            rows: self.rows,
            buffer: self.buffer,
            r: self.r,
            n: self.problem.n,
            dtype: self.problem.dtype,
            segment: self.segment(seen.rows, seen.mean, seen.sigma, device),
        }
    }

    /// The performance model's terms for this candidate (Eq. 2 to 6).
    pub fn terms(&self, seen: &Inspection, device: &Device) -> Terms {
        let sampled = seen.tiled(self.order);
        tiled_model::terms(sampled, &self.geometry(sampled, device), device)
    }

    /// Staged columns and the zero column, bytes.
    pub fn shared_bytes(&self) -> u32 {
        (self.buffer + 1) * self.r * self.problem.dtype.bytes() as u32
    }

    /// Blocks that a multiprocessor holds at a time.
    fn resident(&self, device: &Device) -> u32 {
        let tile = self.tile();
        // The driver reserves a kilobyte per block.
        let shared = device.shared_bytes_per_multiprocessor / u64::from(tile.shared_bytes + 1024);
        let registers = tile.registers.next_multiple_of(8) * tile.threads;
        let by_registers = device.registers_per_multiprocessor / registers;
        let by_threads = device.max_threads_per_multiprocessor / tile.threads;
        (shared as u32).min(by_registers).min(by_threads).max(1)
    }
}

impl SpmmKernel for Tiled {
    fn tile(&self) -> Tile {
        // As ptxas reports for sm_80 and sm_90: a test checks that these figures are no less.
        let registers = match self.problem.dtype {
            Dtype::F64 => 92 + 4 * self.r,
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 => 70 + 2 * self.r,
        };
        let columns = if self.cuts() { self.r.min(lower::COMBINE_COLUMNS) } else { self.r };
        Tile {
            rows: 1,
            columns: self.r,
            threads: self.rows,
            most_threads: 256,
            threads_per_tile: 1,
            tiles_per_block: self.rows,
            // Cut rows give each multiprocessor a block, which is why the chart cuts them.
            order: self.order,
            unroll: 4,
            elements_an_entry: self.r,
            registers,
            shared_bytes: self.shared_bytes(),
            vector: 1,
            // The chart decides about balance here (sigma over mean at most 1, else cut), not LO-SpMM's threshold.
            balanced: true,
            grid_y: self.problem.n.div_ceil(columns),
            repeats: None,
        }
    }

    /// The decision chart determines the number of segments.
    fn blocks(&self, seen: &Inspection, problem: &Spmm) -> u64 {
        let tiles = u64::from(problem.n.div_ceil(self.r));
        if self.cuts() { u64::MAX } else { seen.rows.div_ceil(self.rows.into()) * tiles }
    }

    /// Gathers of a panel's distinct columns; the model proper is `tiled_model`.
    fn work(&self, seen: &Inspection) -> Work {
        let by_length = self.order == RowOrder::Length;
        let element = self.problem.dtype.bytes() as f64;
        let width = f64::from(self.r) * element;
        Work {
            entries: seen.nnz as f64,
            a_bytes: seen.nnz as f64 * (tiled_model::LOCAL_INDEX_BYTES + element),
            fetched: f64::from(self.r) * SECTOR,
            width,
            instructions: 4.0 + f64::from(self.r) + width / 16.0,
            mean_walk: seen.mean_row,
            longest_walk: seen.longest_row as f64,
            lockstep: seen.groups(32, by_length).lockstep,
            locality: seen.locality_in(self.order),
            reuse: seen.locality_in(self.order).near,
            ..Work::row_major(&self.tile(), seen, &self.problem)
        }
    }

    fn predict_us(&self, seen: &Inspection, _problem: &Spmm, device: &Device) -> f64 {
        let sampled = seen.tiled(self.order);
        let terms = self.terms(seen, device);
        let geometry = self.geometry(sampled, device);
        tiled_model::predict_us(&terms, sampled, &geometry, self.resident(device), device)
    }

    /// Z. Rows that will be cut are not padded to the longest.
    fn fill(&self, seen: &Inspection) -> f64 {
        match self.order {
            _ if self.cuts() => 1.0,
            order @ (RowOrder::Natural | RowOrder::Length) => {
                seen.groups(32, order == RowOrder::Length).lockstep
            }
            order => {
                let cut = Cut { rows: self.rows, buffer: self.buffer, segment: None };
                seen.tiled(order).footprint(cut).padding()
            }
        }
    }

    fn tiled_terms(&self, seen: &Inspection, device: &Device) -> Option<Terms> {
        Some(self.terms(seen, device))
    }

    fn intensity(&self, seen: &Inspection, device: &Device, us: f64) -> Option<Intensity> {
        let terms = self.terms(seen, device);
        let [naive, algorithmic, effective, optimistic] = terms.intensities();
        let geometry = self.geometry(seen.tiled(self.order), device);
        Some(Intensity {
            winner: false,
            order: self.order.name().to_owned(),
            segment: geometry.segment,
            r: self.r,
            rows: self.rows,
            buffer: self.buffer,
            predicted_us: us,
            mu: terms.mu,
            mu_segment: terms.mu_segment,
            rho: terms.rho,
            z: terms.z,
            c: terms.c,
            l: terms.l,
            gamma: terms.gamma,
            utilization: terms.u,
            naive,
            algorithmic,
            effective,
            optimistic,
        })
    }

    /// Bytes that the model predicts for the natural order, over those of this one.
    fn order_gain(&self, seen: &Inspection, device: &Device) -> Option<f64> {
        if self.order == RowOrder::Natural {
            return None;
        }
        let natural = Self { order: RowOrder::Natural, ..*self };
        let ordered = self.terms(seen, device);
        let known = seen.tiled(self.order).looked() > 0;
        Some(if known { ordered.gain_over(&natural.terms(seen, device)) } else { 0.0 })
    }

    /// Segments if the chart cuts rows (section 4.1).
    fn applies(&self, seen: &Inspection, device: &Device) -> bool {
        let sampled = seen.tiled(RowOrder::Natural);
        !self.cuts() || self.geometry(sampled, device).segment.is_some()
    }

    fn source(&self) -> String {
        lower::source(self)
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        lower::lower(self, shared)
    }
}
