//! Predicted against measured times as one SVG: a panel for each family, a dot for each trial.

use super::record::{Search, Tried};
use crate::charts::{Label, Scale, Tick, thinned};
use askama::Template;
use std::collections::BTreeMap;

/// Pixels of the drawing and of a panel, and panels side by side.
const WIDTH: f64 = 960.0;
const PANEL: [f64; 2] = [240.0, 240.0];
/// From the edge of a panel's cell to its axes, left and top, and the distance between cells.
const INSET: [f64; 2] = [64.0, 72.0];
const STEP: [f64; 2] = [312.0, 304.0];
const ACROSS: usize = 3;
/// Most dots of a panel: of more trials, evenly spread ones by predicted time are drawn.
const MOST_DOTS: usize = 300;

/// The whole picture: a file of its own, with no script and nothing to fetch.
#[derive(Template)]
#[template(path = "pictures/predicted.svg")]
struct Picture {
    height: f64,
    panels: Vec<Panel>,
}

struct Panel {
    heading: String,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    rows: Vec<Label>,
    columns: Vec<Label>,
    dots: Vec<Dot>,
}

/// One trial; its title appears under the pointer.
struct Dot {
    x: f64,
    y: f64,
    title: String,
}

/// A measured trial with a prediction.
struct Pair<'a> {
    search: &'a Search,
    tried: &'a Tried,
    predicted: f64,
    measured: f64,
}

/// All trials of our own kernels that were both predicted and measured. Both axes of all panels are the same.
pub fn draw(searches: &[Search]) -> Result<String, askama::Error> {
    let mut families: BTreeMap<String, Vec<Pair>> = BTreeMap::new();
    for search in searches {
        for tried in search.own() {
            if let (Some(predicted), Some(measured)) = (tried.predicted_us, tried.us)
                && predicted > 0.0
                && measured > 0.0
            {
                let pair = Pair { search, tried, predicted, measured };
                families.entry(heading(search, tried)).or_default().push(pair);
            }
        }
    }
    let pairs = families.values().flatten();
    let values: Vec<f64> = pairs.flat_map(|pair| [pair.predicted, pair.measured]).collect();
    let rows = families.len().div_ceil(ACROSS).max(1);
    let panels = families
        .into_iter()
        .enumerate()
        .map(|(place, (name, pairs))| panel(place, &name, pairs, &values));
    let height = STEP[1] * rows as f64 + INSET[1] / 2.0;
    Picture { height, panels: panels.collect() }.render().map(|svg| svg + "\n")
}

fn heading(search: &Search, tried: &Tried) -> String {
    format!("{}: {}", search.op(), search.kernel(tried.family()))
}

fn panel(place: usize, name: &str, mut pairs: Vec<Pair>, values: &[f64]) -> Panel {
    let left = INSET[0] + STEP[0] * (place % ACROSS) as f64;
    let top = INSET[1] + STEP[1] * (place / ACROSS) as f64;
    let (right, bottom) = (left + PANEL[0], top + PANEL[1]);
    let x = Scale::enclosing(values.iter().copied(), 10.0, left, right);
    let y = Scale::enclosing(values.iter().copied(), 10.0, bottom, top);
    let all = pairs.len();
    pairs.sort_by(|a, b| a.predicted.total_cmp(&b.predicted));
    let drawn = all.min(MOST_DOTS);
    let spread = (0..drawn).map(|at| &pairs[at * all / drawn]);
    let dot = |pair: &Pair| Dot {
        x: x.at(pair.predicted),
        y: y.at(pair.measured),
        title: format!(
            "{}, {}: predicted {:.1}, measured {:.1}",
            pair.search.matrix, pair.tried.candidate, pair.predicted, pair.measured
        ),
    };
    let dots = spread.map(dot).collect();
    let shown = if drawn < all { format!("{drawn} of {all}") } else { all.to_string() };
    let label = |tick: Tick| Label { at: tick.at, text: tick.value.to_string() };
    Panel {
        heading: format!("{name}, {shown} measured"),
        left,
        right,
        top,
        bottom,
        rows: y.powers(10.0).map(label).collect(),
        columns: thinned(x.powers(10.0).map(label)),
        dots,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(problem: &str, trials: &[(&str, f64, Option<f64>)]) -> Search {
        let tried = |&(candidate, us, predicted_us): &(&str, f64, Option<f64>)| Tried {
            candidate: candidate.to_owned(),
            us: Some(us),
            predicted_us,
            ..Tried::default()
        };
        Search {
            matrix: "m & n".to_owned(),
            problem: problem.to_owned(),
            tried: trials.iter().map(tried).collect(),
            ..Search::default()
        }
    }

    #[test]
    fn each_family_has_a_panel_and_each_predicted_trial_a_dot() {
        let many: Vec<_> =
            (1..=1000).map(|i| ("row_split{x=1}", 10.0, Some(f64::from(i)))).collect();
        let searches = [
            search("spmm;layout=row", &many),
            search(
                "spmm;layout=col",
                &[("tiled{r=4}", 20.0, Some(10.0)), ("tiled{r=8}", 9.0, None)],
            ),
            search("spmm;layout=row", &[("tiled{n1=32}", 20.0, Some(15.0))]),
        ];
        let svg = draw(&searches).unwrap();
        assert!(svg.contains(">spmm: row_split, 300 of 1000 measured<"), "{svg}");
        assert!(svg.contains(">spmm: tiled, 1 measured<"), "{svg}");
        assert!(svg.contains(">spmm: tiled, column-major, 1 measured<"), "{svg}");
        assert!(
            svg.contains("<title>m &#38; n, tiled{r=4}: predicted 10.0, measured 20.0"),
            "{svg}"
        );
        assert_eq!(svg.matches("<circle").count(), 302);
        assert!(draw(&[]).unwrap().ends_with("</svg>\n"));
    }
}
