//! What every store must do, written against the traits alone: the same checks for SQLite, PostgreSQL, and PostgreSQL behind
//! PgBouncer.

mod access;
#[path = "../fixture/claimed.rs"]
mod claimed;
mod classes;
mod clocks;
#[path = "../fixture/device.rs"]
mod device;
mod durability;
mod fairness;
mod jobs;
mod learning;
mod leases;
mod lists;
mod namespaces;
mod outages;
mod pairing;
#[path = "../fixture/plan.rs"]
mod plan;
mod plans;
#[path = "../fixture/postgres.rs"]
mod postgres;
mod records;
mod restarts;
mod retaining;
mod server;
mod statements;
mod stored;
mod throughput;
mod tls;
mod trainings;
#[path = "../fixture/vanishing.rs"]
mod vanishing;
mod words;

use sparsetune::store::{PostgresOptions, SqlStore, SqliteStore, Store};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// A fresh store of one kind, that can be opened again and spoilt.
pub enum Harness {
    Sqlite {
        folder: TempDir,
    },
    Postgres {
        database: String,
        /// Through PgBouncer, which gives each transaction another connection.
        pooled: bool,
    },
}

impl Harness {
    fn sqlite() -> Self {
        Self::Sqlite { folder: tempfile::tempdir().unwrap() }
    }

    /// Without a pooler, with plans as for large tables: statements that several processes of the server work on at once.
    async fn postgres(pooled: bool) -> Self {
        let database = postgres::shared().database().await;
        if !pooled {
            for setting in
                ["parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"]
            {
                let set = format!("ALTER DATABASE {database} SET {setting} = 0");
                postgres::shared().execute("postgres", set).await;
            }
        }
        Self::Postgres { database, pooled }
    }

    /// The file of a store that is in one.
    fn file(&self) -> PathBuf {
        match self {
            Self::Sqlite { folder } => folder.path().join("store.sqlite"),
            Self::Postgres { .. } => panic!("there is no file"),
        }
    }

    /// The URL of a store that is on a server, and how it is opened.
    fn url(&self) -> (String, PostgresOptions) {
        match self {
            Self::Sqlite { .. } => panic!("there is no server"),
            Self::Postgres { database, pooled } => {
                let options = PostgresOptions {
                    connections: 8,
                    read_connections: 4,
                    pooled: *pooled,
                    ..Default::default()
                };
                (postgres::shared().url(database, *pooled), options)
            }
        }
    }

    pub async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.try_open().await.unwrap())
    }

    async fn try_open(&self) -> sparsetune::store::Result<SqlStore> {
        match self {
            Self::Sqlite { .. } => SqliteStore::open(&self.file()).await,
            Self::Postgres { .. } => {
                let (url, options) = self.url();
                SqlStore::connect(&url, options).await
            }
        }
    }

    /// Runs one statement past the store, as a fault or another program would.
    pub async fn spoil(&self, statement: &'static str) {
        use sqlx::Connection;
        let rows = match self {
            Self::Sqlite { .. } => {
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.file());
                let mut raw = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
                let done = sqlx::query(statement).execute(&mut raw).await.unwrap();
                raw.close().await.unwrap();
                done.rows_affected()
            }
            Self::Postgres { database, .. } => {
                // Bytes are written in another way.
                let mut parts = statement.split("x'");
                let mut own = parts.next().unwrap_or_default().to_owned();
                for part in parts {
                    own.push_str(r"'\x");
                    own.push_str(part);
                }
                postgres::shared().execute(database, own).await
            }
        };
        assert!(rows > 0, "nothing was spoilt by {statement}");
    }
}

macro_rules! on {
    ($name:ident, $harness:expr, $($module:ident::$check:ident),*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                if !["sqlite", "files"].contains(&stringify!($name)) && crate::postgres::is_left_out() {
                    return;
                }
                crate::$module::$check(&$harness).await;
            })*
        }
    };
}

/// Checks that every store must pass.
macro_rules! conform {
    ($($module:ident::$check:ident),* $(,)?) => {
        on!(sqlite, crate::Harness::sqlite(), $($module::$check),*);
        on!(on_server, crate::Harness::postgres(false).await, $($module::$check),*);
        on!(behind_pooler, crate::Harness::postgres(true).await, $($module::$check),*);
    };
}

