//! Each dependency's licence is one that deny.toml allows: what cargo-deny checks, where that is not installed.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// An SPDX expression, as manifests have it: identifiers, `OR` (also written `/`), `AND` and parentheses.
fn permitted(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    any(&words, &mut at, allowed) && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut holds = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        holds |= all(words, at, allowed);
    }
    holds
}

fn all(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut holds = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        holds &= one(words, at, allowed);
    }
    holds
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    if words.get(*at) == Some(&"(") {
        *at += 1;
        let holds = any(words, at, allowed);
        *at += 1;
        return holds;
    }
    let mut name = words.get(*at).copied().unwrap_or_default().to_owned();
    *at += 1;
    if words.get(*at) == Some(&"WITH") {
        name = format!("{name} WITH {}", words.get(*at + 1).copied().unwrap_or_default());
        *at += 2;
    }
    allowed.contains(&name.as_str())
}

#[test]
fn expressions_are_understood() {
    let allowed = ["MIT", "Zlib"];
    for good in ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(MIT OR ISC) AND Zlib", "Zlib AND MIT"]
    {
        assert!(permitted(good, &allowed), "{good}");
    }
    for bad in
        ["", "ISC", "MIT AND ISC", "(MIT OR ISC) AND ISC", "MIT WITH an-exception", "MIT ISC"]
    {
        assert!(!permitted(bad, &allowed), "{bad}");
    }
}

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let policy: toml::Table =
        toml::from_str(&std::fs::read_to_string(root.join("deny.toml")).unwrap()).unwrap();
    let allowed = policy["licenses"]["allow"].as_array().unwrap();
    let allowed: Vec<&str> = allowed.iter().map(|name| name.as_str().unwrap()).collect();
    // Crates of optional features are not downloaded before something was built with them.
    let metadata = |features: &[&str]| {
        Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked", "--offline"])
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
            .args(features)
            .current_dir(root)
            .output()
            .unwrap()
    };
    let mut answer = metadata(&["--all-features"]);
    if !answer.status.success() {
        answer = metadata(&[]);
    }
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    let metadata: Value = serde_json::from_slice(&answer.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "only {} packages", packages.len());
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !permitted(package["license"].as_str().unwrap_or_default(), &allowed))
        .map(|package| {
            format!("{} {}: {}", package["name"], package["version"], package["license"])
        })
        .collect();
    assert!(refused.is_empty(), "not allowed by deny.toml:\n{}", refused.join("\n"));
}
