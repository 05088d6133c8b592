//! `sparsetune train`: has a server train models on what it has measured, and says how well they choose.

use super::client::models::{ModelView, TrainingView};
use super::client::{Answer, Client};
use super::{INTERRUPTED, ServerArgs, models, say};
use crate::domain::JobState;
use crate::domain::learned::Op;
use crate::domain::training::{Activate, TrainingStage};
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// Between two looks at a training.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub struct TrainArgs {
    /// spmm or sptrsv; both in turn where it is not given
    #[arg(long, value_parser = models::op)]
    op: Option<Op>,
    /// A device, a class of devices in full, or auto
    #[arg(long, default_value = "auto")]
    device: String,
    /// Put the new model to use: if-better, always or never
    #[arg(long, value_parser = activate, default_value = "if-better")]
    activate: Activate,
    #[arg(long, default_value_t = 1)]
    seed: u64,
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
        _ => Err("one of if-better, always, never".to_owned()),
    }
}

pub async fn run(args: TrainArgs) -> anyhow::Result<ExitCode> {
    let client = args.server.client()?;
    let mut told = Vec::new();
    let mut failed = None;
    for op in args.op.map_or(Op::ALL.to_vec(), |op| vec![op]) {
        let request = json!({
            "op": op, "device": args.device, "activate": args.activate, "seed": args.seed
        });
        let training = client.train(&request).await?;
        let id = training.view.id.clone();
        let ended = tokio::select! {
            ended = follow(&client, training, !args.json) => ended?,
            _ = tokio::signal::ctrl_c() => {
                eprintln!("the training goes on: {}/v1/jobs/{id} (DELETE cancels it)", client.server());
                return Ok(ExitCode::from(INTERRUPTED));
            }
        };
        // One operation may well have too little data while the other has enough.
        match made(&client, &ended).await {
            Ok(model) if args.json => told.push(json!({ "job": ended.raw, "model": model.raw })),
            Ok(model) => say(trained(&ended.view, &model.view))?,
            Err(error) => {
                told.push(json!({ "job": ended.raw, "model": Value::Null }));
                eprintln!("sparsetune: {error:#}");
                failed = Some(ExitCode::FAILURE);
            }
        }
    }
    if args.json {
        say(Value::from(told))?;
    }
    Ok(failed.unwrap_or(ExitCode::SUCCESS))
}

/// The model of a training that has ended; an error where there is none.
async fn made(client: &Client, ended: &Answer<TrainingView>) -> anyhow::Result<Answer<ModelView>> {
    let TrainingView { op, device_class, error, .. } = &ended.view;
    match ended.view.state {
        JobState::Succeeded => {}
        JobState::Cancelled => bail!("the training for {op} on {device_class} was cancelled"),
        _ => {
            let why = error.as_deref().unwrap_or("no reason");
            bail!("the training for {op} on {device_class} failed: {why}")
        }
    }
    let id = ended.view.model.as_deref();
    client.model(id.context("the training has succeeded, but names no model")?).await
}

async fn follow(
    client: &Client,
    mut training: Answer<TrainingView>,
    shown: bool,
) -> anyhow::Result<Answer<TrainingView>> {
    let bar = bar(shown);
    while !training.view.state.is_final() {
        let view = &training.view;
        bar.set_prefix(format!("{} {}", view.op, stage(view.stage)));
        bar.set_length(view.progress.total.max(1).into());
        bar.set_position(view.progress.done.into());
        bar.set_message(view.message.clone().unwrap_or_default());
        tokio::time::sleep(LOOK).await;
        training = client.training(&training.view.id).await?;
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

const fn stage(stage: TrainingStage) -> &'static str {
    match stage {
        TrainingStage::Waiting => "waiting",
        TrainingStage::Describing => "describing",
        TrainingStage::Reading => "reading",
        TrainingStage::Judging => "judging",
        TrainingStage::Training => "training",
        TrainingStage::Done => "done",
    }
}

/// What came of it: the data, how each way to choose did, and whether the model is in use.
fn trained(training: &TrainingView, model: &ModelView) -> String {
    let data = &model.data;
    let used = if training.activated { "put to use" } else { "not put to use" };
    let why = training.message.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    format!(
        "{} for {} on {}: {}\n{} trials of {} problems on {} patterns ({} generated), judged in {} \
         parts\n\n{}\n\n{used}{why}\n",
        model.kind,
        model.op,
        model.device_class,
        model.id,
        data.trials,
        data.groups,
        data.matrices,
        data.generated,
        model.quality.folds,
        models::choosers(&model.quality),
    )
}

#[cfg(test)]
mod tests {
    use super::activate;
    use crate::domain::training::Activate;

    #[test]
    fn what_becomes_of_a_model_is_said_with_either_dash() {
        assert_eq!(activate("if-better"), Ok(Activate::IfBetter));
        assert_eq!(activate("if_better"), Ok(Activate::IfBetter));
        assert!(activate("perhaps").is_err());
    }
}
