//! Reads an export, which may be anything until it has been read: every line is compared with its digest, every file with its own.

use super::check::check;
use super::record::{
    Chain, Contents, Counts, FORMAT, Header, MOST_LINE, PART, Record, VERSION, WINDOW_LOG,
};
use crate::domain::{Digest, JobId};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use zstd::stream::read::Decoder;

/// Why an export is refused. Records are counted from 1, which is the header.
#[derive(Debug, thiserror::Error)]
pub enum BadExport {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("is no export of sparsetune: {0}")]
    NoExport(String),
    #[error("has version {0} of the format, and this program reads version {VERSION}")]
    Version(u32),
    #[error("record {record}{what}: {why}")]
    Record { record: u64, what: String, why: String },
    #[error("ends after record {0}, without its last record: it is not complete")]
    Cut(u64),
    #[error(
        "unpacks to more than {0} bytes, which is the most for its length (server.max_ratio, server.max_upload_bytes)"
    )]
    Large(u64),
}

/// What a reader gives.
#[derive(Debug)]
pub struct Entry {
    /// Its number.
    pub number: u64,
    /// Bytes of its line.
    pub bytes: usize,
    pub piece: Piece,
}

#[derive(Debug)]
pub enum Piece {
    Record(Record),
    /// Bytes of the file of the record before.
    Bytes(Vec<u8>),
    /// The file of that record is complete, and as it says.
    FileEnd,
}

/// What is still to come of a file.
struct Pending {
    contents: Contents,
    left: u64,
    hasher: blake3::Hasher,
}

/// Reads one record at a time; nothing that it gives is later found to be damaged.
pub struct Reader {
    from: BufReader<Decoder<'static, BufReader<File>>>,
    header: Header,
    chain: Chain,
    counts: Counts,
    number: u64,
    line: Vec<u8>,
    pending: Option<Pending>,
    /// Bytes that may still be unpacked, and that may be at all.
    left: u64,
    most: u64,
    /// Files that no plan has named yet.
    unnamed: HashSet<Digest>,
    /// The job whose trials follow.
    job: Option<JobId>,
    ended: bool,
}

