//! Tokens: every operation needs its scope, and none is admitted that is unknown, expired or revoked.

use crate::app::{TestApp, problem};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use sparsetune::domain::access::Scope;
use sparsetune::http::{OPENAPI, PAGES};
use sparsetune::store::{StoredToken, Tokens as _};
use sqlx::Connection as _;
use std::collections::BTreeSet;

pub const ADMIN: &str = "the-first-admin-token";

pub async fn server() -> TestApp {
    let tokens = toml::Value::try_from([ADMIN]).unwrap();
    TestApp::with(&[("server.tokens", tokens), ("server.wrong_tokens_per_min", 0.into())]).await
}

impl TestApp {
    pub fn with_token(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        self.request(method, path).bearer_auth(token)
    }

    /// Makes a token as an admin; gives its secret.
    pub async fn token(&self, body: &Value) -> String {
        let made = self.with_token(Method::POST, "/v1/tokens", ADMIN).json(body).send().await;
        let made = made.unwrap();
        assert_eq!(
            (made.status(), &made.headers()["cache-control"]),
            (StatusCode::CREATED, &"no-store".parse().unwrap())
        );
        let made: Value = made.json().await.unwrap();
        made["token"].as_str().unwrap().to_owned()
    }

    async fn status(&self, path: &str, token: &str) -> u16 {
        self.with_token(Method::GET, path, token).send().await.unwrap().status().as_u16()
    }
}

/// Every operation of the contract with the scope that it names, and every page.
fn operations() -> Vec<(Method, String, Option<String>)> {
    let contract: Value = serde_yaml_ng::from_str(OPENAPI).unwrap();
    let mut all = Vec::new();
    for (path, item) in contract["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method == "parameters" {
                continue;
            }
            let security = operation.get("security").unwrap_or(&contract["security"]);
            let scopes: Vec<&Value> =
                security.as_array().unwrap().iter().filter_map(|one| one.get("token")).collect();
            assert!(scopes.len() <= 1, "{path}");
            let scope = scopes.first().map(|scopes| {
                assert_eq!(scopes.as_array().unwrap().len(), 1, "{method} {path} needs one scope");
                scopes[0].as_str().unwrap().to_owned()
            });
            let filled = path
                .replace("{digest}", &"0".repeat(64))
                .replace("{name}", "nobody")
                .replace("/v1/quarantine/{id}", "/v1/quarantine/0123456789abcdef")
                .replace("{id}", "0193a7c4-1111-7222-8333-444455556666");
            all.push((method.to_uppercase().parse().unwrap(), filled, scope));
        }
    }
    assert!(all.len() >= 38, "{}", all.len());
    let pages =
        PAGES.iter().filter(|page| !page.starts_with("/log") && !page.starts_with("/static"));
    all.extend(pages.map(|page| {
        let scope = if *page == "/webhooks" { "admin" } else { "read" };
        (Method::GET, (*page).to_owned(), Some(scope.to_owned()))
    }));
    all
}

#[tokio::test]
async fn each_operation_needs_its_scope() {
    let app = server().await;
    let mut without = std::collections::HashMap::new();
    let mut only = std::collections::HashMap::new();
    for scope in Scope::ALL {
        // Admin has all, so the token without it has all others; and no other scope helps where admin is needed.
        let others: Vec<Scope> = Scope::ALL
            .into_iter()
            .filter(|other| *other != scope && *other != Scope::Admin)
            .collect();
        let lacking = json!({"name": format!("without-{scope}"), "scopes": others});
        without.insert(scope.name(), app.token(&lacking).await);
        let having = json!({"name": format!("only-{scope}"), "scopes": [scope]});
        only.insert(scope.name(), app.token(&having).await);
    }
    let mut seen = BTreeSet::new();
    for (method, path, scope) in operations() {
        let ask = |token: &str| {
            let request = app.with_token(method.clone(), &path, token);
            match method == Method::POST {
                true => request.json(&json!({"nothing": 1})),
                false => request,
            }
        };
        let Some(scope) = scope else {
            let open = app.request(method.clone(), &path).send().await.unwrap().status();
            assert!(open.is_success(), "{method} {path}: {open}");
            continue;
        };
        seen.insert(scope.clone());
        let refused = ask(&without[scope.as_str()]).send().await.unwrap();
        let refused = problem(refused, 403, "missing-scope").await;
        assert_eq!(refused["scope"], scope, "{method} {path}");
        assert!(refused["detail"].as_str().unwrap().contains(&format!("`{scope}`")));
        let allowed = ask(&only[scope.as_str()]).send().await.unwrap().status();
        assert!(allowed != 401 && allowed != 403, "{method} {path}: {allowed} with {scope}");
        let nobody = app.request(method.clone(), &path).send().await.unwrap();
        problem(nobody, 401, "unauthorized").await;
        problem(ask("spt_unknown").send().await.unwrap(), 401, "unauthorized").await;
    }
    assert_eq!(seen.len(), Scope::ALL.len(), "{seen:?}");
}

