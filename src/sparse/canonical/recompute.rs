//! The digest of a canonical file, computed from its contents without holding them in memory.

use super::pointers::Pointers;
use super::{CanonicalError, HEADER_BYTES, Header, MAGIC, check_length, padding, parse_header};
use crate::domain::Digest;
use crate::sparse::digest::Hashing;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Bytes read and hashed at a time: a multiple of 8, enough to keep threads busy, and little enough for many files at once.
const BLOCK: usize = 2 << 20;

/// The matrix's digest as its contents have it; `None` if this is no canonical file. An error if the file is not whole, or its
/// header does not state the digests of its contents. Takes 3 MiB of memory, whatever the matrix.
pub fn recomputed(path: &Path) -> Result<Option<Digest>, CanonicalError> {
    let mut file = File::open(path)?;
    let found = file.metadata()?.len();
    let mut bytes = [0u8; HEADER_BYTES];
    match file.read_exact(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    if !bytes.starts_with(MAGIC) {
        return Ok(None);
    }
    let (header, pointers) = parse_header(&bytes)?;
    check_length(&header, pointers, found)?;
    let (pattern, whole) = streamed(&mut file, &header, pointers)?;
    match pattern == header.pattern_digest && whole == header.digest {
        true => Ok(Some(whole)),
        false => Err(CanonicalError::Digests),
    }
}

fn streamed(
    file: &mut File,
    header: &Header,
    pointers: Pointers,
) -> Result<(Digest, Digest), CanonicalError> {
    let nnz = header.nnz as usize;
    let mut block = vec![0u64; BLOCK / 8];
    let mut hashing = Hashing::pattern([header.rows, header.cols, header.nnz]);
    pointers.each(file, header.rows, &mut block, |words| {
        hashing.bytes(bytemuck::cast_slice(words));
    })?;
    each(file, 4 * nnz as u64, &mut block, |bytes| hashing.bytes(bytes))?;
    each(file, padding(nnz) as u64, &mut block, |_| {})?;
    let pattern = hashing.end();
    let mut hashing = Hashing::values(&pattern);
    let mut left = nnz;
    while left > 0 {
        let words = left.min(block.len());
        file.read_exact(bytemuck::cast_slice_mut(&mut block[..words]))?;
        hashing.value_words(&mut block[..words]);
        left -= words;
    }
    Ok((pattern, hashing.end()))
}

/// Hands the next bytes of the file on in blocks.
fn each(
    file: &mut File,
    mut left: u64,
    block: &mut [u64],
    mut with: impl FnMut(&[u8]),
) -> Result<(), CanonicalError> {
    let block: &mut [u8] = bytemuck::cast_slice_mut(block);
    while left > 0 {
        let now = left.min(block.len() as u64) as usize;
        file.read_exact(&mut block[..now])?;
        with(&block[..now]);
        left -= now as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::canonical::write;
    use crate::sparse::{Csr, digest};

    fn stored(matrix: &Csr) -> (Vec<u8>, Digest) {
        let pattern = digest::pattern_digest(matrix);
        let whole = digest::digest(matrix, &pattern);
        let mut bytes = Vec::new();
        write(matrix, &mut bytes, pattern, whole).unwrap();
        (bytes, whole)
    }

    fn of(bytes: &[u8]) -> Result<Option<Digest>, CanonicalError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        recomputed(file.path())
    }

    #[test]
    fn every_flipped_bit_that_matters_is_seen() {
        let matrix = Csr::new(3, 4, vec![0, 2, 2, 3], vec![0, 3, 1], vec![1.5, -0.0, 4.0]).unwrap();
        let (bytes, whole) = stored(&matrix);
        assert_eq!(of(&bytes).unwrap(), Some(whole));
        // The padding between indices and values means nothing, and neither do the header's last bytes.
        let (unused, padding) = (112..128, 172..176);
        for at in (16..bytes.len()).filter(|at| !unused.contains(at) && !padding.contains(at)) {
            for bit in [0, 7] {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                // The sign of a zero is not part of the number.
                let same = at == 191 && bit == 7;
                assert_eq!(matches!(of(&bad), Ok(Some(_))), same, "byte {at}, bit {bit}");
            }
        }
        for cut in [0, 8, 100] {
            assert_eq!(of(&bytes[..cut]).unwrap(), None, "no canonical file any more");
        }
        assert!(of(&bytes[..bytes.len() - 1]).is_err() && of(&bytes[..128]).is_err());
        assert_eq!(of(b"#include <cuda.h>").unwrap(), None);
    }

    #[test]
    fn odd_shapes_and_more_than_a_block_agree_with_the_digest_in_memory() {
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        let tall = Csr::new(5, 1, vec![0, 0, 0, 1, 1, 1], vec![0], vec![-1.0]).unwrap();
        let rows = BLOCK / 8 + 3;
        let values: Vec<f64> =
            (0..rows).map(|i| if i % 7 == 0 { -0.0 } else { i as f64 }).collect();
        let long = Csr::new(rows, 1, (0..=rows).collect(), vec![0; rows], values).unwrap();
        let pointers = [vec![0; 50], vec![1; 51]].concat();
        let hollow = Csr::new(100, 9, pointers, vec![4], vec![2.0]).unwrap();
        let (bytes, whole) = stored(&hollow);
        assert_eq!((of(&bytes).unwrap(), bytes[16]), (Some(whole), 1), "too small to be compact");
        for matrix in [empty, tall, long] {
            let (bytes, whole) = stored(&matrix);
            assert_eq!(of(&bytes).unwrap(), Some(whole));
        }
    }

    #[test]
    fn nearly_empty_rows_are_hashed_as_they_stand_for() {
        // More rows than a block has words, and more rows with entries than are read at a time.
        for (rows, every, last) in
            [(1 << 19, 5000, true), (5_000_001, 40, false), (4096, 4096, false)]
        {
            let entries: Vec<usize> =
                (0..rows).filter(|row| row % every == 0 || (last && *row == rows - 1)).collect();
            let mut indptr = Vec::with_capacity(rows + 1);
            for (at, row) in entries.iter().enumerate() {
                indptr.resize(row + 1, at);
            }
            indptr.resize(rows + 1, entries.len());
            let values = entries.iter().map(|row| *row as f64 - 1.0).collect();
            let matrix = Csr::new(rows, 3, indptr, vec![2; entries.len()], values).unwrap();
            let (bytes, whole) = stored(&matrix);
            assert_eq!((of(&bytes).unwrap(), bytes[16]), (Some(whole), 2));
            for at in [128, 128 + 4 * (entries.len() + entries.len() % 2)] {
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                assert!(of(&bad).is_err(), "byte {at}");
            }
        }
    }
}
