//! The list of stored matrices.

use super::format;
use super::shell::{Place, Shell, html};
use crate::domain::Matrix;
use crate::http::behalf::OnBehalf;
use crate::http::error::Problem;
use crate::http::extract::Query;
use crate::http::page::PageQuery;
use askama::Template;
use axum::response::Response;

#[derive(Template)]
#[template(path = "matrices.html")]
struct Page {
    shell: Shell,
    rows: Vec<Row>,
    /// The cursor of the next page.
    older: Option<String>,
    /// This is not the first page.
    further: bool,
}

/// A matrix as one table row; other pages use it too.
pub struct Row {
    pub name: Option<String>,
    pub digest: String,
    pub short: String,
    pub shape: String,
    pub nnz: String,
    pub mean: String,
    pub longest: String,
    pub symmetric: bool,
    pub levels: Option<String>,
    pub age: String,
    pub created_at: String,
}

impl From<Matrix> for Row {
    fn from(matrix: Matrix) -> Self {
        let features = &matrix.features;
        Self {
            digest: matrix.digest.to_string(),
            short: format::short(&matrix.digest),
            shape: format!("{} × {}", format::count(matrix.rows), format::count(matrix.cols)),
            nnz: format::count(matrix.nnz),
            mean: format::digits(features.row_nnz.mean),
            longest: format::count(features.row_nnz.max),
            symmetric: matrix.symmetric,
            levels: features.lower.as_ref().map(|lower| format::count(lower.levels)),
            age: format::ago(matrix.created_at),
            created_at: matrix.created_at.to_rfc3339(),
            name: matrix.name,
        }
    }
}

pub async fn show(
    OnBehalf(app): OnBehalf,
    Query(query): Query<PageQuery>,
) -> Result<Response, Problem> {
    let further = query.cursor.is_some();
    let page = app.service.matrices(&query.request()?).await?;
    html(&Page {
        shell: Shell::new(&app, Place::Matrices),
        rows: page.items.into_iter().map(Row::from).collect(),
        older: page.next,
        further,
    })
}
