//! Texts that become types: what clients send and read, what processes tell each other, models and suites.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sparsetune::cli::bench::suite::Suite;
use sparsetune::domain::bundle::Manifest;
use sparsetune::domain::protocol::{Message, Request};
use sparsetune::domain::reading::{Answer, Order, Said};
use sparsetune::domain::{self, JobRequest};
use sparsetune::learn::ModelFile;
use sparsetune::wire;

/// What is read is written, and read again as the same.
fn survives<T: DeserializeOwned + Serialize + PartialEq>(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(data) else { return };
    let text = serde_json::to_string(&value).expect("what was read has a text");
    let again = serde_json::from_str::<T>(&text).ok();
    // Some have secrets, and no `Debug`.
    assert!(again == Some(value), "a round trip changes it: {text}");
}

/// A problem as clients send it, and a job's whole request.
pub fn problem(data: &[u8]) {
    survives::<domain::Problem>(data);
    survives::<JobRequest>(data);
    survives::<wire::Problem>(data);
}

/// What a server answers, as its clients read it, and what they send.
pub fn answers(data: &[u8]) {
    survives::<wire::Activation>(data);
    survives::<wire::ActivateRequest>(data);
    survives::<wire::AuditEntry>(data);
    survives::<wire::Candidate>(data);
    survives::<wire::Delivery>(data);
    survives::<wire::Devices>(data);
    survives::<wire::Event>(data);
    survives::<wire::KeptBundle>(data);
    survives::<wire::Lookup>(data);
    survives::<wire::MadeToken>(data);
    survives::<wire::MadeWebhook>(data);
    survives::<wire::Models>(data);
    survives::<wire::Page<wire::Matrix>>(data);
    survives::<wire::Page<wire::Trial>>(data);
    survives::<wire::Pins>(data);
    survives::<wire::Plan>(data);
    survives::<wire::Profile>(data);
    survives::<wire::Quarantined>(data);
    survives::<wire::RollBackRequest>(data);
    survives::<wire::TokenRequest>(data);
    survives::<wire::Tokens>(data);
    survives::<wire::WebhookRequest>(data);
    survives::<wire::Webhooks>(data);
    survives::<wire::WholeModel>(data);
    survives::<wire::Work>(data);
}

/// Lines between the service and its children, and what bundles and the store hold.
pub fn lines(data: &[u8]) {
    survives::<Request>(data);
    survives::<Message>(data);
    survives::<Order>(data);
    survives::<Said>(data);
    survives::<Answer>(data);
    survives::<Manifest>(data);
    survives::<domain::Plan>(data);
    survives::<domain::Matrix>(data);
    survives::<domain::Outcome>(data);
}

/// Most candidates that a model ranks here.
const RANKED: usize = 3;

/// A model that is accepted ranks without a panic, in an order of finite times.
pub fn model(data: &[u8]) {
    let Ok(model) = ModelFile::parse(data) else { return };
    let bytes = model.to_bytes().expect("what was accepted can be written");
    assert_eq!(ModelFile::parse(&bytes).as_ref(), Ok(&model));
    let shared = vec![0.5; model.shared.len()];
    let own: Vec<Vec<f32>> = (0..RANKED).map(|at| vec![at as f32; model.own.len()]).collect();
    let predicted = [3.0, 1.0, 2.0];
    let times = model.order(&shared, &own, &predicted, |at| format!("row_split lanes={at}"));
    assert_eq!(times.len(), RANKED);
    assert!(times.iter().all(|us| us.is_finite() && *us > 0.0), "{times:?}");
}

/// A suite of `sparsetune bench`.
pub fn suite(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Suite::parse(text);
    }
}
