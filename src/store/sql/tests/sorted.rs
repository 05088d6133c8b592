//! That a page of a sorted list which takes two statements reads one state of the database.

use super::raw;
use crate::store::sql::SqlStore;
use crate::store::sql::db::Text;
use crate::store::sql::sorted::{List, job_floor, job_key};
use crate::store::{JobColumn, JobOrder, PageRequest};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

const FILL: &str = "
    INSERT INTO jobs (id, matrix, device, version, request, dedup_key, state, stage, created_at, finished_at, best)
    VALUES ('a', zeroblob(32), 'cpu', 1, '{}', 'a', 'failed', 'done', 1, 9, '{\"median_us\": 2.5}'),
        ('b', zeroblob(32), 'cpu', 1, '{}', 'b', 'failed', 'done', 2, 9, NULL)";

/// The one loses its value, the other gets one.
const CHANGE: &str = "UPDATE jobs SET best = CASE id WHEN 'b' THEN '{\"median_us\":1.5}' END";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_between_the_statements_of_a_page_is_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqlStore::open(&folder.path().join("store")).await.unwrap();
    sqlx::raw_sql(FILL).execute(raw(&store)).await.unwrap();
    let list: List<JobColumn> =
        List { name: "jobs", columns: "id", id: "id", key: job_key, floor: job_floor };
    let made = AtomicUsize::new(0);
    let of = |query: &mut Text<'static>| {
        // The first statement has been answered, and the second is being written.
        if made.fetch_add(1, Ordering::Relaxed) == 1 {
            let change = sqlx::raw_sql(CHANGE).execute(raw(&store));
            block_in_place(|| Handle::current().block_on(change)).unwrap();
        }
        query.push(" FROM jobs WHERE namespace = 'default'");
    };
    let (order, few) = (JobOrder::of(JobColumn::MedianUs, None), PageRequest::first(9));
    let page = list.page::<(String,), f64, String>(
        &store.readers,
        order,
        &few,
        of,
        |id| Ok(id.to_owned()),
        |row| Ok(row.0.clone()),
    );
    let ids: Vec<String> = page.await.unwrap().items.into_iter().map(|(id,)| id).collect();
    assert_eq!((ids, made.into_inner()), (vec!["a".to_owned(), "b".to_owned()], 2));
}
