//! Systems of odd shapes, and an invented GPU to schedule them for.

use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::{Device, DeviceId, DeviceKind, Dtype, Sptrsv};
use sparsetune::ops::sptrsv::System;
use sparsetune::sparse::Csr;

/// Pseudorandom numbers from a seed (SplitMix64).
pub struct Stream(pub u64);

impl Stream {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A GPU of three multiprocessors, so that schedules of small systems still use all of it and wrap around.
pub fn gpu() -> Device {
    Device {
        id: DeviceId("cuda:0".to_owned()),
        kind: DeviceKind::Cuda,
        name: "a GPU".to_owned(),
        compute_capability: "9.0".to_owned(),
        multiprocessors: 3,
        warp_size: 32,
        max_threads_per_block: 1024,
        max_threads_per_multiprocessor: 512,
        max_blocks_per_multiprocessor: 32,
        registers_per_thread: 255,
        registers_per_block: 65_536,
        registers_per_multiprocessor: 65_536,
        shared_bytes_per_block: 232_448,
        shared_bytes_per_multiprocessor: 233_472,
        l2_bytes: 50 << 20,
        memory_bytes: 80 << 30,
        copy_gbps: 2500.0,
        hop_ns: 263.0,
        driver: "13".to_owned(),
        compiler: "nvrtc 13.0".to_owned(),
        vendor: None,
        vendor_file: None,
        place: None,
        uuid: None,
        dense_vendor: None,
        kernels: Default::default(),
    }
}

pub fn problem(dtype: Dtype) -> Sptrsv {
    let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
    Sptrsv { rhs: 1, dtype, triangle, diagonal, transpose: false, ..Sptrsv::PLAIN }
}

/// Entries below and above the diagonal, so that both triangles are systems; `columns` says which lie below it in each row.
fn matrix(n: usize, columns: impl Fn(usize, &mut Stream) -> Vec<usize>) -> Csr {
    let mut stream = Stream(n as u64);
    let mut rows: Vec<Vec<u32>> = (0..n).map(|row| vec![row as u32]).collect();
    for row in 0..n {
        for col in columns(row, &mut stream) {
            assert!(col < row);
            rows[row].push(col as u32);
            // The same pattern mirrored, from the other end: the upper triangle has other levels.
            rows[n - 1 - row].push((n - 1 - col) as u32);
        }
    }
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for (row, columns) in rows.iter_mut().enumerate() {
        columns.sort_unstable();
        columns.dedup();
        let share = 1.0 / columns.len() as f64;
        for &col in columns.iter() {
            let own = col as usize == row;
            let value = if own { stream.range(1.0, 2.0) } else { share * stream.range(-1.0, 1.0) };
            indices.push(col);
            values.push(value);
        }
        indptr.push(indices.len());
    }
    Csr::new(n, n, indptr, indices, values).expect("sorted rows")
}

/// Matrices by name: every shape that could be difficult for a schedule.
pub fn matrices() -> Vec<(&'static str, Csr)> {
    let below = |row: usize, many: usize, stream: &mut Stream| -> Vec<usize> {
        if row == 0 {
            return Vec::new();
        }
        (0..many).map(|_| stream.below(row as u64) as usize).collect()
    };
    vec![
        ("one row", matrix(1, |_, _| Vec::new())),
        ("two rows", matrix(2, |row, _| (0..row).collect())),
        ("diagonal", matrix(77, |_, _| Vec::new())),
        ("chain", matrix(131, |row, _| row.checked_sub(1).into_iter().collect())),
        ("dense", matrix(70, |row, _| (0..row).collect())),
        (
            "one long row",
            matrix(300, |row, _| if row == 250 { (0..250).collect() } else { Vec::new() }),
        ),
        (
            "uneven",
            matrix(500, move |row, stream| {
                below(row, if row % 37 == 0 { 40 } else { row % 5 }, stream)
            }),
        ),
        ("wide", matrix(700, move |row, stream| below(row.min(90), 3, stream))),
        (
            "mesh",
            matrix(400, |row, _| {
                let left = (row % 20 != 0).then(|| row - 1);
                left.into_iter().chain(row.checked_sub(20)).collect()
            }),
        ),
    ]
}

/// A system for each triangle and diagonal in turn.
pub fn systems(dtype: Dtype) -> Vec<(String, System)> {
    let variants = [
        (Triangle::Lower, Diagonal::NonUnit, false),
        (Triangle::Upper, Diagonal::NonUnit, false),
        (Triangle::Lower, Diagonal::Unit, true),
        (Triangle::Upper, Diagonal::Unit, true),
    ];
    let mut systems = Vec::new();
    for (at, (name, matrix)) in matrices().into_iter().enumerate() {
        for offset in [0, 1] {
            let (triangle, diagonal, transpose) = variants[(at + offset) % variants.len()];
            let problem = Sptrsv { triangle, diagonal, transpose, ..problem(dtype) };
            let system = System::of(&matrix, &problem, &gpu()).expect("a system");
            systems.push((format!("{name}, {triangle} {diagonal} {transpose}"), system));
        }
    }
    systems
}
