//! The client of the HTTP API, used by `submit`, `lookup`, `tune`, `quickstart` and other commands.

pub mod bundles;
pub mod events;
pub mod models;
pub mod pins;
pub mod quarantine;
pub mod tokens;
pub mod transfer;

use crate::domain::{Digest, FILE_ENDINGS, JobState};
use crate::wire::{Job, Lookup, Matrix, Page, Plan, Trial};
use anyhow::{Context, anyhow, bail};
use reqwest::{Body, Method, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// Time limit for connecting; responses may take longer (an upload is parsed before the server responds).
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum number of items per page.
const PAGE: &str = "500";

/// A response: the part that this program uses, and the complete JSON for `--json`.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    pub view: T,
    pub raw: Value,
}

/// A server.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    server: Url,
    token: Option<String>,
}

/// An RFC 9457 problem, reduced to the members that are shown to users.
#[derive(Debug, Deserialize)]
struct Problem {
    title: Option<String>,
    detail: Option<String>,
    /// JSON pointer of the invalid member.
    pointer: Option<String>,
    line: Option<u64>,
}

impl Client {
    pub fn new(server: &str, token: Option<String>) -> anyhow::Result<Self> {
        let mut server: Url = server.parse().with_context(|| format!("`{server}` is no URL"))?;
        match server.scheme() {
            "http" => {}
            other => {
                bail!("the client supports http, not {other}: use a proxy that terminates TLS")
            }
        }
        if !server.path().ends_with('/') {
            server.set_path(&format!("{}/", server.path()));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .user_agent(concat!("sparsetune/", env!("CARGO_PKG_VERSION")))
            // The servers used here are on this machine or in this network, so a proxy would only interfere.
            .no_proxy()
            .build()?;
        Ok(Self { http, server, token })
    }

    pub fn server(&self) -> &str {
        self.server.as_str().trim_end_matches('/')
    }

    /// The server's `/readyz`: `Ok(false)` while the server reports that it is not ready.
    pub async fn ready(&self) -> anyhow::Result<bool> {
        let response = self.send(self.request(Method::GET, "readyz", &[])?).await?;
        Ok(response.status() == StatusCode::OK)
    }

    /// Uploads a matrix, and returns whether it is new to the server.
    pub async fn upload(
        &self,
        body: Body,
        name: Option<&str>,
    ) -> anyhow::Result<(Answer<Matrix>, bool)> {
        let query: Vec<(&str, &str)> = name.map(|name| ("name", name)).into_iter().collect();
        let request = self.request(Method::POST, "v1/matrices", &query)?.body(body);
        let (answer, status) = self.answer_with_status(request).await?;
        Ok((answer, status == StatusCode::CREATED))
    }

    pub async fn upload_file(&self, file: &Path) -> anyhow::Result<(Answer<Matrix>, bool)> {
        let opened = tokio::fs::File::open(file)
            .await
            .with_context(|| format!("cannot open {}", file.display()))?;
        let name = matrix_name(file);
        self.upload(opened.into(), name.as_deref())
            .await
            .with_context(|| file.display().to_string())
    }

    /// Submits a job. `job` is the JSON of the request; if an equal job is already running, that job is returned.
    pub async fn submit(&self, job: &Value) -> anyhow::Result<Answer<Job>> {
        self.answer(self.request(Method::POST, "v1/jobs", &[])?.json(job)).await
    }

    pub async fn job(&self, id: &str) -> anyhow::Result<Answer<Job>> {
        self.answer(self.request(Method::GET, &format!("v1/jobs/{id}"), &[])?).await
    }

    /// Cancels a job or a training and returns its current state; it may take a moment to end.
    pub async fn cancel(&self, id: &str) -> anyhow::Result<JobState> {
        self.state_by(Method::DELETE, id).await
    }

    /// The state of a job or a training.
    pub async fn state(&self, id: &str) -> anyhow::Result<JobState> {
        self.state_by(Method::GET, id).await
    }

    async fn state_by(&self, method: Method, id: &str) -> anyhow::Result<JobState> {
        #[derive(Deserialize)]
        struct Stands {
            state: JobState,
        }
        let request = self.request(method, &format!("v1/jobs/{id}"), &[])?;
        Ok(self.answer::<Stands>(request).await?.view.state)
    }

    /// Stored matrices whose name contains the text or whose digests begin with it, at most as many as a page has; and whether there are more.
    pub async fn matrices(&self, text: &str) -> anyhow::Result<(Vec<Matrix>, bool)> {
        let query = [("q", text), ("limit", PAGE)];
        let page: Answer<Page<Matrix>> =
            self.answer(self.request(Method::GET, "v1/matrices", &query)?).await?;
        Ok((page.view.items, page.view.next.is_some()))
    }

    /// Deletes a stored matrix; its measurements are kept.
    pub async fn delete_matrix(&self, digest: &Digest) -> anyhow::Result<()> {
        let request = self.request(Method::DELETE, &format!("v1/matrices/{digest}"), &[])?;
        accepted(self.send(request).await?).await.map(drop)
    }

    /// All candidates of a job, read page by page.
    pub async fn trials(&self, id: &str) -> anyhow::Result<Vec<Answer<Trial>>> {
        let path = format!("v1/jobs/{id}/trials");
        let mut trials = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = vec![("limit", PAGE)];
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: Answer<Page<Value>> =
                self.answer(self.request(Method::GET, &path, &query)?).await?;
            for raw in page.view.items {
                trials.push(Answer { view: Trial::deserialize(&raw)?, raw });
            }
            cursor = page.view.next;
            if cursor.is_none() {
                return Ok(trials);
            }
        }
    }

