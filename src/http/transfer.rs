//! Exports and imports: what goes to other services, and comes from them.

use super::behalf::OnBehalf;
use super::error::{Kind, Problem};
use super::extract::Query;
use super::upload::Upload;
use crate::domain::transfer::Selection;
use crate::domain::{DeviceClass, Digest, Op, Timestamp};
use crate::wire::ImportReport;
use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportQuery {
    /// `plans`, `trials` and `models`, between commas.
    parts: Option<String>,
    #[serde(default)]
    files: bool,
    #[serde(default)]
    matrices: bool,
    device: Option<DeviceClass>,
    op: Option<Op>,
    matrix: Option<Digest>,
    since: Option<String>,
    until: Option<String>,
}

impl ExportQuery {
    fn selection(self) -> Result<Selection, Problem> {
        let refused = |name: &str, why: String| {
            Problem::new(Kind::InvalidParameter, why).with("parameter", Some(name))
        };
        let time = |name: &str, text: Option<String>| {
            let read = text.map(|text| text.parse::<Timestamp>()).transpose();
            read.map_err(|why| refused(name, why))
        };
        let mut selection = Selection {
            files: self.files,
            matrices: self.matrices,
            device_class: self.device,
            op: self.op,
            matrix: self.matrix,
            since: time("since", self.since)?,
            until: time("until", self.until)?,
            ..Selection::default()
        };
        if let Some(parts) = &self.parts {
            selection.only(parts).map_err(|why| refused("parts", why))?;
        }
        Ok(selection)
    }
}

/// Streamed as it is made; one that ends without its last record is not complete.
pub async fn export(
    OnBehalf(app): OnBehalf,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Problem> {
    let body = Body::from_stream(app.service.export(query.selection()?).await?);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/zstd")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            header::CONTENT_DISPOSITION,
            HeaderValue::from_static("attachment; filename=\"sparsetune.stexport\""),
        ),
    ];
    Ok((headers, body).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportQuery {
    #[serde(default)]
    dry_run: bool,
}

pub async fn import(
    OnBehalf(app): OnBehalf,
    Query(query): Query<ImportQuery>,
    request: Request,
) -> Result<Json<ImportReport>, Problem> {
    let upload = Upload::begin(&app, request)?;
    let coding = upload.coding;
    let report = upload.run(|body| app.service.import_body(body, coding, query.dry_run)).await?;
    Ok(Json(report.into()))
}
