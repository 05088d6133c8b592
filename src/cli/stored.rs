//! What the user calls a matrix: a file here, or a matrix of the server by its digest, the digest's first digits, or its name.

use super::client::Client;
use crate::domain::Digest;
use crate::wire::Matrix;
use anyhow::Context;
use std::path::Path;

/// The longest text that is searched for.
const LONGEST: usize = 200;
/// How many of several matrices are named.
const NAMED: usize = 5;

pub enum Named<'a> {
    /// In full. It may be of a pattern, or of a matrix that the server has not.
    Digest(Digest),
    File(&'a Path),
    /// A matrix that the server has.
    Stored(Box<Matrix>),
}

/// Tells what the text names, files first; what is nothing of all is refused with what was wanted.
pub async fn find<'a>(client: &Client, text: &'a str) -> anyhow::Result<Named<'a>> {
    if let Ok(digest) = text.parse::<Digest>() {
        return Ok(Named::Digest(digest));
    }
    let file = Path::new(text);
    if file.exists() {
        return Ok(Named::File(file));
    }
    let (found, more) = match text.chars().count() {
        1..=LONGEST => client.matrices(text).await.with_context(|| {
            format!(
                "`{text}` is no file here, and the server cannot be asked for a matrix of that name"
            )
        })?,
        _ => (Vec::new(), false),
    };
    let one = choose(text, found, more).map_err(anyhow::Error::msg)?;
    Ok(Named::Stored(Box::new(one)))
}

/// The one matrix that is meant: the only one of this name, or else the only one that was found.
fn choose(text: &str, mut found: Vec<Matrix>, more: bool) -> Result<Matrix, String> {
    let called = |matrix: &Matrix| matrix.name.as_deref() == Some(text);
    if found.iter().filter(|matrix| called(matrix)).count() == 1 && !more {
        found.retain(called);
    }
    if found.len() > 1 {
        let many =
            if more { format!("more than {}", found.len()) } else { found.len().to_string() };
        let named: Vec<String> = found.iter().take(NAMED).map(line).collect();
        return Err(format!(
            "`{text}` fits {many} matrices: give the whole name, or the digest as far as it tells them apart\n{}",
            named.join("\n")
        ));
    }
    // What only contains the text is not what was named, however few there are.
    if let Some(other) = found.pop_if(|it| !called(it) && !it.digest.to_string().starts_with(text))
    {
        return Err(format!(
            "the server has no matrix `{text}`; one is called similarly:\n{}",
            line(&other)
        ));
    }
    found.pop().ok_or_else(|| {
        format!(
            "`{text}` is no file here, and the server has no matrix of that name or with a digest that begins so (6 digits or more): \
             give a matrix file, a name, or a digest as `sparsetune digest FILE` prints it"
        )
    })
}

fn line(matrix: &Matrix) -> String {
    let Matrix { digest, rows, cols, nnz, .. } = matrix;
    let name = matrix.name.as_deref().unwrap_or("without a name");
    let short = &digest.to_string()[..12];
    format!("  {short}  {name}: {rows} x {cols}, {nnz} nonzeros")
}
