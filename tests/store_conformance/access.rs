//! Tokens.

use crate::Sqlite;
use sparsetune::domain::{Digest, Timestamp, Token};
use sparsetune::store::{StoreError, StoredToken};

fn token(name: &str, at: i64) -> StoredToken {
    let token = Token {
        name: name.parse().unwrap(),
        scopes: "tune,read".parse().unwrap(),
        namespace: "team".parse().unwrap(),
        created_at: Timestamp(at),
        expires_at: (at % 2 == 0).then_some(Timestamp(at + 100)),
        revoked_at: None,
    };
    StoredToken { token, hash: Digest::of(format!("{name}{at}").as_bytes()) }
}

pub async fn a_name_is_one_token_in_force(harness: &Sqlite) {
    let store = harness.open().await;
    let revision = store.tokens_revision().await.unwrap();
    let (first, other) = (token("ci", 1), token("other", 2));
    assert!(store.insert_token(&first, 3).await.unwrap());
    assert!(store.insert_token(&other, 3).await.unwrap());
    assert!(!store.insert_token(&token("ci", 3), 3).await.unwrap());
    assert!(
        !store.insert_token(&StoredToken { hash: other.hash, ..token("x", 3) }, 3).await.unwrap()
    );
    assert_eq!(store.tokens().await.unwrap(), [other.clone(), first.clone()]);
    assert_eq!(store.tokens_revision().await.unwrap(), revision + 2);
    assert!(store.revoke_token(&"nobody".parse().unwrap(), Timestamp(4)).await.unwrap().is_none());
    let revoked = store.revoke_token(&first.token.name, Timestamp(4)).await.unwrap().unwrap();
    assert_eq!(revoked, Token { revoked_at: Some(Timestamp(4)), ..first.token.clone() });
    assert!(store.revoke_token(&first.token.name, Timestamp(5)).await.unwrap().is_none());
    assert_eq!(store.tokens_revision().await.unwrap(), revision + 3);
    // The name is free, and the revoked one is still told of.
    assert!(store.insert_token(&token("ci", 6), 3).await.unwrap());
    let again = harness.open().await;
    let names: Vec<String> =
        again.tokens().await.unwrap().iter().map(|one| one.token.name.to_string()).collect();
    assert_eq!(names, ["ci", "other", "ci"]);
    assert_eq!(again.tokens().await.unwrap()[2].token, revoked);
    let full = store.insert_token(&token("more", 7), 2).await;
    assert!(matches!(full, Err(StoreError::InUse(_))), "{full:?}");
}

pub async fn a_token_that_cannot_be_read_admits_nobody(harness: &Sqlite) {
    let store = harness.open().await;
    let (good, bad) = (token("good", 1), token("bad", 2));
    assert!(store.insert_token(&good, 9).await.unwrap());
    assert!(store.insert_token(&bad, 9).await.unwrap());
    harness.spoil("UPDATE tokens SET scopes = 'everything' WHERE name = 'bad'").await;
    assert_eq!(store.tokens().await.unwrap(), [good]);
}
