//! Models that ship with sparsetune: files of `config/models`, embedded. Each is a model file `NAME.json` and its card
//! `NAME.card.json`, whose id is put into the store once.

use crate::domain::learned::{Activation, LearnedModel, MODEL_VERSION};
use crate::domain::{Digest, Timestamp};
use crate::learn::ModelFile;
use crate::ops::features;
use crate::service::learning::fits;
use crate::service::{Result, Service};
use crate::store::{PutToUse, StoreError};
use rust_embed::RustEmbed;
use std::borrow::Cow;

#[derive(RustEmbed)]
#[folder = "config/models/"]
struct Files;

/// A model with the bytes of its file.
pub(super) type Shipped = (LearnedModel, Vec<u8>);

const CARD: &str = ".card.json";

impl Service {
    /// Puts the shipped models into the store where they are not known, and to use where no model of their scope ever was, or
    /// where the one in use ranks nothing.
    pub async fn ship_models(&self) -> Result<()> {
        self.take_models(read(Files::iter(), |name| Some(Files::get(name)?.data))).await
    }

    pub(super) async fn take_models(&self, models: Vec<Shipped>) -> Result<()> {
        let store = &self.inner.store;
        for (model, file) in models {
            match store.learned_model(&model.id).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    store.insert_model(&model, &file).await?;
                    tracing::info!(model = %model.id, "a model that ships with sparsetune was taken in");
                }
                // The others can still be taken in.
                Err(error @ StoreError::Corrupt { .. }) => {
                    tracing::error!(model = %model.id, %error, "a shipped model cannot be read from the store");
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let newest = store.activations(&model.scope, 1).await?.pop();
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
            // Not where another process that opens the same store has just done so.
            let change = PutToUse { activation: &activation, only_after: Some(newest.as_ref()) };
            if store.put_to_use(change).await? {
                self.inner.signals.changed_here();
            }
        }
        Ok(())
    }

