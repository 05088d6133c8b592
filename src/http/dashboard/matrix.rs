//! The matrix page: properties, pictures and plans of one matrix.

mod facts;
pub mod plan_row;

use super::commands::{self, Command};
use super::find::there;
use super::format;
use super::pictures::dots::Dots;
use super::pictures::{histogram, level_widths};
use super::shell::{Place, Shell, html};
use crate::domain::profile::LevelProfile;
use crate::domain::{Digest, Matrix, MatrixProfile};
use crate::http::behalf::{OnBehalf, Served};
use crate::http::error::{Kind, Problem};
use crate::http::extract::Path;
use crate::service::{PAGE_SPY, PageRequest};
use askama::Template;
use axum::http::HeaderMap;
use axum::response::Response;
use facts::Group;
use plan_row::PlanRow;

/// Most plans shown for one matrix.
pub const MOST_PLANS: u32 = 200;

#[derive(Template)]
#[template(path = "matrix.html")]
struct Page {
    shell: Shell,
    name: Option<String>,
    digest: Digest,
    pattern: Digest,
    age: String,
    created_at: String,
    size: String,
    /// Width and height of the sparsity picture, so that the layout does not shift when it loads.
    spy: (u64, u64),
    square: bool,
    groups: Vec<Group>,
    /// Measured plans first; then predicted plans for keys without a measured one.
    plans: Vec<PlanRow>,
    more_plans: bool,
    commands: Vec<Command>,
}

pub async fn show(
    OnBehalf(app): OnBehalf,
    Path(digest): Path<Digest>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let matrix = stored(&app, &digest).await?;
    let page = PageRequest { after: None, limit: MOST_PLANS };
    let plans = app.service.plans_of(&digest, &page).await?;
    let predicted = app.service.unmeasured_of(&digest, MOST_PLANS).await?;
    let shell = Shell::new(&app, Place::Matrices);
    // Of the first operation that has a plan: its commands are the shorter ones.
    let like = plans.items.iter().map(|plan| &plan.problem).min_by_key(|problem| problem.op());
    let server = commands::Server::new(&headers, &shell);
    html(&Page {
        commands: commands::of_matrix(&digest, like, &server),
        shell,
        digest,
        pattern: matrix.pattern_digest,
        age: format::ago(matrix.created_at),
        created_at: matrix.created_at.to_rfc3339(),
        size: size(&matrix),
        spy: spy_size(matrix.rows, matrix.cols),
        square: matrix.rows == matrix.cols,
        groups: facts::of(&matrix),
        plans: plans.items.iter().chain(&predicted).map(|p| PlanRow::of(p, &digest)).collect(),
        more_plans: plans.next.is_some(),
        name: matrix.name,
    })
}

/// `32,768 × 32,768, 196,548 nonzeros`.
pub fn size(matrix: &Matrix) -> String {
    let [rows, cols, nnz] = [matrix.rows, matrix.cols, matrix.nnz].map(format::count);
    format!("{rows} × {cols}, {nnz} nonzeros")
}

/// The matrix, or an error that says why there may be none with this digest (plans outlive their matrix).
pub async fn stored(app: &Served, digest: &Digest) -> Result<Matrix, Problem> {
    let problem = match app.service.matrix(digest).await {
        Ok(matrix) => return Ok(matrix),
        Err(error) => Problem::from(error),
    };
    if problem.kind() != Kind::NotFound {
        return Err(problem);
    }
    let page = PageRequest { after: None, limit: 1 };
    let plans = there(app.service.plans_of(digest, &page).await)?;
    let why = if plans.is_some_and(|plans| !plans.items.is_empty()) {
        "it was deleted; its plans are kept, and GET /v1/plans finds them by the same digest. Upload it again to see it \
         here"
    } else {
        "it was deleted or never uploaded, or this is a pattern digest"
    };
    Err(Problem::new(Kind::NotFound, format!("there is no matrix {digest}: {why}")))
}

/// Size of the picture in pixels: the longer side is [`PAGE_SPY`], the other follows the matrix's shape.
fn spy_size(rows: u64, cols: u64) -> (u64, u64) {
    let longest = u128::from(rows.max(cols).max(1));
    let side = |length: u64| {
        let pixels = (u128::from(PAGE_SPY) * u128::from(length)).div_ceil(longest);
        u64::try_from(pixels).unwrap_or(PAGE_SPY.into()).max(1)
    };
    (side(cols), side(rows))
}

/// A picture with its summary in words.
struct Drawn {
    heading: &'static str,
    summary: String,
    picture: Option<Dots>,
}

#[derive(Template)]
#[template(path = "matrix_profile.html")]
struct Profile {
    lengths: Drawn,
    levels: Vec<Drawn>,
}

pub async fn profile(
    OnBehalf(app): OnBehalf,
    Path(digest): Path<Digest>,
) -> Result<Response, Problem> {
    let matrix = stored(&app, &digest).await?;
    let profile = app.service.matrix_profile(&digest).await?;
    html(&drawn(&matrix, &profile))
}

fn drawn(matrix: &Matrix, profile: &MatrixProfile) -> Profile {
    let longest = matrix.features.row_nnz.max;
    let level = |heading, triangle, levels: &LevelProfile| Drawn {
        heading,
        summary: level_widths::summary(matrix.rows, levels),
        picture: level_widths::of(triangle, matrix.rows, levels),
    };
    let lower = profile.lower.as_ref().map(|levels| level("Lower triangle", "lower", levels));
    let upper = profile.upper.as_ref().map(|levels| level("Upper triangle", "upper", levels));
    Profile {
        lengths: Drawn {
            heading: "Row lengths",
            summary: histogram::summary(&profile.row_nnz, longest),
            picture: histogram::of(&profile.row_nnz, longest),
        },
        levels: lower.into_iter().chain(upper).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::spy_size;

    #[test]
    fn the_picture_has_the_aspect_ratio_of_the_matrix() {
        assert_eq!(spy_size(10, 10), (640, 640));
        assert_eq!(spy_size(256, 2304), (640, 72));
        assert_eq!(spy_size(1_000_000, 64), (1, 640));
        assert_eq!(spy_size(0, 0), (1, 1));
        assert_eq!(spy_size(u64::MAX, 1), (1, 640));
    }
}
