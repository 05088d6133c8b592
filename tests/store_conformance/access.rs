//! Tokens and the audit log.

use crate::Harness;
use crate::words::{matrix, new_job};
use sparsetune::domain::{AuditEntry, Caller, Digest, Namespace, Timestamp, Token, TokenLimits};
use sparsetune::store::{MOST_REVOKED, PageRequest, StoreError, StoredToken};

fn team() -> Namespace {
    "team".parse().unwrap()
}

fn token(name: &str, at: i64) -> StoredToken {
    let token = Token {
        name: name.parse().unwrap(),
        scopes: "tune,read".parse().unwrap(),
        namespace: team(),
        created_at: Timestamp(at),
        expires_at: (at % 2 == 0).then_some(Timestamp(at + 100)),
        revoked_at: None,
        limits: TokenLimits {
            queued_jobs: Some(3),
            job_seconds: Some(0.5),
            ..TokenLimits::default()
        },
        share_plans: at % 3 == 0,
        last_used_at: None,
    };
    StoredToken { token, hash: Digest::of(format!("{name}{at}").as_bytes()) }
}

pub async fn a_name_is_one_token_in_force(harness: &Harness) {
    let store = harness.open().await;
    let revision = store.tokens_revision().await.unwrap();
    let (first, other) = (token("ci", 1), token("other", 2));
    assert!(store.insert_token(&first, 3).await.unwrap());
    assert!(store.insert_token(&other, 3).await.unwrap());
    assert!(!store.insert_token(&token("ci", 3), 3).await.unwrap());
    assert!(
        !store.insert_token(&StoredToken { hash: other.hash, ..token("x", 3) }, 3).await.unwrap()
    );
    assert_eq!(store.tokens(None).await.unwrap(), [other.clone(), first.clone()]);
    assert_eq!(store.tokens_revision().await.unwrap(), revision + 2);
    assert!(
        store
            .revoke_token(&team(), &"nobody".parse().unwrap(), Timestamp(4))
            .await
            .unwrap()
            .is_none()
    );
    let revoked =
        store.revoke_token(&team(), &first.token.name, Timestamp(4)).await.unwrap().unwrap();
    assert_eq!(revoked, Token { revoked_at: Some(Timestamp(4)), ..first.token.clone() });
    assert!(store.revoke_token(&team(), &first.token.name, Timestamp(5)).await.unwrap().is_none());
    assert_eq!(store.tokens_revision().await.unwrap(), revision + 3);
    // The name is free, and the revoked one is still told of.
    assert!(store.insert_token(&token("ci", 6), 3).await.unwrap());
    let again = harness.open().await;
    let names: Vec<String> =
        again.tokens(None).await.unwrap().iter().map(|one| one.token.name.to_string()).collect();
    assert_eq!(names, ["ci", "other", "ci"]);
    assert_eq!(again.tokens(None).await.unwrap()[2].token, revoked);
    // Another namespace's names are its own.
    let StoredToken { token: mut elsewhere, .. } = token("ci", 9);
    elsewhere.namespace = Namespace::default();
    let elsewhere = StoredToken { token: elsewhere, hash: Digest::of(b"elsewhere") };
    assert!(store.insert_token(&elsewhere, 9).await.unwrap());
    let ours = &elsewhere.token;
    assert!(store.revoke_token(&ours.namespace, &ours.name, Timestamp(9)).await.unwrap().is_some());
    assert!(store.revoke_token(&ours.namespace, &ours.name, Timestamp(9)).await.unwrap().is_none());
    assert!(again.tokens(None).await.unwrap().iter().any(|one| one.token.revoked_at.is_none()
        && (&one.token.name, &one.token.namespace) == (&ours.name, &team())));
    let full = store.insert_token(&token("more", 7), 2).await;
    assert!(matches!(full, Err(StoreError::InUse(_))), "{full:?}");
}

pub async fn a_token_that_cannot_be_read_admits_nobody(harness: &Harness) {
    let store = harness.open().await;
    let (good, bad) = (token("good", 1), token("bad", 2));
    assert!(store.insert_token(&good, 9).await.unwrap());
    assert!(store.insert_token(&bad, 9).await.unwrap());
    harness.spoil("UPDATE tokens SET scopes = 'everything' WHERE name = 'bad'").await;
    assert_eq!(store.tokens(None).await.unwrap(), [good]);
}

pub async fn ended_tokens_are_forgotten_in_time(harness: &Harness) {
    let store = harness.open().await;
    for (name, at) in [("revoked", 1), ("expired", 2), ("kept", 3)] {
        assert!(store.insert_token(&token(name, at), 9).await.unwrap());
    }
    store.revoke_token(&team(), &"revoked".parse().unwrap(), Timestamp(50)).await.unwrap().unwrap();
    assert_eq!(store.forget_tokens(Timestamp(50)).await.unwrap(), 0);
    let revision = store.tokens_revision().await.unwrap();
    assert_eq!(store.forget_tokens(Timestamp(103)).await.unwrap(), 2);
    assert_eq!(store.tokens(None).await.unwrap(), [token("kept", 3)]);
    assert!(store.tokens_revision().await.unwrap() > revision);
}

