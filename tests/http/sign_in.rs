//! Signing in by browser to a server with tokens: the cookie, where it counts, and who may not use it.

use crate::app::{TestApp, problem, spmm};
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::json;
use toml::Value;

/// With what neither a cookie nor a form can hold as it is.
const TOKEN: &str = "a token; of=some \"length\" & ü";

struct Browser {
    app: TestApp,
    client: Client,
}

impl Browser {
    async fn new() -> Self {
        let tokens = Value::try_from([TOKEN]).unwrap();
        let app = TestApp::with(&[("server.tokens", tokens)]).await;
        Self { app, client: Client::builder().redirect(Policy::none()).build().unwrap() }
    }

    fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.app.url(path)).header("accept", "text/html")
    }

    async fn open(&self, path: &str) -> Response {
        self.ask(Method::GET, path).send().await.unwrap()
    }

    fn form(&self, path: &str, fields: &[(&str, &str)]) -> RequestBuilder {
        let body: String = fields
            .iter()
            .map(|(name, value)| {
                let value: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
                format!("{name}={value}&")
            })
            .collect();
        self.ask(Method::POST, path)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("origin", self.app.url(""))
            .body(body)
    }

    /// Signs in; gives the cookie as a browser sends it, among others.
    async fn cookie(&self) -> String {
        let signed = self.form("/login", &[("token", TOKEN)]).send().await.unwrap();
        let set = signed.headers()[SET_COOKIE].to_str().unwrap();
        format!("theme=dark; {}; other=1", set.split(';').next().unwrap())
    }
}

fn goes_to(response: &Response) -> &str {
    assert_eq!(response.status(), 303);
    response.headers()[LOCATION].to_str().unwrap()
}

#[tokio::test]
async fn pages_lead_to_the_sign_in_and_back() {
    let browser = Browser::new().await;
    let refused = browser.open("/jobs?state=failed&device=cuda%3A0").await;
    let address = goes_to(&refused).to_owned();
    assert_eq!(address, "/login?next=/jobs%3Fstate%3Dfailed%26device%3Dcuda%253A0");
    let html = browser.open(&address).await.text().await.unwrap();
    assert!(html.contains("id=\"sign-in\"") && html.contains("id=\"token\""));
    assert!(html.contains("name=\"next\" value=\"/jobs?state=failed&#38;device=cuda%3A0\""));
    let signed = browser.form("/login", &[("token", TOKEN), ("next", "/jobs?state=failed")]);
    let signed = signed.send().await.unwrap();
    assert_eq!(goes_to(&signed), "/jobs?state=failed");
    let set = signed.headers()[SET_COOKIE].to_str().unwrap();
    for part in
        ["sparsetune_session=", "; Path=/", "; HttpOnly", "; SameSite=Lax", "; Max-Age=604800"]
    {
        assert!(set.contains(part), "{set}");
    }
    assert!(!set.contains("Secure") && !set.contains(TOKEN));
    let tls =
        browser.form("/login", &[("token", TOKEN)]).header("x-forwarded-proto", "HTTPS, http");
    let here = browser.app.url("").replace("http:", "https:");
    let mut tls = tls.build().unwrap();
    tls.headers_mut().insert("origin", here.parse().unwrap());
    let tls = browser.client.execute(tls).await.unwrap();
    assert!(tls.headers()[SET_COOKIE].to_str().unwrap().ends_with("; Secure"));
}

#[tokio::test]
async fn a_head_is_led_where_a_get_is() {
    let browser = Browser::new().await;
    let head = browser.ask(Method::HEAD, "/?x=1").send().await.unwrap();
    assert_eq!(goes_to(&head), "/login?next=/%3Fx%3D1");
    let program = browser.app.request(Method::HEAD, "/").send().await.unwrap();
    assert_eq!(program.status(), 401);
    let refuses = browser.app.request(Method::GET, "/jobs").header("accept", "text/html;q=0, */*");
    problem(refuses.send().await.unwrap(), 401, "unauthorized").await;
}

