//! Lookup: the plan for a matrix given by its digest, how well it matches, and why there is no better match.

use super::devices::{AUTO, Known, class_of};
use super::guesses::{Found, Guess, MOST_STORED};
use super::{Result, Service, neighbours};
use crate::domain::candidate::EQUAL;
use crate::domain::drift::{Check, Verdict};
use crate::domain::plan::PlanKey;
use crate::domain::{Device, DeviceClass, Digest, Grade, L2Policy, Lookup, Matrix, Plan, Problem};
use metrics::counter;
use tokio::time::Instant;

/// The parameters of a lookup. Nothing needs to be uploaded: plans outlive their matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct LookupQuery {
    /// Digest of a matrix, or a pattern digest.
    pub matrix: Digest,
    pub problem: Problem,
    /// A device's id, a device class, or `auto`, the default.
    pub device: Option<String>,
    /// The default is the policy that this service tunes with.
    pub l2_policy: Option<L2Policy>,
    /// Accept the plan of the nearest matrix at any distance.
    pub neighbour: bool,
    /// Accept a plan predicted by a model if there is no measured one.
    pub predicted: bool,
}

/// How a plan that is in the answer alone is told, up to why it is; the command line has its own words for it.
pub const UNSTORED: &str = "it is not stored and cannot be found by its id";
/// What stores such a plan, and what measures one, as requests of the API.
pub const STORED_BY_POST: &str = "the same lookup by POST stores it";
pub const MEASURED_BY_POST: &str = "POST /v1/jobs measures it";

/// What is said of a predicted plan.
pub(crate) fn of_predicted(model: &str) -> String {
    format!("this plan is predicted by {model} and was not measured: {MEASURED_BY_POST}")
}

/// Why it is not in the store, if it is not.
pub(crate) fn of_unstored(found: &Found) -> Option<String> {
    let why = match found {
        Found::Stored => return None,
        Found::Made => STORED_BY_POST.to_owned(),
        Found::NoRoom => format!("the pattern already has {MOST_STORED} predicted plans"),
        Found::OverQuota(exceeded) => exceeded.to_string(),
    };
    Some(format!("{UNSTORED}: {why}"))
}

/// What a lookup may leave behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    Nothing,
    Predictions,
}

/// Number of plans searched for a neighbour, newest first.
const NEIGHBOURS: u32 = 1000;
/// Maximum number of keys named in the reasons of a `none`.
const CLOSEST: usize = 3;

impl Service {
    /// Answers, and changes nothing: a prediction that is made for it is remembered by this process alone.
    pub async fn lookup(&self, query: &LookupQuery) -> Result<Lookup> {
        self.counted(query, Keeping::Nothing).await
    }

    /// [`Self::lookup`] with what may follow of it: a prediction is stored under its id, and a measuring job is queued where
    /// nothing was measured, if the operator permits it.
    pub async fn lookup_and_keep(&self, query: &LookupQuery) -> Result<Lookup> {
        self.counted(query, Keeping::Predictions).await
    }

    async fn counted(&self, query: &LookupQuery, keeping: Keeping) -> Result<Lookup> {
        let answer = match query.problem.parts() {
            None => self.look(query, keeping).await?,
            Some(parts) => self.look_for_both(query, parts, keeping).await?,
        };
        // Lookups answered from the cache do not get here.
        let grade = grade_name(answer.grade);
        counter!("sparsetune_lookups_total", "grade" => grade, "source" => "store").increment(1);
        Ok(answer)
    }

    /// The plans of both triangles, which match as well as the worse of them does; or neither.
    async fn look_for_both(
        &self,
        query: &LookupQuery,
        parts: [Problem; 2],
        keeping: Keeping,
    ) -> Result<Lookup> {
        let [first, second] = parts.map(|problem| LookupQuery { problem, ..query.clone() });
        let (first, second) =
            (self.look(&first, keeping).await?, self.look(&second, keeping).await?);
        Ok(both(parts, first, second))
    }

