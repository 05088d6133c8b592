//! Figures of many plans, read from their stored form without decoding it.

use super::{SqlStore, codec, db};
use crate::domain::{DeviceClass, Digest};
use crate::store::{PlanFigures, PlanTally, Result};
use std::collections::HashMap;

const BY_MATRIX: &str = "SELECT matrix, COUNT(*), MAX(CAST(body ->> '$.speedup' AS DOUBLE PRECISION))
     FROM plans WHERE namespace = $1 AND matrix IN (SELECT unhex(value) FROM json_each($2)) GROUP BY matrix";

const NEWEST: &str = "SELECT device_class, CAST(body ->> '$.speedup' AS DOUBLE PRECISION),
         CAST(body ->> '$.limit.fraction' AS DOUBLE PRECISION)
     FROM plans WHERE namespace = $1 AND predicted = 0 ORDER BY created_at DESC, id DESC LIMIT $2";

const COUNT: &str = "SELECT COUNT(*) FROM plans WHERE namespace = $1 AND predicted = 0";

pub(super) async fn by_matrix(
    store: &SqlStore,
    matrices: &[Digest],
) -> Result<HashMap<Digest, PlanTally>> {
    let hex: Vec<String> = matrices.iter().map(Digest::to_string).collect();
    let rows: Vec<(Vec<u8>, i64, Option<f64>)> = db::query_as(BY_MATRIX)
        .bind(store.namespace())
        .bind(codec::encode_part("digests", &hex)?)
        .fetch_all(&store.readers)
        .await?;
    let tally = |(digest, plans, speedup): (Vec<u8>, i64, Option<f64>)| {
        let digest = codec::digest("matrix digest", &digest)?;
        Ok((digest, PlanTally { plans: codec::count("plans of a matrix", plans)?, speedup }))
    };
    rows.into_iter().map(tally).collect()
}

pub(super) async fn newest(store: &SqlStore, most: u32) -> Result<(u64, Vec<PlanFigures>)> {
    let all: i64 =
        db::query_scalar(COUNT).bind(store.namespace()).fetch_one(&store.readers).await?;
    let rows: Vec<(String, Option<f64>, Option<f64>)> = db::query_as(NEWEST)
        .bind(store.namespace())
        .bind(i64::from(most))
        .fetch_all(&store.readers)
        .await?;
    let figures = rows.into_iter().map(|(class, speedup, fraction)| PlanFigures {
        class: DeviceClass(class),
        speedup,
        fraction,
    });
    Ok((codec::count("plans", all)?, figures.collect()))
}
