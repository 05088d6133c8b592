//! Every statement in the sources of the store is prepared against a migrated database of each kind: a table or column that is not
//! there fails here, not when the statement is first run.

use crate::Harness;
use sparsetune::store::sql::for_postgres;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _, SqliteConnection,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Fewer than this means that the sources are no longer understood.
const LEAST: usize = 80;
/// Tests of the store's own, whose scripts hold several statements in one string.
const NOT_READ: [&str; 4] = ["indexes.rs", "upgrade.rs", "deliveries.rs", "dialect.rs"];
/// Statements about one kind of database.
const OF_SQLITE: [&str; 2] = ["copy.rs", "sqlite.rs"];
const OF_POSTGRES: [&str; 3] = ["postgres.rs", "hints.rs", "turns.rs"];

/// What matters of a source text here.
enum Piece {
    Text(String),
    Word(String),
    Open,
    Close,
}

fn pieces(source: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let taken = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '"' => {
                let (text, taken) = string(&rest[1..]);
                pieces.push(Piece::Text(text));
                1 + taken
            }
            // A character, not a lifetime: a quotation mark in one begins no string.
            '\'' if rest.starts_with("'\\") => 2 + rest[3..].find('\'').map_or(0, |end| end + 2),
            '\'' if rest[1..].chars().nth(1) == Some('\'') => {
                2 + rest[1..].chars().next().map_or(0, char::len_utf8)
            }
            _ if c.is_alphanumeric() || c == '_' => {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                let end = end.unwrap_or(rest.len());
                pieces.push(Piece::Word(rest[..end].to_owned()));
                end
            }
            _ => {
                match c {
                    '(' => pieces.push(Piece::Open),
                    ')' => pieces.push(Piece::Close),
                    _ => {}
                }
                c.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    pieces
}

/// The content of a string literal after its opening quotation mark, and its length with the closing one.
fn string(rest: &str) -> (String, usize) {
    let mut text = String::new();
    let mut chars = rest.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (text, at + 1),
            '\\' => match chars.next() {
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, escaped)) => text.push(escaped),
                None => break,
            },
            _ => text.push(c),
        }
    }
    (text, rest.len())
}

/// The texts of a source, those of a `concat!` as one. A macro in one stands for the first text of its definition.
fn texts(pieces: &[Piece], macros: &HashMap<String, String>) -> Vec<String> {
    let mut texts = Vec::new();
    let mut at = 0;
    while let Some(piece) = pieces.get(at) {
        at += 1;
        match piece {
            Piece::Word(word) if word == "concat" => {
                let (mut depth, mut whole) = (0, String::new());
                while let Some(piece) = pieces.get(at) {
                    at += 1;
                    match piece {
                        Piece::Text(text) => whole.push_str(text),
                        Piece::Word(word) => {
                            whole.push_str(macros.get(word).map_or("", String::as_str))
                        }
                        Piece::Open => depth += 1,
                        Piece::Close => depth -= 1,
                    }
                    if depth == 0 {
                        break;
                    }
                }
                texts.push(whole);
            }
            Piece::Text(text) => texts.push(text.clone()),
            _ => {}
        }
    }
    texts
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            sources(&path, found);
        } else if name.ends_with(".rs") && !NOT_READ.contains(&name) {
            found.push(path);
        }
    }
}

fn is_statement(text: &str) -> bool {
    let verb = text.split_whitespace().next();
    let verbs = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"];
    // Those that are put together when they run have names in braces.
    verb.is_some_and(|verb| verbs.contains(&verb))
        && text.split_whitespace().nth(2).is_some()
        && !text.contains('{')
}

/// Each statement with the file that has it.
fn statements() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sql");
    sources(&folder, &mut files);
    let read: Vec<_> =
        files.iter().map(|file| pieces(&std::fs::read_to_string(file).unwrap())).collect();
    let mut macros = HashMap::new();
    for pieces in &read {
        for (at, piece) in pieces.iter().enumerate() {
            let Piece::Word(word) = piece else { continue };
            if word != "macro_rules" {
                continue;
            }
            let text = pieces[at..].iter().find_map(|piece| match piece {
                Piece::Text(text) => Some(text.clone()),
                _ => None,
            });
            if let (Some(Piece::Word(name)), Some(text)) = (pieces.get(at + 1), text) {
                macros.insert(name.clone(), text);
            }
        }
    }
    let of_file = |(file, pieces): (&PathBuf, &Vec<Piece>)| {
        let texts = texts(pieces, &macros).into_iter().filter(|text| is_statement(text));
        texts.map(|text| (file.clone(), text)).collect::<Vec<_>>()
    };
    files.iter().zip(&read).flat_map(of_file).collect()
}

/// Why SQLite cannot prepare a statement, if so. `EXPLAIN` prepares it and runs nothing of it.
async fn fault(connection: &mut SqliteConnection, statement: &str) -> Option<String> {
    let explain = sqlx::query(AssertSqlSafe(format!("EXPLAIN {statement}")));
    explain.fetch_all(connection).await.err().map(|error| error.to_string())
}

