//! Just enough of Rust's lexer: identifiers and punctuation, with comments, strings and characters gone.

/// One token: an identifier, or a single punctuation character (`::` is one token too).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    Word(String),
    PathSep,
    Mark(char),
}

/// The tokens of a source text.
pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let next = chars.get(at + 1).copied().unwrap_or(' ');
        at = match (c, next) {
            ('/', '/') => end_of_line(&chars, at),
            ('/', '*') => end_of_comment(&chars, at),
            ('"', _) => end_of_string(&chars, at),
            ('r', '"' | '#') => match end_of_raw_string(&chars, at) {
                Some(end) => end,
                None => word(&chars, at, &mut tokens),
            },
            ('\'', _) => end_of_character(&chars, at),
            (':', ':') => {
                tokens.push(Token::PathSep);
                at + 2
            }
            _ if c.is_alphanumeric() || c == '_' => word(&chars, at, &mut tokens),
            _ => {
                if !c.is_whitespace() {
                    tokens.push(Token::Mark(c));
                }
                at + 1
            }
        };
    }
    tokens
}

/// The first segment of every path in the text: `axum` of `axum::Router`, `use axum;` and `use axum as web;`.
pub fn path_heads(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let mut heads = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Token::Word(word) = token else { continue };
        let before = at.checked_sub(1).map(|i| &tokens[i]);
        let leads = tokens.get(at + 1) == Some(&Token::PathSep) && before != Some(&Token::PathSep);
        let used = before == Some(&Token::Word("use".to_owned()));
        if leads || used {
            heads.push(word.clone());
        }
    }
    heads
}

fn word(chars: &[char], start: usize, tokens: &mut Vec<Token>) -> usize {
    let length = chars[start..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
    tokens.push(Token::Word(chars[start..start + length].iter().collect()));
    start + length
}

fn end_of_line(chars: &[char], start: usize) -> usize {
    start + chars[start..].iter().take_while(|c| **c != '\n').count()
}

fn end_of_comment(chars: &[char], start: usize) -> usize {
    let mut depth = 0usize;
    let mut at = start;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    break;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn end_of_string(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// `r"..."`, `r#"..."#`; `None` for a raw identifier.
fn end_of_raw_string(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(start + 1 + hashes) != Some(&'"') {
        return None;
    }
    let mut at = start + 2 + hashes;
    while at < chars.len() {
        let closing = chars[at + 1..].iter().take_while(|c| **c == '#').count();
        if chars[at] == '"' && closing >= hashes {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(at)
}

/// A character literal, or the quote of a lifetime.
fn end_of_character(chars: &[char], start: usize) -> usize {
    match (chars.get(start + 1), chars.get(start + 2)) {
        (Some('\\'), _) => {
            start + 3 + chars[start + 3..].iter().take_while(|c| **c != '\'').count() + 1
        }
        (Some(_), Some('\'')) => start + 3,
        _ => start + 1,
    }
}

#[test]
fn comments_strings_and_lifetimes_are_not_paths() {
    let text = r##"
        // axum::a
        /* sqlx::b /* nested */ clap::c */
        fn f<'a>(x: &'a str) { let _ = ("cudarc::d", r#"axum::"e"#, 'x', '\'', '"'); real::f(); }
        use plain; use grouped::{inner::x};
    "##;
    assert_eq!(path_heads(text), ["real", "plain", "grouped", "inner"]);
}
