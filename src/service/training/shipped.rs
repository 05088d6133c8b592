//! Models that ship with sparsetune: embedded files of `config/models`. Each is a model file `NAME.json` with a card
//! `NAME.card.json`, and is imported into the store once, by its id.

use crate::domain::learned::{Activation, LearnedModel, MODEL_VERSION};
use crate::domain::{Digest, Timestamp};
use crate::learn::ModelFile;
use crate::ops::features;
use crate::service::learning::fits;
use crate::service::{Result, Service};
use crate::store::{ActivationQuery, PutToUse, StoreError};
use rust_embed::RustEmbed;
use std::borrow::Cow;

#[derive(RustEmbed)]
#[folder = "config/models/"]
struct Files;

/// A model card with the bytes of the model file.
pub(super) type Shipped = (LearnedModel, Vec<u8>);

const CARD: &str = ".card.json";

impl Service {
    /// Imports shipped models that are not in the store yet, and activates them if no model of their scope was ever
    /// active, or if the active one cannot rank.
    pub async fn ship_models(&self) -> Result<()> {
        self.take_models(read(Files::iter(), |name| Some(Files::get(name)?.data))).await
    }

    pub(super) async fn take_models(&self, models: Vec<Shipped>) -> Result<()> {
        let store = &self.store;
        for (model, file) in models {
            match store.learned_model(&model.id).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    store.insert_model(&model, &file).await?;
                    tracing::info!(model = %model.id, "imported a model that ships with sparsetune");
                }
                // Continue with the others.
                Err(error @ StoreError::Corrupt { .. }) => {
                    tracing::error!(model = %model.id, %error, "a shipped model cannot be read from the store");
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let newest = store.activations(ActivationQuery::OfScope(&model.scope, 1)).await?.pop();
            if let Some(newest) = &newest
                && self.stands(newest).await?
            {
                continue;
            }
            let activation = Activation {
                scope: model.scope,
                model: Some(model.id),
                reason: "shipped with sparsetune".to_owned(),
                at: Timestamp::now(),
            };
            // Not if another process that opened the same store has just done so.
            let change = PutToUse { activation: &activation, only_after: Some(newest.as_ref()) };
            store.put_to_use(change).await?;
        }
        Ok(())
    }

