//! `sparsetune train`: trains models on recorded measurements, on a server or in a data folder, and reports their
//! evaluation.

use super::client::{Answer, Client};
use super::local::{InHand, Local};
use super::problem::op_parser;
use super::{INTERRUPTED, ServerArgs, models, say};
use crate::domain::JobState;
use crate::domain::Op;
use crate::domain::training::Activate;
use crate::service::Service;
use crate::wire::{Training, WholeModel};
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Selects the device automatically.
const AUTO: &str = "auto";

/// Polling interval of a training.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub struct TrainArgs {
    /// Operation; all of them in turn where it is not given
    #[arg(long, value_parser = op_parser())]
    op: Option<Op>,
    /// A device, a device class in full, or auto
    #[arg(long, default_value = "auto")]
    device: String,
    /// When to activate the new model: if-better, always or never
    #[arg(long, value_parser = activate, default_value = "if-better")]
    activate: Activate,
    /// Seed of the training: it determines the model
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Train in this process, on the data folder of a server or of `sparsetune corpus`. `auto` is then the device class
    /// with the most recorded trials
    #[arg(long, value_name = "DIR", conflicts_with_all = ["server", "token_file"])]
    data: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print trainings and models as JSON
    #[arg(long)]
    json: bool,
}

fn activate(text: &str) -> Result<Activate, String> {
    match text {
        "if-better" | "if_better" => Ok(Activate::IfBetter),
        "always" => Ok(Activate::Always),
        "never" => Ok(Activate::Never),
        _ => Err("must be if-better, always or never".to_owned()),
    }
}

pub async fn run(args: TrainArgs) -> anyhow::Result<ExitCode> {
    let order = Order {
        ops: args.op.map_or(Op::ALL.to_vec(), |op| vec![op]),
        device: args.device,
        activate: args.activate,
        seed: args.seed,
        json: args.json,
    };
    if let Some(data) = &args.data {
        let local = Local::without_devices(data, None).await?;
        local.train();
        let done = async |local: &Local, job: &InHand| {
            order.carry(&local.client, Some(local.service()), job).await
        };
        return local.carry(done).await;
    }
    let (client, job) = (args.server.client()?, InHand::default());
    tokio::select! {
        done = order.carry(&client, None, &job) => done,
        _ = tokio::signal::ctrl_c() => {
            if let Some(id) = job.id() {
                eprintln!("the training continues: {}/v1/jobs/{id} (DELETE cancels it)", client.server());
            }
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

/// What to train.
pub struct Order {
    /// One after the other.
    pub ops: Vec<Op>,
    pub device: String,
    pub activate: Activate,
    pub seed: u64,
    pub json: bool,
}

impl Order {
    /// Trains the models and prints their evaluation. Fails if any training failed; one operation may have too little
    /// data while the other has enough.
    pub async fn carry(
        &self,
        client: &Client,
        recorded: Option<&Service>,
        job: &InHand,
    ) -> anyhow::Result<ExitCode> {
        let mut results = Vec::new();
        let mut failed = None;
        let mut fail = |error: anyhow::Error| {
            eprintln!("sparsetune: {error:#}");
            failed = Some(ExitCode::FAILURE);
        };
        for op in &self.ops {
            let device = match recorded {
                Some(service) if self.device == AUTO => {
                    match service.most_recorded_class(*op).await {
                        Ok(class) => class.0,
                        Err(error) => {
                            fail(error.into());
                            continue;
                        }
                    }
                }
                _ => self.device.clone(),
            };
            let request = json!({
                "op": op, "device": device, "activate": self.activate, "seed": self.seed
            });
            let (training, created) = client.train(&request).await?;
            match created {
                true => job.is(&training.view.id.0),
                // Submitted by another client, so it is not cancelled with this command.
                false => job.none(),
            }
            let ended = follow(client, training, !self.json).await?;
            match made(client, &ended).await {
                Ok(model) if self.json => {
                    results.push(json!({ "job": ended.raw, "model": model.raw }));
                }
                Ok(model) => say(trained(&ended.view, &model.view))?,
                Err(error) => {
                    results.push(json!({ "job": ended.raw, "model": Value::Null }));
                    fail(error);
                }
            }
        }
        if self.json {
            say(Value::from(results))?;
        }
        Ok(failed.unwrap_or(ExitCode::SUCCESS))
    }
}

/// The model of a training that has ended; an error if there is none.
async fn made(client: &Client, ended: &Answer<Training>) -> anyhow::Result<Answer<WholeModel>> {
    let Training { op, device_class, error, .. } = &ended.view;
    match ended.view.state {
        JobState::Succeeded => {}
        JobState::Cancelled => bail!("the training for {op} on {device_class} was cancelled"),
        _ => {
            let why = error.as_deref().unwrap_or("no reason");
            bail!("the training for {op} on {device_class} failed: {why}")
        }
    }
    let id = ended.view.model.as_ref().map(|id| id.0.as_str());
    client.model(id.context("the training succeeded but has no model")?).await
}

async fn follow(
    client: &Client,
    mut training: Answer<Training>,
    shown: bool,
) -> anyhow::Result<Answer<Training>> {
    let bar = bar(shown);
    while !training.view.state.is_final() {
        let view = &training.view;
        bar.set_prefix(format!("{} {}", view.op, view.stage.name()));
        bar.set_length(view.progress.total.max(1).into());
        bar.set_position(view.progress.done.into());
        bar.set_message(view.message.clone().unwrap_or_default());
        tokio::time::sleep(LOOK).await;
        training = client.training(&training.view.id.0).await?;
    }
    bar.finish_and_clear();
    Ok(training)
}

fn bar(shown: bool) -> ProgressBar {
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(1), target);
    if let Ok(style) =
        ProgressStyle::with_template("{prefix:>18} {bar:24} {percent:>3} % {elapsed:>4} {wide_msg}")
    {
        bar.set_style(style);
    }
    bar
}

/// The result: training data, evaluation, and whether the model was activated.
fn trained(training: &Training, WholeModel { model, .. }: &WholeModel) -> String {
    let data = &model.data;
    // The last message says whether the model was activated, and why.
    let used = match (&training.message, training.activated) {
        (Some(message), _) => message.as_str(),
        (None, true) => "activated",
        (None, false) => "not activated",
    };
    format!(
        "{} for {} on {}: {}\n{} trials of {} problems on {} patterns ({} generated), evaluated in {} \
         folds\n\n{}\n\n{used}\n",
        model.kind,
        model.op,
        model.device_class,
        model.id,
        data.trials,
        data.groups,
        data.matrices,
        data.generated,
        model.quality.folds,
        models::rankers(&model.quality),
    )
}

#[cfg(test)]
mod tests {
    use super::activate;
    use crate::domain::training::Activate;

    #[test]
    fn if_better_is_accepted_with_either_separator() {
        assert_eq!(activate("if-better"), Ok(Activate::IfBetter));
        assert_eq!(activate("if_better"), Ok(Activate::IfBetter));
        assert!(activate("perhaps").is_err());
    }
}
