//! The bytes of an upload: memory-mapped from its file, or decompressed up to a limit (small ones in memory, large ones
//! into an unnamed temporary file that is then mapped, so that they use page cache instead of heap).

use super::{Limits, ReadError};
use flate2::bufread::MultiGzDecoder;
use memmap2::Mmap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Deref;
use std::path::Path;

/// Readable bytes from any source.
pub(super) enum Bytes {
    Memory(Vec<u8>),
    Mapped(Mmap),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

/// Maps a regular file. It must not be truncated meanwhile, because reading past its end kills the process.
pub(super) fn map(path: &Path) -> Result<Bytes, ReadError> {
    let doing = || format!("opening {}", path.display());
    let file = File::open(path).map_err(|error| ReadError::io(&doing(), &error))?;
    let facts = file.metadata().map_err(|error| ReadError::io(&doing(), &error))?;
    if !facts.is_file() {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(ReadError::io(&doing(), &error));
    }
    map_file(&file, facts.len())
}

fn map_file(file: &File, length: u64) -> Result<Bytes, ReadError> {
    if length == 0 {
        return Ok(Bytes::Memory(Vec::new()));
    }
    // SAFETY: the file is an upload in our own spool folder or our unnamed temporary file, and is not changed while
    // mapped.
    let map =
        unsafe { Mmap::map(file) }.map_err(|error| ReadError::io("mapping the file", &error))?;
    Ok(Bytes::Mapped(map))
}

/// Decompresses gzip (all members) or zstd (all frames); `None` if the bytes are neither.
pub(super) fn unpack(bytes: &[u8], limits: &Limits) -> Result<Option<Bytes>, ReadError> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return drain("gzip", MultiGzDecoder::new(bytes), limits).map(Some);
    }
    if bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let decoder = zstd::stream::read::Decoder::with_buffer(bytes)
            .map_err(|error| ReadError::io("starting zstd", &error))?;
        return drain("zstd", decoder, limits).map(Some);
    }
    Ok(None)
}

/// Up to this many decompressed bytes are kept in memory.
const IN_MEMORY: usize = 8 << 20;

/// The decompressed bytes so far: first in memory, then in an unnamed file, which cannot be left behind.
struct Spool<'a> {
    /// The folder for the file.
    folder: &'a Path,
    memory: Vec<u8>,
    file: Option<File>,
    total: u64,
}

impl<'a> Spool<'a> {
    fn new(folder: &'a Path) -> Self {
        Self { folder, memory: Vec::new(), file: None, total: 0 }
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.total += bytes.len() as u64;
        self.memory.extend_from_slice(bytes);
        if self.memory.len() > IN_MEMORY { self.spill().map(drop) } else { Ok(()) }
    }

    fn spill(&mut self) -> io::Result<&File> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => tempfile::tempfile_in(self.folder)?,
        };
        file.write_all(&self.memory)?;
        self.memory.clear();
        Ok(self.file.insert(file))
    }

    fn close(mut self) -> Result<Bytes, ReadError> {
        if self.file.is_none() {
            return Ok(Bytes::Memory(self.memory));
        }
        let total = self.total;
        map_file(self.spill().map_err(spool_error)?, total)
    }
}

fn spool_error(error: io::Error) -> ReadError {
    ReadError::io("writing decompressed bytes to a temporary file", &error)
}

fn drain(what: &str, mut packed: impl Read, limits: &Limits) -> Result<Bytes, ReadError> {
    let limit = limits.max_decompressed_bytes;
    let mut buffer = vec![0u8; 256 << 10];
    let anywhere = std::env::temp_dir();
    let mut spool = Spool::new(limits.spool.as_deref().unwrap_or(&anywhere));
    loop {
        let got = match packed.read(&mut buffer) {
            Ok(0) => return spool.close(),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let total = spool.total;
                return Err(ReadError::malformed(format!(
                    "the {what} stream is corrupt after {total} decompressed bytes: {error}"
                )));
            }
        };
        if spool.total + got as u64 > limit {
            return Err(ReadError::too_large(format!(
                "the {what} stream decompresses to more than the limit of {limit} bytes"
            )));
        }
        spool.push(&buffer[..got]).map_err(spool_error)?;
    }
}

#[cfg(test)]
mod tests {
    use super::{IN_MEMORY, Spool, spool_error};
    use crate::sparse::read::ReadErrorKind;
    use std::fs::File;
    use std::path::Path;

    #[test]
    fn a_full_disk_is_distinguished_from_an_io_error() {
        let much = vec![0; IN_MEMORY + 1];
        let mut full = Spool::new(Path::new("/"));
        full.file = Some(File::options().write(true).open("/dev/full").unwrap());
        let error = spool_error(full.push(&much).unwrap_err());
        assert_eq!(error.kind, ReadErrorKind::StorageFull, "{error}");
        let error = spool_error(Spool::new(Path::new("/dev/null")).push(&much).unwrap_err());
        assert_eq!(error.kind, ReadErrorKind::Io, "{error}");
    }
}
