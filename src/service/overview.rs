//! What the service has learnt, at a glance: plans, speed-ups and shares of the limit by class of device, and how well its models choose.

use super::{Result, Service};
use crate::domain::learned::Scope;
use crate::domain::{DeviceClass, Digest, ModelId, Timestamp};
use crate::store::{PlanFigures, PlanTally};
use std::collections::{BTreeMap, HashMap};

/// Most plans that figures are taken of, the newest.
const PLANS: u32 = 2000;

#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// All measured plans.
    pub plans: u64,
    /// Those that the figures are of: the newest.
    pub counted: u64,
    /// With most plans first.
    pub classes: Vec<ClassFigures>,
    pub models: Vec<Learnt>,
}

/// The plans of a class of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassFigures {
    pub class: DeviceClass,
    pub plans: u64,
    /// Median speed-up over the vendor's routine, of the plans that have one.
    pub speedup: Option<f64>,
    /// Median share of the device's limit.
    pub limit_fraction: Option<f64>,
}

/// The models of an operation on a class of devices, in the order in which they were trained.
#[derive(Clone, Debug, PartialEq)]
pub struct Learnt {
    pub scope: Scope,
    pub versions: Vec<LearntVersion>,
}

/// How well a model chose on matrices that it was not trained on.
#[derive(Clone, Debug, PartialEq)]
pub struct LearntVersion {
    pub id: ModelId,
    pub made: Timestamp,
    pub active: bool,
    /// Share of the best performance that its first choice reaches, and the best of its first ten.
    pub first: f64,
    pub tenth: f64,
}

impl Service {
    /// How many plans each of these matrices has, and the best speed-up among them; those without plans are absent.
    pub async fn plan_tallies(&self, matrices: &[Digest]) -> Result<HashMap<Digest, PlanTally>> {
        Ok(self.store.plan_tallies(matrices).await?)
    }

    pub async fn overview(&self) -> Result<Overview> {
        let (plans, figures) = self.store.plan_figures(PLANS).await?;
        Ok(Overview {
            plans,
            counted: figures.len() as u64,
            classes: classes(&figures),
            models: self.learnt().await?,
        })
    }

    async fn learnt(&self) -> Result<Vec<Learnt>> {
        let mut scopes: BTreeMap<Scope, Vec<LearntVersion>> = BTreeMap::new();
        for standing in self.learned_models().await? {
            let model = &standing.model;
            let own =
                model.quality.rankers.iter().find(|ranker| ranker.name == model.learner.name());
            let at = |k| Some(own?.at.iter().find(|at| at.k == k)?.share);
            let (Some(first), Some(tenth)) = (at(1), at(10)) else { continue };
            scopes.entry(model.scope.clone()).or_default().push(LearntVersion {
                id: model.id.clone(),
                made: model.created_at,
                active: standing.active,
                first,
                tenth,
            });
        }
        let learnt = scopes.into_iter().map(|(scope, mut versions)| {
            versions.sort_by_key(|version| version.made.0);
            Learnt { scope, versions }
        });
        Ok(learnt.collect())
    }
}

fn classes(figures: &[PlanFigures]) -> Vec<ClassFigures> {
    let mut by_class: BTreeMap<&DeviceClass, Vec<&PlanFigures>> = BTreeMap::new();
    for plan in figures {
        by_class.entry(&plan.class).or_default().push(plan);
    }
    let of = |(class, plans): (&DeviceClass, Vec<&PlanFigures>)| ClassFigures {
        class: class.clone(),
        plans: plans.len() as u64,
        speedup: median(plans.iter().filter_map(|plan| plan.speedup)),
        limit_fraction: median(plans.iter().filter_map(|plan| plan.fraction)),
    };
    let mut classes: Vec<ClassFigures> = by_class.into_iter().map(of).collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.plans));
    classes
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[middle - 1] + upper) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_medians_and_those_with_most_plans_come_first() {
        let plan = |class: &str, speedup: Option<f64>, fraction: f64| PlanFigures {
            class: DeviceClass(class.to_owned()),
            speedup,
            fraction: Some(fraction),
        };
        let all = [
            plan("a", Some(9.0), 0.5),
            plan("b", Some(1.0), 0.2),
            plan("b", None, 0.4),
            plan("b", Some(3.0), 0.9),
        ];
        let found = classes(&all);
        let told: Vec<_> = found
            .iter()
            .map(|class| (class.class.0.as_str(), class.plans, class.speedup, class.limit_fraction))
            .collect();
        assert_eq!(told, [("b", 3, Some(2.0), Some(0.4)), ("a", 1, Some(9.0), Some(0.5))]);
        assert!(classes(&[]).is_empty());
    }
}
