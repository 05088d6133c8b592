//! The HTTP room as its clients see it: a real server on a real port, over a temporary store; workers are played by hand.

mod access;
mod app;
mod audit;
#[path = "../fixture/authority.rs"]
#[allow(dead_code, reason = "the tests of blobs use more of it")]
mod authority;
mod caching;
mod catalogue;
#[path = "../fixture/claimed.rs"]
mod claimed;
mod connections;
mod dashboard_job;
mod dashboard_jobs;
mod dashboard_matrix;
mod dashboard_plan;
mod events;
mod jobs;
mod limits;
mod matrices;
mod models;
mod namespaces;
mod openapi;
mod operations;
mod overview;
mod plans;
mod predicted;
mod problems;
mod sharing;
mod sign_in;
mod solves;
mod sorting;
mod storage;
mod tokens;
mod transfer;
mod webhooks;
