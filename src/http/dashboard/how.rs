//! How it searches: the families and rules in general, and the story of one plan's search with its numbers.

use super::find::there;
use super::format;
use super::shell::{Place, Shell, html};
use crate::domain::candidate::VENDOR;
use crate::domain::catalog::family::FamilyDescriptor;
use crate::domain::catalog::operation::Operation;
use crate::domain::catalog::rules::{self, Rule};
use crate::domain::{DeviceKind, JobState, Op, Outcome, Plan, PlanId};
use crate::explain::{self, Chapter, OfFamily, Record, Search};
use crate::http::behalf::{OnBehalf, Served};
use crate::http::error::Problem;
use crate::http::extract::Path;
use crate::service::{JobFilter, PageRequest, ServiceError, catalog};
use askama::Template;
use axum::response::Response;

/// Searches that the general page links.
const NEWEST: u32 = 8;

/// Pruned candidates that are asked for where one is enough: a sample of about this size.
const FEW: u32 = 8;

/// Most trials that are read for the best times of families; they come in the order in which they were made.
const MOST_TRIED: u32 = 4000;

#[derive(Template)]
#[template(path = "how.html")]
struct General {
    shell: Shell,
    operations: Vec<Families>,
    rules: Vec<&'static Rule>,
    newest: Vec<Newest>,
}

/// An operation with our kernels for it.
struct Families {
    operation: &'static Operation,
    families: Vec<&'static FamilyDescriptor>,
}

/// A finished search.
struct Newest {
    plan: PlanId,
    matrix: String,
    problem: String,
    age: String,
}

/// `GET /how`.
pub async fn show(OnBehalf(app): OnBehalf) -> Result<Response, Problem> {
    let done = JobFilter { state: Some(JobState::Succeeded), ..JobFilter::default() };
    let jobs = app.service.jobs(&done, &PageRequest::first(NEWEST)).await?.items;
    let matrices: Vec<_> = jobs.iter().map(|job| job.request.matrix).collect();
    let names = app.service.matrix_names(&matrices).await?;
    let newest = jobs.into_iter().filter_map(|job| {
        let matrix = job.request.matrix;
        Some(Newest {
            plan: job.plan?,
            matrix: names.get(&matrix).cloned().unwrap_or_else(|| format::short(&matrix)),
            problem: format::problem_words(&job.request.problem),
            age: format::ago(job.created_at),
        })
    });
    let families = |op: Op| Families {
        operation: op.descriptor(),
        families: catalog().of(op).filter(|family| family.is_own()).collect(),
    };
    html(&General {
        shell: Shell::new(&app, Place::How),
        operations: Op::ALL.map(families).into(),
        rules: rules::all().collect(),
        newest: newest.collect(),
    })
}

#[derive(Template)]
#[template(path = "search.html")]
struct Story {
    shell: Shell,
    plan: Plan,
    matrix: String,
    problem: String,
    chapters: Vec<Chapter>,
}

/// `GET /plans/{id}/search`.
pub async fn of_plan(OnBehalf(app): OnBehalf, Path(id): Path<PlanId>) -> Result<Response, Problem> {
    let plan = app.service.plan(&id).await?;
    let facts = match app.service.matrix(&plan.matrix).await {
        Ok(facts) => Some(facts),
        Err(ServiceError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let families = families(&app, &plan).await?;
    let shape = facts.as_ref().map(|facts| [facts.rows, facts.cols, facts.nnz]);
    let chapters = explain::chapters(&Search::of(&plan, catalog(), families, shape));
    let name = facts.and_then(|facts| facts.name);
    html(&Story {
        shell: Shell::new(&app, Place::How),
        matrix: name.unwrap_or_else(|| format::short(&plan.matrix)),
        problem: format::problem_words(&plan.problem),
        chapters,
        plan,
    })
}

/// What became of the candidates by family; empty if the job's trials are no longer stored.
async fn families(app: &Served, plan: &Plan) -> Result<Vec<OfFamily>, Problem> {
    let Some(job) = &plan.provenance.job else { return Ok(Vec::new()) };
    let counts = there(app.service.trial_counts(job).await)?.unwrap_or_default();
    let tried = there(app.service.tried(job, MOST_TRIED).await)?.unwrap_or_default();
    let own = |family: &str| family != VENDOR;
    let counted = counts.iter().filter(|of| own(&of.family)).map(|of| Record {
        family: &of.family,
        count: of.count,
        us: None,
        candidate: None,
    });
    let timed = tried.iter().filter(|trial| own(&trial.candidate.family)).map(|trial| Record {
        family: &trial.candidate.family,
        count: 0,
        us: trial.state.outcome().and_then(Outcome::median_us),
        candidate: Some(trial.candidate.clone()),
    });
    let mut all = explain::by_family(counted.chain(timed));
    // Of a family of which none was tried, one that a rule removed tells which kernel of its name it is.
    for of in all.iter_mut().filter(|of| of.example.is_none()) {
        let removed = there(app.service.pruned_of(job, &of.family, FEW).await)?.unwrap_or_default();
        of.example = removed.into_iter().next().map(|trial| trial.candidate);
    }
    Ok(all)
}
