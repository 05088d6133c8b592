//! SciPy's `save_npz`: a zip archive of NumPy arrays with one csr, csc or coo matrix.

mod array;

use super::triplets::{self, check_pointers};
use super::{Held, Limits, ReadError, ReadErrorKind};
use crate::sparse::Csr;
use array::Array;
use std::io::{Cursor, Read};
use zip::ZipArchive;
use zip::result::ZipError;

/// Bytes that a member takes in the list of an opened archive, with the map of names.
const MEMBER: u64 = 1024;

pub(super) fn recognise(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

pub(super) fn read(bytes: &[u8], limits: &Limits, held: &Held) -> Result<Csr, ReadError> {
    // The archive's own list of members, of which a file may have any number.
    let members = memchr::memmem::find_iter(bytes, b"PK\x01\x02").count();
    held.charge(members as u64, MEMBER, "the zip archive's list of members")?;
    let zip =
        ZipArchive::new(Cursor::new(bytes)).map_err(|error| zip_error("the zip archive", error))?;
    let mut archive = Archive {
        zip,
        left: limits.max_decompressed_bytes,
        // The ratio of Deflate is at most 1032 to 1, so an array that claims more is incomplete.
        roomy: (bytes.len() as u64).saturating_mul(1032).min(limits.max_decompressed_bytes),
        held,
        limits,
    };
    if archive.zip.index_for_name("format.npy").is_none() {
        return Err(ReadError::new(
            ReadErrorKind::NotRecognised,
            "the file is a zip archive, but not of a SciPy sparse matrix: it has no member format.npy",
        ));
    }
    let format = archive.open("format", 1)?.text()?;
    let (rows, cols) = archive.shape()?;
    match format.as_str() {
        "csr" => {
            let (indptr, mut indices, mut values) = archive.compressed(Lines::Rows, rows, cols)?;
            // If the arrays are longer, SciPy ignores the elements beyond the last pointer.
            let nnz = *indptr.last().unwrap_or(&0);
            indices.truncate(nnz);
            values.truncate(nnz);
            triplets::finish(rows, cols, indptr, indices, values, archive.held)
        }
        "csc" => {
            let (indptr, indices, values) = archive.compressed(Lines::Columns, rows, cols)?;
            let entries = indptr.windows(2).zip(0u32..).flat_map(|(pair, col)| {
                let column = pair[0]..pair[1];
                let (indices, values) = (&indices[column.clone()], &values[column]);
                indices.iter().zip(values).map(move |(&row, &value)| (row, col, value))
            });
            triplets::assemble(rows, cols, entries, archive.held)
        }
        "coo" => {
            let row = archive.indices("row", rows)?;
            let col = archive.indices("col", cols)?;
            let values = archive.values()?;
            archive.check_shape(rows, cols)?;
            if row.len() != col.len() || row.len() != values.len() {
                return Err(ReadError::malformed("the arrays row, col and data differ in length"));
            }
            let entries =
                row.iter().zip(&col).zip(&values).map(|((&row, &col), &value)| (row, col, value));
            triplets::assemble(rows, cols, entries, archive.held)
        }
        other => Err(ReadError::unsupported(format!(
            "the SciPy format '{}' is not supported, only csr, csc and coo are: convert the matrix with .tocsr()",
            other.escape_default()
        ))),
    }
}

/// Pointers, indices and values of csr or csc.
type Compressed = (Vec<usize>, Vec<u32>, Vec<f64>);

/// Whether a compressed format is by rows or by columns.
#[derive(Clone, Copy)]
enum Lines {
    Rows,
    Columns,
}

struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// Remaining limit of decompressed bytes.
    left: u64,
    held: &'a Held,
    roomy: u64,
    limits: &'a Limits,
}

impl<'a> Archive<'a> {
    /// Opens the array `name`. Its decompressed size is charged, and no more is read; so are the `width` bytes of
    /// memory that each element becomes.
    fn open(&mut self, name: &'static str, width: u64) -> Result<Array<impl Read>, ReadError> {
        let member = format!("{name}.npy");
        let file = self.zip.by_name(&member).map_err(|error| zip_error(&member, error))?;
        let array = Array::open(name, file, self.roomy)?;
        match self.left.checked_sub(array.bytes()) {
            Some(left) => self.left = left,
            None => {
                return Err(ReadError::too_large(format!(
                    "the decompressed arrays exceed the limit of {} bytes",
                    self.limits.max_decompressed_bytes
                )));
            }
        }
        self.held.charge(array.count(), width, name)?;
        Ok(array)
    }

    fn shape(&mut self) -> Result<(usize, usize), ReadError> {
        let array = self.open("shape", 8)?;
        match array.length()? {
            2 => {}
            1 => return Err(ReadError::unsupported("a one-dimensional array is not a matrix")),
            _ => return Err(ReadError::malformed("the array shape must have two elements")),
        }
        let shape = array.indices(u64::MAX, |side| side)?;
        let [rows, cols] = shape[..] else {
            return Err(ReadError::malformed("the array shape must have two elements"));
        };
        // Whether the shape is in proportion can be checked only when the entries are known.
        self.limits.shape(rows, cols, u64::MAX)
    }

    /// Refuses a shape out of proportion to the decompressed data. Checked before pointers are read, since those of
    /// empty rows or columns take almost no space in a zip archive.
    fn check_shape(&self, rows: usize, cols: usize) -> Result<(), ReadError> {
        let unpacked = self.limits.max_decompressed_bytes - self.left;
        self.limits.shape(rows as u64, cols as u64, unpacked).map(drop)
    }

    fn indices(&mut self, name: &'static str, limit: usize) -> Result<Vec<u32>, ReadError> {
        let limits = self.limits;
        let array = self.open(name, 4)?;
        limits.entries(array.length()?)?;
        array.indices(limit as u64, |index| index as u32)
    }

    fn values(&mut self) -> Result<Vec<f64>, ReadError> {
        let limits = self.limits;
        let array = self.open("data", 8)?;
        limits.entries(array.length()?)?;
        array.values()
    }

    /// Reads csr or csc, compressed by rows or columns.
    fn compressed(
        &mut self,
        lines: Lines,
        rows: usize,
        cols: usize,
    ) -> Result<Compressed, ReadError> {
        let (major, minor) = match lines {
            Lines::Rows => (rows, cols),
            Lines::Columns => (cols, rows),
        };
        let indices = self.indices("indices", minor)?;
        let values = self.values()?;
        self.check_shape(rows, cols)?;
        let pointers = self.open("indptr", 8)?;
        if pointers.length()? != major as u64 + 1 {
            return Err(ReadError::malformed(format!(
                "the array indptr must have {} elements",
                major + 1
            )));
        }
        let pointers = pointers.indices(u64::MAX, |pointer| pointer as usize)?;
        if indices.len() != values.len() {
            return Err(ReadError::malformed("the arrays indices and data differ in length"));
        }
        let last = *pointers.last().unwrap_or(&0);
        if last > indices.len() {
            return Err(ReadError::malformed(format!(
                "the last element of indptr is {last}, but there are {} entries",
                indices.len()
            )));
        }
        check_pointers("indptr", &pointers, last)?;
        Ok((pointers, indices, values))
    }
}

fn zip_error(what: &str, error: ZipError) -> ReadError {
    match error {
        ZipError::FileNotFound => ReadError::malformed(format!("the archive has no member {what}")),
        ZipError::UnsupportedArchive(_) | ZipError::CompressionMethodNotSupported(_) => {
            ReadError::unsupported(format!("{what}: {error}"))
        }
        _ => ReadError::malformed(format!("{what}: {error}")),
    }
}
