//! The bytes of an upload: memory-mapped from its file, or unpacked from gzip or zstd up to a limit (few in memory, many in
//! an unnamed temporary file that is then mapped, so that they use page cache instead of heap).
//!
//! All that is packed is unpacked here, whether the file itself is, or a `Content-Encoding` says so, or both.

use super::coding::{Beyond, Coding};
use super::{Held, Limits, ReadError, Spooling};
use memmap2::{Mmap, MmapOptions};
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom, Write};
use std::ops::Deref;
use std::path::Path;

/// Readable bytes from any source.
pub(super) enum Bytes {
    Memory(Vec<u8>),
    /// A file, and the disk that it takes if it is a temporary one.
    Mapped {
        map: Mmap,
        _disk: Option<Held>,
    },
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Mapped { map, .. } => map,
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
    map_file(&file, facts.len(), None)
}

/// [`map`] of a regular file that is open already. A process within a fence may ask for its length in this way alone.
pub(super) fn map_open(mut file: &File) -> Result<Bytes, ReadError> {
    let length = file.seek(SeekFrom::End(0));
    map_file(file, length.map_err(|error| ReadError::io("the upload's length", &error))?, None)
}

fn map_file(file: &File, length: u64, disk: Option<Held>) -> Result<Bytes, ReadError> {
    if length == 0 {
        return Ok(Bytes::Memory(Vec::new()));
    }
    let whole = usize::try_from(length)
        .map_err(|_| ReadError::too_large(format!("{length} bytes cannot be mapped")))?;
    // SAFETY: the file is an upload in our own spool folder or our unnamed temporary file, and is not changed while
    // mapped.
    let map = unsafe { MmapOptions::new().len(whole).map(file) }
        .map_err(|error| ReadError::io("mapping the file", &error))?;
    Ok(Bytes::Mapped { map, _disk: disk })
}

/// Unpacks bytes that are packed: by `coding` on their way, and then perhaps as a file, or as a file alone; `None` if they are not.
/// As soon as the first bytes are unpacked `accept` judges them, before the rest is.
pub(super) fn unpack(
    bytes: &[u8],
    coding: Option<Coding>,
    limits: &Limits,
    held: &Held,
    accept: impl Fn(&[u8]) -> Result<(), ReadError>,
) -> Result<Option<Bytes>, ReadError> {
    let Some(outer) = coding.or_else(|| Coding::of(bytes)) else { return Ok(None) };
    let mut stream = Unpacking::new(outer, bytes, limits, held)?;
    if coding.is_some() {
        stream.unpack_file()?;
    }
    let mut spool = Spool::new(limits, held);
    stream.drain(|piece| {
        let before = spool.total;
        spool.push(piece)?;
        match (before..spool.total).contains(&TELLING) {
            true => accept(&spool.memory),
            false => Ok(()),
        }
    })?;
    if spool.total <= TELLING {
        accept(&spool.memory)?;
    }
    spool.close().map(Some)
}

/// Unpacks bytes into memory, at most `limit` of them.
pub fn decode(packed: &[u8], coding: Coding, limit: u64) -> Result<Vec<u8>, ReadError> {
    let most = limit.saturating_add(DECODERS);
    let limits =
        Limits { max_decompressed_bytes: limit, max_matrix_bytes: most, ..Limits::default() };
    let (held, mut out) = (limits.budget(), Vec::new());
    Unpacking::new(coding, packed, &limits, &held)?.drain(|piece| {
        out.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(out)
}

/// Unpacks a file into another, whose bytes are charged to `disk`.
pub fn decode_file(
    from: &File,
    coding: Coding,
    limits: &Limits,
    (to, disk): (&mut File, &Held),
) -> Result<(), ReadError> {
    let (held, packed) = (limits.budget(), map_open(from)?);
    Unpacking::new(coding, &packed, limits, &held)?.drain(|piece| {
        disk.charge(piece.len() as u64, 1, "the unpacked upload")?;
        to.write_all(piece).map_err(|error| spool_error(&error))
    })
}

/// Memory of the decoders in [`decode`]: what zstd refers back over, as its own programs permit (128 MiB), and their state.
const DECODERS: u64 = (128 + 2) << 20;
/// Unpacked bytes after which the format is known, unless the file ends before.
const TELLING: u64 = 64 << 10;
/// Up to this many unpacked bytes are kept in memory.
const IN_MEMORY: usize = 8 << 20;
/// Bytes that are unpacked at a time.
const PIECE: usize = 256 << 10;

/// The unpacked bytes so far: first in memory, then in an unnamed file, which cannot be left behind.
struct Spool<'a> {
    spooling: &'a Spooling,
    memory: Vec<u8>,
    held: &'a Held,
    file: Option<File>,
    disk: Held,
    total: u64,
}

impl<'a> Spool<'a> {
    fn new(limits: &'a Limits, held: &'a Held) -> Self {
        let disk = limits.disk.open(u64::MAX);
        Self { spooling: &limits.spool, memory: Vec::new(), held, file: None, disk, total: 0 }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), ReadError> {
        let length = self.memory.len() + bytes.len();
        if length > self.memory.capacity() {
            // While it grows, what it was is there as well.
            let room = length.max(2 * self.memory.capacity()).min(length.max(IN_MEMORY + PIECE));
            self.held.charge(room as u64, 1, "unpacked bytes")?;
            self.memory.reserve_exact(room - self.memory.len());
        }
        self.total += bytes.len() as u64;
        self.memory.extend_from_slice(bytes);
        if self.memory.len() > IN_MEMORY { self.spill().map(drop) } else { Ok(()) }
    }

    fn spill(&mut self) -> Result<&File, ReadError> {
        self.disk.charge(self.memory.len() as u64, 1, "unpacked bytes")?;
        let opened = match self.file.take() {
            Some(file) => Ok(file),
            None => self.spooling.file(),
        };
        let mut file = opened.map_err(|error| spool_error(&error))?;
        file.write_all(&self.memory).map_err(|error| spool_error(&error))?;
        self.memory.clear();
        Ok(self.file.insert(file))
    }

    fn close(mut self) -> Result<Bytes, ReadError> {
        if self.file.is_none() {
            return Ok(Bytes::Memory(self.memory));
        }
        self.spill()?;
        let Self { file, total, disk, .. } = self;
        match file {
            Some(file) => map_file(&file, total, Some(disk)),
            None => Ok(Bytes::Memory(Vec::new())),
        }
    }
}

fn spool_error(error: &io::Error) -> ReadError {
    ReadError::io("writing unpacked bytes to a temporary file", error)
}

/// Packed bytes that are being unpacked, up to the limits.
struct Unpacking<'a> {
    what: String,
    decoder: Box<dyn Read + 'a>,
    /// Of the packed bytes.
    length: usize,
    limit: u64,
    /// Whether the limit is in proportion to the length.
    in_proportion: bool,
    held: &'a Held,
}

