//! The pruning rules in words, so that a client can explain a funnel.

use crate::domain::catalog::rules::{self, Side};
use serde::Serialize;

/// The complete response.
#[derive(Debug, Serialize)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// One rule: its name is that of the funnel's step and of a trial's `pruned_by`.
#[derive(Debug, Serialize)]
pub struct Rule {
    name: &'static str,
    title: &'static str,
    /// `hard`, `soft` or `choice`.
    force: &'static str,
    /// `at_most` or `at_least`; absent if the rule compares no numbers, like `limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    side: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'static str>,
    source: &'static str,
    #[serde(flatten)]
    words: Words,
    /// Where the host's rule of this name is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_host: Option<Words>,
}

/// What a rule says on one kind of device.
#[derive(Debug, Serialize)]
pub struct Words {
    sentence: &'static str,
    formula: &'static str,
    /// Empty for a ratio.
    unit: &'static str,
}

impl Rules {
    /// Every rule, in the order in which they apply.
    pub fn all() -> Self {
        Self { rules: rules::all().map(Rule::from).collect() }
    }
}

impl From<&rules::Rule> for Rule {
    fn from(rule: &rules::Rule) -> Self {
        let side = match rule.side {
            Side::AtMost => Some("at_most"),
            Side::AtLeast => Some("at_least"),
            Side::Neither => None,
        };
        Self {
            name: rule.name,
            title: rule.title,
            force: rule.force.name(),
            side,
            limit: side.map(|_| rule.limit),
            source: rule.source,
            words: rule.words.into(),
            on_host: rule.on_host.map(Words::from),
        }
    }
}

impl From<rules::Words> for Words {
    fn from(words: rules::Words) -> Self {
        let rules::Words { sentence, formula, unit } = words;
        Self { sentence, formula, unit }
    }
}
