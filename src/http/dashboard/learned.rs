//! Learned models of each operation and device class: versions, evaluation, feature importance, activation history.

use super::format::{correlation, count, percent};
use super::moment::Moment;
use super::pictures::history::{self, History};
use crate::domain::learned::{Activation, AtK, Importance, Learner, RankerScore, Scope};
use crate::domain::{LearnedModel, Training};
use crate::http::behalf::Served;
use crate::http::error::Problem;
use crate::service::{ModelStanding, PageRequest, feature_words};

/// How many features, versions and activations are shown.
const FEATURES: usize = 12;
const VERSIONS: usize = 20;
const CHANGES: u32 = 10;
/// How many of the newest trainings are searched for one that is in progress.
const TRAININGS: u32 = 20;
/// Length of a full bar.
const BAR: f64 = 120.0;

/// An operation on a device class.
pub struct Part {
    pub op: &'static str,
    pub title: &'static str,
    pub class: String,
    /// For people.
    pub class_words: String,
    /// The training that is queued or running.
    pub live: Option<Live>,
    /// Newest first.
    pub versions: Vec<Version>,
    /// Evaluation and features of the active model, or of the newest if none is active.
    pub shown: Option<Shown>,
    pub changes: Vec<Change>,
    /// How well its versions chose, over time.
    pub history: Option<History>,
}

pub struct Live {
    pub id: String,
    pub state: &'static str,
    pub stage: &'static str,
    pub percent: u32,
    pub message: String,
}

pub struct Version {
    pub id: String,
    pub kind: &'static str,
    pub words: &'static str,
    pub active: bool,
    pub trials: String,
    pub patterns: String,
    /// Rank correlation between its ranking and the times measured afterwards.
    pub ranked: String,
    pub made: Moment,
}

pub struct Shown {
    pub id: String,
    pub groups: String,
    pub rankers: Vec<Choice>,
    /// What must be known to compare them, if anything.
    pub remarks: Vec<&'static str>,
    pub features: Vec<Feature>,
}

pub struct Choice {
    pub name: String,
    /// What it is, in words.
    pub words: &'static str,
    pub first: Bar,
    pub tenth: Bar,
    pub within: String,
    pub regret: String,
}

/// A share, and the length of its bar.
pub struct Bar {
    pub text: String,
    pub width: f64,
}

pub struct Feature {
    pub name: String,
    /// What it is, if that is known.
    pub words: Option<String>,
    pub share: Bar,
}

pub struct Change {
    pub model: Option<String>,
    pub reason: String,
    pub at: Moment,
}

impl Bar {
    fn of(share: f64, whole: f64) -> Self {
        let part = if whole > 0.0 { share / whole } else { 0.0 };
        Self { text: percent(share), width: BAR * part.clamp(0.0, 1.0) }
    }
}

impl From<&Training> for Live {
    fn from(training: &Training) -> Self {
        Self {
            id: training.id.to_string(),
            state: training.state.name(),
            stage: training.stage.name(),
            percent: (100.0 * training.progress.clamp(0.0, 1.0)) as u32,
            message: training.message.clone().unwrap_or_default(),
        }
    }
}

impl From<&ModelStanding> for Version {
    fn from(ModelStanding { model, active, ranked }: &ModelStanding) -> Self {
        let rank = ranked.and_then(|ranked| Some((ranked.rank_correlation?, ranked.trials)));
        let ranked = rank.map(|(rank, of)| format!("{}, {} trials", correlation(rank), count(of)));
        Self {
            ranked: ranked.unwrap_or_else(|| "–".to_owned()),
            id: model.id.to_string(),
            kind: model.learner.name(),
            words: in_words(model.learner.name()),
            active: *active,
            trials: count(model.data.trials),
            patterns: count(model.data.matrices),
            made: Moment::of(model.created_at),
        }
    }
}

impl From<&LearnedModel> for Shown {
    fn from(model: &LearnedModel) -> Self {
        let most = model.importance.first().map_or(0.0, |first| first.share);
        let feature = |Importance { feature, share }: &Importance| Feature {
            words: feature_words(feature),
            name: feature.clone(),
            share: Bar::of(*share, most),
        };
        Self {
            id: model.id.to_string(),
            groups: count(model.quality.groups),
            rankers: model.quality.rankers.iter().map(Choice::from).collect(),
            remarks: remarks(&model.quality.rankers),
            features: model.importance.iter().take(FEATURES).map(feature).collect(),
        }
    }
}

