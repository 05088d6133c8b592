//! The tables of a study by publication, and the document that they are written into.

use super::record::Search;
use super::table::Table;
use super::{regret, shares, worth};
use crate::domain::Op;
use crate::domain::catalog::family::FamilyDescriptor;
use crate::service::catalog;
use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::path::Path;

/// One publication's tables.
pub struct Section {
    /// Names the markers.
    pub key: &'static str,
    pub title: &'static str,
    /// What was measured, in a sentence.
    pub says: String,
    pub tables: Vec<Table>,
}

/// The publications: key, title, and how the catalogue's sources begin. The first of an operation is about its whole space.
const PAPERS: [(&str, &str, &str); 4] = [
    ("lo", "LO-SpMM: the space, its constraints and the ranking", "LO-SpMM"),
    ("tca", "TCA-SpMM", "TCA-SpMM"),
    ("tiled", "Tiled SpMM", "Tiled SpMM"),
    ("ag", "AG-SpTRSV", "AG-SpTRSV"),
];

/// The sections for which there are full searches.
pub fn sections(searches: &[Search]) -> Vec<Section> {
    PAPERS.into_iter().filter_map(|paper| section(paper, searches)).collect()
}

fn section(
    (key, title, source): (&'static str, &'static str, &str),
    searches: &[Search],
) -> Option<Section> {
    let op = operation(source)?;
    let families = families(op, source);
    let whole = is_first(op, source);
    let full: Vec<&Search> = searches
        .iter()
        .filter(|search| search.is_full() && search.op() == op.name())
        .filter(|search| whole || search.own().any(|tried| families.contains(&tried.family())))
        .collect();
    if full.is_empty() {
        return None;
    }
    let name = |table: &str| format!("{key}-{table}");
    let mut tables = Vec::new();
    if whole {
        tables.push(worth::summary(&name("worth"), &full));
        tables.push(worth::each(&name("searches"), &full));
        tables.push(regret::summary(&name("regret"), &full));
        tables.push(shares::families(&name("families"), &full));
    }
    tables.push(Table { long: whole, ..shares::by_matrix(&name("matrices"), &full, &families) });
    tables.push(shares::values(&name("values"), &full, &families));
    tables.push(shares::techniques(&name("techniques"), &full));
    tables.push(shares::predictions(&name("predictions"), &full, &families));
    tables.retain(|table| !table.rows.is_empty());
    Some(Section { key, title, says: said(&full), tables })
}

/// The operation of a publication's families.
fn operation(source: &str) -> Option<Op> {
    let follows =
        |family: &&FamilyDescriptor| family.source.is_some_and(|own| own.starts_with(source));
    catalog().families().iter().find(follows).map(|family| family.op)
}

/// Whether the section is about the whole space of its operation.
fn is_first(op: Op, source: &str) -> bool {
    PAPERS
        .iter()
        .find(|paper| operation(paper.2) == Some(op))
        .is_some_and(|first| first.2 == source)
}

/// The families of a publication; those that follow none belong to the first of their operation, but for relatives of another.
fn families(op: Op, source: &str) -> Vec<&'static str> {
    let mut names = Vec::new();
    for family in catalog().of(op).filter(|family| family.is_own()) {
        let own = family.source.map(|own| own.starts_with(source));
        let belongs = match (family.family(), source) {
            // Tensor cores on condensed columns compete with TCA-SpMM.
            ("condensed_tc", "TCA-SpMM") => true,
            ("condensed_tc", _) => false,
            _ => own.unwrap_or_else(|| is_first(op, source)),
        };
        if belongs && !names.contains(&family.family()) {
            names.push(family.family());
        }
    }
    names
}

fn said(searches: &[&Search]) -> String {
    let distinct =
        |of: fn(&Search) -> &str| searches.iter().map(|search| of(search)).collect::<BTreeSet<_>>();
    let devices: Vec<&str> = distinct(|search| &search.device).into_iter().collect();
    let tried: usize = searches.iter().map(|search| search.own().count()).sum();
    let whole = searches.iter().filter(|search| search.drawn() >= 1.0).count();
    let plural = |count: usize, one: &str, many: &str| {
        format!("{count} {}", if count == 1 { one } else { many })
    };
    format!(
        "{} of {} and {} on {}: {} tried. {whole} tried all that can run, the others a random draw of it.",
        plural(searches.len(), "full search", "full searches"),
        plural(distinct(|search| &search.matrix).len(), "matrix", "matrices"),
        plural(distinct(|search| &search.problem).len(), "problem", "problems"),
        devices.join(", "),
        plural(tried, "candidate", "candidates"),
    )
}

