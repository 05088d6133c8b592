//! Speed and peak memory of reading one matrix file into canonical CSR. Run by hand:
//!
//! ```text
//! cargo bench --bench parse -- FILE [REPEATS]
//! cargo bench --bench parse -- --generate FILE NNZ random|rows [symmetric] [pattern]
//! cargo bench --bench parse -- --uploads FILE [REPEATS]
//! ```
//!
//! Without arguments it writes a file of twenty million nonzeros (some 700 MB) to a temporary folder and reads that.
//! Memory is sampled as the process's anonymous pages, which leaves out the mapped file; what counts is the highest peak
//! as a multiple of the CSR, which is printed at the end.
//!
//! `--uploads` takes the file in as a service does, with everything but HTTP: read in this process, by a process of its own that was
//! started ahead, and by one that is started for it. Each upload is of a new store; a known matrix is uploaded again as well.

use bytes::Bytes;
use futures_util::stream;
use sparsetune::pool::{Allowed, ReaderSpec};
use sparsetune::service::{Service, ServiceSettings};
use sparsetune::sparse::read::{Limits, read_path};
use sparsetune::store::{LocalBlobs, SqliteStore};
use std::error::Error;
use std::fs::{self, File};
use std::io::Read;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo bench` passes --bench, `cargo test --all-targets` does not: then nothing is measured.
    let benching = std::env::args().any(|arg| arg == "--bench");
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--generate", file, nnz, order, ref more @ ..] => {
            let options = Options {
                nnz: nnz.parse()?,
                by_rows: order == "rows",
                symmetric: more.contains(&"symmetric"),
                pattern: more.contains(&"pattern"),
            };
            generate(Path::new(file), &options)
        }
        [] if !benching => {
            println!("run by hand: cargo bench --bench parse -- FILE [REPEATS]");
            Ok(())
        }
        [] => {
            let folder = tempfile::tempdir()?;
            let file = folder.path().join("random.mtx");
            let options =
                Options { nnz: 20_000_000, by_rows: false, symmetric: false, pattern: false };
            generate(&file, &options)?;
            measure(&file, 5)
        }
        ["--uploads", file] => uploads(Path::new(file), 20),
        ["--uploads", file, repeats] => uploads(Path::new(file), repeats.parse()?),
        [file] => measure(Path::new(file), 5),
        [file, repeats] => measure(Path::new(file), repeats.parse()?),
        _ => Err(
            "arguments: FILE [REPEATS], --uploads FILE [REPEATS], or --generate FILE NNZ random|rows [symmetric] [pattern]"
                .into(),
        ),
    }
}

fn measure(file: &Path, repeats: usize) -> Result<(), Box<dyn Error>> {
    let bytes = fs::metadata(file)?.len();
    let (mut seconds, mut ratio) = (Vec::new(), 0f64);
    for _ in 0..repeats.max(1) {
        let before = anonymous_bytes()?;
        let ((took, parsed), peak) = with_peak(|| {
            let start = Instant::now();
            let parsed = read_path(file, &Limits::default());
            (start.elapsed(), parsed)
        })?;
        let csr = parsed?.csr;
        let size = (12 * csr.nnz() + 8 * (csr.rows() + 1)) as f64;
        let taken = peak.saturating_sub(before) as f64;
        ratio = ratio.max(taken / size);
        println!(
            "{:.3} s, {:.0} MB/s, {} x {} with {} nonzeros; peak {:.0} MB = {:.2} x the CSR's {:.0} MB",
            took.as_secs_f64(),
            bytes as f64 / 1e6 / took.as_secs_f64(),
            csr.rows(),
            csr.cols(),
            csr.nnz(),
            taken / 1e6,
            taken / size,
            size / 1e6,
        );
        seconds.push(took.as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    println!(
        "median {median:.3} s, {:.0} MB/s of {} MB; peak over CSR {ratio:.2}",
        bytes as f64 / 1e6 / median,
        bytes / 1_000_000
    );
    println!("{}", proc_line("VmHWM")?);
    Ok(())
}

/// Latency of uploads by each way of reading them: of a new matrix, and of one that is stored already.
fn uploads(file: &Path, repeats: usize) -> Result<(), Box<dyn Error>> {
    let mut bytes = Vec::new();
    File::open(file)?.read_to_end(&mut bytes)?;
    let chunks: Vec<Bytes> = bytes.chunks(64 << 10).map(Bytes::copy_from_slice).collect();
    let limits = ServiceSettings::default().limits;
    let allowed = Allowed {
        memory: limits.max_matrix_bytes.min(limits.memory.limit()),
        disk: limits.max_decompressed_bytes,
        upload: bytes.len() as u64,
        time: Duration::from_secs(600),
    };
    let spec = ReaderSpec::new(env!("CARGO_BIN_EXE_sparsetune"), ["reader"]);
    let spec = spec.fenced("auto", "").within(allowed);
    let ways = [
        ("in this process", None),
        ("a process started ahead", Some(spec.clone())),
        ("a process started for it", Some(ReaderSpec { ahead: false, ..spec })),
    ];
    let runtime = tokio::runtime::Runtime::new()?;
    println!("{} bytes, {repeats} uploads each; medians and longest", bytes.len());
    for (way, reader) in ways {
        let (mut new, mut known) = (Vec::new(), Vec::new());
        runtime.block_on(async {
            let folder = tempfile::tempdir()?;
            let store = SqliteStore::open(&folder.path().join("store")).await?;
            let blobs = LocalBlobs::open(&folder.path().join("blobs"))?;
            let temp_dir = folder.path().to_owned();
            let settings = ServiceSettings { reader, temp_dir, ..ServiceSettings::default() };
            let service = Service::new(Arc::new(store), Arc::new(blobs), settings);
            // The first one starts what later ones find.
            for round in 0..=repeats {
                for (expected, times) in [(true, &mut new), (false, &mut known)] {
                    let body =
                        stream::iter(chunks.clone().into_iter().map(Ok::<_, std::io::Error>));
                    let start = Instant::now();
                    let uploaded = service.upload(body, None).await?;
                    let took = start.elapsed();
                    assert_eq!(uploaded.created, expected);
                    if round > 0 {
                        times.push(1e3 * took.as_secs_f64());
                    }
                    if !expected {
                        service.delete_matrix(&uploaded.matrix.digest).await?;
                    }
                    // As uploads come: the next reader has been started.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            Ok::<(), Box<dyn Error>>(())
        })?;
        for (what, times) in [("new", &mut new), ("known", &mut known)] {
            times.sort_by(f64::total_cmp);
            let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
            println!("{way}, {what}: {median:.2} ms, {longest:.2} ms");
        }
    }
    Ok(())
}

/// Runs `work` while another thread samples the anonymous pages of this process.
fn with_peak<T>(work: impl FnOnce() -> T) -> Result<(T, u64), Box<dyn Error>> {
    let (done, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| -> Result<(), String> {
            while !done.load(Relaxed) {
                peak.fetch_max(anonymous_bytes().map_err(|error| error.to_string())?, Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        });
        let result = work();
        done.store(true, Relaxed);
        sampler.join().map_err(|_| "the sampling thread panicked")??;
        Ok((result, peak.load(Relaxed)))
    })
}

fn anonymous_bytes() -> Result<u64, Box<dyn Error>> {
    let line = proc_line("RssAnon")?;
    let kilobytes = line.split_ascii_whitespace().nth(1).ok_or("RssAnon without a number")?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}

fn proc_line(name: &str) -> Result<String, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(name));
    line.map(str::to_owned).ok_or_else(|| format!("/proc/self/status has no {name}").into())
}

struct Options {
    nnz: u64,
    by_rows: bool,
    symmetric: bool,
    pattern: bool,
}

/// Writes a square matrix with 20 entries a row on average, 17 significant digits each, as written by most tools.
fn generate(file: &Path, options: &Options) -> Result<(), Box<dyn Error>> {
    let rows = (options.nnz / 20).max(1);
    let mut out = BufWriter::with_capacity(1 << 20, File::create(file)?);
    let field = if options.pattern { "pattern" } else { "real" };
    let symmetry = if options.symmetric { "symmetric" } else { "general" };
    writeln!(out, "%%MatrixMarket matrix coordinate {field} {symmetry}")?;
    writeln!(out, "{rows} {rows} {}", options.nnz)?;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    for entry in 0..options.nnz {
        let row = if options.by_rows { entry * rows / options.nnz } else { next() % rows };
        // Row by row, the columns rise too, in strides with a little noise.
        let col = if options.by_rows {
            let stride = (rows / 20).max(1);
            ((entry % 20) * stride + next() % stride) % rows
        } else {
            next() % rows
        };
        let (row, col) = if options.symmetric { (row.max(col), row.min(col)) } else { (row, col) };
        if options.pattern {
            writeln!(out, "{} {}", row + 1, col + 1)?;
        } else {
            let value = (next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
            writeln!(out, "{} {} {value}", row + 1, col + 1)?;
        }
    }
    Ok(out.into_inner()?.sync_all()?)
}
