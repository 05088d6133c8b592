//! AG-SpTRSV's stages Prepare, Transform and Schedule: what each varies, and what the winner has.

use super::Search;
use super::chapters::Chapter;
use super::numbers::count;
use crate::domain::Param;
use crate::domain::catalog::family::{FamilyDescriptor, Parameter, Values};

const FAMILY: &str = "ag";

struct Stage {
    id: &'static str,
    title: &'static str,
    source: &'static str,
    sentence: &'static str,
    parameters: &'static [&'static str],
}

const STAGES: [Stage; 3] = [
    Stage {
        id: "prepare",
        title: "Prepare",
        source: "AG-SpTRSV, section 4.2",
        sentence: "The solver is written in variants: how many warps work, into how many subwarps each is divided, whether the lanes of \
                   a subwarp share a row or have a row each, how they read, and how they learn that an unknown is there.",
        parameters: &["nw", "ng", "sw_rnnz", "read", "sync"],
    },
    Stage {
        id: "transform",
        title: "Transform",
        source: "AG-SpTRSV, section 4.3",
        sentence: "The rows are a graph of dependencies. Adjacent rows may be merged into nodes, and rows may first be renumbered by \
                   their level.",
        parameters: &["reorder", "merge"],
    },
    Stage {
        id: "schedule",
        title: "Schedule",
        source: "AG-SpTRSV, section 4.4",
        sentence: "The nodes of a level become groups, groups are assigned to warps, and wide levels may get launches of their own.",
        parameters: &["rg", "ws", "alpha"],
    },
];

/// One chapter a stage; none on devices without the family.
pub fn chapters(search: &Search<'_>) -> Vec<Chapter> {
    let Some(family) = search.family(FAMILY) else { return Vec::new() };
    STAGES.iter().map(|stage| chapter(stage, family, search)).collect()
}

fn chapter(stage: &Stage, family: &FamilyDescriptor, search: &Search<'_>) -> Chapter {
    let own: Vec<&Parameter> =
        stage.parameters.iter().filter_map(|name| family.parameter(name)).collect();
    let combined: u64 = own.iter().map(|parameter| values(parameter)).product();
    let won = search.winner.family == FAMILY;
    let points = own.iter().map(|parameter| {
        let value = search.winner.params.get(parameter.name).filter(|_| won);
        let value = value.map_or_else(String::new, |value| match value {
            Param::Int(value) => format!(" The winner has {value}."),
            Param::Text(value) => format!(" The winner has {value}."),
        });
        let number = count(values(parameter));
        (parameter.name.to_owned(), format!("{}: {number} values.{value}", parameter.meaning))
    });
    let mut said = vec![
        stage.sentence.to_owned(),
        format!("That makes at most {} combinations in this stage.", count(combined)),
    ];
    if stage.id == "prepare" && !won {
        said.push(format!(
            "The winner is of the family {}, so these values are not its own.",
            search.winner.family
        ));
    }
    Chapter {
        id: stage.id,
        title: stage.title,
        source: stage.source,
        said,
        points: points.collect(),
        ..Chapter::default()
    }
}

fn values(parameter: &Parameter) -> u64 {
    match &parameter.values {
        Values::Among(values) => values.len() as u64,
        Values::AtLeast { .. } => 1,
    }
}