    async fn look(&self, query: &LookupQuery, keeping: Keeping) -> Result<Lookup> {
        let store = &self.store;
        let device = query.device.as_deref().unwrap_or(AUTO);
        let known = self.known_lately().await?;
        let device_class = class_of(device, &known)?;
        if let Some(device_class) = &device_class {
            let key = PlanKey {
                pattern_digest: query.matrix,
                problem: query.problem,
                device_class: device_class.clone(),
                l2_policy: query.l2_policy.unwrap_or(self.inner.settings.l2_policy),
            };
            let plan = store.plan_for(&query.matrix, &key).await?;
            if let Some(plan) = plan.filter(|plan| holds_for(plan, query.matrix, None)) {
                return self.grade(plan, &key.device_class, &known).await;
            }
        }
        let facts = store.known_matrix(&query.matrix).await?;
        let pattern_digest = facts.as_ref().map_or(query.matrix, |facts| facts.pattern_digest);
        let Some(device_class) = device_class else {
            let known = store.plan_keys(&pattern_digest).await?;
            return Ok(none(without_devices(device, &pattern_digest, known)));
        };
        let key = PlanKey {
            pattern_digest,
            problem: query.problem,
            device_class,
            l2_policy: query.l2_policy.unwrap_or(self.inner.settings.l2_policy),
        };
        let mut reasons = match self.measured_plan(&key).await? {
            Some(plan) if holds_for(&plan, query.matrix, facts.as_ref()) => {
                return self.grade(plan, &key.device_class, &known).await;
            }
            Some(plan) => vec![format!(
                "a plan of this pattern exists, but it holds only for the values of matrix {}",
                plan.matrix
            )],
            None => differences(&key, &store.plan_keys(&key.pattern_digest).await?),
        };
        match facts {
            Some(facts) => {
                let answer = self.neighbour(query, &key, &facts, reasons).await?;
                self.missed((query, keeping), &key, &facts.digest, answer).await
            }
            None => {
                reasons.push(
                    "the matrix is not known here, so its neighbours are not known either"
                        .to_owned(),
                );
                Ok(none(reasons))
            }
        }
    }

    /// The alternatives if no measured plan is known: a plan is predicted if no neighbour is near enough, and a measuring job is
    /// queued if that is asked for and the operator permits it. Both require the matrix and a device.
    async fn missed(
        &self,
        (query, keeping): (&LookupQuery, Keeping),
        key: &PlanKey,
        digest: &Digest,
        mut answer: Lookup,
    ) -> Result<Lookup> {
        let Some(matrix) = self.store.matrix(digest).await? else {
            if answer.plan.is_none() {
                answer.reasons.push(
                    "the matrix itself is not stored here, so nothing can be predicted".to_owned(),
                );
            }
            return Ok(answer);
        };
        let known = self.ranked_devices().await?;
        let Some(device) = known.iter().find(|device| device.class() == key.device_class) else {
            return Ok(answer);
        };
        let until = Instant::now() + self.inner.settings.prediction_wait;
        if keeping == Keeping::Predictions {
            answer.reasons.extend(self.measure_miss(key, &matrix, device, until).await?);
        }
        if answer.plan.is_some() || !query.predicted {
            return Ok(answer);
        }
        match self.guess((key, keeping), &matrix, device, until).await? {
            Guess::Plan { plan, found } => {
                let analytic = plan.predicted.as_ref().map(|said| said.model.clone());
                let model = plan.provenance.ranked_by().or(analytic);
                let model = model.unwrap_or_else(|| "no model".to_owned());
                answer.reasons.push(of_predicted(&model));
                answer.reasons.extend(of_unstored(&found));
                Ok(Lookup { grade: Grade::Predicted, plan: Some(*plan), ..answer })
            }
            Guess::None(why) => {
                answer.reasons.push(why);
                Ok(answer)
            }
        }
    }

