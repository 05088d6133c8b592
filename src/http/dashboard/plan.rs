//! The plan page: the winner of one plan and why it won.

mod meaning;
mod parts;
mod words;

use crate::http::behalf::OnBehalf;
pub use words::ranking;

use super::bound;
use super::commands::{self, Command};
use super::format;
use super::jobs;
use super::pictures::roofline::{BOUND, Mark, Roofline, Times};
use super::shell::{Place, Shell, html};
use crate::domain::catalog::family::FamilyDescriptor;
use crate::domain::{Plan, PlanId};
use crate::explain::{self, Step};
use crate::http::error::Problem as Refusal;
use crate::http::extract::Path;
use crate::service::{ServiceError, catalog};
use crate::usage;
use askama::Template;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::StreamExt;
use parts::{ArrayRow, Fact, StepRow};
use words::Check;

#[derive(Template)]
#[template(path = "plan.html")]
struct Page {
    shell: Shell,
    problem: String,
    /// The matrix's name, or its digest if it has no name or is no longer stored.
    matrix: String,
    age: String,
    created: String,
    ways: Vec<usage::Way>,
    /// Why no bundle can be made of the plan, or what stands in the way of making one now.
    hindrance: Option<&'static str>,
    figures: Vec<Fact>,
    /// What the winner's family is called.
    winner: String,
    /// The winner's kernel, if it is known.
    family: Option<&'static FamilyDescriptor>,
    parameters: Vec<Parameter>,
    why: words::Why,
    roofline: Option<Roofline>,
    times: Times,
    /// Whether the winner's time has a 95 % interval, which the picture then draws.
    has_interval: bool,
    limit: String,
    /// Explanation of the bound, in one line.
    bound: &'static str,
    costs: Vec<Fact>,
    checks: Vec<Check>,
    model: Vec<String>,
    resources: Vec<Fact>,
    funnel: Vec<Step>,
    steps: Vec<StepRow>,
    arrays: Vec<ArrayRow>,
    has_source: bool,
    /// Address of the submit form, filled in so that it measures this plan's problem.
    measure: String,
    scratch: Vec<String>,
    host_run: Option<String>,
    provenance: Vec<Fact>,
    commands: Vec<Command>,
    plan: Plan,
}

/// A bundle is made of plan and matrix.
const NO_MATRIX: &str = "The matrix is not stored here. A bundle that is kept is still served; to make another, upload the matrix.";

struct Parameter {
    name: String,
    value: String,
    meaning: &'static str,
}

