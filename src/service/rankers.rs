//! The models that rank: the active ones, and which of them is used for an operation on a class of device.

use crate::domain::learned::{Learner, Scope};
use crate::domain::{DeviceClass, Digest, LearnedModel, ModelId};
use crate::learn::ModelFile;
use crate::ops::features;
use metrics::gauge;
use std::collections::HashMap;
use std::sync::Arc;

/// An active model, ready to rank.
#[derive(Clone, Debug)]
pub struct ActiveModel {
    pub card: LearnedModel,
    pub file: Arc<ModelFile>,
}

/// The model that ranks for a scope.
#[derive(Clone, Debug)]
pub enum Ranker {
    /// The scope's own.
    Own(Arc<ActiveModel>),
    /// That of the nearest class of device, because the scope has none. It has seen no measurement of this class.
    Borrowed(Arc<ActiveModel>),
}

impl Ranker {
    pub fn model(&self) -> &ActiveModel {
        match self {
            Self::Own(model) | Self::Borrowed(model) => model,
        }
    }

    pub fn card(&self) -> &LearnedModel {
        &self.model().card
    }

    /// The class of device that a borrowed model was trained for.
    pub fn borrowed_from(&self) -> Option<&DeviceClass> {
        match self {
            Self::Own(_) => None,
            Self::Borrowed(model) => Some(&model.card.scope.device_class),
        }
    }
}

/// The active models at one point in time, each read and checked once.
#[derive(Clone, Debug, Default)]
pub(super) struct InUse {
    /// [`super::Service::plans_epoch`] when the store was read; absent before the first time.
    epoch: Option<u64>,
    /// The newest activation of each scope that ever had one: a model, or none at all.
    by_scope: HashMap<Scope, Option<ModelId>>,
    /// A model never changes under its id.
    read: HashMap<ModelId, Usable>,
}

/// Absent for a model that cannot be used.
pub(super) type Usable = Option<Arc<ActiveModel>>;

impl InUse {
    /// Nothing yet, as of `epoch`.
    pub fn at(epoch: u64) -> Self {
        Self { epoch: Some(epoch), ..Self::default() }
    }

    pub fn is_of(&self, epoch: u64) -> bool {
        self.epoch == Some(epoch)
    }

    /// All models of the scope were deactivated.
    pub fn closed(&mut self, scope: Scope) {
        self.by_scope.insert(scope, None);
    }

    pub fn opened(&mut self, scope: Scope, id: ModelId, model: Usable) {
        self.by_scope.insert(scope, Some(id.clone()));
        self.read.insert(id, model);
    }

    /// The outer option is absent if the model has not been read yet.
    pub fn read(&self, id: &ModelId) -> Option<Usable> {
        self.read.get(id).cloned()
    }

    /// Replaces this by what was read later.
    pub fn keep(&mut self, found: Self) {
        // Another task may have stored a newer result.
        if self.epoch.is_none_or(|kept| found.epoch >= Some(kept)) {
            *self = found;
        }
    }

    /// A scope whose models were all deactivated has none, not even a borrowed one: that was somebody's decision.
    pub fn ranker(&self, scope: &Scope) -> Option<Ranker> {
        let own = match self.by_scope.get(scope) {
            Some(None) => return None,
            Some(Some(id)) => self.read(id).flatten(),
            None => None,
        };
        match own {
            Some(own) => Some(Ranker::Own(own)),
            None => self.nearest(scope).map(Ranker::Borrowed),
        }
    }

    /// The model of the nearest other class of the same operation.
    fn nearest(&self, scope: &Scope) -> Option<Arc<ActiveModel>> {
        self.by_distance(scope).into_iter().next()
    }

    /// The models of other classes of the same operation, the nearest first; by name among equally near ones. They passed the
    /// check of their own scope, so they read the features that are computed here.
    pub fn by_distance(&self, scope: &Scope) -> Vec<Arc<ActiveModel>> {
        let others = self.by_scope.iter().filter_map(|(other, id)| {
            let alike = other.op == scope.op && other.device_class != scope.device_class;
            let model = self.read(id.as_ref()?).flatten().filter(|_| alike)?;
            let distance = scope.device_class.distance(&other.device_class)?;
            Some((distance, &other.device_class, model))
        });
        let mut others: Vec<_> = others.collect();
        others.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        others.into_iter().map(|(_, _, model)| model).collect()
    }
}