    /// Whether the newest activation is kept when a shipped model is available. An operator's choice to deactivate all
    /// models is kept. A model that reads earlier features than are computed here, or that cannot be read, cannot rank
    /// and is replaced. One that reads later features belongs to a later sparsetune, which may run beside this one, and
    /// is kept.
    async fn stands(&self, Activation { model, .. }: &Activation) -> Result<bool> {
        let Some(id) = model else { return Ok(true) };
        match self.store.learned_model(id).await {
            Ok(card) => Ok(card.is_some_and(|card| {
                fits(&card) || card.features_version > features::version(card.scope.op)
            })),
            Err(StoreError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads the models among the embedded files. Models for other versions of the features are skipped; invalid files are
/// skipped with an error in the log, so that a release with a broken file still works.
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
        match pair
            .ok_or_else(|| "the model file is missing".to_owned())
            .and_then(|(c, f)| model(&c, &f))
        {
            Ok(Some(model)) => found.push(model),
            Ok(None) => {
                tracing::info!(%card, "a shipped model was skipped: it reads another version of the features")
            }
            Err(why) => tracing::error!(%card, why, "a shipped model cannot be used"),
        }
    }
    found
}

fn model(card: &[u8], file: &[u8]) -> std::result::Result<Option<Shipped>, String> {
    let card: LearnedModel = serde_json::from_slice(card).map_err(|error| error.to_string())?;
    if card.version != MODEL_VERSION {
        return Err(format!("its card has the unknown version {}", card.version));
    }
    if !fits(&card) {
        return Ok(None);
    }
    if card.digest != Digest::of(file) {
        return Err("the digest of the model file does not match its card".to_owned());
    }
    let read = ModelFile::parse(file).map_err(|error| error.to_string())?;
    let (shared, own) = features::names(card.scope.op);
    read.accepts(&card.scope, features::version(card.scope.op), (&shared, &own))
        .map_err(|error| error.to_string())?;
    Ok(Some((card, file.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Op;
    use crate::domain::learned::Scope;
    use crate::domain::{DeviceClass, ModelId};
    use crate::service::rankers;
    use crate::service::rankers::tests::service;
    use std::path::Path;

    fn scope() -> Scope {
        Scope { op: Op::Spmm, device_class: DeviceClass("cuda/a GPU/cc9.0/132sm".to_owned()) }
    }

    fn sound(id: &str) -> (LearnedModel, Vec<u8>) {
        rankers::tests::sound(id, &scope())
    }

    fn put(folder: &Path, name: &str, card: &LearnedModel, bytes: &[u8]) {
        std::fs::write(folder.join(format!("{name}.json")), bytes).unwrap();
        let card = serde_json::to_vec(card).unwrap();
        std::fs::write(folder.join(format!("{name}{CARD}")), card).unwrap();
    }

    fn read_folder(folder: &Path) -> Vec<Shipped> {
        let names = std::fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap().into());
        read(names, |name| std::fs::read(folder.join(name)).ok().map(Cow::from))
    }

    #[test]
    fn unusable_models_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (card, bytes) = sound("b");
        put(folder, "b", &card, &bytes);
        put(folder, "a", &LearnedModel { id: ModelId("a".to_owned()), ..card.clone() }, &bytes);
        std::fs::write(folder.join("README.md"), "about models").unwrap();

        let spoilt = |name: &str, change: &dyn Fn(&mut LearnedModel)| {
            let mut card = LearnedModel { id: ModelId(name.to_owned()), ..card.clone() };
            change(&mut card);
            put(folder, name, &card, &bytes);
        };
        spoilt("later_card", &|card| card.version += 1);
        spoilt("later_features", &|card| card.features_version += 1);
        spoilt("other_file", &|card| card.digest = Digest::of(b"another"));
        spoilt("other_class", &|card| card.scope.device_class.0.push('x'));
        spoilt("other_op", &|card| card.scope.op = Op::Sptrsv);
        let no_model = LearnedModel { digest: Digest::of(b"{}"), ..card.clone() };
        put(folder, "no_model", &no_model, b"{}");
        std::fs::write(folder.join(format!("no_card{CARD}")), "{").unwrap();
        std::fs::write(folder.join("no_card.json"), &bytes).unwrap();
        put(folder, "alone", &card, &bytes);
        std::fs::remove_file(folder.join("alone.json")).unwrap();

        let found = read_folder(folder);
        let ids: Vec<&str> = found.iter().map(|(card, _)| card.id.0.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(found[1], (card, bytes));
    }

    #[test]
    fn models_shipped_for_the_current_features_are_usable() {
        let found = read(Files::iter(), |name| Some(Files::get(name)?.data));
        for op in Op::ALL {
            let of_op = found.iter().filter(|(card, _)| card.scope.op == op).count();
            assert!(
                of_op > 0,
                "no model ships for {op} with version {} of the features",
                features::version(op)
            );
        }
        let cards = Files::iter().filter(|name| name.ends_with(CARD));
        let here = cards.filter(|name| {
            let card: LearnedModel =
                serde_json::from_slice(&Files::get(name).unwrap().data).unwrap();
            card.features_version == features::version(card.scope.op)
        });
        assert_eq!(found.len(), here.count());
    }

    #[tokio::test]
    async fn shipped_models_are_imported_once_and_activated_if_none_ever_was() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(folder.path()).await;
        let models = folder.path().join("models");
        std::fs::create_dir(&models).unwrap();
        let (card, bytes) = sound("first");
        put(&models, "first", &card, &bytes);
        let in_use = async || {
            let model = service.active_model(&scope()).await.unwrap();
            model.map(|model| model.card().id.0.clone())
        };
        for _ in 0..2 {
            service.take_models(read_folder(&models)).await.unwrap();
            assert_eq!(in_use().await.as_deref(), Some("first"));
            assert_eq!(service.learned_models().await.unwrap().len(), 1);
            assert_eq!(service.activations(&scope(), 9).await.unwrap().len(), 1);
        }
        // A later release ships another model: it is imported, but the operator's choice stays active.
        service.roll_back(&scope()).await.unwrap();
        put(&models, "second", &LearnedModel { id: ModelId("second".to_owned()), ..card }, &bytes);
        service.take_models(read_folder(&models)).await.unwrap();
        assert_eq!(service.learned_models().await.unwrap().len(), 2);
        assert_eq!(in_use().await, None);
        assert_eq!(service.activations(&scope(), 9).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_shipped_model_replaces_one_that_cannot_rank() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(folder.path()).await;
        // State left by an earlier release: two models for older features, both of which were active.
        let (card, bytes) = sound("shipped");
        for id in ["older", "old"] {
            let features_version = features::version(Op::Spmm) - 1;
            let old = LearnedModel { id: ModelId(id.to_owned()), features_version, ..card.clone() };
            service.store.insert_model(&old, &bytes).await.unwrap();
            let reason = "at that time".to_owned();
            let change =
                Activation { scope: scope(), model: Some(old.id), reason, at: Timestamp(1) };
            service.store.activate(&change).await.unwrap();
        }
        let reported = async || {
            let all = service.learned_models().await.unwrap().into_iter();
            all.filter(|standing| standing.active).map(|s| s.model.id.0).collect::<Vec<_>>()
        };
        assert!(reported().await.is_empty(), "a model that cannot rank is reported as active");
        let unfit = service.learned_model(&ModelId("old".to_owned())).await.unwrap();
        assert!(!unfit.active);

        let second = LearnedModel { id: ModelId("too".to_owned()), ..card.clone() };
        for _ in 0..2 {
            let ships = vec![(card.clone(), bytes.clone()), (second.clone(), bytes.clone())];
            service.take_models(ships).await.unwrap();
            assert_eq!(reported().await, ["shipped"]);
            let active = service.active_model(&scope()).await.unwrap().unwrap();
            assert_eq!(active.card().id, card.id);
            assert_eq!(service.activations(&scope(), 9).await.unwrap().len(), 3);
        }
        // Roll-back skips both and returns to the analytic model.
        assert_eq!(service.roll_back(&scope()).await.unwrap().model, None);
        assert!(service.roll_back(&scope()).await.is_err(), "nothing is left to roll back");
        service.take_models(vec![(second, bytes)]).await.unwrap();
        assert_eq!(reported().await, [""; 0]);
        assert!(service.active_model(&scope()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_model_activated_by_a_later_release_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(folder.path()).await;
        let (card, bytes) = sound("shipped");
        let features_version = features::version(Op::Spmm) + 1;
        let id = ModelId("later".to_owned());
        let later = LearnedModel { id: id.clone(), features_version, ..card.clone() };
        service.store.insert_model(&later, &bytes).await.unwrap();
        let (model, reason) = (Some(id), "by hand".to_owned());
        let change = Activation { scope: scope(), model, reason, at: Timestamp(1) };
        service.store.activate(&change).await.unwrap();
        service.take_models(vec![(card, bytes)]).await.unwrap();
        assert_eq!(service.activations(&scope(), 9).await.unwrap(), [change]);
        assert_eq!(service.learned_models().await.unwrap().len(), 2);
    }
}
