//! What the service has learnt, at a glance.

use super::behalf::OnBehalf;
use super::error::Problem;
use crate::service::Overview;
use crate::wire;
use axum::Json;

pub async fn show(OnBehalf(app): OnBehalf) -> Result<Json<wire::Overview>, Problem> {
    Ok(Json(app.service.overview().await?.into()))
}

impl From<Overview> for wire::Overview {
    fn from(overview: Overview) -> Self {
        let class = |class: crate::service::ClassFigures| wire::ClassFigures {
            device_class: class.class,
            plans: class.plans,
            median_speedup: class.speedup,
            median_limit_fraction: class.limit_fraction,
        };
        let version = |version: crate::service::LearntVersion| wire::LearntVersion {
            id: version.id,
            created_at: version.made.to_rfc3339(),
            active: version.active,
            first: version.first,
            tenth: version.tenth,
        };
        let learnt = |learnt: crate::service::Learnt| wire::Learnt {
            op: learnt.scope.op,
            device_class: learnt.scope.device_class,
            versions: learnt.versions.into_iter().map(version).collect(),
        };
        Self {
            plans: overview.plans,
            counted: overview.counted,
            classes: overview.classes.into_iter().map(class).collect(),
            models: overview.models.into_iter().map(learnt).collect(),
        }
    }
}