/// Checks that a model may be used for its own scope.
pub(super) fn usable(
    card: &LearnedModel,
    bytes: &[u8],
    scope: &Scope,
) -> Result<ActiveModel, String> {
    if card.digest != Digest::of(bytes) {
        return Err("the file does not match its card".to_owned());
    }
    let file = ModelFile::parse(bytes).map_err(|error| error.to_string())?;
    let (shared, own) = features::names(scope.op);
    file.accepts(scope, features::version(scope.op), (&shared, &own))
        .map_err(|error| error.to_string())?;
    Ok(ActiveModel { card: card.clone(), file: Arc::new(file) })
}

/// One gauge for each learner of a scope, 1 if its own model ranks.
pub(super) fn tell_in_use(Scope { op, device_class }: &Scope, model: Option<&ActiveModel>) {
    let used = model.map(|model| model.card.learner);
    for learner in Learner::ALL {
        let (op, class, name) = (op.name(), device_class.to_string(), learner.name());
        gauge!("sparsetune_model_in_use", "op" => op, "device_class" => class, "learner" => name)
            .set(f64::from(u8::from(used == Some(learner))));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::domain::learned::{Activation, DataUsed, HeldOut, MODEL_VERSION};
    use crate::domain::{Op, Timestamp};
    use crate::learn::{Forest, Model, file};
    use crate::service::{Service, ServiceSettings};
    use crate::store::{LocalBlobs, SqliteStore};
    use std::path::Path;

    /// A usable model of a scope, and its card.
    pub fn sound(id: &str, scope: &Scope) -> (LearnedModel, Vec<u8>) {
        let (shared, own) = features::names(scope.op);
        let file = ModelFile {
            version: file::VERSION,
            scope: scope.clone(),
            features_version: features::version(scope.op),
            shared,
            own,
            largest: None,
            model: Model::Lambdamart(Forest { prior: None, trees: Vec::new(), scale: 1.0 }),
        };
        let bytes = file.to_bytes().unwrap();
        let newest = Timestamp(1);
        let card = LearnedModel {
            version: MODEL_VERSION,
            id: ModelId(id.to_owned()),
            learner: Learner::Lambdamart,
            scope: scope.clone(),
            features_version: features::version(scope.op),
            data: DataUsed { groups: 9, matrices: 8, generated: 8, trials: 99, newest },
            quality: HeldOut { folds: 5, groups: 9, rankers: Vec::new() },
            importance: Vec::new(),
            seed: 1,
            started_from: None,
            training: None,
            digest: Digest::of(&bytes),
            created_at: Timestamp(2),
        };
        (card, bytes)
    }

    pub async fn service(folder: &Path) -> Service {
        let store = SqliteStore::open(&folder.join("store")).await.unwrap();
        let blobs = LocalBlobs::open(&folder.join("blobs")).unwrap();
        Service::new(Arc::new(store), Arc::new(blobs), ServiceSettings::default())
    }

    fn scope(class: &str) -> Scope {
        Scope { op: Op::ALL[0], device_class: DeviceClass(class.to_owned()) }
    }

    const H200: &str = "cuda/NVIDIA H200/cc9.0/132sm";

    #[tokio::test]
    async fn a_class_without_a_model_borrows_that_of_the_nearest() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(folder.path()).await;
        let here = scope(H200);
        // The model's id, and whether it is borrowed.
        let ranks = async || {
            let ranker = service.active_model(&here).await.unwrap()?;
            let class = &ranker.card().scope.device_class;
            assert!(ranker.borrowed_from().is_none_or(|from| from == class));
            Some((ranker.card().id.0.clone(), ranker.borrowed_from().is_some()))
        };
        let of = |id: &str, borrowed| Some((id.to_owned(), borrowed));
        let start = async |id: &str, scope: Scope| {
            let (card, bytes) = sound(id, &scope);
            service.store.insert_model(&card, &bytes).await.unwrap();
            service.activate_model(&card.id, "for a test").await.unwrap();
        };
        assert_eq!(ranks().await, None);
        start("older", scope("cuda/NVIDIA A100/cc8.0/108sm")).await;
        start("processor", scope("cpu/a CPU/avx512/132t")).await;
        let op = Op::ALL[1];
        start("solve", Scope { op, ..scope("cuda/NVIDIA H100/cc9.0/132sm") }).await;
        assert_eq!(ranks().await, None, "none of these is a neighbour");
        start("smaller", scope("cuda/NVIDIA H100 PCIe/cc9.0/114sm")).await;
        assert_eq!(ranks().await, of("smaller", true));
        start("near", scope("cuda/NVIDIA H100/cc9.0/132sm")).await;
        assert_eq!(ranks().await, of("near", true));
        // One that cannot rank is no model.
        let (mut card, bytes) = sound("unreadable", &scope("cuda/an H200/cc9.0/132sm"));
        card.digest = Digest::of(b"another file");
        service.store.insert_model(&card, &bytes).await.unwrap();
        service.activate_model(&card.id, "for a test").await.unwrap();
        assert_eq!(ranks().await, of("near", true));
        let nearest = async || service.nearest_model(&here).await.unwrap().unwrap();
        assert_eq!(nearest().await.card.id.0, "near");

        start("own", here.clone()).await;
        assert_eq!(ranks().await, of("own", false));
        assert_eq!(nearest().await.card.id.0, "near", "the nearest is another class's");
        // It was trained elsewhere, so that a training here may start from it.
        let lender = async || service.lender(&here).await.unwrap().unwrap().card.id.0.clone();
        assert_eq!(lender().await, "own");
        // Somebody decided that no model ranks: none is borrowed either.
        assert_eq!(service.roll_back(&here).await.unwrap().model, None);
        assert_eq!(ranks().await, None);
        // A deactivated class lends nothing.
        let near = scope("cuda/NVIDIA H100/cc9.0/132sm");
        service.roll_back(&near).await.unwrap();
        assert_eq!(nearest().await.card.id.0, "smaller");
        let own = Activation {
            scope: here.clone(),
            model: Some(ModelId("own".to_owned())),
            reason: "for a test".to_owned(),
            at: Timestamp(9),
        };
        service.store.activate(&own).await.unwrap();
        assert_eq!(ranks().await, of("own", false));
    }

    #[tokio::test]
    async fn no_training_is_lent_a_model_that_saw_its_measurements() {
        let folder = tempfile::tempdir().unwrap();
        let service = service(folder.path()).await;
        let [here, there, third] =
            [H200, "cuda/NVIDIA H100/cc9.0/132sm", "cuda/NVIDIA H100 PCIe/cc9.0/114sm"].map(scope);
        let start = async |id: &str, scope: &Scope, from: Option<&str>| {
            let (card, bytes) = sound(id, scope);
            let card = LearnedModel { started_from: from.map(|id| ModelId(id.to_owned())), ..card };
            service.store.insert_model(&card, &bytes).await.unwrap();
            service.activate_model(&card.id, "for a test").await.unwrap();
        };
        let lent = async |to: &Scope| {
            service.nearest_model(to).await.unwrap().map(|model| model.card.id.0.clone())
        };
        start("first", &here, None).await;
        start("second", &there, Some("first")).await;
        assert_eq!(lent(&here).await, None, "it began with this class's own trees");
        assert_eq!(lent(&there).await.as_deref(), Some("first"));
        start("third", &third, Some("second")).await;
        assert_eq!(lent(&here).await, None, "over two steps as well");
        assert_eq!(lent(&there).await.as_deref(), Some("first"));
        start("of unknown origin", &third, Some("deleted")).await;
        assert_eq!(lent(&here).await, None);
        start("its own", &third, None).await;
        assert_eq!(lent(&here).await.as_deref(), Some("its own"));
    }
}