impl<'a> Unpacking<'a> {
    fn new(
        coding: Coding,
        packed: &'a [u8],
        limits: &Limits,
        held: &'a Held,
    ) -> Result<Self, ReadError> {
        held.charge(1, PIECE as u64, "unpacking")?;
        let limit = limits.unpacked(packed.len() as u64);
        Ok(Self {
            what: coding.name().to_owned(),
            decoder: coding.decoder(packed, limit, held)?,
            length: packed.len(),
            limit,
            in_proportion: limit < limits.max_decompressed_bytes,
            held,
        })
    }

    /// Unpacks what was unpacked once more if it is a packed file: nothing between the two is kept.
    fn unpack_file(&mut self) -> Result<(), ReadError> {
        let mut head = Vec::new();
        let first = self.decoder.by_ref().take(16).read_to_end(&mut head);
        first.map_err(|error| self.failed(0, error))?;
        let coding = Coding::of(&head);
        let decoder = std::mem::replace(&mut self.decoder, Box::new(io::empty()));
        let whole = Cursor::new(head).chain(decoder);
        self.decoder = match coding {
            None => Box::new(whole),
            Some(coding) => {
                self.held.charge(1, PIECE as u64, "unpacking")?;
                self.what = format!("{} in {}", coding.name(), self.what);
                let whole = BufReader::with_capacity(PIECE, whole);
                coding.decoder(whole, self.limit, self.held)?
            }
        };
        Ok(())
    }

    /// What a decoder's error says after `total` unpacked bytes: a refusal of its own, or that the stream is damaged.
    fn failed(&self, total: u64, error: io::Error) -> ReadError {
        let error = match error.downcast::<ReadError>() {
            Ok(refusal) => return refusal,
            Err(error) => error,
        };
        if error.get_ref().is_some_and(|cause| cause.is::<Beyond>()) {
            return self.beyond();
        }
        ReadError::malformed(format!(
            "the {} stream is corrupt after {total} decompressed bytes: {error}",
            self.what
        ))
    }

    fn beyond(&self) -> ReadError {
        let Self { what, limit, length, .. } = self;
        let of = match self.in_proportion {
            true => format!(", which is in proportion to its {length} bytes"),
            false => String::new(),
        };
        ReadError::too_large(format!(
            "the {what} stream decompresses to more than the limit of {limit} bytes{of}"
        ))
    }

    /// Unpacks all of it piece by piece.
    fn drain(
        mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let mut buffer = vec![0u8; PIECE];
        let mut total = 0;
        loop {
            let got = match self.decoder.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.failed(total, error)),
            };
            total += got as u64;
            if total > self.limit {
                return Err(self.beyond());
            }
            take(&buffer[..got])?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{IN_MEMORY, Spool};
    use crate::sparse::read::{Limits, Pool, ReadErrorKind, Spooling};
    use std::fs::File;

    #[test]
    fn a_full_disk_is_distinguished_from_an_io_error() {
        let much = vec![0; IN_MEMORY + 1];
        let limits = Limits::default();
        let held = limits.budget();
        let mut full = Spool::new(&limits, &held);
        full.file = Some(File::options().write(true).open("/dev/full").unwrap());
        let error = full.push(&much).unwrap_err();
        assert_eq!(error.kind, ReadErrorKind::StorageFull, "{error}");
        let limits = Limits { spool: Spooling::Folder("/dev/null".into()), ..limits };
        let held = limits.budget();
        let error = Spool::new(&limits, &held).push(&much).unwrap_err();
        assert_eq!(error.kind, ReadErrorKind::Io, "{error}");
    }

    #[test]
    fn the_disk_of_temporary_files_is_shared() {
        let much = vec![0; IN_MEMORY + 1];
        let limits = Limits { disk: Pool::disk(much.len() as u64 + 10), ..Limits::default() };
        let held = limits.budget();
        let mut first = Spool::new(&limits, &held);
        first.push(&much).unwrap();
        let mut second = Spool::new(&limits, &held);
        assert_eq!(second.push(&much).unwrap_err().kind, ReadErrorKind::Busy);
        drop((first, second));
        Spool::new(&limits, &held).push(&much).unwrap();
    }
}