impl Reader {
    /// Opens an export, which may unpack to `most` bytes, and reads its header. Blocks, as every call does.
    ///
    /// # Errors
    /// It is no export of a version that is known here.
    pub fn open(path: &Path, most: u64) -> Result<Self, BadExport> {
        let mut file = BufReader::new(File::open(path)?);
        if !file.fill_buf()?.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            return Err(BadExport::NoExport("it is not packed by zstd".to_owned()));
        }
        let mut decoder = Decoder::with_buffer(file)?;
        decoder.window_log_max(WINDOW_LOG)?;
        let nothing = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            store: String::new(),
            program: String::new(),
            made_at: String::new(),
            selection: crate::domain::transfer::Selection::default(),
        };
        let mut reader = Self {
            from: BufReader::with_capacity(1 << 16, decoder),
            header: nothing,
            chain: Chain::begin(),
            counts: Counts::default(),
            number: 0,
            line: Vec::new(),
            pending: None,
            left: most,
            most,
            unnamed: HashSet::new(),
            job: None,
            ended: false,
        };
        reader.header = reader.read_header()?;
        Ok(reader)
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The first line, whose version is looked at before anything else of it.
    fn read_header(&mut self) -> Result<Header, BadExport> {
        #[derive(Deserialize)]
        struct Named {
            record: String,
            format: String,
            version: u32,
        }
        if !self.next_line()? {
            return Err(BadExport::NoExport("it is empty".to_owned()));
        }
        let text = self.line.get(65..).unwrap_or_default();
        let named: Named = serde_json::from_slice(text)
            .map_err(|_| BadExport::NoExport("its first line is no header".to_owned()))?;
        if named.record != "header" || named.format != FORMAT {
            return Err(BadExport::NoExport(format!("it begins with a {}", named.record)));
        }
        if named.version != VERSION {
            return Err(BadExport::Version(named.version));
        }
        let first = self.record()?;
        check(&first).map_err(|why| self.bad(" (the header)", &why))?;
        match first {
            Record::Header(header) => Ok(header),
            _ => Err(BadExport::NoExport("its first line is no header".to_owned())),
        }
    }

    /// The next piece; `None` behind the last record.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, BadExport> {
        if let Some(pending) = self.pending.take_if(|pending| pending.left == 0) {
            let digest = Digest::from_bytes(*pending.hasher.finalize().as_bytes());
            if digest != pending.contents.digest {
                return Err(self.bad("", "the file that ends here is not what its digest says"));
            }
            return Ok(Some(self.entry(Piece::FileEnd)));
        }
        if self.ended {
            let rest = self.from.fill_buf().map(<[u8]>::is_empty);
            return match rest.map_err(|error| self.unpacked(error))? {
                true => Ok(None),
                false => Err(self.bad("", "something follows the last record")),
            };
        }
        if !self.next_line()? {
            return Err(BadExport::Cut(self.number));
        }
        let record = self.record()?;
        if let Some(pending) = &mut self.pending {
            let Record::Part(part) = &record else {
                let left = pending.left;
                let why = format!("{left} bytes of the file before it are missing");
                return Err(self.bad("", &why));
            };
            let bytes = STANDARD.decode(&part.data).unwrap_or_default();
            let length = bytes.len() as u64;
            if bytes.is_empty() || bytes.len() > PART || length > pending.left {
                return Err(self.bad(" (a part)", "it is no part of the file before it"));
            }
            pending.hasher.update(&bytes);
            pending.left -= length;
            return Ok(Some(self.entry(Piece::Bytes(bytes))));
        }
        match &record {
            Record::File(file) => {
                self.unnamed.insert(file.contents.digest);
            }
            Record::Plan(sent) => {
                for digest in sent.plan.launch.iter().flat_map(|launch| launch.blobs()) {
                    self.unnamed.remove(digest);
                }
            }
            // Nothing would ever count or use it.
            other if !self.unnamed.is_empty() => {
                return Err(self.bad(&name(other), "a file before it is named by no plan"));
            }
            _ => {}
        }
        match &record {
            Record::Header(_) => return Err(self.bad(" (a header)", "it is not the first one")),
            Record::Part(_) => return Err(self.bad(" (a part)", "it belongs to no file")),
            Record::End(counts) if *counts != self.counts => {
                let why = format!("it counts {counts:?}, and there were {:?}", self.counts);
                return Err(self.bad(" (the last one)", &why));
            }
            Record::End(_) => {
                self.ended = true;
                return self.next_entry();
            }
            Record::Trial(sent) if self.job.as_ref() != Some(&sent.trial.job) => {
                return Err(self.bad(&name(&record), "its job does not stand before it"));
            }
            Record::Trial(_) => {}
            Record::Job(job) => self.job = Some(job.id.clone()),
            _ => self.job = None,
        }
        check(&record).map_err(|why| self.bad(&name(&record), &why))?;
        self.counts.count(&record);
        self.pending = record.contents().map(|contents| Pending {
            contents: contents.clone(),
            left: contents.bytes,
            hasher: blake3::Hasher::new(),
        });
        Ok(Some(self.entry(Piece::Record(record))))
    }

    fn entry(&self, piece: Piece) -> Entry {
        Entry { number: self.number, bytes: self.line.len(), piece }
    }

    /// Reads the next line, and compares it with its digest. False at the end.
    fn next_line(&mut self) -> Result<bool, BadExport> {
        self.line.clear();
        let most = MOST_LINE as u64 + 1;
        let read = (&mut self.from).take(most).read_until(b'\n', &mut self.line);
        read.map_err(|error| self.unpacked(error))?;
        if self.line.is_empty() {
            return Ok(false);
        }
        let left = self.left.checked_sub(self.line.len() as u64);
        self.left = left.ok_or(BadExport::Large(self.most))?;
        self.number += 1;
        if self.line.last() != Some(&b'\n') {
            return Err(match self.line.len() > MOST_LINE {
                true => self.bad("", &format!("it has more than {MOST_LINE} bytes")),
                false => BadExport::Cut(self.number - 1),
            });
        }
        self.line.pop();
        let digest = self.line.get(..64).and_then(|digits| std::str::from_utf8(digits).ok());
        let digest = digest.and_then(|digits| digits.parse::<Digest>().ok());
        let (Some(digest), Some(b' ')) = (digest, self.line.get(64)) else {
            return Err(match self.number {
                1 => BadExport::NoExport("its first line has no digest".to_owned()),
                _ => self.bad("", "it has no digest"),
            });
        };
        let text = self.line.get(65..).unwrap_or_default();
        if self.chain.next(text) != digest {
            let why =
                "it is not what its digest says: it was damaged, or a record before it is missing";
            return Err(self.bad("", why));
        }
        Ok(true)
    }

    fn record(&self) -> Result<Record, BadExport> {
        #[derive(Deserialize)]
        struct Named {
            record: String,
        }
        let text = self.line.get(65..).unwrap_or_default();
        serde_json::from_slice(text).map_err(|error| {
            let named = serde_json::from_slice::<Named>(text).ok();
            let what = named.map_or_else(String::new, |named| format!(" (`{}`)", named.record));
            self.bad(&what, &error.to_string())
        })
    }

    /// What the unpacking found.
    fn unpacked(&self, error: io::Error) -> BadExport {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => BadExport::Cut(self.number),
            _ => self.bad("", &format!("behind it nothing can be unpacked: {error}")),
        }
    }

    fn bad(&self, what: &str, why: &str) -> BadExport {
        BadExport::Record { record: self.number, what: what.to_owned(), why: why.to_owned() }
    }
}

fn name(record: &Record) -> String {
    match record {
        Record::Plan(sent) => format!(" (plan {})", sent.plan.id),
        Record::Job(job) => format!(" (job {})", job.id),
        Record::Trial(sent) => format!(" (trial {} of job {})", sent.trial.ordinal, sent.trial.job),
        Record::Model(sent) => format!(" (model {})", sent.card.id),
        Record::Matrix(sent) => format!(" (matrix {})", sent.matrix.digest),
        Record::File(_) => " (a file)".to_owned(),
        Record::Header(_) | Record::Part(_) | Record::End(_) => String::new(),
    }
}