#[tokio::test]
async fn a_token_is_told_once_and_ends() {
    let app = server().await;
    let body = json!({"name": "ci", "scopes": ["read", "admin"]});
    let secret = app.token(&body).await;
    assert!(secret.starts_with("spt_") && secret.len() == 68);
    assert_eq!(app.status("/v1/jobs", &secret).await, 200);
    let twin = app.with_token(Method::POST, "/v1/tokens", &secret).json(&body).send().await;
    problem(twin.unwrap(), 409, "conflict").await;
    let list = app.with_token(Method::GET, "/v1/tokens", &secret).send().await.unwrap();
    let list = list.text().await.unwrap();
    assert!(!list.contains(&secret) && !list.contains(ADMIN));
    let list: Value = serde_json::from_str(&list).unwrap();
    let items = list["items"].as_array().unwrap();
    assert_eq!((items.len(), &items[0]["configured"]), (2, &json!(true)));
    assert_eq!((&items[1]["name"], &items[1]["scopes"]), (&json!("ci"), &json!(["read", "admin"])));
    for (body, place) in [
        (json!({"name": "a", "scopes": []}), "/scopes"),
        (json!({"name": "configured-1", "scopes": ["read"]}), "/name"),
        (json!({"name": "a b"}), "/name"),
        (json!({"name": "a", "scopes": ["all"]}), "/scopes/0"),
        (json!({"name": "a", "expires_in_s": 0}), "/expires_in_s"),
        (json!({"name": "a", "expires_in_s": u64::MAX}), "/expires_in_s"),
    ] {
        let refused = app.with_token(Method::POST, "/v1/tokens", ADMIN).json(&body).send().await;
        assert_eq!(problem(refused.unwrap(), 422, "invalid-body").await["pointer"], place);
    }
    let revoke =
        |name: &str| app.with_token(Method::DELETE, &format!("/v1/tokens/{name}"), ADMIN).send();
    assert_eq!(revoke("ci").await.unwrap().status(), 204);
    assert_eq!(app.status("/v1/jobs", &secret).await, 401);
    problem(revoke("ci").await.unwrap(), 404, "not-found").await;
    let own = items[0]["name"].as_str().unwrap();
    problem(revoke(own).await.unwrap(), 409, "conflict").await;
    // The name is free again.
    let next = app.token(&body).await;
    assert_eq!(
        (app.status("/v1/jobs", &next).await, app.status("/v1/jobs", &secret).await),
        (200, 401)
    );
}

#[tokio::test]
async fn an_expired_token_says_so() {
    let app = server().await;
    let secret = app.token(&json!({"name": "brief", "scopes": ["read"], "expires_in_s": 1})).await;
    assert_eq!(app.status("/v1/jobs", &secret).await, 200);
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let refused = app.with_token(Method::GET, "/v1/jobs", &secret).send().await.unwrap();
    let refused = problem(refused, 401, "unauthorized").await;
    assert!(refused["detail"].as_str().unwrap().contains("expired"), "{refused}");
}