/// `GET /plans/{id}`.
pub async fn show(
    OnBehalf(app): OnBehalf,
    Path(id): Path<PlanId>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let plan = app.service.plan(&id).await?;
    // A plan outlives its matrix. Without the matrix only its digest is known, and the number of operations is not.
    let facts = match app.service.matrix(&plan.matrix).await {
        Ok(facts) => Some(facts),
        Err(ServiceError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let name = facts.as_ref().and_then(|facts| facts.name.clone());
    let entries = facts.as_ref().and_then(|facts| plan.problem.entries(facts));
    let flops = match (plan.problem.op().descriptor().has_levels, entries) {
        (false, Some(entries)) => 2.0 * entries as f64 * f64::from(plan.problem.columns()),
        _ => 0.0,
    };
    let marks = marks(&plan);
    let shell = Shell::new(&app, Place::Elsewhere);
    let candidate = &plan.candidate;
    let kernel = catalog().resolve(plan.problem.op(), plan.device.kind, candidate);
    let parameters = candidate.params.iter().map(|(name, value)| Parameter {
        name: name.clone(),
        value: meaning::value(value),
        meaning: kernel.and_then(|kernel| kernel.parameter(name)).map_or("", |known| known.meaning),
    });
    let server = commands::Server::new(&headers, &shell);
    let hindrance = usage::hindrance(&plan);
    html(&Page {
        ways: match hindrance {
            Some(_) => Vec::new(),
            None => usage::ways(&plan.id, &plan.problem, server.place()),
        },
        hindrance: hindrance.or_else(|| facts.is_none().then_some(NO_MATRIX)),
        commands: commands::of_plan(&plan, &server),
        shell,
        problem: words::problem(&plan.problem),
        matrix: name.unwrap_or_else(|| format::short(&plan.matrix)),
        age: format::ago(plan.created_at),
        created: plan.created_at.to_rfc3339(),
        figures: parts::figures(&plan),
        winner: format::family(candidate),
        family: kernel,
        parameters: parameters.collect(),
        why: words::why(&plan),
        roofline: Roofline::of(flops, plan.limit.bytes, plan.device.copy_gbps, &marks),
        times: Times::of(&marks),
        has_interval: marks.iter().any(|mark| mark.ci95_us.is_some()),
        limit: words::limit(&plan),
        bound: bound::meaning(plan.limit.bound),
        costs: parts::costs(&plan),
        checks: words::checks(&plan),
        model: words::model(&plan),
        resources: parts::resources(&plan),
        funnel: explain::steps(&plan.funnel, &plan.judged, plan.device.kind),
        steps: parts::steps(&plan),
        arrays: parts::arrays(&plan),
        has_source: plan.launch.as_ref().is_some_and(|launch| launch.source.is_some()),
        measure: jobs::like(&plan),
        scratch: parts::scratch(&plan),
        host_run: parts::host_run(&plan),
        provenance: parts::provenance(&plan),
        plan,
    })
}

fn marks(plan: &Plan) -> Vec<Mark> {
    let mark = |name, label: String, us, tone| Mark { name, label, us, ci95_us: None, tone };
    let mut marks: Vec<Mark> = Vec::new();
    marks.extend(plan.measured.as_ref().map(|measured| {
        let winner = mark("measured", "measured".to_owned(), measured.median_us, "ink");
        Mark { ci95_us: measured.interval_us(), ..winner }
    }));
    marks.extend(plan.predicted.as_ref().map(|predicted| {
        let label = match &plan.provenance.model {
            Some(model) => format!("predicted, ranked by {model}"),
            None => format!("predicted by {}", predicted.model),
        };
        mark("predicted", label, predicted.median_us, "warn")
    }));
    marks.extend(
        plan.baseline
            .as_ref()
            .map(|vendor| mark("baseline", vendor.to_string(), vendor.median_us, "idle")),
    );
    let bound = bound::time_name(plan.limit.bound).to_owned();
    marks.push(mark(BOUND, bound, plan.limit.us, "good"));
    marks
}

/// Most bytes of kernel source that are shown; the download has all of it.
const SHOWN_BYTES: usize = 400_000;

#[derive(Template)]
#[template(path = "plan_source.html")]
struct Source {
    text: String,
    lines: usize,
    bytes: String,
    cut: bool,
}

/// `GET /fragments/plans/{id}/source`: the kernel source, loaded on demand.
pub async fn source(OnBehalf(app): OnBehalf, Path(id): Path<PlanId>) -> Result<Response, Refusal> {
    let plan = app.service.plan(&id).await?;
    let digest = plan.launch.and_then(|launch| launch.source);
    let Some(digest) = digest else {
        return html(&Source { text: String::new(), lines: 0, bytes: String::new(), cut: false });
    };
    let mut blob = app.service.plan_blob(&id, &digest).await?;
    let mut read = Vec::new();
    while read.len() < SHOWN_BYTES {
        match blob.content.next().await {
            Some(part) => read.extend_from_slice(&part.map_err(Refusal::internal)?),
            None => break,
        }
    }
    let text = whole_lines(&read, SHOWN_BYTES);
    html(&Source {
        lines: text.lines().count(),
        bytes: format::bytes(blob.bytes),
        cut: (text.len() as u64) < blob.bytes,
        text,
    })
}

/// The text up to a limit, cut after a complete line.
fn whole_lines(read: &[u8], most: usize) -> String {
    if read.len() <= most {
        return String::from_utf8_lossy(read).into_owned();
    }
    let kept = &read[..most];
    let end = kept.iter().rposition(|&byte| byte == b'\n').map_or(most, |at| at + 1);
    String::from_utf8_lossy(&kept[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::whole_lines;

    #[test]
    fn truncated_text_ends_with_a_complete_line() {
        assert_eq!(whole_lines(b"ab\ncd\nef", 8), "ab\ncd\nef");
        assert_eq!(whole_lines(b"ab\ncd\nef", 7), "ab\ncd\n");
        assert_eq!(whole_lines(b"abcdef", 3), "abc");
    }
}
