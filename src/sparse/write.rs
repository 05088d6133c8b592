//! Writes Matrix Market files: coordinate, real, general; values with the fewest digits that read back exactly.

use super::Csr;
use rayon::prelude::*;
use std::io::{self, Write};
use std::ops::Range;

/// Entries formatted per task: some megabytes of text.
const BLOCK: usize = 1 << 16;

/// Writes the matrix row by row. Reading it back gives the same matrix and digests, including negative zeros. `name`
/// becomes a `% name:` comment, without line breaks.
pub fn matrix_market(csr: &Csr, name: Option<&str>, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "%%MatrixMarket matrix coordinate real general")?;
    if let Some(name) = name {
        let plain: String = name.chars().filter(|c| !c.is_control()).collect();
        writeln!(out, "% name: {plain}")?;
    }
    writeln!(out, "{} {} {}", csr.rows(), csr.cols(), csr.nnz())?;
    // A few blocks per thread at a time, so that little text waits to be written.
    for some in blocks(csr).chunks(4 * rayon::current_num_threads()) {
        let texts: Vec<io::Result<Vec<u8>>> =
            some.par_iter().map(|rows| format_rows(csr, rows.clone())).collect();
        for text in texts {
            out.write_all(&text?)?;
        }
    }
    Ok(())
}

/// Ranges of rows with about [`BLOCK`] entries each.
fn blocks(csr: &Csr) -> Vec<Range<usize>> {
    let mut blocks = Vec::new();
    let mut begin = 0;
    for row in 0..csr.rows() {
        if csr.indptr()[row + 1] - csr.indptr()[begin] >= BLOCK || row + 1 == csr.rows() {
            blocks.push(begin..row + 1);
            begin = row + 1;
        }
    }
    blocks
}

fn format_rows(csr: &Csr, rows: Range<usize>) -> io::Result<Vec<u8>> {
    let entries = csr.indptr()[rows.end] - csr.indptr()[rows.start];
    let mut text = Vec::with_capacity(entries * 32);
    for row in rows {
        let (cols, values) = csr.row(row);
        for (col, value) in cols.iter().zip(values) {
            // {:?} is the shortest form that reads back exactly, with an exponent if that is shorter.
            writeln!(text, "{} {} {value:?}", row + 1, col + 1)?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::matrix_market;
    use crate::sparse::Csr;
    use crate::sparse::read::{Limits, read_bytes};

    #[test]
    fn reads_back_the_same() {
        let values = vec![-0.0, 1e300, 5e-324, 0.1 + 0.2, f64::MAX, 0.0];
        let csr = Csr::new(4, 7, vec![0, 2, 2, 5, 6], vec![0, 6, 1, 2, 3, 5], values).unwrap();
        let mut text = Vec::new();
        matrix_market(&csr, Some("Group/a\nb"), &mut text).unwrap();
        let parsed = read_bytes(&text, &Limits::default()).unwrap();
        let bits = |csr: &Csr| csr.values().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&parsed.csr), bits(&csr));
        assert_eq!(parsed.csr, csr);
        assert_eq!(parsed.declared_name.as_deref(), Some("Group/ab"));
    }

    #[test]
    fn many_blocks_in_order() {
        let rows = 3000;
        let cols = 70;
        let indptr = (0..=rows).map(|row| row * cols).collect();
        let indices = (0..rows * cols).map(|place| (place % cols) as u32).collect();
        let values = (0..rows * cols).map(|place| place as f64 / 7.0).collect();
        let csr = Csr::new(rows, cols, indptr, indices, values).unwrap();
        let mut text = Vec::new();
        matrix_market(&csr, None, &mut text).unwrap();
        assert_eq!(read_bytes(&text, &Limits::default()).unwrap().csr, csr);
    }
}