    pub async fn plan(&self, id: &str) -> anyhow::Result<Answer<Plan>> {
        self.answer(self.request(Method::GET, &format!("v1/plans/{id}"), &[])?).await
    }

    /// `GET /v1/plans` by digest; `query` contains the problem and the device.
    pub async fn lookup(
        &self,
        matrix: &Digest,
        query: &[(&str, String)],
    ) -> anyhow::Result<Answer<Lookup>> {
        let matrix = matrix.to_string();
        let mut all = vec![("matrix", matrix.as_str())];
        all.extend(query.iter().map(|(name, value)| (*name, value.as_str())));
        self.answer(self.request(Method::GET, "v1/plans", &all)?).await
    }

    /// The event stream of a job after event `last`; `None` if no more events will follow.
    pub async fn events(&self, id: &str, last: u64) -> anyhow::Result<Option<events::Events>> {
        let request = self
            .request(Method::GET, &format!("v1/jobs/{id}/events"), &[])?
            .header("last-event-id", last.to_string());
        let response = accepted(self.send(request).await?).await?;
        let over = response.status() == StatusCode::NO_CONTENT;
        Ok((!over).then(|| events::Events::new(response)))
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<RequestBuilder> {
        let mut url = self.server.join(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.http.request(method, url);
        Ok(match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        })
    }

    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let server = self.server();
        request.send().await.map_err(|error| match error.is_connect() {
            true => {
                let error = anyhow::Error::from(error);
                let cause = error.root_cause();
                anyhow!("no response from {server} ({cause}): `sparsetune serve` starts a server, and --server names another")
            }
            false => anyhow::Error::from(error).context(format!("no response from {server}")),
        })
    }

    async fn answer<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> anyhow::Result<Answer<T>> {
        Ok(self.answer_with_status(request).await?.0)
    }

    async fn answer_with_status<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
    ) -> anyhow::Result<(Answer<T>, StatusCode)> {
        let response = accepted(self.send(request).await?).await?;
        let status = response.status();
        let raw: Value = response.json().await.context("the response is not JSON")?;
        let view = T::deserialize(&raw)
            .context("the response lacks a member that this version requires")?;
        Ok((Answer { view, raw }, status))
    }
}

/// Turns a problem response into an error with the server's message.
async fn accepted(response: Response) -> anyhow::Result<Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let text = response.text().await.unwrap_or_default();
    let Ok(problem) = serde_json::from_str::<Problem>(&text) else {
        bail!("the server returned {status}: {}", text.trim());
    };
    let mut message = problem.detail.or(problem.title).unwrap_or_else(|| status.to_string());
    if let Some(line) = problem.line.filter(|line| !message.contains(&format!("line {line}"))) {
        message.push_str(&format!(" (line {line})"));
    }
    if let Some(flag) = problem.pointer.as_deref().and_then(flag_of) {
        message = format!("{flag}: {message}");
    }
    bail!(message);
}

/// What a person calls the member of a request that this JSON pointer names: the flag. `None` where the message says enough.
fn flag_of(pointer: &str) -> Option<String> {
    match pointer {
        "/search/families" => Some("--family".to_owned()),
        "/search/fixed" => Some("--fix".to_owned()),
        "/device" | "/expected_calls" => {
            Some(format!("--{}", pointer.trim_start_matches('/').replace('_', "-")))
        }
        _ => {
            let name =
                pointer.strip_prefix("/problem/").or_else(|| pointer.strip_prefix("/search/"))?;
            let plain = name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte));
            plain.then(|| format!("--{}", name.replace('_', "-")))
        }
    }
}

/// The file's name without folders and known extensions.
pub fn matrix_name(file: &Path) -> Option<String> {
    let mut name = file.file_name()?.to_str()?;
    for ending in FILE_ENDINGS {
        name = name.strip_suffix(ending).unwrap_or(name);
    }
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Client, flag_of, matrix_name};
    use std::path::Path;

    #[test]
    fn names_lose_their_endings_once() {
        let name = |file: &str| matrix_name(Path::new(file));
        assert_eq!(name("a/delaunay_n15.mtx.gz").as_deref(), Some("delaunay_n15"));
        assert_eq!(name("x.npz").as_deref(), Some("x"));
        assert_eq!(name("plain").as_deref(), Some("plain"));
        assert_eq!(name(".mtx"), None);
    }

    #[test]
    fn members_of_requests_are_called_by_their_flags() {
        let flag = |pointer: &str| flag_of(pointer).unwrap_or_default();
        assert_eq!(flag("/problem/n"), "--n");
        assert_eq!(flag("/problem/tf32"), "--tf32");
        assert_eq!(flag("/search/top_k"), "--top-k");
        assert_eq!(flag("/search/fixed"), "--fix");
        assert_eq!(flag("/expected_calls"), "--expected-calls");
        for without in ["/matrix", "/problem", "/problem/a b", "/scopes/0", ""] {
            assert_eq!(flag(without), "", "{without}");
        }
    }

    #[test]
    fn servers_are_http_urls_with_or_without_a_path() {
        assert_eq!(Client::new("http://h:1", None).unwrap().server(), "http://h:1");
        assert_eq!(Client::new("http://h/tune", None).unwrap().server(), "http://h/tune");
        assert!(Client::new("https://h", None).is_err());
        assert!(Client::new("h:1", None).is_err());
    }
}