#[tokio::test]
async fn what_a_browser_holds_is_no_token_and_a_token_no_session() {
    let browser = Browser::new().await;
    let cookie = browser.cookie().await;
    let session = cookie.split("sparsetune_session=").nth(1).unwrap().split(';').next().unwrap();
    assert_eq!(session.split('.').nth(1).map(str::len), Some(64));
    let api = || browser.app.request(Method::GET, "/v1/jobs");
    problem(api().bearer_auth(session).send().await.unwrap(), 401, "unauthorized").await;
    let hash = blake3::hash(TOKEN.as_bytes()).to_hex();
    for not in [hash.as_str(), &session.replace(|_| true, "0")] {
        let asked = api().header(COOKIE, format!("sparsetune_session={not}"));
        problem(asked.send().await.unwrap(), 401, "unauthorized").await;
    }
    let asked = api().header(COOKIE, format!("sparsetune_session={session}"));
    assert_eq!(asked.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn sessions_outlive_a_restart_and_end_with_their_token() {
    let browser = Browser::new().await;
    let cookie = browser.cookie().await;
    let folder = browser.app.folder.path().to_str().unwrap().to_owned();
    browser.app.shutdown.cancel();
    let again = async |token: &str| {
        let tokens = Value::try_from([token]).unwrap();
        // The first server still has its name.
        let settings = [
            ("server.tokens", tokens),
            ("data.dir", folder.as_str().into()),
            ("worker.name", token.into()),
        ];
        let app = TestApp::with(&settings).await;
        let asked = app.request(Method::GET, "/v1/jobs").header(COOKIE, &cookie);
        let status = asked.send().await.unwrap().status();
        app.shutdown.cancel();
        status
    };
    assert_eq!(again(TOKEN).await, 200);
    assert_eq!(again("another-token-of-length").await, 401);
}

#[tokio::test]
async fn the_cookie_opens_pages_the_api_and_event_streams() {
    let browser = Browser::new().await;
    let cookie = browser.cookie().await;
    for path in ["/", "/jobs", "/fragments/jobs", "/v1/jobs", "/metrics"] {
        let opened = browser.ask(Method::GET, path).header(COOKIE, &cookie).send().await.unwrap();
        assert_eq!(opened.status(), 200, "{path}");
    }
    let own = browser.app.url("");
    let post =
        |path: &str| browser.ask(Method::POST, path).header(COOKIE, &cookie).header("origin", &own);
    let matrix = post("/v1/matrices").body(crate::app::tridiagonal(5)).send().await.unwrap();
    let matrix: serde_json::Value = matrix.json().await.unwrap();
    let job = post("/v1/jobs").json(&spmm(&matrix, 8)).send().await.unwrap();
    assert_eq!(job.status(), 202);
    let job: serde_json::Value = job.json().await.unwrap();
    let events = format!("/v1/jobs/{}/events", job["id"].as_str().unwrap());
    let mut events =
        browser.ask(Method::GET, &events).header(COOKIE, &cookie).send().await.unwrap();
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    assert!(!events.chunk().await.unwrap().unwrap().is_empty());
}

#[tokio::test]
async fn other_sites_change_nothing_by_the_cookie() {
    let browser = Browser::new().await;
    let cookie = browser.cookie().await;
    let body = spmm(&json!({"digest": "0".repeat(64)}), 1);
    let post = || browser.ask(Method::POST, "/v1/jobs").header(COOKIE, &cookie).json(&body);
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        let refused = post().header("origin", origin).send().await.unwrap();
        problem(refused, 403, "cross-origin").await;
    }
    problem(post().send().await.unwrap(), 403, "cross-origin").await;
    // A bearer needs no Origin, and signing in from another site is refused.
    let client = browser.app.request(Method::POST, "/v1/jobs").json(&body);
    let asked = client.header("authorization", header(TOKEN)).send().await.unwrap();
    problem(asked, 422, "invalid-body").await;
    let foreign = browser.ask(Method::POST, "/login").header("origin", "http://evil.example");
    let foreign = foreign.header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(foreign.body("token=x").send().await.unwrap().status(), 403);
}

/// A bearer's header may hold any bytes.
fn header(token: &str) -> reqwest::header::HeaderValue {
    reqwest::header::HeaderValue::from_bytes(format!("Bearer {token}").as_bytes()).unwrap()
}

#[tokio::test]
async fn a_wrong_token_is_told_on_the_page() {
    let browser = Browser::new().await;
    let fields = [("token", "another-token-of-length"), ("next", "//evil.example")];
    let wrong = browser.form("/login", &fields).send().await.unwrap();
    assert_eq!(wrong.status(), 401);
    assert_eq!(wrong.headers()["www-authenticate"], "Bearer realm=\"sparsetune\"");
    assert!(!wrong.headers().contains_key(SET_COOKIE));
    let html = wrong.text().await.unwrap();
    assert!(html.contains("Invalid token") && html.contains("id=\"sign-in\""));
    assert!(!html.contains("evil") && !html.contains("another-token"));
    let stale = browser.ask(Method::GET, "/").header(COOKIE, "sparsetune_session=bm90aGluZw");
    assert_eq!(goes_to(&stale.send().await.unwrap()), "/login?next=/");
    let long = browser.form("/login", &[("token", &"x".repeat(9000))]).send().await.unwrap();
    assert_eq!(long.status(), 413);
}

#[tokio::test]
async fn nobody_is_led_to_another_site() {
    let browser = Browser::new().await;
    for next in ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil", "/é", ""]
    {
        let signed = browser.form("/login", &[("token", TOKEN), ("next", next)]);
        assert_eq!(goes_to(&signed.send().await.unwrap()), "/", "{next:?}");
    }
}

#[tokio::test]
async fn signing_out_takes_the_cookie_away() {
    let browser = Browser::new().await;
    let cookie = browser.cookie().await;
    let page = browser.ask(Method::GET, "/").header(COOKIE, &cookie).send().await.unwrap();
    assert!(page.text().await.unwrap().contains("action=\"/logout\""));
    let out = browser.form("/logout", &[]).header(COOKIE, &cookie).send().await.unwrap();
    assert_eq!(goes_to(&out), "/login");
    assert!(out.headers()[SET_COOKIE].to_str().unwrap().contains("sparsetune_session=; "));
    assert!(out.headers()[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    // Without a session there is none to end; one is not sent back to a form.
    assert_eq!(goes_to(&browser.form("/logout", &[]).send().await.unwrap()), "/login?next=/");
}

#[tokio::test]
async fn programs_and_fragments_are_told_in_their_own_ways() {
    let browser = Browser::new().await;
    let api = browser.open("/v1/jobs").await;
    assert_eq!(api.headers()["www-authenticate"], "Bearer realm=\"sparsetune\"");
    problem(api, 401, "unauthorized").await;
    let program = browser.app.get("/jobs").await;
    problem(program, 401, "unauthorized").await;
    // htmx reloads the page on this header, whatever the status, before it looks at the body.
    let fragment = browser.ask(Method::GET, "/fragments/jobs").header("hx-request", "true");
    let fragment = fragment.send().await.unwrap();
    assert_eq!(
        (fragment.status().as_u16(), &fragment.headers()["hx-refresh"]),
        (204, &"true".parse().unwrap())
    );
    for open in ["/healthz", "/login", "/static/app.css"] {
        assert_eq!(browser.app.get(open).await.status(), 200, "{open}");
    }
}

#[tokio::test]
async fn a_server_without_tokens_needs_no_sign_in() {
    let app = TestApp::new().await;
    let login = app.request(Method::GET, "/login?next=/jobs").header("accept", "text/html");
    let html = login.send().await.unwrap().text().await.unwrap();
    assert!(html.contains("No sign-in is needed") && html.contains("href=\"/jobs\""));
    assert!(!html.contains("id=\"sign-in\""));
}
