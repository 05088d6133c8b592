//! Who waits for predictions: namespaces in turns, within bounds, and nobody who has left.

use super::*;
use crate::domain::{Caller, L2Policy, Spmm};
use crate::service::ServiceSettings;
use crate::store::{LocalBlobs, SqliteStore};
use std::path::Path;

const PLAN: &str = include_str!("../../../tests/http/plan.json");

/// A service with a matrix.
async fn service(folder: &Path) -> (Service, Matrix) {
    let store = SqliteStore::open(&folder.join("store")).await.unwrap();
    let blobs = LocalBlobs::open(&folder.join("blobs")).unwrap();
    let settings = ServiceSettings { temp_dir: folder.to_owned(), ..ServiceSettings::default() };
    let service = Service::new(Arc::new(store), Arc::new(blobs), settings);
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 1.0\n";
    let body = futures_util::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from(text))]);
    let matrix = service.upload(body, None).await.unwrap().matrix;
    (service, matrix)
}

/// What there is to predict for the matrix in the namespace of this service.
fn basis(service: &Service, matrix: &Matrix, n: u32) -> Basis {
    let plan: Plan = serde_json::from_str(PLAN).unwrap();
    let Problem::Spmm(spmm) = plan.problem else { panic!("another operation") };
    let key = PlanKey {
        pattern_digest: matrix.pattern_digest,
        problem: Problem::Spmm(Spmm { n, ..spmm }),
        device_class: plan.device.class(),
        l2_policy: L2Policy::Warm,
    };
    Basis::new((&key, &service.caller.namespace), matrix, &plan.device, None, HashSet::new())
}

async fn asked(service: &Service, matrix: &Matrix, n: u32) -> String {
    match service.guess_once(basis(service, matrix, n), Instant::now()).await.unwrap() {
        Guess::None(why) => why,
        Guess::Plan { .. } => panic!("nobody may predict yet"),
    }
}

#[tokio::test]
async fn namespaces_take_turns_and_have_places_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (service, matrix) = service(folder.path()).await;
    let of =
        |name: &str| service.on_behalf_of(&Caller::owner(None, name.parse::<Namespace>().unwrap()));
    let (many, few) = (of("many"), of("few"));
    let busy = service.inner.predicting.clone().acquire_owned().await.unwrap();
    for n in 1..=MOST_OF_ONE as u32 {
        assert!(asked(&many, &matrix, n).await.contains("is being made"), "{n}");
    }
    let refused = asked(&many, &matrix, 100).await;
    assert!(refused.contains("16 other predictions are waiting"), "{refused}");
    assert!(asked(&many, &matrix, 1).await.contains("is being made"), "the same again");
    assert!(asked(&few, &matrix, 1).await.contains("is being made"));

    let waiting = |of: &Service| {
        let guesses = service.guesses();
        let own = guesses.under_way.values();
        own.filter(|begun| begun.namespace == of.caller.namespace).count()
    };
    drop(busy);
    while waiting(&few) > 0 {
        tokio::task::yield_now().await;
    }
    let left = waiting(&many);
    assert!(left >= MOST_OF_ONE - 3, "{left} of the many are left: the few's turn came late");
    while waiting(&many) > 0 {
        tokio::task::yield_now().await;
    }
    assert!(service.guesses().turns.is_empty());
}

#[tokio::test]
async fn nothing_is_predicted_for_who_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let (service, matrix) = service(folder.path()).await;
    let busy = service.inner.predicting.clone().acquire_owned().await.unwrap();
    for n in 1..=2 {
        assert!(asked(&service, &matrix, n).await.contains("is being made"));
    }
    let (long_ago, mut receivers) = (2 * ABANDONED, Vec::new());
    for (nth, begun) in service.guesses().under_way.values_mut().enumerate() {
        // No machine's clock begins before it was started.
        let Some(then) = begun.asked.checked_sub(long_ago).filter(|_| nth == 0) else { continue };
        begun.asked = then;
        receivers.push(begun.receiver.clone());
    }
    drop(busy);
    for mut receiver in receivers {
        let answer = receiver.wait_for(Option::is_some).await.unwrap().clone();
        let Some(Ok(Guess::None(why))) = answer else { panic!("{answer:?}") };
        assert!(why.contains("given up"), "{why}");
    }
}
