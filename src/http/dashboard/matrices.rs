//! The list of stored matrices.

use super::address::encoded;
use super::format;
use super::heading::{Headings, parameters};
use super::shell::{Place, Shell, html};
use crate::domain::{Digest, LONGEST_NAME, Matrix};
use crate::http::behalf::OnBehalf;
use crate::http::error::Problem;
use crate::http::extract::Query;
use crate::http::page::page_request;
use crate::service::{Direction, MatrixColumn, MatrixOrder};
use askama::Template;
use axum::response::Response;
use serde::Deserialize;

#[derive(Template)]
#[template(path = "matrices.html")]
struct Page {
    shell: Shell,
    rows: Vec<Row>,
    /// The address of the next page, and of the first one.
    next: Option<String>,
    first: String,
    headings: Headings,
    order: MatrixOrder,
    /// This is not the first page.
    further: bool,
    kept: Kept,
}

/// Forms also send empty fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
    q: Option<String>,
    sort: Option<MatrixColumn>,
    order: Option<Direction>,
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
    pub levels: Option<String>,
    pub age: String,
    pub created_at: String,
    /// What tables sort by.
    pub sizes: [u64; 3],
    pub plans: u64,
    pub speedup: Option<f64>,
}

impl Row {
    /// `2.51×`, or nothing.
    pub fn best(&self) -> String {
        self.speedup.map(format::times).unwrap_or_default()
    }
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
            levels: features.lower.as_ref().map(|lower| format::count(lower.levels)),
            age: format::ago(matrix.created_at),
            created_at: matrix.created_at.to_rfc3339(),
            sizes: [matrix.rows, matrix.nnz, features.row_nnz.max],
            plans: 0,
            speedup: None,
            name: matrix.name,
        }
    }
}

/// What of a list stays the same on its other pages and in its other orders.
struct Kept {
    /// The text that names were searched for.
    sought: String,
    /// How many rows a page has, if that was asked for.
    limit: Option<u32>,
}

impl Kept {
    /// The list in an order, from a cursor on.
    fn address(&self, order: MatrixOrder, cursor: Option<&str>) -> String {
        let [sort, way] = parameters(order);
        let text = Some(self.sought.as_str()).filter(|text| !text.is_empty());
        let limit = self.limit.map(|limit| limit.to_string());
        let mut address = "/matrices".to_owned();
        let all = [("q", text), sort, way, ("limit", limit.as_deref()), ("cursor", cursor)];
        for (name, value) in all {
            let Some(value) = value else { continue };
            address.push(if address.contains('?') { '&' } else { '?' });
            address.push_str(&format!("{name}={}", encoded(value)));
        }
        address
    }
}

pub async fn show(
    OnBehalf(app): OnBehalf,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let further = query.cursor.is_some();
    let request = page_request(query.limit, query.cursor)?;
    let limit = query.limit;
    let sought: String = query.q.unwrap_or_default().trim().chars().take(LONGEST_NAME).collect();
    let order = MatrixOrder::asked(query.sort, query.order);
    let kept = Kept { sought, limit };
    let text = Some(kept.sought.as_str()).filter(|text| !text.is_empty());
    let page = app.service.sorted_matrices(text, order, &request).await?;
    let digests: Vec<Digest> = page.items.iter().map(|matrix| matrix.digest).collect();
    let tallies = app.service.plan_tallies(&digests).await?;
    let rows = page.items.into_iter().map(|matrix| {
        let tally = tallies.get(&matrix.digest);
        Row {
            plans: tally.map_or(0, |tally| tally.plans),
            speedup: tally.and_then(|tally| tally.speedup),
            ..Row::from(matrix)
        }
    });
    html(&Page {
        shell: Shell::new(&app, Place::Matrices),
        rows: rows.collect(),
        next: page.next.map(|cursor| kept.address(order, Some(&cursor))),
        first: kept.address(order, None),
        headings: Headings::of(order, |to| kept.address(to, None)),
        order,
        further,
        kept,
    })
}
