//! `sparsetune models`: lists, activates, rolls back and exports a server's learned models.

use super::problem::op_parser;
use super::show::{right, table};
use super::{ServerArgs, say};
use crate::domain::LearnedModel;
use crate::domain::Op;
use crate::wire::{
    Activation, AnalyticModel, HeldOut, LearnedModel as Learned, Model, Models, Ranked,
};
use anyhow::Context;
use clap::Subcommand;
use comfy_table::Table;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct ModelsArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print the response as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Activate a model
    Activate {
        /// The model's id
        id: String,
        /// Reason, for the activation history
        #[arg(long)]
        reason: Option<String>,
    },
    /// Roll back the newest activation
    RollBack {
        /// Operation
        #[arg(long, value_parser = op_parser())]
        op: Op,
        /// A device class in full, a device, or auto
        #[arg(long, default_value = "auto")]
        device_class: String,
    },
    /// Write a model and its card to files
    Export {
        /// The model's id
        id: String,
        /// The model file; the card's name has .card.json instead of .json
        #[arg(long, short)]
        output: PathBuf,
    },
}

pub async fn run(args: ModelsArgs) -> anyhow::Result<ExitCode> {
    let client = args.server.client()?;
    let changed = match &args.action {
        None => {
            let all = client.models().await?;
            match args.json {
                true => say(&all.raw)?,
                false => say(overview(&all.view))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some(Action::Export { id, output }) => {
            let (card, file) = (client.model(id).await?, client.model_file(id).await?);
            export(output, &card.view.card().map_err(anyhow::Error::msg)?, &file)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Action::Activate { id, reason }) => client.activate(id, reason.as_deref()).await?,
        Some(Action::RollBack { op, device_class }) => client.roll_back(*op, device_class).await?,
    };
    match args.json {
        true => say(&changed.raw)?,
        false => say(in_use(&changed.view))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn in_use(now: &Activation) -> String {
    let model = now.model.as_ref().map_or("the analytic model", |model| &model.0);
    format!("{} on {}: {model} ranks", now.op, now.device_class)
}

fn export(file: &Path, card: &LearnedModel, bytes: &[u8]) -> anyhow::Result<()> {
    let write = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    write(file, bytes)?;
    write(&card_of(file), serde_json::to_string_pretty(card)?.as_bytes())
}

fn card_of(file: &Path) -> PathBuf {
    match file.extension() {
        Some(ending) if ending == "json" => file.with_extension("card.json"),
        _ => {
            let mut name = file.as_os_str().to_owned();
            name.push(".card.json");
            name.into()
        }
    }
}

/// The analytic models that have data from plans, then the learned ones.
fn overview(all: &Models) -> String {
    let (mut analytic, mut learned) = (Vec::new(), Vec::new());
    for model in &all.items {
        match model {
            Model::Analytic(model) => analytic.push(model),
            Model::Learned(model) => learned.push(&**model),
        }
    }
    let learned = match learned.as_slice() {
        [] => "no model has been trained yet".to_owned(),
        learned => list(learned).to_string(),
    };
    match analytic.as_slice() {
        [] => learned,
        analytic => format!("{}\n\n{learned}", formulas(analytic)),
    }
}

fn formulas(models: &[&AnalyticModel]) -> Table {
    let header =
        ["model", "for", "plans", "trials", "measured / predicted", "spread", "rank correlation"];
    let mut table = table(&header);
    for model in models {
        table.add_row([
            model.model.clone(),
            format!("{} on {}", model.op, model.device_class),
            model.plans.to_string(),
            model.trials.to_string(),
            format!("{:.2}", model.median_ratio),
            format!("{:.2}", model.spread),
            correlation(model.rank_correlation),
        ]);
    }
    right(&mut table, 2..7);
    table
}

/// Empty if there is no correlation.
fn correlation(rank: Option<f64>) -> String {
    rank.map(|rank| format!("{rank:.2}")).unwrap_or_default()
}

fn list(models: &[&Learned]) -> Table {
    let mut table = table(&[
        "",
        "model",
        "kind",
        "for",
        "made",
        "trials",
        "best of 1",
        "best of 10",
        "ranked here",
        "rank correlation",
    ]);
    for model in models {
        let (quality, kind) = (&model.quality, model.kind.to_string());
        let own = quality.rankers.iter().find(|ranker| ranker.name == kind);
        let share = |k| {
            let at = own.and_then(|own| own.at.iter().find(|at| at.k == k));
            at.map(|at| percent(at.share)).unwrap_or_default()
        };
        table.add_row([
            if model.active { "in use" } else { "" }.to_owned(),
            model.id.to_string(),
            kind,
            format!("{} on {}", model.op, model.device_class),
            model.created_at.get(..16).unwrap_or(&model.created_at).replace('T', " "),
            model.data.trials.to_string(),
            share(1),
            share(10),
            model.ranked.as_ref().map(ranked_by).unwrap_or_default(),
            correlation(model.ranked.as_ref().and_then(|ranked| ranked.rank_correlation)),
        ]);
    }
    right(&mut table, 5..10);
    table
}

fn ranked_by(ranked: &Ranked) -> String {
    format!("{} trials of {} plans", ranked.trials, ranked.plans)
}

/// One row per ranking: shares of the best with 1, 8, 10 and 16 trials, and the regret of the first choice.
pub fn rankers(quality: &HeldOut) -> Table {
    let mut table = table(&[
        "held out",
        "K = 1",
        "K = 8",
        "K = 10",
        "K = 16",
        "1 within 85 %",
        "8 within 85 %",
        "regret p50",
        "p90",
        "max",
    ]);
    for ranker in &quality.rankers {
        let at = |k: u32| ranker.at.iter().find(|at| at.k == k);
        let share = |k| at(k).map(|at| percent(at.share)).unwrap_or_default();
        let within = |k| at(k).map(|at| percent(at.within_85)).unwrap_or_default();
        let regret = &ranker.regret;
        table.add_row([
            ranker.name.clone(),
            share(1),
            share(8),
            share(10),
            share(16),
            within(1),
            within(8),
            percent(regret.p50),
            percent(regret.p90),
            percent(regret.max),
        ]);
    }
    right(&mut table, 1..10);
    table
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::{Models, card_of, overview};
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn the_list_shows_the_rank_correlation_of_each_model() {
        let analytic = json!({
            "kind": "analytic", "model": "effective_intensity_v3", "device_class": "cpu/x", "op": "spmm", "plans": 3,
            "trials": 41, "median_ratio": 1.254, "spread": 1.5, "rank_correlation": -0.625,
        });
        let learned = |id: &str, ranked: serde_json::Value| {
            json!({
                "kind": "lambdamart", "id": id, "op": "spmm", "device_class": "cpu/x", "features_version": 1,
                "active": false, "seed": 1, "origin": "shipped", "digest": "0".repeat(64), "ranked": ranked,
                "data": {"groups": 4, "matrices": 4, "generated": 4, "trials": 99, "newest": "2026-01-01T00:00:00Z"},
                "quality": {"folds": 5, "groups": 4, "choosers": []}, "created_at": "2026-01-01T00:00:00Z",
            })
        };
        let ranked = json!({"plans": 2, "trials": 15, "rank_correlation": 0.75});
        let of = |items: serde_json::Value| {
            overview(&serde_json::from_value::<Models>(json!({ "items": items })).unwrap())
        };
        let text = of(json!([analytic, learned("one", ranked), learned("two", json!(null))]));
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap();
        let row: Vec<&str> = line("effective_intensity_v3").split_whitespace().collect();
        let figures = ["spmm", "on", "cpu/x", "3", "41", "1.25", "1.50", "-0.62"];
        assert_eq!(row[1..], figures, "{text}");
        assert!(line("one").trim_end().ends_with("0.75"), "{text}");
        assert!(line("one").contains("15 trials of 2 plans"), "{text}");
        assert!(!line("two").contains("trials of"), "{text}");
        assert_eq!(of(json!([])), "no model has been trained yet");
        assert!(of(json!([analytic])).ends_with("no model has been trained yet"));
        let odd = json!({ "items": [{"kind": "mlp"}] });
        assert!(serde_json::from_value::<Models>(odd).is_err());
    }

    #[test]
    fn a_card_is_written_next_to_its_model() {
        assert_eq!(card_of(Path::new("a/m.json")), Path::new("a/m.card.json"));
        assert_eq!(card_of(Path::new("m")), Path::new("m.card.json"));
    }
}
