//! The two ways in which files come packed, and decoders of all that a file holds: every member of gzip, with the zero bytes that
//! tapes append; every frame of zstd, each with the window that it declares. Nothing else may follow them.

use super::{Held, ReadError};
use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, Read};
use zstd::stream::raw::{DParameter, Decoder, Operation};

/// A way of packing bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Gzip,
    Zstd,
}

impl Coding {
    /// The coding that the first bytes of a packed file announce.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(&[0x1f, 0x8b]) {
            return Some(Self::Gzip);
        }
        (bytes.starts_with(&ZSTD_MAGIC) || is_skippable(bytes)).then_some(Self::Zstd)
    }

    /// The coding that a `Content-Encoding` names.
    pub fn named(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Its name as a `Content-Encoding`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// A reader of what `packed` unpacks to, at most `limit` bytes: of zstd, a frame that declares more is refused at once.
    /// Its errors may be a [`ReadError`] within.
    pub(super) fn decoder<'a>(
        self,
        packed: impl BufRead + 'a,
        limit: u64,
        held: &'a Held,
    ) -> Result<Box<dyn Read + 'a>, ReadError> {
        Ok(match self {
            Self::Gzip => {
                held.charge(1, GZIP_STATE, "unpacking gzip")?;
                Box::new(Members { member: Some(GzDecoder::new(packed)) })
            }
            Self::Zstd => {
                held.charge(1, ZSTD_STATE, "unpacking zstd")?;
                let decoder =
                    Decoder::new().map_err(|error| ReadError::io("starting zstd", &error))?;
                Box::new(Frames {
                    packed,
                    head: Vec::with_capacity(LONGEST_HEAD),
                    decoder,
                    within: false,
                    limit,
                    held,
                    window: 0,
                })
            }
        })
    }
}

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// What the decoders allocate beside their windows, at most.
const GZIP_STATE: u64 = 128 << 10;
const ZSTD_STATE: u64 = 512 << 10;

/// A frame of zstd that holds no data, such as those that parallel packers write.
fn is_skippable(bytes: &[u8]) -> bool {
    matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// The members of a gzip file, one after another (bgzip writes many).
struct Members<R> {
    /// `None` once the file has ended.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.member {
            let got = member.read(buffer)?;
            if got > 0 {
                return Ok(got);
            }
            let Some(member) = self.member.take() else { break };
            let mut rest = member.into_inner();
            match rest.fill_buf()?.first() {
                None => {}
                // Blocks of tapes are filled up with zeros, which gzip itself passes over.
                Some(0) => only_zeros(&mut rest)?,
                Some(_) => self.member = Some(GzDecoder::new(rest)),
            }
        }
        Ok(0)
    }
}

fn only_zeros(rest: &mut impl BufRead) -> io::Result<()> {
    loop {
        let bytes = rest.fill_buf()?;
        let length = bytes.len();
        if length == 0 {
            return Ok(());
        }
        if bytes.iter().any(|byte| *byte != 0) {
            let why = "something other than zeros follows the zeros after its last member";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        rest.consume(length);
    }
}

/// The frames of a zstd file, one after another. Each says how far back it refers: as much memory is charged, for the frame
/// that needs most, before the decoder allocates it.
struct Frames<'a, R> {
    packed: R,
    /// Bytes that were taken from `packed` to see the head of a frame, and not unpacked yet.
    head: Vec<u8>,
    decoder: Decoder<'static>,
    /// Between the first byte of a frame and its last.
    within: bool,
    limit: u64,
    held: &'a Held,
    /// The largest window so far.
    window: u64,
}

/// The longest head of a frame, with its magic number.
const LONGEST_HEAD: usize = 18;

impl<R: BufRead> Frames<'_, R> {
    /// Prepares for the next frame; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        let missing = (LONGEST_HEAD - self.head.len()) as u64;
        self.packed.by_ref().take(missing).read_to_end(&mut self.head)?;
        if self.head.is_empty() {
            return Ok(false);
        }
        let Head { window, content } = Head::of(&self.head);
        if content.is_some_and(|content| content > self.limit) {
            return Err(io::Error::other(Beyond));
        }
        if window > MOST_WINDOW {
            let why = ReadError::too_large(format!(
                "the zstd stream refers back over {window} bytes, and its decoder over {MOST_WINDOW} at most: pack it \
                 without --long, or with --long=31 at most"
            ));
            return Err(io::Error::other(why));
        }
        if window > self.window {
            self.held
                .charge(window - self.window, 1, "the window of zstd")
                .map_err(io::Error::other)?;
            self.window = window;
        }
        let log = window.next_power_of_two().ilog2().clamp(LEAST_LOG, MOST_LOG);
        self.decoder.reinit()?;
        self.decoder.set_parameter(DParameter::WindowLogMax(log))?;
        self.within = true;
        Ok(true)
    }
}

