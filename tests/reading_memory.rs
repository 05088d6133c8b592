//! What readers allocate is what they charge: a reader that may hold less than it takes refuses the file. Alone in its program,
//! because it counts every allocation.

use sparsetune::sparse::read::{Limits, ReadErrorKind, read_bytes};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn took(bytes: usize) {
    PEAK.fetch_max(NOW.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    // As if what grows were always copied.
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Entries of each file: enough that fixed buffers do not matter.
const ENTRIES: usize = 300_000;
/// Threads, zip and error messages.
const BESIDE: u64 = 512 << 10;

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
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

/// Entries that are nearly all duplicates of few places, in small elements.
fn npz(format: &str) -> Vec<u8> {
    let bytes = |modulus: usize| {
        let data: Vec<u8> = (0..ENTRIES).map(|entry| ((entry * 7) % modulus) as u8).collect();
        npy("'|u1'", &format!("({ENTRIES},)"), &data)
    };
    let pointers: Vec<u8> =
        [0, ENTRIES as i64 / 3, ENTRIES as i64].iter().flat_map(|at| at.to_le_bytes()).collect();
    let pointers = npy("'<i8'", "(3,)", &pointers);
    let shape: Vec<u8> = [2i64, 2].iter().flat_map(|side| side.to_le_bytes()).collect();
    let mut members = vec![
        ("format", npy("'|S3'", "()", format.as_bytes())),
        ("shape", npy("'<i8'", "(2,)", &shape)),
        ("data", bytes(100)),
    ];
    members.extend(match format {
        "coo" => vec![("row", bytes(2)), ("col", bytes(2))],
        _ => vec![("indices", bytes(2)), ("indptr", pointers)],
    });
    let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in members {
        out.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
        out.write_all(&bytes).unwrap();
    }
    out.finish().unwrap().into_inner()
}

fn market(symmetry: &str) -> Vec<u8> {
    let mut text = format!("%%MatrixMarket matrix coordinate integer {symmetry}\n9 9 {ENTRIES}\n");
    for entry in 0..ENTRIES {
        text += &format!("{} {} 1\n", 5 + entry % 5, 1 + (entry * 7) % 5);
    }
    text.into_bytes()
}

fn array() -> Vec<u8> {
    let mut text = "%%MatrixMarket matrix array real general\n3000 100\n".to_owned();
    (0..ENTRIES).for_each(|entry| text += &format!("{entry}\n"));
    text.into_bytes()
}

fn smtx() -> Vec<u8> {
    let mut text = format!("1, 5, {ENTRIES}\n0 {ENTRIES}\n");
    (0..ENTRIES).for_each(|entry| text += &format!("{} ", (entry * 7) % 5));
    text.into_bytes()
}

fn rutherford_boeing() -> Vec<u8> {
    let cards = ENTRIES.div_ceil(16) + 1;
    let mut text = format!("{:72}{:8}\n", "duplicates", "KEY");
    text += &format!("{cards:14}{:14}{:14}{:14}\n", 1, cards - 1, 0);
    text += &format!("pua           {:14}{:14}{ENTRIES:14}{:14}\n", 9, 1, 0);
    text += &format!("{:16}{:16}{:20}\n", "(2I9)", "(16I5)", "");
    text += &format!("{:9}{:9}\n", 1, ENTRIES + 1);
    for card in (0..ENTRIES).collect::<Vec<_>>().chunks(16) {
        card.iter().for_each(|entry| text += &format!("{:5}", 1 + (entry * 7) % 9));
        text.push('\n');
    }
    text.into_bytes()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// Most bytes allocated while the file is read, and what the readers said.
fn reading(file: &[u8], max_matrix_bytes: u64) -> (u64, Result<(), ReadErrorKind>) {
    let limits = Limits { max_matrix_bytes, ..Limits::default() };
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let read = read_bytes(file, &limits).map(drop).map_err(|error| error.kind);
    ((PEAK.load(Relaxed) - before) as u64, read)
}

#[test]
fn what_is_allocated_is_charged() {
    let files = [
        ("csr", npz("csr")),
        ("csc", npz("csc")),
        ("coo", npz("coo")),
        ("general", market("general")),
        ("symmetric", market("symmetric")),
        ("array", array()),
        ("smtx", smtx()),
        ("rutherford-boeing", rutherford_boeing()),
        ("gzip", gzip(&smtx())),
        ("zstd", zstd::encode_all(&smtx()[..], 1).unwrap()),
    ];
    // The threads and their buffers.
    reading(&files[3].1, u64::MAX).1.unwrap();
    for (name, file) in files {
        let (peak, read) = reading(&file, u64::MAX);
        assert_eq!(read, Ok(()), "{name}");
        assert!(peak > 12 * ENTRIES as u64 / 4, "{name}: {peak}");
        let (held, read) = reading(&file, peak - BESIDE);
        assert_eq!(read, Err(ReadErrorKind::TooLarge), "{name}: {peak} bytes were allocated");
        assert!(held <= peak);
    }
}
