//! What ended a search, in a sentence.

use crate::domain::StoppedBy;

/// Also said beside the plan: a search that was ended early has one, the best until then.
pub const fn ending(by: StoppedBy) -> &'static str {
    match by {
        StoppedBy::Completed => "Every chosen candidate was tried.",
        StoppedBy::Seconds => {
            "The budget of seconds ended the search: the plan is the best until then."
        }
        StoppedBy::Trials => {
            "The budget of trials ended the search: the plan is the best until then."
        }
        StoppedBy::Cancelled => "The search was ended early: the plan is the best until then.",
    }
}
