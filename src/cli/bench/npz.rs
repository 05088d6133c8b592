//! Writes CSR like SciPy's `save_npz`, uncompressed: the fastest way to upload a generated matrix.

use crate::sparse::Csr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Writes the archive; arrays are little-endian, like the supported hosts.
pub fn write(csr: &Csr, file: &File) -> io::Result<()> {
    let mut zip = ZipWriter::new(BufWriter::with_capacity(1 << 20, file));
    let shape = [csr.rows() as u64, csr.cols() as u64];
    let shape: Vec<u8> = shape.iter().flat_map(|side| side.to_le_bytes()).collect();
    member(&mut zip, "format", "|S3", "()", b"csr")?;
    member(&mut zip, "shape", "<i8", "(2,)", &shape)?;
    let (pointers, nnz) = (format!("({},)", csr.rows() + 1), format!("({},)", csr.nnz()));
    member(&mut zip, "indptr", "<i8", &pointers, bytemuck::cast_slice(csr.indptr()))?;
    member(&mut zip, "indices", "<i4", &nnz, bytemuck::cast_slice(csr.indices()))?;
    member(&mut zip, "data", "<f8", &nnz, bytemuck::cast_slice(csr.values()))?;
    zip.finish()?.flush()
}

/// One array: a NumPy header of version 1 (NEP 1), padded so that the elements begin at a multiple of 64 bytes.
fn member(
    zip: &mut ZipWriter<impl Write + io::Seek>,
    name: &str,
    descr: &str,
    shape: &str,
    elements: &[u8],
) -> io::Result<()> {
    let options =
        SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    zip.start_file(format!("{name}.npy"), options)?;
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    // Magic, version and length take 10 bytes, and the newline one; the header is far shorter than 64 KiB.
    let length = (text.len() + 11).next_multiple_of(64) - 10;
    zip.write_all(b"\x93NUMPY\x01\x00")?;
    zip.write_all(&(length as u16).to_le_bytes())?;
    zip.write_all(format!("{text:<width$}\n", width = length - 1).as_bytes())?;
    zip.write_all(elements)
}

#[cfg(test)]
mod tests {
    use crate::sparse::generate::Spec;
    use crate::sparse::read::{Format, Limits, read_path};

    #[test]
    fn reads_back_the_same() {
        for text in ["ilu0_poisson2d:nx=9,ny=7,seed=3", "uniform:rows=3,cols=900,nnz=0"] {
            let matrix = Spec::parse(text).unwrap().generate().unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            super::write(&matrix, file.as_file()).unwrap();
            let read = read_path(file.path(), &Limits::default()).unwrap();
            assert_eq!((read.format, read.csr), (Format::Npz, matrix));
        }
    }
}
