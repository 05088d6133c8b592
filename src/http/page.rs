//! Cursor pagination: `?limit=&cursor=` in requests, `{items, next?}` in answers.

use super::error::{Kind, Problem};
use crate::service::{Page, PageRequest};
use crate::wire;
use serde::Deserialize;

/// Default number of items on a page.
pub const DEFAULT_LIMIT: u32 = 50;
/// Maximum number of items on a page.
pub const MAX_LIMIT: u32 = 500;

/// The query of a list without filters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

impl PageQuery {
    pub fn request(self) -> Result<PageRequest, Problem> {
        page_request(self.limit, self.cursor)
    }
}

pub fn page_request(limit: Option<u32>, cursor: Option<String>) -> Result<PageRequest, Problem> {
    let limit = limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        let detail = format!("limit must be 1 to {MAX_LIMIT}, not {limit}");
        return Err(Problem::new(Kind::InvalidParameter, detail).with("parameter", Some("limit")));
    }
    Ok(PageRequest { after: cursor, limit })
}

/// Converts a page of domain values to a page of wire values.
impl<D, T: From<D>> From<Page<D>> for wire::Page<T> {
    fn from(page: Page<D>) -> Self {
        Self { items: page.items.into_iter().map(T::from).collect(), next: page.next }
    }
}