impl<R: BufRead> Read for Frames<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.within && !self.begin()? {
                return Ok(0);
            }
            let of_head = !self.head.is_empty();
            let input = if of_head { &self.head[..] } else { self.packed.fill_buf()? };
            let at_end = input.is_empty();
            let status = self.decoder.run_on_buffers(input, buffer)?;
            match of_head {
                true => drop(self.head.drain(..status.bytes_read)),
                false => self.packed.consume(status.bytes_read),
            }
            self.within = status.remaining != 0;
            if status.bytes_written > 0 {
                return Ok(status.bytes_written);
            }
            if at_end && self.within {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "incomplete frame"));
            }
        }
    }
}

/// A frame declares more content than may be unpacked.
#[derive(Debug, thiserror::Error)]
#[error("a frame declares more content than may be unpacked")]
pub(super) struct Beyond;

/// The logarithms of the smallest and the largest window that the decoder can be held to.
const LEAST_LOG: u32 = 10;
const MOST_LOG: u32 = 31;
const MOST_WINDOW: u64 = 1 << MOST_LOG;

/// What the head of a frame says (RFC 8878, section 3.1.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    /// Bytes that the frame refers back over, which its decoder keeps. Of a frame of a single segment, all of its content.
    window: u64,
    /// Bytes that it unpacks to, if it says.
    content: Option<u64>,
}

impl Head {
    /// The decoder itself refuses what is no head, and what is cut off: here it has neither window nor content.
    fn of(bytes: &[u8]) -> Self {
        Self::read(bytes).unwrap_or(Self { window: 0, content: None })
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (descriptor, mut rest) = bytes.strip_prefix(&ZSTD_MAGIC)?.split_first()?;
        let single = descriptor & 0x20 != 0;
        let mut window = 0;
        if !single {
            let (byte, after) = rest.split_first()?;
            let base = 1u64 << (10 + (byte >> 3));
            window = base + base / 8 * u64::from(byte & 7);
            rest = after;
        }
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let rest = rest.get(dictionary..)?;
        let length = match descriptor >> 6 {
            0 => usize::from(single),
            log => 1 << log,
        };
        let field = rest.get(..length)?;
        let number = field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let content = match length {
            0 => None,
            2 => Some(number + 256),
            _ => Some(number),
        };
        Some(match content {
            // The decoder keeps no more than there is.
            Some(content) if single || content < window => {
                Self { window: content, content: Some(content) }
            }
            content => Self { window, content },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_window_is_as_large_as_the_frame_says() {
        let text = vec![7u8; 3 << 20];
        let head = |content, window| Head { window, content };
        let usual = zstd::encode_all(&text[..], 3).unwrap();
        assert_eq!(
            (Coding::of(&usual), Head::of(&usual)),
            (Some(Coding::Zstd), head(None, 2 << 20))
        );
        let with = |log: u32, size: Option<u64>| {
            let mut wide = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
            wide.window_log(log).unwrap();
            wide.set_pledged_src_size(size).unwrap();
            wide.write_all(&text).unwrap();
            wide.finish().unwrap()
        };
        let (all, wide) = (text.len() as u64, 1 << 26);
        assert_eq!(Head::of(&with(26, None)), head(None, wide));
        // Of a known size, in a single segment and in several.
        assert_eq!(Head::of(&with(26, Some(all))), head(Some(all), all));
        assert_eq!(Head::of(&with(20, Some(all))), head(Some(all), 1 << 20));
        for size in [0, 1, 255, 256, 257, 65791, 65792] {
            let packed = zstd::bulk::compress(&text[..size], 3).unwrap();
            assert_eq!(Head::of(&packed), head(Some(size as u64), size as u64));
        }
        for cut in 0..6 {
            assert_eq!(Head::of(&usual[..cut]), head(None, 0));
        }
    }
}
