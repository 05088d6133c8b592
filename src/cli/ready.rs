//! `sparsetune ready`: reports whether a server is ready by the exit code, for container health checks and scripts.

use super::ServerArgs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub struct ReadyArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Seconds to wait for the server
    #[arg(long, default_value_t = 0.0)]
    wait: f64,
}

pub async fn run(args: ReadyArgs) -> anyhow::Result<ExitCode> {
    let client = args.server.client()?;
    let started = Instant::now();
    loop {
        let answer = client.ready().await;
        if matches!(answer, Ok(true)) {
            return Ok(ExitCode::SUCCESS);
        }
        if started.elapsed().as_secs_f64() >= args.wait {
            answer?;
            anyhow::bail!("{} is not ready", client.server());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