conform! {
    access::a_name_is_one_token_in_force,
    access::ended_tokens_are_forgotten_in_time,
    access::the_audit_log_is_bounded_and_read_in_pages,
    access::a_token_that_cannot_be_read_admits_nobody,
    access::few_revoked_tokens_are_kept,
    fairness::a_thousand_jobs_of_one_do_not_starve_anothers,
    fairness::many_tokens_are_one_namespaces_turn,
    fairness::a_higher_priority_comes_first,
    fairness::a_token_keeps_within_its_limits,
    fairness::a_claim_has_the_limits_of_its_token,
    fairness::bundles_and_predictions_count,
    fairness::a_namespace_has_only_so_many_jobs_that_wait,
    jobs::an_equal_live_job_is_the_answer,
    jobs::a_job_asked_to_stop_no_longer_answers,
    jobs::idempotency_keys_hold_their_request,
    jobs::idempotency_keys_are_their_tokens_own,
    jobs::a_job_needs_its_matrix_and_keeps_it,
    jobs::a_queued_job_is_cancelled_at_once,
    jobs::a_running_job_is_asked_to_stop,
    jobs::concurrent_equal_submissions_make_one_job,
    classes::any_device_of_a_class_runs_its_jobs,
    classes::what_a_worker_does_not_understand_is_left,
    classes::a_name_is_one_process_at_a_time,
    classes::devices_are_seen_by_the_stores_clock,
    classes::a_claim_reads_neither_the_queue_nor_history,
    leases::of_many_claims_one_wins,
    leases::jobs_are_claimed_oldest_first_and_by_device,
    leases::a_lost_lease_fences_every_write,
    leases::a_lapsed_job_asked_to_stop_is_not_claimed,
    leases::a_released_job_is_queued_again,
    leases::a_job_ends_once,
    leases::a_cancel_while_a_job_ends_reaches_its_second_part,
    leases::a_job_that_loses_its_workers_is_given_up,
    leases::an_unreadable_job_does_not_hold_up_the_queue,
    records::a_resumed_job_finds_its_trials,
    records::a_recorded_trial_stays,
    records::events_have_no_gaps,
    records::writers_at_once_leave_no_gap,
    records::a_large_funnel_is_one_batch,
    records::trials_are_listed_by_state,
    records::a_story_is_the_log_and_the_last_funnel,
    records::trials_are_counted_and_read_in_part,
    records::of_many_pruned_an_even_sample_is_read,
    records::events_of_a_later_version_are_skipped,
    records::one_publishes_at_a_time,
    lists::the_quarantine_is_read_in_pages,
    lists::matrices_are_found_by_part_of_their_name,
    lists::pages_stay_put_under_inserts,
    lists::filters_hold_on_every_page,
    lists::foreign_cursors_are_refused,
    lists::matrices_are_sorted_on_all_pages,
    lists::a_sorted_page_goes_on_behind_what_was_shown,
    lists::jobs_are_sorted_on_all_pages,
    plans::plan_and_end_are_one,
    plans::the_newest_plan_of_a_key_wins,
    plans::matrices_and_classes_have_the_figures_of_their_plans,
    plans::plans_and_facts_outlive_the_matrix,
    plans::a_pattern_lists_the_newest_plan_of_each_key,
    plans::names_are_told_of_what_is_and_was,
    plans::models_are_judged_by_their_plans,
    plans::devices_and_quarantine_are_kept,
    plans::a_quarantine_reaches_as_far_as_its_witnesses,
    plans::figures_are_learnt_once,
    plans::the_revision_grows_with_answers_alone,
    plans::old_things_are_pruned,
    learning::features_are_read_back_by_job,
    learning::describing_is_fenced,
    learning::ended_jobs_are_described_once,
    learning::models_are_kept_and_put_to_use,
    learning::changes_are_taken_back_one_by_one,
    learning::a_roll_back_passes_over_models_of_other_features,
    learning::unused_models_are_pruned_but_for_the_newest,
    learning::what_is_spoilt_is_left_out,
    learning::a_predicted_plan_answers_no_key,
    trainings::a_scope_has_one_training,
    trainings::of_many_claims_of_a_training_one_wins,
    trainings::a_training_ends_with_its_model_in_use,
    trainings::a_lost_lease_fences_a_training,
    trainings::a_released_training_is_queued_again,
    trainings::a_training_is_cancelled,
    trainings::a_training_that_loses_its_workers_is_failed,
    trainings::an_unreadable_training_does_not_hold_up_the_queue,
    trainings::a_training_that_ends_overrides_nobody,
    trainings::a_late_cancel_leaves_no_model,
    trainings::old_trainings_are_pruned,
    trainings::both_kinds_share_one_queue,
    trainings::every_write_says_what_it_changed,
    namespaces::a_matrix_of_another_is_not_there,
    namespaces::a_file_goes_with_the_last_holding,
    namespaces::jobs_of_another_are_not_there,
    namespaces::plans_of_another_are_not_there,
    namespaces::quotas_and_turns_are_of_a_namespace,
    namespaces::webhooks_hear_of_their_own,
    namespaces::the_service_weighs_all_of_them,
    namespaces::namespaces_take_turns_at_what_may_have_drifted,
    namespaces::a_plan_of_a_narrowed_search_is_not_shared,
    namespaces::lookups_at_once_get_their_own_answers,
    outages::one_sweeps_at_a_time,
    outages::a_round_of_upkeep_is_one_processes,
    outages::much_that_is_old_goes_in_batches,
    stored::bytes_are_counted_together,
    stored::what_is_under_way_outlives_a_count,
    stored::of_many_who_take_the_last_room_few_get_it,
    retaining::what_is_kept_is_weighed,
    retaining::what_is_pinned_is_not_removed,
    retaining::what_is_removed_goes_with_all_that_is_its_own,
    durability::everything_is_there_after_opening_again,
    durability::spoilt_rows_are_corrupt_not_panics,
    durability::a_newer_schema_is_refused,
}

