//! Load on `GET /v1/plans?...`: for one known plan, beside a bare axum handler that returns the same bytes, and for many plans, each
//! asked for once (no cache can know the answer), then again in another order.
//!
//! Server and load generator share the machine and alternate between the routers, so whatever slows one slows all.
//! Run with `cargo bench --bench lookup`; arguments after `--`: seconds a round, connections, plans.

use axum::Router;
use axum::http::header;
use axum::routing::get;
use bytes::Bytes;
use sparsetune::cli::config::Config;
use sparsetune::cli::serve::{Running, start};
use sparsetune::domain::{Digest, Job, JobRequest, JobState, Matrix, Plan, PlanId, Search};
use sparsetune::store::{Finish, MatrixQuery, PageRequest, Queue, StoredBundle};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 3;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    // Started again as a reader, this program would measure, and start readers.
    sparsetune::pool::set_program(env!("CARGO_BIN_EXE_sparsetune").into(), Vec::new());
    // cargo adds a `--bench` argument.
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<u64>().ok());
    let seconds = Duration::from_secs(numbers.next().unwrap_or(5));
    let connections = numbers.next().unwrap_or(32) as usize;
    let plans = numbers.next().unwrap_or(20_000) as usize;

    let servers = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let clients = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let folder = tempfile::tempdir()?;
    let (running, path) = servers.block_on(serve(folder.path()))?;
    let body = clients.block_on(fetch(running.address, &path))?;
    let bare = servers.block_on(bare(body.clone()))?;

    println!(
        "{} bytes a body, {connections} connections, {ROUNDS} rounds of {seconds:?} each",
        body.len()
    );
    println!("{:<12} {:>12} {:>10} {:>10} {:>10}", "", "requests/s", "p50 us", "p99 us", "max us");
    let (mut lookups, mut bares) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bares.push(clients.block_on(load(bare, path.clone(), connections, seconds))?);
        lookups.push(clients.block_on(load(
            running.address,
            path.clone(),
            connections,
            seconds,
        ))?);
    }
    let bare = tell("bare axum", &mut bares);
    let lookup = tell("lookup", &mut lookups);
    println!("the lookup reaches {:.2} of the bare handler's rate", lookup / bare);

    let seeded = Instant::now();
    let mut paths = servers.block_on(seed(&running, plans))?;
    println!("{plans} plans stored in {:.1} s", seeded.elapsed().as_secs_f64());
    println!("{:<12} {:>12} {:>10} {:>10} {:>10}", "", "requests/s", "p50 us", "p99 us", "max us");
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Another change of the store outdates all answers.
        servers.block_on(seed_one(&running, plans + round))?;
        first.push(clients.block_on(once_each(running.address, &paths, connections))?);
        // Each connection asks for what another one asked for.
        paths.reverse();
        again.push(clients.block_on(once_each(running.address, &paths, connections))?);
    }
    tell("first asked", &mut first);
    tell("asked again", &mut again);
    Ok(())
}

/// Stores plans of as many patterns, and gives the paths that find them.
async fn seed(running: &Running, plans: usize) -> Result<Vec<String>, Error> {
    let mut paths = Vec::with_capacity(plans);
    for number in 0..plans {
        paths.push(seed_one(running, number).await?);
    }
    Ok(paths)
}

async fn seed_one(running: &Running, number: usize) -> Result<String, Error> {
    let plan: Plan = serde_json::from_str(include_str!("../tests/http/plan.json"))?;
    let store = running.service.store();
    let stored = store.matrices(&MatrixQuery::All, &PageRequest::first(1)).await?.items;
    let facts = stored.into_iter().next().ok_or("no matrix")?;
    let digest = Digest::of(format!("matrix {number}").as_bytes());
    let pattern_digest = Digest::of(format!("pattern {number}").as_bytes());
    let plan = Plan { id: PlanId::fresh(), matrix: digest, pattern_digest, ..plan };
    let facts = Matrix { digest, pattern_digest, ..facts };
    let bundle = StoredBundle {
        plan: plan.id.clone(),
        without_values: false,
        blob: digest,
        bytes: 1,
        sha256: [0; 32],
        imported: true,
        created_at: plan.created_at,
    };
    store.import_plan(&plan, &facts, &bundle).await?;
    Ok(format!("/v1/plans?matrix={digest}&op=spmm&n=32&dtype=f32&layout=row&device=cpu"))
}

/// Each path once, dealt to the connections in turn.
async fn once_each(
    address: SocketAddr,
    paths: &[String],
    connections: usize,
) -> Result<Round, Error> {
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for first in 0..connections {
        let own: Vec<String> = paths.iter().skip(first).step_by(connections).cloned().collect();
        clients.spawn(client(address, own.into_iter(), None));
    }
    let mut times_ns = Vec::new();
    while let Some(done) = clients.join_next().await {
        times_ns.extend(done??);
    }
    Ok(Round { elapsed: began.elapsed(), times_ns })
}

