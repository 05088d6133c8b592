//! How well the models of a scope chose, version by version, as lines.

use crate::charts::{Label, Scale};
use crate::http::dashboard::format::percent;
use askama::Template;

const LEFT: f64 = 72.0;
const RIGHT: f64 = 548.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 120.0;

/// Most versions drawn, the newest.
const MOST: usize = 60;

#[derive(Clone, Debug, PartialEq, Template)]
#[template(path = "pictures/history.html")]
pub struct History {
    summary: String,
    bottom: f64,
    rows: Vec<Label>,
    first: Line,
    tenth: Line,
}

/// A line through dots; a single version has a dot alone.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    path: String,
    dots: Vec<Dot>,
}

#[derive(Clone, Debug, PartialEq)]
struct Dot {
    x: f64,
    y: f64,
    title: String,
}

/// Shares of the best performance, of the first choice and of the best of ten, oldest version first; `None` if there is none.
pub fn of(shares: &[[f64; 2]]) -> Option<History> {
    let shown = &shares[shares.len().saturating_sub(MOST)..];
    let before = shares.len() - shown.len();
    let least = shown.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    if !least.is_finite() {
        return None;
    }
    // Shares of 0 to 1, from the ten per cent below the least on: what changes is seen, and the labels say what the axis begins with.
    let low = ((least * 10.0).floor() / 10.0).clamp(0.0, 0.9);
    let up = Scale::linear(low, 1.0, BOTTOM, TOP);
    let across = Scale::linear(0.0, (shown.len() - 1) as f64, LEFT + 8.0, RIGHT - 8.0);
    let line = |which: usize, words: &str| {
        let dots: Vec<Dot> = shown
            .iter()
            .enumerate()
            .map(|(at, shares)| Dot {
                x: across.at(at as f64),
                y: up.at(shares[which]),
                title: format!("version {}: {words} {}", before + at + 1, percent(shares[which])),
            })
            .collect();
        let places = dots.iter().map(|dot| format!("{:.1} {:.1}", dot.x, dot.y));
        Line { path: format!("M{}", places.collect::<Vec<_>>().join("L")), dots }
    };
    let rows = up.ticks(4).into_iter();
    Some(History {
        summary: format!(
            "Share of the best performance that {} versions reached, on matrices that they were not trained on",
            shares.len()
        ),
        bottom: BOTTOM,
        rows: rows.map(|tick| Label { at: tick.at, text: percent(tick.value) }).collect(),
        first: line(0, "first choice"),
        tenth: line(1, "best of ten"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_dots_on_lines_within_the_frame() {
        let drawn = of(&[[0.62, 0.9], [0.8, 0.95], [0.7, 1.0]]).unwrap();
        let (first, tenth) = (&drawn.first.dots, &drawn.tenth.dots);
        assert_eq!((first.len(), tenth.len()), (3, 3));
        assert!(first[0].x < first[1].x && first[1].y < first[0].y, "{first:?}");
        assert!(first.iter().chain(tenth).all(|dot| (TOP..=BOTTOM).contains(&dot.y)));
        assert_eq!(first[1].title, "version 2: first choice 80 %");
        assert_eq!(drawn.rows.first().map(|row| row.text.as_str()), Some("60 %"));
        assert!(of(&[]).is_none());
        let many = of(&vec![[0.5, 0.6]; 100]).unwrap();
        assert_eq!(many.first.dots.len(), MOST);
        assert!(many.first.dots[0].title.starts_with("version 41:"));
        assert_eq!(of(&[[0.5, 0.6]]).unwrap().first.dots.len(), 1);
    }
}
