//! Generates a matrix and prints what is known of it: `cargo run --example features [SPECIFICATION]`.

use sparsetune::Matrix;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec = std::env::args().nth(1);
    let matrix = Matrix::generate(spec.as_deref().unwrap_or("rmat:scale=10,edge_factor=8,seed=7"))?;
    println!("{}", serde_json::to_string_pretty(&matrix.facts())?);
    Ok(())
}
