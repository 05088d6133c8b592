//! What differs between the two databases in the text of a statement.
//!
//! Statements are written so that both take them: `IS NOT DISTINCT FROM`, `CAST(count(*) AS BIGINT)` where a type would differ, names for
//! all subqueries, flags that are 0 and 1, and a few functions of SQLite that the first migration teaches PostgreSQL (`->>`, `json_each`,
//! `unhex`, `instr`, `max` of two). What is left stands in the statement itself, as comments that SQLite reads past:
//!
//! ```sql
//! SELECT body FROM trials /*[*/INDEXED BY trials_tried/*|]*/ WHERE job = $1 /*[*//*|FOR UPDATE]*/
//! ```
//!
//! Between `/*[*/` and `/*|` is what SQLite reads, from there to `]*/` what PostgreSQL does: hints for the planner of the one, locks of rows
//! and the clock for the other. So SQLite gets every text as it is written, and PostgreSQL's is made when a statement is executed there,
//! which costs nothing beside the round trip.

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

const OPEN: &str = "/*[*/";
const SWITCH: &str = "/*|";
const CLOSE: &str = "]*/";

/// The text of a statement for PostgreSQL.
pub fn for_postgres(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, choice)) = rest.split_once(OPEN) {
        let Some((own, after)) =
            choice.split_once(SWITCH).and_then(|(_, choice)| choice.split_once(CLOSE))
        else {
            break;
        };
        made.push_str(before);
        made.push_str(own);
        rest = after;
    }
    made.push_str(rest);
    made
}

pub(super) fn translated(text: SqlStr) -> SqlStr {
    match text.as_str().contains(OPEN) {
        true => AssertSqlSafe(for_postgres(text.as_str())).into_sql_str(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::for_postgres;

    #[test]
    fn each_database_reads_its_own() {
        let text = "SELECT a /*[*/INDEXED BY i/*|]*/ WHERE b = /*[*/$3/*|clock()]*/ + 1/*[*//*| FOR UPDATE]*/";
        assert_eq!(for_postgres(text), "SELECT a  WHERE b = clock() + 1 FOR UPDATE");
        for text in ["SELECT 1", "SELECT /* | */ 1", "SELECT 1 /*[*/"] {
            assert_eq!(for_postgres(text), text);
        }
    }
}
