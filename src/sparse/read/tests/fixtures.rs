//! Small writers of each format, for tests alone: the same matrix in every dress.

use crate::sparse::Csr;
use std::io::{Cursor, Write};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A NumPy array file with the given element type and shape around raw element bytes.
pub(super) fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend_from_slice(&(header.len() as u16).to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    out
}

pub(super) fn npy_i64(values: &[i64]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    npy("'<i8'", &format!("({},)", values.len()), &data)
}

pub(super) fn npy_i32(values: &[i32]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    npy("'<i4'", &format!("({},)", values.len()), &data)
}

pub(super) fn npy_f64(values: &[f64]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    npy("'<f8'", &format!("({},)", values.len()), &data)
}

pub(super) fn format(name: &str) -> Vec<u8> {
    npy(&format!("'|S{}'", name.len()), "()", name.as_bytes())
}

pub(super) fn zip(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in members {
        out.start_file(format!("{name}.npy"), SimpleFileOptions::default()).unwrap();
        out.write_all(bytes).unwrap();
    }
    out.finish().unwrap().into_inner()
}

/// Row, column and value of every entry, row by row.
pub(super) fn triplets(csr: &Csr) -> Vec<(usize, usize, f64)> {
    let row = |row: usize| {
        let (cols, values) = csr.row(row);
        cols.iter()
            .zip(values)
            .map(move |(&col, &value)| (row, col as usize, value))
            .collect::<Vec<_>>()
    };
    (0..csr.rows()).flat_map(row).collect()
}

/// Column pointers, row indices and values.
pub(super) fn columns(csr: &Csr) -> (Vec<i64>, Vec<i32>, Vec<f64>) {
    let mut entries = triplets(csr);
    entries.sort_by_key(|&(row, col, _)| (col, row));
    let mut pointers = vec![0; csr.cols() + 1];
    for &(_, col, _) in &entries {
        pointers[col + 1] += 1;
    }
    for col in 0..csr.cols() {
        pointers[col + 1] += pointers[col];
    }
    let rows = entries.iter().map(|entry| entry.0 as i32).collect();
    (pointers, rows, entries.iter().map(|entry| entry.2).collect())
}

pub(super) fn npz(csr: &Csr, name: &str) -> Vec<u8> {
    let shape = npy_i64(&[csr.rows() as i64, csr.cols() as i64]);
    let entries = triplets(csr);
    let arrays = match name {
        "csr" => {
            let pointers: Vec<i64> = csr.indptr().iter().map(|&pointer| pointer as i64).collect();
            let indices: Vec<i64> = csr.indices().iter().map(|&index| i64::from(index)).collect();
            vec![
                ("indptr", npy_i64(&pointers)),
                ("indices", npy_i64(&indices)),
                ("data", npy_f64(csr.values())),
            ]
        }
        "csc" => {
            let (pointers, rows, values) = columns(csr);
            vec![
                ("indptr", npy_i64(&pointers)),
                ("indices", npy_i32(&rows)),
                ("data", npy_f64(&values)),
            ]
        }
        _ => {
            let rows: Vec<i32> = entries.iter().rev().map(|entry| entry.0 as i32).collect();
            let cols: Vec<i64> = entries.iter().rev().map(|entry| entry.1 as i64).collect();
            let values: Vec<f64> = entries.iter().rev().map(|entry| entry.2).collect();
            vec![("row", npy_i32(&rows)), ("col", npy_i64(&cols)), ("data", npy_f64(&values))]
        }
    };
    zip(&[vec![("format", format(name)), ("shape", shape)], arrays].concat())
}

pub(super) fn smtx(csr: &Csr) -> Vec<u8> {
    let words = |numbers: Vec<String>| numbers.join(" ");
    let offsets = words(csr.indptr().iter().map(usize::to_string).collect());
    let indices = words(csr.indices().iter().map(u32::to_string).collect());
    format!("{}, {}, {}\n{offsets} \n{indices} \n", csr.rows(), csr.cols(), csr.nnz()).into_bytes()
}

/// Rutherford-Boeing, or Harwell-Boeing with a right-hand side, with abutting fields.
pub(super) fn rutherford_boeing(csr: &Csr, right_side: bool) -> Vec<u8> {
    let (pointers, rows, values) = columns(csr);
    let cards = |fields: Vec<String>, repeat: usize| {
        fields.chunks(repeat).map(|card| card.concat() + "\n").collect::<Vec<_>>()
    };
    let pointers = cards(pointers.iter().map(|pointer| format!("{:5}", pointer + 1)).collect(), 16);
    let rows = cards(rows.iter().map(|row| format!("{:4}", row + 1)).collect(), 20);
    let values =
        cards(values.iter().map(|value| format!("{value:25.17e}").replace('e', "D")).collect(), 3);
    let (p, i, v) = (pointers.len(), rows.len(), values.len());
    let mut out =
        format!("{:72}{:8}\n{:14}{p:14}{i:14}{v:14}", "a test matrix", "TESTKEY", p + i + v);
    out += if right_side { "             1\n" } else { "\n" };
    out += &format!("rua           {:14}{:14}{:14}{:14}\n", csr.rows(), csr.cols(), csr.nnz(), 0);
    out += &format!("{:16}{:16}{:20}", "(16I5)", "(20I4)", "(1P,3D25.17)");
    out += if right_side { "(1P,3D25.17)        \nF             1             0\n" } else { "\n" };
    out += &[pointers, rows, values].concat().concat();
    if right_side {
        out += "any right-hand side\n";
    }
    out.into_bytes()
}
