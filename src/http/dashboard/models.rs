//! Models: versions and quality.

use super::format::{count, times};
use super::shell::{Place, Shell, html};
use crate::domain::ModelQuality;
use crate::http::App;
use crate::http::error::Problem;
use askama::Template;
use axum::extract::State;
use axum::response::Response;

#[derive(Template)]
#[template(path = "models.html")]
struct Page {
    shell: Shell,
    rows: Vec<Row>,
}

struct Row {
    model: String,
    op: String,
    class: String,
    plans: String,
    trials: String,
    ratio: String,
    /// What the ratio says, in words.
    verdict: &'static str,
    spread: String,
    rank: Option<Rank>,
}

/// A correlation, and how long its bar is of 60.
struct Rank {
    text: String,
    width: f64,
}

impl From<ModelQuality> for Row {
    fn from(quality: ModelQuality) -> Self {
        Self {
            model: quality.model,
            op: quality.op,
            class: quality.device_class.to_string(),
            plans: count(quality.plans),
            trials: count(quality.trials),
            ratio: times(quality.median_ratio),
            verdict: verdict(quality.median_ratio),
            spread: times(quality.spread),
            rank: quality.rank_correlation.map(|rank| Rank {
                text: format!("{rank:.2}"),
                width: 60.0 * rank.clamp(0.0, 1.0),
            }),
        }
    }
}

/// Within a tenth a model is called right: the spread is larger than that.
fn verdict(ratio: f64) -> &'static str {
    match ratio {
        r if r > 1.1 => "promises too much",
        r if r < 1.0 / 1.1 => "promises too little",
        _ => "about right",
    }
}

/// `GET /models`.
pub async fn show(State(app): State<App>) -> Result<Response, Problem> {
    let rows = app.service.models().await?.into_iter().map(Row::from).collect();
    html(&Page { shell: Shell::new(&app, Place::Models), rows })
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn a_ratio_is_said_in_words() {
        assert_eq!(
            [1.3, 1.0, 0.5].map(verdict),
            ["promises too much", "about right", "promises too little"]
        );
    }
}