    /// Exact or stale, according to what is known about the class today, and to what measuring the plan again said.
    async fn grade(&self, plan: Plan, class: &DeviceClass, known: &[Known]) -> Result<Lookup> {
        self.used(&plan.id);
        let checks = self.checks().await?;
        let check = checks.get(&plan.id);
        let here: Vec<&Device> =
            known.iter().filter(|known| known.class == *class).map(|known| &known.device).collect();
        let changes = Self::changes(&plan, &here);
        let drifted = check.is_some_and(|check| check.verdict == Verdict::Drifted);
        let grade = if changes.is_empty() && !drifted { Grade::Exact } else { Grade::Stale };
        let mut reasons = changes;
        reasons.extend(check.map(Check::told));
        reasons.extend(plan.expected_calls.map(|calls| {
            format!(
                "the plan was chosen for {calls} calls, preprocessing counted: for another number of calls another \
                 candidate may cost less in all"
            )
        }));
        reasons.extend(plan.provenance.narrowed.as_ref().map(|how| {
            format!("the search for this plan was narrowed ({how}): another may find a faster one")
        }));
        if plan.candidate.params.contains_key(EQUAL) {
            reasons.push(
                "all values of the plan's matrix are equal, so its kernel reads one of them: with other values it is right, \
                 too, but slower than measured"
                    .to_owned(),
            );
        }
        reasons.extend(plan.origin());
        if here.is_empty() {
            reasons.push(format!(
                "no device of class {class} is registered, so today's software could not be compared with the plan's"
            ));
        }
        Ok(Lookup {
            grade,
            reasons,
            neighbour: None,
            distance: None,
            plan: Some(plan),
            second: None,
        })
    }

    pub(super) fn changes(plan: &Plan, here: &[&Device]) -> Vec<String> {
        let mut changes = Vec::new();
        let then = &plan.provenance.environment;
        if let Some(first) = here.first()
            && !here.iter().any(|device| device.environment() == *then)
        {
            changes.push(format!(
                "the software around the device changed: tuned with `{then}`, now `{}`",
                first.environment()
            ));
        }
        let dense = plan.device.dense_vendor.as_deref();
        if let Some(first) = here.first()
            && plan.candidate.is_densified()
            && !here.iter().any(|device| device.dense_vendor.as_deref() == dense)
        {
            let named = |library: Option<&str>| library.unwrap_or("none").to_owned();
            let (then, now) = (named(dense), named(first.dense_vendor.as_deref()));
            changes.push(format!(
                "the library for dense products changed: then `{then}`, now `{now}`"
            ));
        }
        let family = &plan.candidate.family;
        let now = here.first().and_then(|device| device.kernels.get(family));
        if now.is_some_and(|now| Some(*now) != plan.provenance.kernel_digest) {
            changes.push(format!(
                "the kernel text of family {family} changed since the plan was made"
            ));
        }
        changes
    }

    async fn neighbour(
        &self,
        query: &LookupQuery,
        key: &PlanKey,
        facts: &Matrix,
        mut reasons: Vec<String>,
    ) -> Result<Lookup> {
        let store = &self.store;
        let among =
            store.plans_for(&key.problem, &key.device_class, key.l2_policy, NEIGHBOURS).await?;
        let Some((distance, (matrix, id))) = neighbours::nearest(facts, &key.problem, among) else {
            return Ok(none(reasons));
        };
        let bound = self.inner.settings.neighbour_distance;
        let who = matrix.name.map_or_else(String::new, |name| format!(" ({name})"));
        let who = format!("{}{who}", matrix.digest);
        if distance > bound && !query.neighbour {
            reasons.push(format!(
                "the nearest matrix with such a plan, {who}, is {distance:.3} away, beyond {bound}; \
                 ask for neighbours to get its plan all the same"
            ));
            return Ok(none(reasons));
        }
        reasons.push(format!(
            "this plan was made for the nearest matrix, {who}, {distance:.3} away by features"
        ));
        if query.problem.op().descriptor().arrays_follow_matrix {
            reasons.push(
                "the arrays of its launch belong to that matrix: only the candidate carries over, to be lowered for the \
                 matrix asked for"
                    .to_owned(),
            );
        }
        let plan = store.plan(&id).await?;
        Ok(Lookup {
            grade: Grade::Neighbour,
            reasons,
            neighbour: Some(matrix.digest),
            distance: Some(distance),
            plan,
            second: None,
        })
    }
}

/// Whether a plan of the pattern applies to the given matrix: its values may have to be the same.
fn holds_for(plan: &Plan, asked: Digest, facts: Option<&Matrix>) -> bool {
    plan.validity.values_may_change
        || plan.matrix == asked
        || facts.is_some_and(|facts| facts.digest == plan.matrix)
}

