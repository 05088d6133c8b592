//! How well models did, summed over the plans that say so.

use super::{SqliteStore, codec};
use crate::domain::{DeviceClass, ModelQuality};
use crate::store::Result;
use std::collections::BTreeMap;

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

/// Plans looked at, newest first: enough for figures that stand still, and a bound on the time this takes.
const PLANS: i64 = 10_000;

/// Sums over plans, each weighted by its trials.
#[derive(Default)]
struct Sums {
    plans: u64,
    trials: u64,
    ratio: f64,
    spread: f64,
    ranks: f64,
    ranked: f64,
}

impl Sums {
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
}

pub(super) async fn of_models(store: &SqliteStore) -> Result<Vec<ModelQuality>> {
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT body ->> '$.model_error.model' AS model, device_class, body ->> '$.problem.op' AS op,
                body ->> '$.model_error.trials' AS trials, body ->> '$.model_error.median_ratio' AS median_ratio,
                body ->> '$.model_error.spread' AS spread,
                body ->> '$.model_error.rank_correlation' AS rank_correlation
         FROM plans WHERE body ->> '$.model_error.model' IS NOT NULL ORDER BY created_at DESC LIMIT ?",
    )
    .bind(PLANS)
    .fetch_all(&store.readers)
    .await?;
    let mut sums: BTreeMap<(String, String, String), Sums> = BTreeMap::new();
    for row in &rows {
        let key = (row.model.clone(), row.device_class.clone(), row.op.clone());
        sums.entry(key).or_default().add(row)?;
    }
    Ok(sums
        .into_iter()
        .filter(|(_, sums)| sums.trials > 0)
        .map(|((model, class, op), sums)| ModelQuality {
            model,
            device_class: DeviceClass(class),
            op,
            plans: sums.plans,
            trials: sums.trials,
            median_ratio: (sums.ratio / sums.trials as f64).exp(),
            spread: (sums.spread / sums.trials as f64).sqrt().exp(),
            rank_correlation: (sums.ranked > 0.0).then(|| sums.ranks / sums.ranked),
        })
        .collect())
}
