//! Features, level sets and diagonals of every real matrix of the shared collection, against its table, which another
//! program computed. The folder is `$SPARSETUNE_MATRICES`, else `../shared/matrices` beside this project.

use sparsetune::sparse::features::facts;
use sparsetune::sparse::read::{Limits, read_path};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the table differs for a known reason: complex values are refused by the readers.
const COMPLEX: [&str; 4] = ["qc324", "young1c", "cholmod_cha", "cholmod_csa"];

fn folder() -> PathBuf {
    std::env::var_os("SPARSETUNE_MATRICES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/matrices"),
        PathBuf::from,
    )
}

/// The cells of the table's lines that have a number of rows.
fn table(readme: &str) -> Vec<Vec<String>> {
    let properties = readme.split("## Origins").next().unwrap_or(readme);
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect();
    let lines = properties.lines().map(cells);
    lines
        .filter(|cells: &Vec<String>| cells.len() > 15 && cells[3].parse::<u64>().is_ok())
        .collect()
}

/// The features as the table writes them: max, mean, COV, empty, levels, widest, diag, and the notes it could have.
fn row_of(path: &Path) -> ([String; 7], Vec<String>) {
    let parsed = read_path(path, &Limits::default()).unwrap();
    let facts = facts(&parsed.csr, None);
    let features = &facts.features;
    let (levels, widest, diagonal) = match &features.lower {
        Some(lower) if facts.has_full_diagonal => {
            (lower.levels.to_string(), lower.lnnz.max.to_string(), "yes".to_owned())
        }
        Some(lower) => (lower.levels.to_string(), lower.lnnz.max.to_string(), "no".to_owned()),
        None => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
    };
    let rows = &features.row_nnz;
    let notes = vec![
        format!("{} empty columns", features.empty_cols),
        format!("longest column {}", features.col_nnz.max),
    ];
    let (mean, cov) = (format!("{:.2}", rows.mean), format!("{:.2}", rows.cov));
    let empty = features.empty_rows.to_string();
    ([rows.max.to_string(), mean, cov, empty, levels, widest, diagonal], notes)
}

#[test]
fn features_are_those_of_the_table() {
    let folder = folder();
    let Ok(readme) = fs::read_to_string(folder.join("README.md")) else {
        println!("skipped: no matrices in {} (set SPARSETUNE_MATRICES)", folder.display());
        return;
    };
    let table = table(&readme);
    assert!(table.len() > 70, "no table in {}", folder.join("README.md").display());
    let mut wrong = Vec::new();
    for cells in table.iter().filter(|cells| !COMPLEX.contains(&cells[1].as_str())) {
        let name = &cells[1];
        let (found, notes) = row_of(&folder.join(format!("{name}.mtx.gz")));
        let mut expected: Vec<&str> = cells[8..15].iter().map(String::as_str).collect();
        // `no (762 lack it)`
        expected[6] = expected[6].split(' ').next().unwrap_or_default();
        if found != expected[..] {
            wrong.push(format!("{name}: {found:?}, expected {expected:?}"));
        }
        for note in cells[16].split("; ") {
            let known = note.ends_with(" empty columns") || note.starts_with("longest column ");
            if known && !notes.iter().any(|found| found == note) {
                wrong.push(format!("{name}: {notes:?}, expected {note}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