/// One answer of two. Grades are ordered from the best to the worst.
fn both(parts: [Problem; 2], first: Lookup, second: Lookup) -> Lookup {
    let of = |part: &Problem| part.value("triangle").map(|it| it.to_string()).unwrap_or_default();
    let told = |part: &Problem, reasons: Vec<String>| {
        let triangle = of(part);
        reasons
            .into_iter()
            .map(move |why| format!("{triangle} triangle: {why}"))
            .collect::<Vec<_>>()
    };
    let mut reasons = told(&parts[0], first.reasons);
    reasons.extend(told(&parts[1], second.reasons));
    let (Some(plan), Some(other)) = (first.plan, second.plan) else { return none(reasons) };
    // Plans may hold for all matrices of a pattern, but the two of a pair have to be of one.
    if plan.matrix != other.matrix {
        let (one, two) = (plan.matrix, other.matrix);
        reasons.push(format!(
            "the plans that were found, {} of matrix {one} and {} of matrix {two}, cannot be run as a pair: ask for both triangles of one \
             matrix by one job",
            plan.id, other.id
        ));
        return none(reasons);
    }
    // The farther of two neighbours is the worse match.
    let farther = if second.distance > first.distance { second.neighbour } else { first.neighbour };
    Lookup {
        grade: first.grade.max(second.grade),
        reasons,
        neighbour: farther,
        distance: if second.distance > first.distance { second.distance } else { first.distance },
        plan: Some(plan),
        second: Some(other),
    }
}

fn none(reasons: Vec<String>) -> Lookup {
    Lookup {
        grade: Grade::None,
        reasons,
        neighbour: None,
        distance: None,
        plan: None,
        second: None,
    }
}

/// Why there is no answer if no device is known, and which class names to use.
fn without_devices(device: &str, pattern: &Digest, known: Vec<PlanKey>) -> Vec<String> {
    let first = format!("no device is registered yet, so `{device}` names no device class");
    let mut classes: Vec<String> = known.into_iter().map(|key| key.device_class.0).collect();
    classes.sort_unstable();
    classes.dedup();
    let second = if classes.is_empty() {
        unplanned(pattern)
    } else {
        let classes = classes.join(", ");
        format!("plans of this pattern exist for other names of `device`: {classes}; ask for one")
    };
    vec![first, second]
}

fn unplanned(pattern: &Digest) -> String {
    format!("no plan is known for the pattern {pattern}")
}

/// How the key differs from the closest keys of the same pattern.
fn differences(key: &PlanKey, known: &[PlanKey]) -> Vec<String> {
    let mut all: Vec<Vec<String>> = known.iter().map(|known| differing(key, known)).collect();
    let Some(fewest) = all.iter().map(Vec::len).min() else {
        return vec![unplanned(&key.pattern_digest)];
    };
    all.retain(|differing| differing.len() == fewest);
    all.truncate(CLOSEST);
    all.into_iter()
        .map(|fields| format!("the closest plan differs: {}", fields.join("; ")))
        .collect()
}

fn differing(asked: &PlanKey, found: &PlanKey) -> Vec<String> {
    let mut fields = Vec::new();
    let mut compare = |what: &str, asked: String, found: String| {
        if asked != found {
            fields.push(format!("its {what} is {found}, not {asked}"));
        }
    };
    match asked.problem.op() == found.problem.op() {
        true => {
            for ((field, asked), (_, found)) in asked.problem.fields().zip(found.problem.fields()) {
                compare(field.name, asked.to_string(), found.to_string());
            }
        }
        false => compare("problem", asked.problem.to_string(), found.problem.to_string()),
    }
    compare("device class", asked.device_class.to_string(), found.device_class.to_string());
    compare("L2 policy", asked.l2_policy.to_string(), found.l2_policy.to_string());
    fields
}

const fn grade_name(grade: Grade) -> &'static str {
    match grade {
        Grade::Exact => "exact",
        Grade::Stale => "stale",
        Grade::Neighbour => "neighbour",
        Grade::Predicted => "predicted",
        Grade::None => "none",
    }
}