/// The real server with one plan, and the path that finds it.
async fn serve(folder: &std::path::Path) -> Result<(Running, String), Error> {
    let dir = folder.to_str().ok_or("a folder whose name is not UTF-8")?;
    let flags = [("server.listen", "127.0.0.1:0".into()), ("data.dir", dir.into())];
    let config = Config::load(None, &flags)?;
    let running = start(&config, CancellationToken::new(), |_, _| Vec::new()).await?;
    let plan: Plan = serde_json::from_str(include_str!("../tests/http/plan.json"))?;
    let service = &running.service;
    service.register(plan.device.clone()).await?;
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 1\n";
    let body = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from(text))]);
    let matrix = service.upload(body, None).await?.matrix;
    let request = JobRequest {
        matrix: matrix.digest,
        problem: plan.problem,
        device: "auto".to_owned(),
        search: Search::default(),
        expected_calls: None,
    };
    service.submit(&request, None).await?;
    let queue = Queue::of(&plan.device, "bench");
    let claim = service.claim(&queue, "bench").await?.ok_or("no job")?;
    let claimed = claim.work.into_job().ok_or("a training")?;
    let (digest, pattern_digest) = (matrix.digest, matrix.pattern_digest);
    let plan = Plan { id: PlanId::fresh(), matrix: digest, pattern_digest, ..plan };
    let job = Job { state: JobState::Succeeded, plan: Some(plan.id.clone()), ..claimed };
    service.store().finish(&claim.fence, &Finish::job(job, Some(plan))).await?;
    Ok((running, format!("/v1/plans?matrix={digest}&op=spmm&n=32&dtype=f32&layout=row&device=cpu")))
}

/// The best that axum can do: one route, no layer, and the bytes in memory.
async fn bare(body: Bytes) -> Result<SocketAddr, Error> {
    let answer = move || async move { ([(header::CONTENT_TYPE, "application/json")], body) };
    let router = Router::new().route("/v1/plans", get(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

async fn fetch(address: SocketAddr, path: &str) -> Result<Bytes, Error> {
    Ok(reqwest::get(format!("http://{address}{path}")).await?.error_for_status()?.bytes().await?)
}

/// Requests answered, and the time that each took.
struct Round {
    elapsed: Duration,
    times_ns: Vec<u64>,
}

async fn load(
    address: SocketAddr,
    path: String,
    connections: usize,
    seconds: Duration,
) -> Result<Round, Error> {
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..connections {
        clients.spawn(client(address, std::iter::repeat(path.clone()), Some(began + seconds)));
    }
    let mut times_ns = Vec::new();
    while let Some(done) = clients.join_next().await {
        times_ns.extend(done??);
    }
    Ok(Round { elapsed: began.elapsed(), times_ns })
}

/// One kept connection, one request at a time. The client is minimal: its cost slows both servers alike.
async fn client(
    address: SocketAddr,
    paths: impl Iterator<Item = String>,
    until: Option<Instant>,
) -> Result<Vec<u64>, Error> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut buffer, mut times_ns) = (vec![0; 64 << 10], Vec::new());
    for path in paths {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let sent = Instant::now();
        if until.is_some_and(|until| sent >= until) {
            break;
        }
        stream.write_all(request.as_bytes()).await?;
        let (mut filled, mut whole) = (0, usize::MAX);
        while filled < whole {
            let read = stream.read(&mut buffer[filled..]).await?;
            if read == 0 {
                return Err("the server closed the connection".into());
            }
            filled += read;
            if whole == usize::MAX {
                whole = length(&buffer[..filled]).unwrap_or(usize::MAX);
            }
        }
        assert!(memchr::memmem::find(&buffer[..filled], b"\"exact\"").is_some(), "{path}");
        times_ns.push(sent.elapsed().as_nanos() as u64);
    }
    Ok(times_ns)
}

/// Bytes of the whole answer, once its head has arrived.
fn length(answer: &[u8]) -> Option<usize> {
    let head = memchr::memmem::find(answer, b"\r\n\r\n")?;
    let text = std::str::from_utf8(&answer[..head]).ok()?;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let line = text.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    Some(head + 4 + line.parse::<usize>().ok()?)
}

/// Prints the median round and returns its rate.
fn tell(name: &str, rounds: &mut [Round]) -> f64 {
    let rate = |round: &Round| round.times_ns.len() as f64 / round.elapsed.as_secs_f64();
    rounds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let round = &mut rounds[ROUNDS / 2];
    round.times_ns.sort_unstable();
    let at = |q: f64| round.times_ns[((round.times_ns.len() - 1) as f64 * q) as usize] as f64 / 1e3;
    let (p50, p99, rate) = (at(0.5), at(0.99), rate(round));
    println!("{name:<12} {rate:>12.0} {p50:>10.1} {p99:>10.1} {:>10.1}", at(1.0));
    rate
}
