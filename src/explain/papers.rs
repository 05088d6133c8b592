//! What each of the four papers contributed to one search.

use super::chapters::Chapter;
use super::numbers::{candidates, count, micros, times};
use super::{OfFamily, Search};
use crate::domain::DeviceKind;

/// LO-SpMM's rules, in the funnel's names.
const LO_RULES: [&str; 4] =
    ["whole_warps", "register_resource", "hardware_utilization", "load_balance"];

pub fn chapter(search: &Search<'_>) -> Chapter {
    let product = "It multiplies matrices, so it has no kernel for a triangular system";
    let points = match search.problem.op().descriptor().has_levels {
        true => vec![
            (
                "LO-SpMM",
                format!(
                    "{product}. Its order of a search is used: count, remove by rules, predict, measure few."
                ),
            ),
            ("TCA-SpMM", format!("{product}.")),
            ("Tiled SpMM", format!("{product}.")),
            ("AG-SpTRSV", solver(search)),
        ],
        false => vec![
            ("LO-SpMM", tiles(search)),
            (
                "TCA-SpMM",
                follows(
                    search,
                    "TCA-SpMM",
                    "Its dot products on tensor cores",
                    "They need f16 and a GPU.",
                ),
            ),
            (
                "Tiled SpMM",
                follows(
                    search,
                    "Tiled SpMM",
                    "Its panels, which gather what they need of B into shared memory,",
                    "They need a GPU.",
                ),
            ),
            (
                "AG-SpTRSV",
                "It solves triangular systems, so it has no part in a product.".to_owned(),
            ),
        ],
    };
    let points = points.into_iter().chain([("Our own", own(search))]);
    let points = points.map(|(name, text)| (name.to_owned(), text)).collect();
    let said = vec![
        "The service joins four papers. This is what each of them contributed here.".to_owned(),
    ];
    Chapter { id: "papers", title: "The four papers", said, points, ..Chapter::default() }
}

/// Tiles, rules and ranking.
fn tiles(search: &Search<'_>) -> String {
    let mut text = follows(search, "LO-SpMM", "Its two-dimensional tiles", "");
    if let Some(removed) = search.removed_by(&LO_RULES) {
        text.push_str(&format!(" Its rules removed {}.", candidates(removed)));
    }
    if let Some(step) = search.funnel.iter().find(|step| step.constraint == "rank") {
        text.push_str(&format!(
            " Its ranking left {} of {} to be measured.",
            count(step.left),
            count(step.left + step.removed)
        ));
    }
    text
}

fn solver(search: &Search<'_>) -> String {
    if search.kind == DeviceKind::Cpu {
        return "Its schemes are for GPUs. On the host, threads solve level by level or by merged rows, which is its merging \
                of section 4.3."
            .to_owned();
    }
    follows(search, "AG-SpTRSV", "Its schemes, made in four stages,", "")
}

/// The families that follow a paper.
fn follows(search: &Search<'_>, paper: &str, what: &str, otherwise: &str) -> String {
    let own = |of: &&OfFamily| {
        let source = search.family(&of.family).and_then(|family| family.source);
        source.is_some_and(|source| source.starts_with(paper))
    };
    let own: Vec<&OfFamily> = search.families.iter().filter(own).collect();
    match (own.is_empty(), search.families.is_empty()) {
        (_, true) => {
            format!("{what} are known here, but the trials of this search are no longer stored.")
        }
        (true, _) => {
            format!("{what} have no candidate in this space. {otherwise}").trim_end().to_owned()
        }
        (false, _) => fate(search, &format!("{what} are"), &own),
    }
}

/// The families that no paper describes.
fn own(search: &Search<'_>) -> String {
    let own = |of: &&OfFamily| {
        let family = search.family(&of.family);
        family.is_some_and(|family| family.is_own() && family.source.is_none())
    };
    let own: Vec<&OfFamily> = search.families.iter().filter(own).collect();
    match own.is_empty() {
        true => "No family beyond the papers had a candidate here.".to_owned(),
        false => fate(search, "Beyond the papers there are", &own),
    }
}

/// What became of the candidates of some families.
fn fate(search: &Search<'_>, what: &str, own: &[&OfFamily]) -> String {
    let names: Vec<&str> = own.iter().map(|of| of.family.as_str()).collect();
    let all: u64 = own.iter().map(|of| of.candidates).sum();
    let measured: u64 = own.iter().map(|of| of.measured).sum();
    let best = own.iter().filter_map(|of| of.best_us).min_by(f64::total_cmp);
    let won = names.contains(&search.winner.family.as_str());
    let how = match (best, search.measured) {
        (Some(best), _) if won => {
            format!("the fastest trial took {}, and the winner is among them", micros(best))
        }
        (Some(best), Some(winner)) => format!(
            "the fastest trial took {}, {} the winner's time",
            micros(best),
            times(best / winner.median_us)
        ),
        (Some(best), None) => format!("the fastest trial took {}", micros(best)),
        (None, _) if won => "the choice is among them".to_owned(),
        (None, _) => "none was timed".to_owned(),
    };
    format!(
        "{what} {}: {} on record, {} measured; {how}.",
        names.join(", "),
        candidates(all),
        count(measured)
    )
}
