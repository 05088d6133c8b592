//! `sparsetune lookup`: a plan by the matrix's hash, which is computed here; the matrix itself stays where it is.

use super::digest::identity;
use super::problem::ProblemArgs;
use super::stored::{Named, find};
use super::{ServerArgs, say, show};
use std::process::ExitCode;

/// The server knows nothing that fits.
const NOTHING: u8 = 1;

#[derive(Debug, clap::Args)]
pub struct LookupArgs {
    /// A matrix file; or a digest (of the matrix or of its pattern), its first digits (6 or more), or a name, of a matrix that the
    /// server has
    matrix: String,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    problem: ProblemArgs,
    /// Take a measured plan or none: no plan from a model alone
    #[arg(long)]
    measured: bool,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: LookupArgs) -> anyhow::Result<ExitCode> {
    let mut query = args.problem.query()?;
    if args.measured {
        query.push(("predicted", "false".to_owned()));
    }
    let client = args.server.client()?;
    let (digest, pattern) = match find(&client, &args.matrix).await? {
        Named::Digest(digest) => (digest, None),
        Named::File(file) => {
            let found = identity(file)?;
            (found.digest, Some(found.pattern_digest))
        }
        Named::Stored(found) => {
            if !args.json {
                say(show::matrix(&found))?;
            }
            (found.digest, Some(found.pattern_digest))
        }
    };
    let mut answer = client.lookup(&digest, &query).await?;
    if let (None, Some(pattern)) = (&answer.view.plan, pattern) {
        // A server that never saw these values may well have a plan for the pattern, which is all that most plans need.
        answer = client.lookup(&pattern, &query).await?;
    }
    match args.json {
        true => say(&answer.raw)?,
        false => say(show::lookup(&answer.view))?,
    }
    let found = answer.view.plan.is_some();
    Ok(if found { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) })
}
