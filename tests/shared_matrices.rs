//! Every real matrix of the shared collection: read with the shape and entries its table says, or refused for the
//! reason it should be. The folder is `$SPARSETUNE_MATRICES`, else `../shared/matrices` beside this project.

use sparsetune::sparse::read::{Format, Limits, ReadErrorKind, read_path};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Matrices with complex values, and what the refusal must mention.
const COMPLEX: [&str; 4] = ["qc324", "young1c", "cholmod_cha", "cholmod_csa"];

fn folder() -> PathBuf {
    std::env::var_os("SPARSETUNE_MATRICES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/matrices"),
        PathBuf::from,
    )
}

/// Rows, columns and expanded entries by name, from the table of properties.
fn table(readme: &str) -> BTreeMap<String, [usize; 3]> {
    let properties = readme.split("## Origins").next().unwrap_or(readme);
    properties
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, name, _, rows, cols, _, expanded, ..] = cells[..] else { return None };
            let numbers = [rows.parse().ok()?, cols.parse().ok()?, expanded.parse().ok()?];
            Some((name.to_owned(), numbers))
        })
        .collect()
}

#[test]
fn every_matrix_is_read_or_refused_as_it_should_be() {
    let folder = folder();
    let Ok(readme) = fs::read_to_string(folder.join("README.md")) else {
        println!("skipped: no matrices in {} (set SPARSETUNE_MATRICES)", folder.display());
        return;
    };
    let table = table(&readme);
    assert!(!table.is_empty(), "no table in {}", folder.join("README.md").display());
    let mut wrong = Vec::new();
    for (name, expected) in &table {
        let path = folder.join(format!("{name}.mtx.gz"));
        match read_path(&path, &Limits::default()) {
            Ok(parsed) => {
                let csr = &parsed.csr;
                let found = [csr.rows(), csr.cols(), csr.nnz()];
                let complex = COMPLEX.contains(&name.as_str());
                if found != *expected || complex || parsed.format != Format::MatrixMarket {
                    wrong.push(format!("{name}: {found:?}, expected {expected:?}"));
                }
            }
            Err(error) => {
                let reason =
                    error.kind == ReadErrorKind::Unsupported && error.message.contains("complex");
                if !COMPLEX.contains(&name.as_str()) || !reason {
                    wrong.push(format!("{name}: {error}"));
                }
            }
        }
    }
    let files = fs::read_dir(&folder).unwrap().filter_map(Result::ok);
    for file in files.map(|file| file.file_name().to_string_lossy().into_owned()) {
        if let Some(name) = file.strip_suffix(".mtx.gz").filter(|name| !table.contains_key(*name)) {
            wrong.push(format!("{name}: not in the table"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{} matrices", table.len());
}