/// Whoever makes and revokes tokens all day fills nothing.
pub async fn few_revoked_tokens_are_kept(harness: &Harness) {
    let store = harness.open().await;
    let most = i64::from(MOST_REVOKED);
    let first = token("first", 1);
    for at in 1..=most + 3 {
        let name = if at == 1 { "first".to_owned() } else { format!("t{at}") };
        assert!(store.insert_token(&token(&name, at), 2).await.unwrap());
        if at == 1 {
            // What it may queue is told by its row as long as its job has not ended.
            let matrix = matrix("m", 1);
            let by = store.on_behalf_of(&Caller::from(&first.token));
            by.insert_matrix(&matrix).await.unwrap();
            by.submit(&new_job(&matrix, "", 1)).await.unwrap();
        }
        let name = name.parse().unwrap();
        assert!(store.revoke_token(&team(), &name, Timestamp(at)).await.unwrap().is_some());
    }
    assert_eq!(store.live_tokens().await.unwrap(), []);
    let kept = store.tokens(Some(&team())).await.unwrap();
    assert_eq!(kept.len() as i64, most + 1);
    assert!(kept.iter().any(|one| one.token.name == first.token.name));
    assert!(!kept.iter().any(|one| one.token.name.as_str() == "t2"));
    assert_eq!(store.tokens(Some(&Namespace::default())).await.unwrap(), []);
}

pub async fn the_audit_log_is_bounded_and_read_in_pages(harness: &Harness) {
    let store = harness.open().await;
    let entry = |number: i64| AuditEntry {
        at: Timestamp(number),
        token: (number % 2 == 0).then(|| "even".to_owned()),
        namespace: "team".parse().unwrap(),
        peer: Some("10.0.0.1".to_owned()),
        request: None,
        action: format!("DELETE {number}"),
        subject: Some("/v1/jobs/x".to_owned()),
        status: 204,
    };
    for number in 1..=7 {
        store.record_change(&entry(number)).await.unwrap();
    }
    let mut seen = Vec::new();
    let mut page = PageRequest::first(3);
    loop {
        let read = store.audit(None, None, &page).await.unwrap();
        seen.extend(read.items);
        // What is added meanwhile is on no later page.
        store.record_change(&entry(100)).await.unwrap();
        page.after = read.next;
        if page.after.is_none() {
            break;
        }
    }
    assert_eq!(seen, (1..=7).rev().map(entry).collect::<Vec<_>>());
    let even =
        store.audit(None, Some("even"), &PageRequest { after: None, limit: 2 }).await.unwrap();
    assert_eq!((even.items, even.next.is_some()), (vec![entry(100), entry(100)], true));
    assert_eq!(store.trim_audit(Timestamp(3), 100).await.unwrap(), 2);
    assert_eq!(store.trim_audit(Timestamp(0), 4).await.unwrap(), 4);
    let left = store.audit(None, None, &PageRequest::ALL).await.unwrap().items;
    // Each token has displaced its own.
    assert_eq!(left, [entry(100), entry(100), entry(7), entry(5)]);
    for number in 200..230 {
        store.record_change(&entry(2 * number)).await.unwrap();
    }
    assert_eq!(store.trim_audit(Timestamp(0), 12).await.unwrap(), 22);
    let left = store.audit(None, None, &PageRequest::ALL).await.unwrap().items;
    assert_eq!((left.len(), &left[9], &left[10..]), (12, &entry(440), &[entry(7), entry(5)][..]));
    // Many names in one namespace displace that one's entries, and no other's.
    let of = |namespace: &str, token: String| AuditEntry {
        token: Some(token),
        namespace: namespace.parse().unwrap(),
        ..entry(500)
    };
    for number in 0..5 {
        store.record_change(&of("default", format!("operator{number}"))).await.unwrap();
    }
    for number in 0..40 {
        store.record_change(&of("team", format!("name{number}"))).await.unwrap();
    }
    assert_eq!(store.trim_audit(Timestamp(0), 20).await.unwrap(), 37);
    let left = store.audit(None, None, &PageRequest::ALL).await.unwrap().items;
    assert_eq!((left.len(), &left[0]), (20, &of("team", "name39".to_owned())));
    assert_eq!(left[15..], [4, 3, 2, 1, 0].map(|n| of("default", format!("operator{n}"))));
    let foreign = PageRequest { after: Some("nonsense".to_owned()), limit: 1 };
    assert!(matches!(store.audit(None, None, &foreign).await, Err(StoreError::BadCursor)));
}
