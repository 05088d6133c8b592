//! A store that is reached by TLS: whose certificates are trusted, for which hosts, and what is said of those that are not.

use crate::authority::{Authority, OVER, TO_COME, VALID};
use crate::opened;
use crate::server::{KEY, S3Server, SECRET};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sparsetune::store::{BlobError, BlobPlace, BucketSettings, Secret};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;

/// Ends TLS before a server without it.
struct Front {
    port: u16,
    config: Arc<Mutex<Arc<ServerConfig>>>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Front {
    async fn of(server: &str, config: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = Arc::new(Mutex::new(Arc::new(config)));
        let connections = Arc::new(Mutex::new(Vec::new()));
        let made =
            Self { port, config: Arc::clone(&config), connections: Arc::clone(&connections) };
        let server = server.to_owned();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let acceptor = TlsAcceptor::from(Arc::clone(&config.lock().unwrap()));
                let server = server.clone();
                let connection = tokio::spawn(async move {
                    let mut client = acceptor.accept(client).await.ok()?;
                    let mut upstream = TcpStream::connect(server).await.ok()?;
                    tokio::io::copy_bidirectional(&mut client, &mut upstream).await.ok()
                });
                connections.lock().unwrap().push(connection.abort_handle());
            }
        });
        made
    }

    /// Shows another certificate from now on, as a server does that was started again.
    fn replace(&self, config: ServerConfig) {
        *self.config.lock().unwrap() = Arc::new(config);
        self.connections.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }
}

/// Settings without leave to go without TLS.
fn encrypted(
    s3: &S3Server,
    host: &str,
    port: u16,
    ca: Option<&Path>,
    cache: &Path,
) -> BucketSettings {
    let mut settings = s3.settings("", cache);
    settings.allow_http = false;
    settings.ca_file = ca.map(Path::to_owned);
    settings.options.push(("aws_endpoint_url".into(), Secret(format!("https://{host}:{port}"))));
    settings
}

async fn refused(settings: BucketSettings) -> String {
    let begun = Instant::now();
    let told = BlobPlace::Bucket(Box::new(settings)).open().await.unwrap_err().to_string();
    assert!(begun.elapsed() < Duration::from_secs(3), "it was tried again and again: {told}");
    assert!(!told.contains(SECRET) && !told.contains(KEY), "{told}");
    told
}

/// What a client gets that trusts an authority and has nothing else.
async fn fetched(link: &str, ca: &Path) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    let tls = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(config).https_only();
    let client = Client::builder(TokioExecutor::new()).build(tls.enable_http1().build());
    let request = hyper::Request::get(link).body(Empty::<bytes::Bytes>::new()).unwrap();
    let answer = client.request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_trusted_by_the_authority_of_a_file() {
    let Some(s3) = S3Server::start() else { return };
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let front = Front::of(&s3.address, authority.signs("server", VALID)).await;
    let cache = |name: &str| folder.path().join(name);
    let ca = authority.ca();
    let place = |name: &str| {
        let settings = encrypted(&s3, "127.0.0.1", front.port, Some(&ca), &cache(name));
        BlobPlace::Bucket(Box::new(settings))
    };
    let blobs = opened(&place("first")).await;
    let whole = crate::contents((9 << 20) + 1, 7);
    let mut staged = blobs.stage().await.unwrap();
    std::io::Write::write_all(&mut staged, &whole).unwrap();
    let large = blobs.put_file(staged.into_temp_path(), None).await.unwrap();
    let small = blobs.put("a bundle".into()).await.unwrap();
    let elsewhere = opened(&place("second")).await;
    assert_eq!(elsewhere.get(&large).await.unwrap(), whole);
    assert_eq!(elsewhere.get(&small).await.unwrap(), "a bundle");

    // Who is sent to the store is sent there by TLS as well.
    let link = blobs.link(&small, "application/zip", Some("plan.stplan")).await.unwrap().unwrap();
    assert!(link.starts_with(&format!("https://127.0.0.1:{}/", front.port)), "{link}");
    assert_eq!(fetched(&link, &ca).await, "a bundle");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_store_is_not_trusted_is_said_at_once() {
    let Some(s3) = S3Server::start() else { return };
    let (authority, others) = (Authority::new(), [Authority::new(), Authority::named("others")]);
    let folder = tempfile::tempdir().unwrap();
    let (cache, ca) = (folder.path().join("cache"), authority.ca());
    let told = async |host: &str, port: u16, ca: Option<&Path>| {
        refused(encrypted(&s3, host, port, ca, &cache)).await
    };
    let front = Front::of(&s3.address, authority.signs("server", VALID)).await;
    // One of the same name, whose key is another, and one of another name.
    for other in &others {
        let said = told("127.0.0.1", front.port, Some(&other.ca())).await;
        assert!(
            said.contains("no authority of s3.ca_file has signed the store's certificate"),
            "{said}"
        );
    }
    let said = told("127.0.0.1", front.port, None).await;
    assert!(said.contains("no authority that this system trusts"), "{said}");
    let said = told("localhost", front.port, Some(&ca)).await;
    assert!(
        said.contains("certificate is not for localhost, but for") && said.contains("127.0.0.1"),
        "{said}"
    );
    let over = Front::of(&s3.address, authority.signs("over", OVER)).await;
    let said = told("127.0.0.1", over.port, Some(&ca)).await;
    assert!(said.contains("certificate has expired"), "{said}");
    let to_come = Front::of(&s3.address, authority.signs("to-come", TO_COME)).await;
    let said = told("127.0.0.1", to_come.port, Some(&ca)).await;
    assert!(said.contains("certificate is not valid yet"), "{said}");
    let said = told("127.0.0.1", front.port, Some(&folder.path().join("missing.pem"))).await;
    assert!(said.contains("s3.ca_file") && said.contains("missing.pem"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_no_longer_trusted_is_away_until_it_is() {
    let Some(s3) = S3Server::start() else { return };
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let front = Front::of(&s3.address, authority.signs("server", VALID)).await;
    let (cache, ca) = (folder.path().join("cache"), authority.ca());
    let settings = encrypted(&s3, "127.0.0.1", front.port, Some(&ca), &cache);
    let blobs = opened(&BlobPlace::Bucket(Box::new(settings))).await;
    let there = blobs.put("there".into()).await.unwrap();
    blobs.forget_copy(&there).await.unwrap();

    front.replace(authority.signs("over", OVER));
    let begun = Instant::now();
    for failed in [blobs.get(&there).await.err(), blobs.put("new".into()).await.err()] {
        let error = failed.expect("it was trusted");
        assert!(matches!(error, BlobError::Unavailable(_)), "{error}");
        assert!(error.to_string().contains("certificate has expired"), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "it was tried again and again");
    front.replace(authority.signs("renewed", VALID));
    assert_eq!(blobs.get(&there).await.unwrap(), "there");
}
