//! The rooms, what each may import, and how an import is found in a source text.

use super::tokens::{Token, tokens};
use std::path::Path;

/// Room, and the rooms it may import. ARCHITECTURE.md shows the same table.
pub const TABLE: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("environment", &[]),
    ("sparse", &["domain"]),
    ("learn", &["domain", "sparse"]),
    ("search", &["domain"]),
    ("ops", &["domain", "sparse", "search"]),
    ("engine", &["domain", "environment", "sparse"]),
    ("fence", &["domain", "environment"]),
    ("reader", &["domain", "sparse", "fence", "bundle"]),
    ("evaluator", &["domain", "environment", "sparse", "ops", "engine", "fence"]),
    ("bundle", &["domain", "sparse", "ops", "engine"]),
    ("pool", &["domain", "environment"]),
    ("store", &["domain", "environment"]),
    (
        "service",
        &["domain", "environment", "sparse", "learn", "search", "ops", "bundle", "store", "pool"],
    ),
    ("wire", &["domain"]),
    ("tuner", &["domain", "sparse", "bundle", "pool", "store", "service"]),
    ("charts", &[]),
    ("usage", &["domain"]),
    ("explain", &["domain"]),
    ("http", &["domain", "bundle", "service", "wire", "charts", "usage", "explain"]),
    ("cli", &["all"]),
];

/// What a room may import; `None` for a room that is not in the table.
pub fn allowed(room: &str) -> Option<&'static [&'static str]> {
    TABLE.iter().find(|(name, _)| *name == room).map(|(_, allowed)| *allowed)
}

/// `src/sparse/read/mod.rs` is `["sparse", "read"]`; the root of either library is empty, and so is the binary's.
pub fn module_of(path: &Path) -> Vec<String> {
    let path = path.strip_prefix("src").unwrap().with_extension("");
    let mut parts: Vec<String> =
        path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "core" | "main")) {
        parts.pop();
    }
    parts
}

/// Why `module` may not import `room`.
pub fn fault(module: &[String], room: &str) -> Option<String> {
    let Some(from) = module.first() else {
        // main.rs reaches the crate by its name, and needs the command line alone.
        return (room != "cli").then(|| format!("the binary may import `cli` alone, not `{room}`"));
    };
    let Some(allowed) = allowed(from) else {
        return Some(format!("room `{from}` has no line in the table"));
    };
    let fine = from == room || allowed.contains(&room) || allowed.contains(&"all");
    (!fine).then(|| format!("`{from}` may import {allowed:?}, not `{room}`"))
}

/// The rooms that a file of `module` imports: by `crate::`, by the crate's name, or by climbing with `super::`.
pub fn imported(module: &[String], text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut rooms = Vec::new();
    // Inline modules are one level deeper: a `super` in them climbs less far.
    let mut inline: Vec<bool> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            Token::Mark('{') => {
                let module = at >= 2 && tokens[at - 2] == Token::Word("mod".to_owned());
                inline.push(module);
            }
            Token::Mark('}') => {
                inline.pop();
            }
            Token::Word(word) if word == "crate" || word == "sparsetune" => {
                collect(&tokens, at + 1, &mut rooms);
            }
            Token::Word(word) if word == "super" => {
                let climb = climb(&tokens, at);
                let depth = module.len() + inline.iter().filter(|inline| **inline).count();
                if climb >= depth {
                    collect(&tokens, at + 2 * climb - 1, &mut rooms);
                }
                at += 2 * climb - 1;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    rooms.sort();
    rooms.dedup();
    rooms
}

/// How many `super` follow each other, from the first.
fn climb(tokens: &[Token], start: usize) -> usize {
    let is_super = |at: usize| tokens.get(at) == Some(&Token::Word("super".to_owned()));
    (0..).take_while(|step| is_super(start + 2 * step)).count()
}

/// The segments right after a path's root, at `at` where `::` must stand: one name, or each of a group.
fn collect(tokens: &[Token], at: usize, rooms: &mut Vec<String>) {
    if tokens.get(at) != Some(&Token::PathSep) {
        return;
    }
    match tokens.get(at + 1) {
        Some(Token::Word(room)) => rooms.push(room.clone()),
        Some(Token::Mark('{')) => {
            let mut depth = 0usize;
            for pair in tokens[at + 1..].windows(2) {
                match &pair[0] {
                    Token::Mark('{') => depth += 1,
                    Token::Mark('}') => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
                let starts = matches!(pair[0], Token::Mark('{' | ','));
                if let (true, 1, Token::Word(room)) = (starts, depth, &pair[1]) {
                    rooms.push(room.clone());
                }
            }
        }
        _ => {}
    }
}

#[test]
fn imports_are_found_in_every_form() {
    let module = |path: &str| module_of(Path::new(path));
    let text = "
        use crate::domain::{Digest, Job};
        use crate::{search::Budget, sparse::{self, Csr}};
        pub(crate) fn f() { crate::ops::space(); super::inside(); super::super::store::x(); }
        // use crate::http;
        mod tests { use super::super::same_room; use super::super::super::pool::P; }
    ";
    let rooms = imported(&module("src/ops/spmm.rs"), text);
    assert_eq!(rooms, ["domain", "ops", "pool", "search", "sparse", "store"]);
    assert!(fault(&module("src/domain/mod.rs"), "sparse").is_some());
    assert!(fault(&module("src/store/sqlite/mod.rs"), "service").is_some());
    assert!(fault(&module("src/http/jobs.rs"), "store").is_some());
    assert!(fault(&module("src/cli/serve.rs"), "store").is_none());
    assert!(fault(&module("src/main.rs"), "http").is_some());
}