impl Section {
    /// Without heading.
    fn body(&self) -> String {
        let tables = self.tables.iter().filter(|table| !table.long).map(Table::markdown);
        std::iter::once(format!("{}\n", self.says)).chain(tables).collect::<Vec<_>>().join("\n")
    }

    fn markers(&self) -> [String; 2] {
        [format!("<!-- study: {} -->", self.key), format!("<!-- end of study: {} -->", self.key)]
    }

    fn marked(&self) -> String {
        let [begin, end] = self.markers();
        format!("{begin}\n\n{}\n{end}\n", self.body())
    }
}

/// All sections.
pub fn markdown(sections: &[Section]) -> String {
    let section = |section: &Section| format!("## {}\n\n{}", section.title, section.body());
    sections.iter().map(section).collect::<Vec<_>>().join("\n")
}

/// Replaces what is between the markers of each section; a section without markers is added at the end. Everything else in the
/// file is kept. A file that does not exist is begun.
pub fn write(file: &Path, sections: &[Section]) -> anyhow::Result<()> {
    let old = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "# The papers, measured\n\nWhat is between markers is written by `sparsetune study --write`; sentences outside them are kept.\n"
                .to_owned()
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    let mut text = old;
    for section in sections {
        text = placed(&text, section).with_context(|| file.display().to_string())?;
    }
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn placed(text: &str, section: &Section) -> anyhow::Result<String> {
    let [begin, end] = section.markers();
    let Some((before, rest)) = text.split_once(&begin) else {
        return Ok(format!("{text}\n## {}\n\n{}", section.title, section.marked()));
    };
    let Some((_, after)) = rest.split_once(&end) else {
        bail!("`{begin}` has no `{end}` after it");
    };
    Ok(format!("{before}{}{}", section.marked().trim_end(), after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::study::record::Tried;

    fn search(problem: &str, families: &[&str]) -> Search {
        let tried = families.iter().enumerate().map(|(at, family)| Tried {
            candidate: format!("{family}{{x={at}}}"),
            us: Some(1.0 + at as f64),
            predicted_us: Some(1.0),
            ..Tried::default()
        });
        Search {
            matrix: "m".to_owned(),
            problem: problem.to_owned(),
            device: "G".to_owned(),
            strategy: "full".to_owned(),
            tried: tried.collect(),
            ..Search::default()
        }
    }

    #[test]
    fn each_family_has_its_paper_and_each_paper_its_searches() {
        let of = |source| families(operation(source).unwrap(), source);
        assert_eq!(of("TCA-SpMM"), ["tca", "condensed_tc"]);
        assert!(of("LO-SpMM").contains(&"nnz_split"));
        assert_eq!(of("Tiled SpMM"), ["tiled"]);
        assert!(of("AG-SpTRSV").starts_with(&["slices", "overlapped", "chains", "streamed", "ag"]));
        let searches = [
            search("spmm;n=8", &["row_split", "tca"]),
            search("spmm;n=9", &["row_split"]),
            Search { strategy: "ranked".to_owned(), ..search("sptrsv;rhs=1", &["ag"]) },
        ];
        let sections = sections(&searches);
        let keys: Vec<&str> = sections.iter().map(|section| section.key).collect();
        assert_eq!(keys, ["lo", "tca"]);
        assert!(
            sections[0]
                .says
                .starts_with("2 full searches of 1 matrix and 2 problems on G: 3 candidates")
        );
        assert!(sections[1].says.starts_with("1 full search of"));
        assert!(sections.iter().all(|section| !section.tables.is_empty()));
    }

    #[test]
    fn only_what_is_between_markers_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("PAPERS.md");
        let of = |problems: &[&str]| {
            let searches: Vec<Search> =
                problems.iter().map(|problem| search(problem, &["ag"])).collect();
            sections(&searches)
        };
        write(&file, &of(&["sptrsv;rhs=1"])).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("\n## AG-SpTRSV\n") && text.contains("1 full search of"));
        let with_words =
            text.replace("## AG-SpTRSV\n", "## AG-SpTRSV\n\nWords.\n") + "\nThe end.\n";
        std::fs::write(&file, with_words).unwrap();
        for _ in 0..2 {
            write(&file, &of(&["sptrsv;rhs=1", "sptrsv;rhs=2"])).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("Words.") && text.ends_with("\nThe end.\n"), "{text}");
        assert!(text.contains("2 full searches of") && !text.contains("1 full search of"));
        assert_eq!(text.matches("<!-- study: ag -->").count(), 1);
        std::fs::write(&file, "<!-- study: ag -->").unwrap();
        assert!(
            format!("{:#}", write(&file, &of(&["sptrsv;rhs=1"])).unwrap_err())
                .contains("no `<!-- end")
        );
    }
}
