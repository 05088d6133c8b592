//! `sparsetune models`: the learned models of a server, and which of them is in use.

use super::client::models::{ActivationView, ModelView, QualityView};
use super::show::{right, table};
use super::{ServerArgs, say};
use crate::domain::LearnedModel;
use crate::domain::learned::Op;
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
    /// Print the answer as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Put a model to use
    Activate {
        id: String,
        /// Why, for the history
        #[arg(long)]
        reason: Option<String>,
    },
    /// Take the newest change of the model in use back
    RollBack {
        #[arg(long, value_parser = op)]
        op: Op,
        /// The class of devices in full, a device, or auto
        #[arg(long, default_value = "auto")]
        device_class: String,
    },
    /// Write a model, and its card beside it
    Export {
        id: String,
        /// The file; its card gets .card.json in place of .json, or after its name
        #[arg(long, short)]
        output: PathBuf,
    },
}

/// The operation of this name.
pub fn op(text: &str) -> Result<Op, String> {
    let named = Op::ALL.into_iter().find(|op| op.name() == text);
    named.ok_or_else(|| "spmm or sptrsv".to_owned())
}

pub async fn run(args: ModelsArgs) -> anyhow::Result<ExitCode> {
    let client = args.server.client()?;
    let changed = match &args.action {
        None => {
            let (raw, learned) = client.models().await?;
            match args.json {
                true => say(raw)?,
                false if learned.is_empty() => say("no model has been learned yet")?,
                false => say(list(&learned))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        Some(Action::Export { id, output }) => {
            let (card, file) = (client.model(id).await?, client.model_file(id).await?);
            export(output, &card.view.card()?, &file)?;
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

fn in_use(now: &ActivationView) -> String {
    let model = now.model.as_deref().unwrap_or("the analytic model");
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

fn list(models: &[ModelView]) -> Table {
    let mut table =
        table(&["", "model", "kind", "for", "made", "trials", "best of 1", "best of 10"]);
    for model in models {
        let quality = &model.quality;
        let own = quality.choosers.iter().find(|chooser| chooser.name == model.kind);
        let share = |k| {
            let at = own.and_then(|own| own.at.iter().find(|at| at.k == k));
            at.map(|at| percent(at.share)).unwrap_or_default()
        };
        table.add_row([
            if model.active { "in use" } else { "" }.to_owned(),
            model.id.clone(),
            model.kind.clone(),
            format!("{} on {}", model.op, model.device_class),
            model.created_at.get(..16).unwrap_or(&model.created_at).replace('T', " "),
            model.data.trials.to_string(),
            share(1),
            share(10),
        ]);
    }
    right(&mut table, 5..8);
    table
}

/// A row for each way to choose: shares of the best with 1, 8, 10 and 16 tries, and the first choice's regret.
pub fn choosers(quality: &QualityView) -> Table {
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
    for chooser in &quality.choosers {
        let at = |k: u32| chooser.at.iter().find(|at| at.k == k);
        let share = |k| at(k).map(|at| percent(at.share)).unwrap_or_default();
        let within = |k| at(k).map(|at| percent(at.within_85)).unwrap_or_default();
        let regret = &chooser.regret;
        table.add_row([
            chooser.name.clone(),
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
    use super::card_of;
    use std::path::Path;

    #[test]
    fn a_card_stands_beside_its_model() {
        assert_eq!(card_of(Path::new("a/m.json")), Path::new("a/m.card.json"));
        assert_eq!(card_of(Path::new("m")), Path::new("m.card.json"));
    }
}