/// Another process of the store, such as the command line, makes and revokes tokens too; and the last one's end opens nothing.
#[tokio::test]
async fn the_first_token_closes_a_server_and_the_last_opens_none() {
    let app = TestApp::new().await;
    assert_eq!(app.get("/v1/jobs").await.status(), 200);
    let file = app.folder.path().join("sparsetune.db");
    let other = sparsetune::store::SqliteStore::open(&file);
    let other = other.await.unwrap();
    let secret = "spt_of-another-process";
    let token = sparsetune::domain::Token {
        name: "other".parse().unwrap(),
        scopes: "read".parse().unwrap(),
        namespace: sparsetune::domain::Namespace::default(),
        created_at: sparsetune::domain::Timestamp::now(),
        expires_at: None,
        revoked_at: None,
        limits: sparsetune::domain::TokenLimits::default(),
        share_plans: false,
        last_used_at: None,
    };
    let hash = sparsetune::domain::Digest::of(secret.as_bytes());
    let stored = StoredToken { token: token.clone(), hash };
    assert!(other.insert_token(&stored, 10).await.unwrap());
    let mut closed = false;
    for _ in 0..100 {
        closed = app.get("/v1/jobs").await.status() == 401;
        if closed {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(closed);
    assert_eq!(app.status("/v1/jobs", secret).await, 200);
    other
        .revoke_token(&token.namespace, &token.name, sparsetune::domain::Timestamp::now())
        .await
        .unwrap();
    let mut status = 200;
    for _ in 0..100 {
        status = app.status("/v1/jobs", secret).await;
        if status != 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(status, 401);
    assert_eq!(app.get("/v1/jobs").await.status(), 401);
}

#[tokio::test]
async fn the_end_of_the_last_token_opens_nothing_after_a_restart() {
    let first = TestApp::new().await;
    let made = json!({"name": "only", "scopes": ["admin"]});
    let made = first.request(Method::POST, "/v1/tokens").json(&made).send().await.unwrap();
    let secret = made.json::<Value>().await.unwrap()["token"].as_str().unwrap().to_owned();
    let only = first.with_token(Method::DELETE, "/v1/tokens/only", &secret).send().await.unwrap();
    assert_eq!(only.status(), 204);
    assert_eq!(first.get("/v1/jobs").await.status(), 401);
    let again = first.again(&[]).await;
    let more = json!({"name": "mine", "scopes": ["admin"]});
    let refused = again.request(Method::POST, "/v1/tokens").json(&more).send().await.unwrap();
    problem(refused, 401, "unauthorized").await;
    // The operator's ways back: another token in the data folder, or their word.
    let open = again.again(&[("server.insecure", true.into())]).await;
    assert_eq!(open.get("/v1/jobs").await.status(), 200);
    let asked = open.request(Method::POST, "/v1/tokens").json(&more).send().await.unwrap();
    assert_eq!(asked.status(), 201);
    let file = open.folder.path().join("sparsetune.db");
    let file = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    let mut raw = sqlx::SqliteConnection::connect_with(&file).await.unwrap();
    let spoil = "UPDATE tokens SET scopes = 'everything' WHERE name = 'mine'";
    sqlx::query(spoil).execute(&mut raw).await.unwrap();
    raw.close().await.unwrap();
    // A token that cannot be read opens nothing either.
    let again = open.again(&[]).await;
    assert_eq!(again.get("/v1/jobs").await.status(), 401);
}

#[tokio::test]
async fn beyond_loopback_a_token_is_needed_or_the_operators_word() {
    use sparsetune::cli::config::Config;
    let folder = tempfile::tempdir().unwrap();
    let start = async |more: &[(&str, toml::Value)]| {
        let mut flags = vec![
            ("server.listen", "0.0.0.0:0".into()),
            ("data.dir", folder.path().to_str().unwrap().into()),
            ("devices.use", toml::Value::Array(Vec::new())),
            ("learning.shipped", false.into()),
        ];
        flags.extend_from_slice(more);
        let config = Config::load(None, &flags).unwrap();
        let shutdown = tokio_util::sync::CancellationToken::new();
        let started = sparsetune::cli::serve::start(&config, shutdown.clone(), |_, _| Vec::new());
        let started = started.await;
        shutdown.cancel();
        match started {
            Ok(running) => {
                running.finished().await;
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    };
    let refused = start(&[]).await.unwrap_err();
    assert!(refused.contains("server.listen") && refused.contains("token create"), "{refused}");
    start(&[("server.insecure", true.into())]).await.unwrap();
    start(&[("server.tokens", toml::Value::try_from([ADMIN]).unwrap())]).await.unwrap();
    let file = folder.path().join("sparsetune.db");
    let store = sparsetune::store::SqliteStore::open(&file).await.unwrap();
    let token = sparsetune::domain::Token {
        name: "first".parse().unwrap(),
        scopes: "admin".parse().unwrap(),
        namespace: sparsetune::domain::Namespace::default(),
        created_at: sparsetune::domain::Timestamp::now(),
        expires_at: None,
        revoked_at: None,
        limits: sparsetune::domain::TokenLimits::default(),
        share_plans: false,
        last_used_at: None,
    };
    let hash = sparsetune::domain::Digest::of(b"spt_first");
    assert!(store.insert_token(&StoredToken { token, hash }, 10).await.unwrap());
    start(&[]).await.unwrap();
}

#[tokio::test]
async fn a_tokens_limits_are_told_with_what_is_used() {
    let app = server().await;
    let limits = json!({"matrices": 1, "queued_jobs": 1, "job_seconds": 5, "max_priority": 3});
    let secret = app.token(&json!({"name": "team", "limits": limits})).await;
    let ask = |path: &str| app.with_token(Method::POST, path, &secret);
    let first = ask("/v1/matrices").body(crate::app::tridiagonal(5)).send().await.unwrap();
    assert_eq!(first.status(), 201);
    let matrix: Value = first.json().await.unwrap();
    let known = ask("/v1/matrices").body(crate::app::tridiagonal(5)).send().await.unwrap();
    assert_eq!(known.status(), 200);
    let more = ask("/v1/matrices").body(crate::app::tridiagonal(6)).send().await.unwrap();
    let more = problem(more, 403, "quota-exceeded").await;
    assert_eq!((&more["quota"], &more["quota_used"]), (&json!("matrices"), &json!(1.0)));
    let job = |n: u32, more: Value| {
        let mut body = crate::app::spmm(&matrix, n);
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        ask("/v1/jobs").json(&body).send()
    };
    let long = job(1, json!({"search": {"seconds": 6}})).await.unwrap();
    let long = problem(long, 422, "invalid-body").await;
    assert_eq!(long["pointer"], "/search/seconds");
    let urgent = problem(job(1, json!({"priority": 4})).await.unwrap(), 422, "invalid-body").await;
    assert_eq!(urgent["pointer"], "/priority");
    let queued: Value = job(1, json!({"priority": 3})).await.unwrap().json().await.unwrap();
    assert_eq!(queued["search"]["seconds"], 5.0, "{queued}");
    let full = job(2, json!({})).await.unwrap();
    assert_eq!(full.headers()["retry-after"], "30");
    let full = problem(full, 429, "quota-spent").await;
    assert_eq!((&full["quota"], &full["quota_limit"]), (&json!("queued_jobs"), &json!(1.0)));
    // Others have their own.
    let other = app.token(&json!({"name": "other"})).await;
    let body = crate::app::spmm(&matrix, 2);
    let asked = app.with_token(Method::POST, "/v1/jobs", &other).json(&body).send().await.unwrap();
    assert_eq!(asked.status(), 202);
    let wrong = json!({"name": "x", "limits": {"job_trials": 0}});
    let wrong = app.with_token(Method::POST, "/v1/tokens", ADMIN).json(&wrong).send().await;
    assert_eq!(problem(wrong.unwrap(), 422, "invalid-body").await["pointer"], "/limits");
}