/// What ranks under this name, for who does not know the learners.
pub fn in_words(name: &str) -> &'static str {
    match name {
        "analytic" => "analytic model",
        "random" => "random choice",
        "analytic_corrected" => "analytic model, corrected while it searches",
        "borrowed" => "model of a near class of devices",
        "lambdamart" => "boosted trees",
        "lambdamart_continued" => "boosted trees, continued from another class",
        "mlp" => "neural network",
        "mlp_regret" => "neural network, weighted by regret",
        "mlp_graded" => "neural network, graded labels",
        "mlp_ten" => "neural network on ten features",
        _ => "",
    }
}

/// Remarks on the learners among the rankings.
fn remarks(rankers: &[RankerScore]) -> Vec<&'static str> {
    let judged = |learner: &Learner| rankers.iter().any(|ranker| ranker.name == learner.name());
    Learner::ALL.into_iter().filter(judged).filter_map(Learner::remark).collect()
}

impl From<&RankerScore> for Choice {
    fn from(ranker: &RankerScore) -> Self {
        let none = AtK { k: 0, share: 0.0, within_85: 0.0 };
        let at = |k| ranker.at.iter().find(|at| at.k == k).copied().unwrap_or(none);
        Self {
            words: in_words(&ranker.name),
            name: ranker.name.clone(),
            first: Bar::of(at(1).share, 1.0),
            tenth: Bar::of(at(10).share, 1.0),
            within: percent(at(1).within_85),
            regret: percent(ranker.regret[1]),
        }
    }
}

impl From<Activation> for Change {
    fn from(change: Activation) -> Self {
        Self {
            model: change.model.map(|model| model.to_string()),
            reason: change.reason,
            at: Moment::of(change.at),
        }
    }
}

/// What the versions reached on held-out matrices, oldest first; `None` if there is but one.
fn history_of(own: &[&ModelStanding]) -> Option<History> {
    let shares = |standing: &&ModelStanding| {
        let model = &standing.model;
        let ranker = model.quality.rankers.iter().find(|one| one.name == model.learner.name())?;
        let at = |k| ranker.at.iter().find(|at| at.k == k).map(|at| at.share);
        Some((model.created_at.0, [at(1)?, at(10)?]))
    };
    let mut all: Vec<(i64, [f64; 2])> = own.iter().filter_map(shares).collect();
    all.sort_by_key(|(made, _)| *made);
    let shares: Vec<[f64; 2]> = all.into_iter().map(|(_, shares)| shares).collect();
    (shares.len() > 1).then(|| history::of(&shares)).flatten()
}

/// Every scope that has a model or a training in progress, in order.
pub async fn parts(app: &Served) -> Result<Vec<Part>, Problem> {
    let models = app.service.learned_models().await?;
    let page = PageRequest { after: None, limit: TRAININGS };
    let trainings = app.service.trainings(&page).await?.items;
    let live: Vec<&Training> = trainings.iter().filter(|t| !t.state.is_final()).collect();
    let mut scopes: Vec<&Scope> = models.iter().map(|standing| &standing.model.scope).collect();
    scopes.extend(live.iter().map(|training| &training.request.scope));
    scopes.sort();
    scopes.dedup();
    let mut parts = Vec::with_capacity(scopes.len());
    for scope in scopes {
        let own: Vec<_> = models.iter().filter(|m| m.model.scope == *scope).collect();
        let shown = own.iter().find(|standing| standing.active).or(own.first());
        let changes = app.service.activations(scope, CHANGES).await?;
        let under_way = live.iter().find(|training| training.request.scope == *scope);
        parts.push(Part {
            op: scope.op.name(),
            title: scope.op.descriptor().title,
            class_words: scope.device_class.words(),
            class: scope.device_class.to_string(),
            live: under_way.map(|training| Live::from(*training)),
            versions: own.iter().take(VERSIONS).map(|m| Version::from(*m)).collect(),
            shown: shown.map(|standing| Shown::from(&standing.model)),
            changes: changes.into_iter().map(Change::from).collect(),
            history: history_of(&own),
        });
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::{Bar, RankerScore, remarks};

    #[test]
    fn a_bar_never_exceeds_its_full_length() {
        assert_eq!([Bar::of(0.5, 1.0).width, Bar::of(2.0, 1.0).width], [60.0, 120.0]);
        assert_eq!(Bar::of(0.0, 0.0).width, 0.0);
    }

    #[test]
    fn what_sets_a_learner_apart_from_its_paper_is_said_where_it_is_judged() {
        let of = |name: &str| RankerScore {
            name: name.to_owned(),
            ndcg10: None,
            at: Vec::new(),
            regret: [0.0; 3],
        };
        assert!(remarks(&[of("mlp"), of("analytic")]).is_empty());
        let said = remarks(&[of("mlp_ten"), of("mlp")]);
        assert!(said.len() == 1 && said[0].contains("lnnz"), "{said:?}");
    }
}
