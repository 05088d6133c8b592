//! Accuracy of the models, aggregated over the plans that report it.

use super::{SqlStore, codec, db};
use crate::domain::{DeviceClass, ModelQuality};
use crate::store::Result;
use std::collections::HashMap;

#[derive(sqlx::FromRow)]
struct Row {
    model: String,
    device_class: String,
    op: String,
    trials: i64,
    median_ratio: f64,
    spread: f64,
    rank_correlation: Option<f64>,
}

/// Maximum number of plans read, newest first: enough for stable figures, and a bound on the query time.
const PLANS: i64 = 10_000;

/// The expressions and the condition match the covering index `plans_by_model`.
pub(super) const BY_PLAN: &str = "SELECT body ->> '$.model_error.model' AS model, device_class,
         body ->> '$.problem.op' AS op, CAST(body ->> '$.model_error.trials' AS BIGINT) AS trials,
         CAST(body ->> '$.model_error.median_ratio' AS DOUBLE PRECISION) AS median_ratio,
         CAST(body ->> '$.model_error.spread' AS DOUBLE PRECISION) AS spread,
         CAST(body ->> '$.model_error.rank_correlation' AS DOUBLE PRECISION) AS rank_correlation
     FROM plans WHERE body ->> '$.model_error.model' IS NOT NULL ORDER BY created_at DESC LIMIT $1";

/// Sums over plans, weighted by their number of trials.
struct Sums {
    model: String,
    device_class: String,
    op: String,
    plans: u64,
    trials: u64,
    ratio: f64,
    spread: f64,
    ranks: f64,
    /// Number of trials of the plans that have a correlation.
    ranked: f64,
}

impl Sums {
    fn new(row: &Row) -> Self {
        Self {
            model: row.model.clone(),
            device_class: row.device_class.clone(),
            op: row.op.clone(),
            plans: 0,
            trials: 0,
            ratio: 0.0,
            spread: 0.0,
            ranks: 0.0,
            ranked: 0.0,
        }
    }

    fn add(&mut self, row: &Row) -> Result<()> {
        let trials: u64 = codec::count("model trials", row.trials)?;
        let weight = trials as f64;
        self.plans += 1;
        self.trials += trials;
        self.ratio += weight * row.median_ratio.ln();
        self.spread += weight * row.spread.ln().powi(2);
        if let Some(rank) = row.rank_correlation {
            self.ranks += weight * rank;
            self.ranked += weight;
        }
        Ok(())
    }

    fn quality(self) -> ModelQuality {
        let trials = self.trials as f64;
        ModelQuality {
            model: self.model,
            device_class: DeviceClass(self.device_class),
            op: self.op,
            plans: self.plans,
            trials: self.trials,
            median_ratio: (self.ratio / trials).exp(),
            spread: (self.spread / trials).sqrt().exp(),
            rank_correlation: (self.ranked > 0.0).then(|| self.ranks / self.ranked),
        }
    }
}

pub(super) async fn of_models(store: &SqlStore) -> Result<Vec<ModelQuality>> {
    let rows: Vec<Row> = db::query_as(BY_PLAN).bind(PLANS).fetch_all(&store.readers).await?;
    // In the order of the rows: the model of the newest plan is the one in use.
    let mut sums: Vec<Sums> = Vec::new();
    let mut places: HashMap<(&str, &str, &str), usize> = HashMap::new();
    // A ratio that is 0 or not a number cannot be averaged, and a plan without trials carries no information.
    let telling = |row: &&Row| row.trials > 0 && row.median_ratio > 0.0 && row.spread > 0.0;
    for row in rows.iter().filter(telling) {
        let key = (row.model.as_str(), row.device_class.as_str(), row.op.as_str());
        let place = *places.entry(key).or_insert(sums.len());
        if place == sums.len() {
            sums.push(Sums::new(row));
        }
        sums[place].add(row)?;
    }
    Ok(sums.into_iter().map(Sums::quality).collect())
}