/// Why PostgreSQL cannot prepare a statement, if so. The types of parameters come with their values; of one whose type it cannot tell
/// without, there must be some type with which the whole statement fits.
async fn server_fault(connection: &mut PgConnection, statement: &str) -> Option<String> {
    let text = for_postgres(statement);
    // What SQLite alone reads may have the others.
    let many = (1..=32).rev().find(|number| text.contains(&format!("${number}"))).unwrap_or(0);
    // Those that were told so far, of which the last may be wrong.
    let mut tried = vec![vec!["unknown"; many]];
    let mut first = None;
    while let Some(types) = tried.pop() {
        let of = if many == 0 { String::new() } else { format!("({})", types.join(", ")) };
        let prepare = format!("PREPARE probe{of} AS {text}");
        let Err(error) = connection.execute(sqlx::raw_sql(AssertSqlSafe(prepare))).await else {
            connection.execute("DEALLOCATE probe").await.unwrap();
            return None;
        };
        let told = error.to_string();
        let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
        if ["42P18", "42P08"].contains(&&*code)
            && let Some(number) = parameter(&told)
            && types.get(number - 1) == Some(&"unknown")
        {
            tried.extend(["bigint", "text", "bytea", "double precision"].map(|one| {
                let mut types = types.clone();
                types[number - 1] = one;
                types
            }));
        }
        first.get_or_insert(told);
    }
    first
}

/// The parameter that a message is about ("could not determine data type of parameter $2").
fn parameter(told: &str) -> Option<usize> {
    let (_, rest) = told.split_once("parameter $")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

pub async fn every_statement_fits_the_schema(harness: &Harness) {
    drop(harness.open().await);
    let statements = statements();
    assert!(statements.len() >= LEAST, "only {} statements are found", statements.len());
    let is_of = |file: &Path, names: &[&str]| names.iter().any(|name| file.ends_with(name));
    let mut faults = Vec::new();
    match harness {
        Harness::Sqlite { .. } => {
            let options = SqliteConnectOptions::new().filename(harness.file());
            let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
            for (file, statement) in
                statements.iter().filter(|(file, _)| !is_of(file, &OF_POSTGRES))
            {
                if let Some(why) = fault(&mut connection, statement).await {
                    faults.push(format!("{}: {why}\n{statement}", file.display()));
                }
            }
            assert!(fault(&mut connection, "SELECT nothing FROM jobs").await.is_some());
        }
        Harness::Postgres { .. } => {
            let mut connection = PgConnection::connect(&harness.url().0).await.unwrap();
            for (file, statement) in statements.iter().filter(|(file, _)| !is_of(file, &OF_SQLITE))
            {
                if let Some(why) = server_fault(&mut connection, statement).await {
                    faults.push(format!("{}: {why}\n{statement}", file.display()));
                }
            }
            let faulty = [
                "SELECT nothing FROM jobs",
                "SELECT $1, nothing FROM jobs",
                "SELECT $1 WHERE $1 = 1 AND $1 = 'x' || now()",
            ];
            for statement in faulty {
                assert!(server_fault(&mut connection, statement).await.is_some(), "{statement}");
            }
            assert_eq!(server_fault(&mut connection, "SELECT $1 IS NULL, $2 IS NULL").await, None);
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// The planner knows neither how many keys a lookup has nor that each has one plan at most. With few plans, or many whose bodies lie
/// outside the table, it would rather read them all.
pub async fn lookups_seek_plans_however_many_there_are(harness: &Harness) {
    drop(harness.open().await);
    let statements = statements();
    let mut of_lookups = statements.iter().filter(|(_, text)| text.contains("WITH asked AS"));
    let text = for_postgres(&of_lookups.next().unwrap().1);
    assert!(of_lookups.next().is_none());
    let mut connection = PgConnection::connect(&harness.url().0).await.unwrap();
    let mut run = async |text: String| {
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
    };
    run(format!("PREPARE lookups AS {text}")).await;
    let keys = r#"[["default","00","spmm 1","class","warm"]]"#;
    for (from, to, bytes) in [(0, 3000, 1500), (3000, 9000, 6000)] {
        // Bodies that do not compress.
        run(format!(
            "INSERT INTO plans (id, pattern_digest, problem, device_class, l2_policy, matrix, created_at, version, body,
                 facts_version, facts, namespace)
             SELECT 'plan' || i, sha256(CAST(i AS text)::bytea), 'spmm ' || i % 5, 'class', 'warm', sha256(CAST(-i AS text)::bytea), i, 1,
                 '{{\"b\":\"' || (SELECT string_agg(md5(CAST(i * 1000 + j AS text)), '') FROM generate_series(1, {bytes} / 32) j) || '\"}}',
                 1, '{{}}', 'default'
             FROM generate_series({from}, {to} - 1) i"
        ))
        .await;
        run("ANALYZE".to_owned()).await;
        for mode in ["force_generic_plan", "force_custom_plan"] {
            run(format!("SET plan_cache_mode = {mode}")).await;
            let steps = run(format!("EXPLAIN EXECUTE lookups ($${keys}$$)")).await;
            assert!(steps.contains("plans_by_key"), "{steps}");
            assert!(!steps.contains("Seq Scan on plans"), "{steps}");
        }
    }
}