    /// Whether a shipped model leaves what is in use alone. An operator who put all models out of use keeps that; a model that
    /// reads earlier features than are computed here, or that cannot be read, ranks nothing, whoever put it to use. One that
    /// reads later features is a later sparsetune's, which may run beside this one.
    async fn stands(&self, Activation { model, .. }: &Activation) -> Result<bool> {
        let Some(id) = model else { return Ok(true) };
        match self.inner.store.learned_model(id).await {
            Ok(card) => Ok(card.is_some_and(|card| {
                fits(&card) || card.features_version > features::version(card.scope.op)
            })),
            Err(StoreError::Corrupt { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
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
            Ok(None) => {
                tracing::info!(%card, "a shipped model is passed over: it is of other features")
            }
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
    if !fits(&card) {
        return Ok(None);
    }
    if card.digest != Digest::of(file) {
        return Err("the file is not the one of its card".to_owned());
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
    use crate::domain::learned::{DataUsed, HeldOut, Learner, Op, Scope};
    use crate::domain::{DeviceClass, ModelId};
    use crate::learn::{Forest, Model, file};
    use crate::service::ServiceSettings;
    use crate::store::{LocalBlobs, SqliteStore};
    use std::path::Path;
    use std::sync::Arc;

    fn scope() -> Scope {
        Scope { op: Op::Spmm, device_class: DeviceClass("cuda/a GPU/cc9.0/132sm".to_owned()) }
    }

    async fn service(folder: &Path) -> Service {
        let store = SqliteStore::open(&folder.join("store")).await.unwrap();
        let blobs = LocalBlobs::open(&folder.join("blobs")).unwrap();
        Service::new(Arc::new(store), Arc::new(blobs), ServiceSettings::default())
    }

    /// A model that can be used, and its card.
    fn sound(id: &str) -> (LearnedModel, Vec<u8>) {
        let (shared, own) = features::names(Op::Spmm);
        let file = ModelFile {
            version: file::VERSION,
            scope: scope(),
            features_version: features::version(Op::Spmm),
            shared,
            own,
            model: Model::Lambdamart(Forest { prior: None, trees: Vec::new(), scale: 1.0 }),
        };
        let bytes = file.to_bytes().unwrap();
        let newest = Timestamp(1);
        let card = LearnedModel {
            version: MODEL_VERSION,
            id: ModelId(id.to_owned()),
            learner: Learner::Lambdamart,
            scope: scope(),
            features_version: features::version(Op::Spmm),
            data: DataUsed { groups: 9, matrices: 8, generated: 8, trials: 99, newest },
            quality: HeldOut { folds: 5, groups: 9, rankers: Vec::new() },
            importance: Vec::new(),
            seed: 1,
            training: None,
            digest: Digest::of(&bytes),
            created_at: Timestamp(2),
        };
        (card, bytes)
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
    fn what_is_no_model_for_here_is_passed_over() {
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
    fn what_ships_for_the_features_of_here_can_be_used() {
        let found = read(Files::iter(), |name| Some(Files::get(name)?.data));
        for op in Op::ALL {
            let of_op = found.iter().filter(|(card, _)| card.scope.op == op).count();
            assert!(
                of_op > 0,
                "nothing ships for {op} with features of version {}",
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
    async fn shipped_models_are_taken_in_once_and_used_where_none_ever_was() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(folder.path()).await;
        let models = folder.path().join("models");
        std::fs::create_dir(&models).unwrap();
        let (card, bytes) = sound("first");
        put(&models, "first", &card, &bytes);
        let in_use = async || {
            let model = service.active_model(&scope()).await.unwrap();
            model.map(|model| model.card.id.0.clone())
        };
        for _ in 0..2 {
            service.take_models(read_folder(&models)).await.unwrap();
            assert_eq!(in_use().await.as_deref(), Some("first"));
            assert_eq!(service.learned_models().await.unwrap().len(), 1);
            assert_eq!(service.activations(&scope(), 9).await.unwrap().len(), 1);
        }
        // A later release ships another: it is there, but whoever runs this server has chosen.
        service.roll_back(&scope()).await.unwrap();
        put(&models, "second", &LearnedModel { id: ModelId("second".to_owned()), ..card }, &bytes);
        service.take_models(read_folder(&models)).await.unwrap();
        assert_eq!(service.learned_models().await.unwrap().len(), 2);
        assert_eq!(in_use().await, None);
        assert_eq!(service.activations(&scope(), 9).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_shipped_model_takes_the_place_of_one_that_ranks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(folder.path()).await;
        // What a release before this one left: two of older features, each of which was in use.
        let (card, bytes) = sound("shipped");
        for id in ["older", "old"] {
            let features_version = features::version(Op::Spmm) - 1;
            let old = LearnedModel { id: ModelId(id.to_owned()), features_version, ..card.clone() };
            service.inner.store.insert_model(&old, &bytes).await.unwrap();
            let reason = "at that time".to_owned();
            let change =
                Activation { scope: scope(), model: Some(old.id), reason, at: Timestamp(1) };
            service.put_in_use(&change).await.unwrap();
        }
        let told = async || {
            let all = service.learned_models().await.unwrap().into_iter();
            all.filter(|standing| standing.active).map(|s| s.model.id.0).collect::<Vec<_>>()
        };
        assert!(told().await.is_empty(), "in use, and of no use");
        let unfit = service.learned_model(&ModelId("old".to_owned())).await.unwrap();
        assert!(!unfit.active);

        let second = LearnedModel { id: ModelId("too".to_owned()), ..card.clone() };
        for _ in 0..2 {
            let ships = vec![(card.clone(), bytes.clone()), (second.clone(), bytes.clone())];
            service.take_models(ships).await.unwrap();
            assert_eq!(told().await, ["shipped"]);
            let active = service.active_model(&scope()).await.unwrap().unwrap();
            assert_eq!(active.card.id, card.id);
            assert_eq!(service.activations(&scope(), 9).await.unwrap().len(), 3);
        }
        // Back past both, to the analytic order, where it stays.
        assert_eq!(service.roll_back(&scope()).await.unwrap().model, None);
        assert!(service.roll_back(&scope()).await.is_err(), "there is nothing more");
        service.take_models(vec![(second, bytes)]).await.unwrap();
        assert_eq!(told().await, [""; 0]);
        assert!(service.active_model(&scope()).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_a_later_release_put_to_use_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(folder.path()).await;
        let (card, bytes) = sound("shipped");
        let features_version = features::version(Op::Spmm) + 1;
        let id = ModelId("later".to_owned());
        let later = LearnedModel { id: id.clone(), features_version, ..card.clone() };
        service.inner.store.insert_model(&later, &bytes).await.unwrap();
        let (model, reason) = (Some(id), "by hand".to_owned());
        let change = Activation { scope: scope(), model, reason, at: Timestamp(1) };
        service.put_in_use(&change).await.unwrap();
        service.take_models(vec![(card, bytes)]).await.unwrap();
        assert_eq!(service.activations(&scope(), 9).await.unwrap(), [change]);
        assert_eq!(service.learned_models().await.unwrap().len(), 2);
    }
}