// Of files alone: their clock is the process's, which a check may set.
on!(
    files,
    crate::Harness::sqlite(),
    statements::every_statement_fits_the_schema,
    leases::a_clock_set_back_strands_no_job,
    leases::a_lease_that_was_given_while_another_waited_is_not_taken,
    durability::a_new_file_is_opened_by_many_at_once,
    durability::a_recorded_trial_survives_a_kill
);

// Of servers alone.
on!(
    pooled,
    crate::Harness::postgres(true).await,
    outages::those_who_wait_for_their_turn_leave_connections,
    outages::limits_of_time_hold_behind_a_pooler,
    outages::what_is_published_under_a_lost_lock_is_refused
);

on!(
    servers,
    crate::Harness::postgres(false).await,
    statements::every_statement_fits_the_schema,
    statements::lookups_seek_plans_however_many_there_are,
    clocks::deliveries_are_due_by_the_servers_clock,
    clocks::devices_are_forgotten_beside_a_heartbeat,
    server::a_lease_far_ahead_strands_no_job,
    server::a_job_that_another_has_locked_is_passed_over,
    server::hints_reach_other_servers,
    server::what_takes_too_long_is_busy,
    server::lookups_of_a_table_that_is_held_are_busy_together,
    server::a_store_is_moved_and_moved_back,
    outages::those_who_wait_for_their_turn_leave_connections,
    outages::a_server_that_takes_no_writes_is_busy_until_it_does,
    outages::plans_of_statements_that_changed_are_made_anew,
    outages::what_is_published_under_a_lost_lock_is_refused,
    outages::a_webhook_may_go_while_a_job_ends,
    outages::what_an_owner_holds_is_given_back,
    outages::a_host_that_vanishes_is_not_waited_for,
    outages::a_lease_that_ended_while_the_server_was_away_is_not_taken_at_once,
    outages::a_failed_transaction_is_not_taken_for_a_commit,
    outages::those_who_end_jobs_of_many_do_not_wait_for_each_other,
    outages::who_has_no_connection_left_judges_no_server,
    server::many_workers_take_each_job_once,
    server::no_error_names_the_password
);
