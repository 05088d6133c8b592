//! Looks plans up on a server by a matrix's digest: `cargo run --example lookup SERVER [FILE]`.

use sparsetune::Matrix;
use std::error::Error;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().ok_or("which server? For example http://127.0.0.1:8080")?;
    let matrix = match arguments.next() {
        Some(file) => Matrix::read(file)?,
        None => Matrix::generate("poisson2d:nx=48,ny=48")?,
    };
    // Only the digest travels. The answer says how well the plan matches, and why: `exact`, `neighbour`, ..., `none`.
    let mut url = reqwest::Url::parse(&server)?.join("v1/plans")?;
    url.query_pairs_mut()
        .append_pair("matrix", &matrix.facts().digest.to_string())
        .append_pair("op", "spmm")
        .append_pair("n", "16");
    let answer: serde_json::Value = reqwest::get(url).await?.error_for_status()?.json().await?;
    println!("{answer:#}");
    Ok(())
}
