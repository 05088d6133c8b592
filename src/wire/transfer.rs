//! What an import took in.

use crate::domain::transfer;
use serde::{Deserialize, Serialize};

/// The response of `/v1/import`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ImportReport {
    /// The store that the export is of.
    pub store: String,
    /// When the export was made.
    pub made_at: String,
    /// Nothing was stored: this is what an import would take in.
    pub dry_run: bool,
    pub plans: Taken,
    /// Of the new plans those that answer lookups in place of one that was there, those that do not because of one that was, and
    /// those without their program.
    pub plans_before: u64,
    pub plans_behind: u64,
    pub plans_without_program: u64,
    /// Ended searches.
    pub jobs: Taken,
    pub trials: Taken,
    pub models: Taken,
    pub matrices: Taken,
    /// Programs and arrays of plans.
    pub files: Taken,
    /// The first of what was left out, and why.
    pub left_out: Vec<String>,
}

/// How many of a kind are new, were there already, and cannot be used there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Taken {
    pub new: u64,
    pub known: u64,
    pub left_out: u64,
}

impl From<transfer::Taken> for Taken {
    fn from(transfer::Taken { new, known, left_out }: transfer::Taken) -> Self {
        Self { new, known, left_out }
    }
}

impl From<transfer::Report> for ImportReport {
    fn from(from: transfer::Report) -> Self {
        Self {
            store: from.store,
            made_at: from.made_at,
            dry_run: from.dry_run,
            plans: from.plans.into(),
            plans_before: from.plans_before,
            plans_behind: from.plans_behind,
            plans_without_program: from.plans_without_program,
            jobs: from.jobs.into(),
            trials: from.trials.into(),
            models: from.models.into(),
            matrices: from.matrices.into(),
            files: from.files.into(),
            left_out: from.left_out,
        }
    }
}
