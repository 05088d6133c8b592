//! The models page: versions and prediction quality.

use super::format::{correlation, count, times};
use super::learned::{Part, in_words, parts};
use super::plan::ranking;
use super::shell::{Place, Shell, fragment, html};
use crate::domain::{ModelQuality, Op};
use crate::http::behalf::OnBehalf;
use crate::http::error::Problem;
use askama::Template;
use axum::http::HeaderMap;
use axum::response::Response;
use std::collections::HashMap;

#[derive(Template)]
#[template(path = "models.html")]
struct Page {
    shell: Shell,
    rows: Vec<Row>,
    parts: Vec<Part>,
}

/// The part that changes while the page is open.
#[derive(Template)]
#[template(path = "models_learned.html")]
struct Learned {
    parts: Vec<Part>,
}

struct Row {
    model: String,
    /// What it is.
    words: &'static str,
    op: &'static str,
    class: String,
    class_words: String,
    plans: String,
    trials: String,
    ratio: String,
    /// Verdict on the ratio, in words.
    verdict: &'static str,
    spread: String,
    rank: Option<Rank>,
}

/// A correlation, its verdict in words, and its bar, drawn from the middle of an axis of length 60.
struct Rank {
    text: String,
    words: &'static str,
    x: f64,
    width: f64,
}

impl From<f64> for Rank {
    fn from(rank: f64) -> Self {
        let reach = 30.0 * rank.clamp(-1.0, 1.0);
        Self {
            text: correlation(rank),
            words: ranking(rank),
            x: 30.0 + reach.min(0.0),
            width: reach.abs(),
        }
    }
}

impl Row {
    /// `learned` says what the learned models are, by their ids.
    fn of(quality: ModelQuality, learned: &HashMap<String, &'static str>) -> Self {
        let op = Op::ALL.into_iter().find(|op| op.name() == quality.op);
        Self {
            words: learned.get(&quality.model).copied().unwrap_or("analytic model"),
            model: quality.model,
            op: op.map_or("", |op| op.descriptor().title),
            class_words: quality.device_class.words(),
            class: quality.device_class.to_string(),
            plans: count(quality.plans),
            trials: count(quality.trials),
            ratio: times(quality.median_ratio),
            verdict: verdict(quality.median_ratio),
            spread: times(quality.spread),
            rank: quality.rank_correlation.map(Rank::from),
        }
    }
}

/// A model within 10 % is called accurate, since the spread is larger than that.
fn verdict(ratio: f64) -> &'static str {
    match ratio {
        r if r > 1.1 => "too optimistic",
        r if r < 1.0 / 1.1 => "too pessimistic",
        _ => "accurate on average",
    }
}

/// `GET /models`.
pub async fn show(OnBehalf(app): OnBehalf) -> Result<Response, Problem> {
    let models = app.service.learned_models().await?;
    let learned = models.iter().map(|standing| &standing.model);
    let learned = learned.map(|model| (model.id.to_string(), in_words(model.learner.name())));
    let learned: HashMap<String, &'static str> = learned.collect();
    let rows = app.service.models().await?.into_iter().map(|row| Row::of(row, &learned)).collect();
    let parts = parts(&app).await?;
    html(&Page { shell: Shell::new(&app, Place::Models), rows, parts })
}

/// `GET /fragments/models`.
pub async fn live(OnBehalf(app): OnBehalf, headers: HeaderMap) -> Result<Response, Problem> {
    fragment(&headers, &Learned { parts: parts(&app).await? })
}

#[cfg(test)]
mod tests {
    use super::{Rank, verdict};

    #[test]
    fn a_bar_extends_from_the_middle_in_the_direction_of_its_sign() {
        let [bad, good] = [-0.5, 0.5].map(Rank::from);
        assert_eq!((bad.x, bad.width, good.x, good.width), (15.0, 15.0, 30.0, 15.0));
        assert_eq!((bad.text.as_str(), bad.words), ("\u{2212}0.50", "worse than chance"));
    }

    #[test]
    fn a_ratio_has_a_verdict_in_words() {
        assert_eq!(
            [1.3, 1.0, 0.5].map(verdict),
            ["too optimistic", "accurate on average", "too pessimistic"]
        );
    }
}
