//! Writes an export: records into a packed stream, of which what is ready is taken off.

use super::record::{Chain, Contents, Counts, PART, Part, Record, WINDOW_LOG};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use std::io::{self, Read, Write};
use std::path::Path;
use zstd::stream::write::Encoder;

/// Bytes that are handed on at a time.
const CHUNK: usize = 256 << 10;
/// The usual level: text is packed at about 300 MB/s.
const LEVEL: i32 = 3;

pub struct Packer {
    out: Encoder<'static, Vec<u8>>,
    chain: Chain,
    counts: Counts,
}

impl Packer {
    pub fn new() -> io::Result<Self> {
        let mut out = Encoder::new(Vec::with_capacity(CHUNK), LEVEL)?;
        out.include_checksum(true)?;
        out.window_log(WINDOW_LOG)?;
        Ok(Self { out, chain: Chain::begin(), counts: Counts::default() })
    }

    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        self.counts.count(record);
        let text = serde_json::to_vec(record)?;
        let digest = self.chain.next(&text);
        write!(self.out, "{digest} ")?;
        self.out.write_all(&text)?;
        self.out.write_all(b"\n")
    }

    /// The next part of a file; false at its end.
    pub fn write_part(&mut self, from: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<bool> {
        buffer.clear();
        from.take(PART as u64).read_to_end(buffer)?;
        if buffer.is_empty() {
            return Ok(false);
        }
        self.write(&Record::Part(Part { data: STANDARD.encode(&*buffer) }))?;
        Ok(true)
    }

    /// What is ready to be sent, if that is enough.
    pub fn ready(&mut self) -> Option<Bytes> {
        let out = self.out.get_mut();
        (out.len() >= CHUNK).then(|| std::mem::replace(out, Vec::with_capacity(CHUNK)).into())
    }

    /// The rest, with the last record.
    pub fn finish(mut self) -> io::Result<Bytes> {
        let counts = self.counts;
        self.write(&Record::End(counts))?;
        Ok(self.out.finish()?.into())
    }
}

/// Length and digest of a file. Blocks.
pub fn contents_of(path: &Path) -> io::Result<Contents> {
    let bytes = std::fs::metadata(path)?.len();
    Ok(Contents { bytes, digest: crate::store::blobs::digest_of(path)? })
}
