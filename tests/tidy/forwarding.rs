//! Finds methods that only pass their arguments on to the same method of a field.

use super::tokens::{Token, tokens};

/// Names of the methods whose whole body is `self.FIELD.NAME(ARGUMENTS)`, awaited or not, where NAME is their own.
pub fn forwarded(text: &str) -> Vec<String> {
    let tokens = tokens(text);
    let word = |at: usize| match tokens.get(at) {
        Some(Token::Word(word)) => Some(word.as_str()),
        _ => None,
    };
    let mark = |at: usize, mark: char| tokens.get(at) == Some(&Token::Mark(mark));
    let mut found = Vec::new();
    let mut method = None;
    for at in 0..tokens.len() {
        if word(at) == Some("fn") {
            method = word(at + 1);
        }
        let calls = mark(at, '{')
            && word(at + 1) == Some("self")
            && mark(at + 2, '.')
            && mark(at + 4, '.')
            && method.is_some()
            && word(at + 5) == method
            && mark(at + 6, '(');
        if !calls {
            continue;
        }
        let plain = |at: &usize| word(*at).is_some() || mark(*at, ',') || mark(*at, '&');
        let close = at + 7 + (at + 7..tokens.len()).take_while(plain).count();
        let awaited = mark(close + 1, '.') && word(close + 2) == Some("await");
        let last = if awaited { close + 2 } else { close };
        if mark(close, ')') && mark(last + 1, '}') {
            found.extend(method.map(str::to_owned));
        }
    }
    found
}

#[test]
fn forwarding_methods_are_found() {
    let text = "
        fn a(&self, x: u8) -> u8 { self.inner.a(x) }
        async fn b(&self) -> u8 { self.inner.b().await }
        fn c(&self) -> u8 { self.inner.other() }
        fn d(&self, x: u8) -> u8 { self.inner.d(x + 1) }
        fn e(&self) -> u8 { let x = self.inner.e(); x }
    ";
    assert_eq!(forwarded(text), ["a", "b"]);
}
