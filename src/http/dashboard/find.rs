//! The search box: redirects from a name, a digest or an id to its page.

use super::failure::Rendered;
use super::format;
use super::shell::{Place, Shell, html};
use crate::domain::{Digest, JobId, LONGEST_NAME, Matrix, PlanId};
use crate::http::behalf::{OnBehalf, Served};
use crate::http::error::Problem;
use crate::http::extract::{PathName, Query};
use crate::service::{PageRequest, ServiceError, meant};
use askama::Template;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

/// Most matrices listed for an ambiguous name or prefix.
const MOST: u32 = 20;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    q: String,
}

#[derive(Template)]
#[template(path = "find.html")]
struct Page<'a> {
    shell: Shell,
    asked: &'a str,
    /// What kind of name the text looks like.
    kind: Kind,
    /// The matrices that match.
    several: Vec<Several>,
}

struct Several {
    digest: Digest,
    name: String,
}

/// Kind of query, by its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nothing,
    Digest,
    /// The first digits of a digest or of an id.
    Part,
    Id,
    Other,
}

pub async fn find(
    OnBehalf(app): OnBehalf,
    Query(asked): Query<Asked>,
) -> Result<Response, Problem> {
    let text = asked.q.trim().to_ascii_lowercase();
    if let Some(page) = page_of(&app, &text).await? {
        return Ok(Redirect::to(&page).into_response());
    }
    let asked = asked.q.trim();
    let several = several(&app, asked).await?;
    if let Some(one) = meant(&several, asked) {
        return Ok(Redirect::to(&format!("/matrices/{}", one.digest)).into_response());
    }
    let several: Vec<Several> = several.into_iter().map(Several::from).collect();
    let shown: String = asked.chars().take(LONGEST_NAME).collect();
    let kind = kind(&text);
    let found = !several.is_empty();
    let shell = Shell::new(&app, Place::Elsewhere);
    let mut response = html(&Page { shell, asked: &shown, kind, several })?;
    if kind != Kind::Nothing && !found {
        *response.status_mut() = StatusCode::NOT_FOUND;
        response.extensions_mut().insert(Rendered);
    }
    Ok(response)
}

/// The matrices whose digest or pattern digest begins with the text, or whose name contains it.
async fn several(app: &Served, text: &str) -> Result<Vec<Matrix>, Problem> {
    match text.is_empty() || text.chars().count() > LONGEST_NAME {
        true => Ok(Vec::new()),
        false => Ok(app.service.matrices_like(text, &PageRequest::first(MOST)).await?.items),
    }
}

impl From<Matrix> for Several {
    fn from(matrix: Matrix) -> Self {
        let name = matrix.name.unwrap_or_else(|| format::short(&matrix.digest));
        Self { digest: matrix.digest, name }
    }
}

/// Address of the page of the matrix, job or plan with this name.
async fn page_of(app: &Served, text: &str) -> Result<Option<String>, Problem> {
    if let Ok(digest) = text.parse::<Digest>() {
        let matrix = there(app.service.matrix(&digest).await)?;
        return Ok(matrix.map(|matrix| format!("/matrices/{}", matrix.digest)));
    }
    let Some(job) = <JobId as PathName>::parse(text) else { return Ok(None) };
    if let Some(work) = there(app.service.work(&job).await)? {
        return Ok(Some(format!("/jobs/{}", work.id())));
    }
    let plan = there(app.service.plan(&PlanId(job.0)).await)?;
    Ok(plan.map(|plan| format!("/plans/{}", plan.id)))
}

/// Turns "not found" into `None`; other errors remain errors.
pub fn there<T>(found: Result<T, ServiceError>) -> Result<Option<T>, Problem> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(ServiceError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn kind(text: &str) -> Kind {
    let hex = text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    match text.len() {
        0 => Kind::Nothing,
        64 if text.parse::<Digest>().is_ok() => Kind::Digest,
        _ if <JobId as PathName>::parse(text).is_some() => Kind::Id,
        ..64 if hex => Kind::Part,
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_query_is_recognised_by_its_form() {
        assert_eq!(kind(""), Kind::Nothing);
        assert_eq!(kind(&"ab".repeat(32)), Kind::Digest);
        assert_eq!(kind("0193a7c4-1111-7222-8333-444455556666"), Kind::Id);
        for part in ["0193a7c4-1111", "abcdef1234", &"a".repeat(63)] {
            assert_eq!(kind(part), Kind::Part);
        }
        for other in ["delaunay", &"g".repeat(64), &"a".repeat(65)] {
            assert_eq!(kind(other), Kind::Other);
        }
    }
}
