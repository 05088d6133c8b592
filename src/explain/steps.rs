//! One step of a funnel: its rule in words, what it removed, and how the winner stands to it.

use super::numbers::{candidates, count, percent};
use crate::domain::catalog::rules::{Force, Rule, Side, rule};
use crate::domain::{DeviceKind, FunnelStep, Judged, funnel};

/// A step as pages and the command line show it.
pub struct Step {
    /// As the API calls the rule.
    pub name: String,
    /// A few words; the name itself for rules of other versions, whose other words are empty.
    pub title: String,
    pub sentence: &'static str,
    pub formula: &'static str,
    /// What the rule may do, in words.
    pub force: &'static str,
    /// Paper and section.
    pub source: &'static str,
    /// What happened, as a sentence: `It removed 120 of 600 candidates (20 %) and left 480.`
    pub counted: String,
    pub removed: u64,
    pub left: u64,
    /// What the search says beyond that, one remark each.
    pub details: Vec<String>,
    /// What the rule computed for the winner, and its limit.
    pub winner: Option<String>,
    /// Whether the winner keeps to the rule, as far as it was judged.
    pub kept: bool,
}

/// All steps in order; `judged` are those of the winner, if there is one.
pub fn steps(funnel: &[FunnelStep], judged: &[Judged], kind: DeviceKind) -> Vec<Step> {
    funnel.iter().map(|of| step(of, judged, kind)).collect()
}

/// One step.
pub fn step(of: &FunnelStep, judged: &[Judged], kind: DeviceKind) -> Step {
    let known = rule(&of.constraint);
    let own = judged.iter().find(|own| own.constraint == of.constraint);
    let words = known.map(|rule| rule.words(kind));
    let details = of.detail.as_deref().unwrap_or_default().split("; ");
    Step {
        name: of.constraint.clone(),
        title: known.map_or_else(|| of.constraint.replace('_', " "), |rule| rule.title.to_owned()),
        sentence: words.map_or("", |words| words.sentence),
        formula: words.map_or("", |words| words.formula),
        force: known.map_or("", |rule| force(rule.force)),
        source: known.map_or("", |rule| rule.source),
        counted: counted(of),
        removed: of.removed,
        left: of.left,
        details: details.filter(|detail| !detail.is_empty()).map(str::to_owned).collect(),
        winner: known.zip(own).map(|(rule, own)| winner(rule, own, kind)),
        kept: own.is_none_or(|own| own.kept),
    }
}

const fn force(force: Force) -> &'static str {
    match force {
        Force::Hard => "a hard rule",
        Force::Soft => "a soft rule, which removes no family completely",
        Force::Choice => "a choice among what is left",
    }
}

fn counted(step: &FunnelStep) -> String {
    let all = step.left + step.removed;
    match step.removed {
        removed if step.constraint == funnel::COMBINATIONS => format!(
            "Of {} combinations {} are candidates; {} never were.",
            count(all),
            count(step.left),
            count(removed)
        ),
        0 => format!("It removed none of {}.", candidates(all)),
        removed => format!(
            "It removed {} of {} ({}) and left {}.",
            count(removed),
            candidates(all),
            percent(removed as f64 / all as f64),
            count(step.left)
        ),
    }
}

fn winner(rule: &Rule, own: &Judged, kind: DeviceKind) -> String {
    let spared = match (own.kept, rule.force) {
        (true, _) => "",
        (false, Force::Soft) => " (beyond it, but spared)",
        (false, _) => " (it breaks the rule)",
    };
    format!("{}{spared}", compared(rule, own.value, own.limit, kind))
}

/// `528 blocks, at least 66`: what a rule computed for a candidate, and its limit.
pub fn compared(rule: &Rule, value: f64, limit: f64, kind: DeviceKind) -> String {
    let unit = rule.words(kind).unit;
    let space = if unit.is_empty() { "" } else { " " };
    let side = match rule.side {
        Side::AtMost => "at most",
        Side::AtLeast => "at least",
        Side::Neither => "compared with",
    };
    format!("{}{space}{unit}, {side} {}", number(value), number(limit))
}

/// Whole numbers with separators, others with two decimal places.
fn number(value: f64) -> String {
    match value {
        whole if whole.fract() == 0.0 && (0.0..1e15).contains(&whole) => count(whole as u64),
        ratio => format!("{ratio:.2}"),
    }
}
