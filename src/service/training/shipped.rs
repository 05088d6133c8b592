//! Models that ship with sparsetune: files of `config/models`, embedded. Each is a model file `NAME.json` and its card
//! `NAME.card.json`, whose id is put into the store once.

use crate::domain::learned::{Activation, LearnedModel, MODEL_VERSION};
use crate::domain::{Digest, Timestamp};
use crate::learn::ModelFile;
use crate::ops::features;
use crate::service::{Result, Service};
use rust_embed::RustEmbed;
use std::borrow::Cow;

#[derive(RustEmbed)]
#[folder = "config/models/"]
struct Files;

/// A model with the bytes of its file.
pub(super) type Shipped = (LearnedModel, Vec<u8>);

const CARD: &str = ".card.json";

impl Service {
    /// Puts the shipped models into the store where they are not known, and to use where no model of their scope ever was.
    pub async fn ship_models(&self) -> Result<()> {
        self.take_models(read(Files::iter(), |name| Some(Files::get(name)?.data))).await
    }

    pub(super) async fn take_models(&self, models: Vec<Shipped>) -> Result<()> {
        let store = &self.inner.store;
        for (model, file) in models {
            if store.learned_model(&model.id).await?.is_none() {
                store.insert_model(&model, &file).await?;
                tracing::info!(model = %model.id, "a model that ships with sparsetune was taken in");
            }
            // An operator who put all models out of use has an activation, and keeps that.
            if !store.activations(&model.scope, 1).await?.is_empty() {
                continue;
            }
            let activation = Activation {
                scope: model.scope,
                model: Some(model.id),
                reason: "shipped with sparsetune".to_owned(),
                at: Timestamp::now(),
            };
            self.put_in_use(&activation).await?;
        }
        Ok(())
    }
}

/// The models among embedded files. What was made for other features is passed over, and so, loudly, is what is no model:
/// a release with a broken file still serves.
pub(super) fn read<'a>(
    names: impl Iterator<Item = Cow<'a, str>>,
    get: impl Fn(&str) -> Option<Cow<'a, [u8]>>,
) -> Vec<Shipped> {
    let mut found = Vec::new();
    let mut cards: Vec<_> = names.filter(|name| name.ends_with(CARD)).collect();
    cards.sort();
    for card in cards {
        let file = format!("{}.json", card.trim_end_matches(CARD));
        let pair = get(&card).zip(get(&file));
        match pair.ok_or_else(|| "its file is missing".to_owned()).and_then(|(c, f)| model(&c, &f))
        {
            Ok(Some(model)) => found.push(model),
            Ok(None) => tracing::debug!(%card, "a shipped model is of other features"),
            Err(why) => tracing::error!(%card, why, "a shipped model cannot be used"),
        }
    }
    found
}

fn model(card: &[u8], file: &[u8]) -> std::result::Result<Option<Shipped>, String> {
    let card: LearnedModel = serde_json::from_slice(card).map_err(|error| error.to_string())?;
    if card.version != MODEL_VERSION {
        return Err(format!("its card is of version {}", card.version));
    }
    if card.features_version != features::VERSION {
        return Ok(None);
    }
    if card.digest != Digest::of(file) {
        return Err("the file is not the one of its card".to_owned());
    }
    let read = ModelFile::parse(file).map_err(|error| error.to_string())?;
    let (shared, own) = features::names(card.scope.op);
    read.accepts(&card.scope, features::VERSION, (&shared, &own))
        .map_err(|error| error.to_string())?;
    Ok(Some((card, file.to_vec())))
}
