//! Pages, fragments and the API behind them on a store of 10,000 jobs and 1,000,000 trials: times and bytes.
//!
//! One connection, one request at a time: what one person waits for, without the network. The store is made through the
//! store's own traits and kept in `target/bench-dashboard` for the next run.
//! Run with `cargo bench --bench dashboard`; arguments after `--`: `--jobs N`, `--requests N`, `--rebuild`, `--serve`
//! (stay up afterwards, for a browser).

#[path = "dashboard/fill.rs"]
mod fill;

use fill::Known;
use reqwest::Client;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING};
use sparsetune::cli::config::Config;
use sparsetune::cli::serve::{Running, start};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

type Error = Box<dyn std::error::Error + Send + Sync>;

struct Wanted {
    jobs: usize,
    requests: usize,
    rebuild: bool,
    serve: bool,
}

impl Wanted {
    fn read() -> Self {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let has = |name: &str| words.iter().any(|word| word == name);
        let number = |name: &str, otherwise| {
            let at = words.iter().position(|word| word == name);
            at.and_then(|at| words.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
        };
        Self {
            jobs: number("--jobs", 10_000),
            requests: number("--requests", 50).max(1),
            rebuild: has("--rebuild"),
            serve: has("--serve"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let wanted = Wanted::read();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/bench-dashboard");
    let (running, known) = open(&folder, &wanted).await?;
    let size = std::fs::metadata(folder.join("sparsetune.db"))?.len();
    println!("{} jobs, {} trials, a store of {} MB", wanted.jobs, known.trials, size / 1_000_000);
    println!("{} requests each, after one that is not counted\n", wanted.requests);
    println!(
        "{:<52} {:>8} {:>8} {:>8} {:>10} {:>9}",
        "", "p50 ms", "p99 ms", "max ms", "bytes", "gzip"
    );
    let client = Client::new();
    for (name, path) in questions(&known) {
        let url = format!("http://{}{path}", running.address);
        let page = !path.starts_with("/v1/");
        match measure(&client, &url, page, wanted.requests).await {
            Ok(found) => println!("{name:<52} {found}"),
            Err(error) => println!("{name:<52} {error}"),
        }
    }
    if wanted.serve {
        println!("\nlistening on http://{}; ctrl-c ends it", running.address);
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// The server on the store, which is created if there is none of this size.
async fn open(folder: &Path, wanted: &Wanted) -> Result<(Running, Known), Error> {
    let sign = folder.join(format!("known-{}.json", wanted.jobs));
    if wanted.rebuild || !sign.exists() {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => std::fs::create_dir_all(folder)?,
        }
    }
    let dir = folder.to_str().ok_or("a folder whose name is not UTF-8")?;
    let flags = [("server.listen", "127.0.0.1:0".into()), ("data.dir", dir.into())];
    let config = Config::load(None, &flags)?;
    let running = start(&config, CancellationToken::new(), |_, _| Vec::new()).await?;
    // The list shows devices that a worker reported recently; a worker does so at every start.
    fill::devices(&running.service).await?;
    if let Ok(text) = std::fs::read_to_string(&sign) {
        return Ok((running, serde_json::from_str(&text)?));
    }
    let began = Instant::now();
    let known = fill::fill(&running.service, wanted.jobs).await?;
    println!("made in {:.0} s", began.elapsed().as_secs_f64());
    std::fs::write(&sign, serde_json::to_string(&known)?)?;
    Ok((running, known))
}

/// Every page and fragment, and the parts of the API with the same content.
fn questions(known: &Known) -> Vec<(&'static str, String)> {
    let Known { job, large, wide, running, matrix, plan, deep, .. } = known;
    vec![
        ("jobs", "/".to_owned()),
        ("jobs, one state", "/jobs?state=failed".to_owned()),
        ("jobs, one matrix", format!("/jobs?matrix={matrix}")),
        ("jobs, one device and state", "/jobs?device=cuda:0&state=cancelled".to_owned()),
        ("jobs, from the 5000th on", format!("/jobs?cursor={deep}")),
        ("jobs, the live part", "/fragments/jobs".to_owned()),
        ("job, 100 trials", format!("/jobs/{job}")),
        ("job, 1500 trials", format!("/jobs/{large}")),
        ("job, 50000 candidates", format!("/jobs/{wide}")),
        ("job, running", format!("/jobs/{running}")),
        ("job, the live part, 100 trials", format!("/fragments/jobs/{job}")),
        ("job, the live part, 1500 trials", format!("/fragments/jobs/{large}")),
        ("job, the live part, 50000 candidates", format!("/fragments/jobs/{wide}")),
        ("matrices", "/matrices".to_owned()),
        ("matrix", format!("/matrices/{matrix}")),
        ("matrix, its profile", format!("/fragments/matrices/{matrix}/profile")),
        ("plan", format!("/plans/{plan}")),
        ("plan, its source", format!("/fragments/plans/{plan}/source")),
        ("compare", format!("/compare?matrix={matrix}")),
        ("devices", "/devices".to_owned()),
        ("models", "/models".to_owned()),
        ("docs", "/docs".to_owned()),
        ("find a job", format!("/find?q={job}")),
        ("find a matrix", format!("/find?q={}", &matrix[..12])),
        ("GET /v1/jobs", "/v1/jobs".to_owned()),
        ("GET /v1/jobs?state=failed", "/v1/jobs?state=failed".to_owned()),
        ("GET /v1/jobs?matrix=", format!("/v1/jobs?matrix={matrix}")),
        ("GET /v1/jobs, from the 5000th on", format!("/v1/jobs?cursor={deep}")),
        ("GET /v1/jobs/{id}", format!("/v1/jobs/{job}")),
        ("GET /v1/jobs/{id}/trials, 100", format!("/v1/jobs/{job}/trials?limit=500")),
        ("GET /v1/jobs/{id}/trials, 500 of 1500", format!("/v1/jobs/{large}/trials?limit=500")),
        ("GET /v1/jobs/{id}/events, ended", format!("/v1/jobs/{job}/events")),
        ("GET /v1/matrices", "/v1/matrices".to_owned()),
        ("GET /v1/matrices/{digest}", format!("/v1/matrices/{matrix}")),
        ("GET /v1/matrices/{digest}/profile", format!("/v1/matrices/{matrix}/profile")),
        ("GET /v1/matrices/{digest}/plans", format!("/v1/matrices/{matrix}/plans")),
        ("GET /v1/matrices/{digest}/spy.png", format!("/v1/matrices/{matrix}/spy.png")),
        ("GET /v1/plans/{id}", format!("/v1/plans/{plan}")),
        ("GET /v1/plans?matrix=", format!("/v1/plans?matrix={matrix}&op=spmm&n=2&device=cuda:0")),
        ("GET /v1/devices", "/v1/devices".to_owned()),
        ("GET /v1/models", "/v1/models".to_owned()),
    ]
}

/// Times of whole answers, and their length as sent plain and packed.
struct Found {
    times: Vec<Duration>,
    plain: usize,
    packed: Option<usize>,
}

impl std::fmt::Display for Found {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = |q: f64| {
            let place = ((self.times.len() - 1) as f64 * q).round() as usize;
            self.times[place].as_secs_f64() * 1e3
        };
        let packed = self.packed.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        let (p50, p99, most) = (at(0.5), at(0.99), at(1.0));
        write!(out, "{p50:>8.2} {p99:>8.2} {most:>8.2} {:>10} {packed:>9}", self.plain)
    }
}

async fn measure(client: &Client, url: &str, page: bool, requests: usize) -> Result<Found, Error> {
    let accept = if page { "text/html" } else { "*/*" };
    let ask = |coding: &'static str| {
        client.get(url).header(ACCEPT, accept).header(ACCEPT_ENCODING, coding)
    };
    // Not counted: the connection is opened and pages of the store are read for the first time.
    let first = ask("gzip").send().await?;
    if !first.status().is_success() {
        return Err(format!("answers {}", first.status()).into());
    }
    let coded = first.headers().get("content-encoding").is_some();
    let body = first.bytes().await?;
    let plain = if coded { unpacked(&body)? } else { body.len() };
    let mut times = Vec::with_capacity(requests);
    for _ in 0..requests {
        let sent = Instant::now();
        // With the headers that browsers send.
        ask("gzip").send().await?.bytes().await?;
        times.push(sent.elapsed());
    }
    times.sort_unstable();
    Ok(Found { times, plain, packed: coded.then_some(body.len()) })
}

fn unpacked(body: &[u8]) -> Result<usize, Error> {
    let mut plain = Vec::new();
    Ok(flate2::read::GzDecoder::new(body).read_to_end(&mut plain)?)
}
