//! A server that is reached by TLS: whose certificates are trusted, and by which names.

use crate::postgres::{Server, is_left_out};
use sparsetune::store::{PostgresOptions, SqlStore, Upkeep as _};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_a_server_is_is_told_by_its_certificate() {
    if is_left_out() {
        return;
    }
    let (server, ca) = Server::start_with_tls();
    let database = server.database().await;
    let (ca, options) = (ca.to_str().unwrap(), PostgresOptions::default());
    let full = format!("sslmode=verify-full&sslrootcert={ca}");
    let url = server.url_of_tls("127.0.0.1", &database, &full);
    let store = SqlStore::connect(&url, options).await.unwrap();
    store.check_writable().await.unwrap();
    // All connections of it are encrypted.
    let ours = "SELECT 1 FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE application_name = 'sparsetune'";
    let count = async |of: &str| server.execute(&database, format!("{ours} AND {of}")).await;
    assert!(count("ssl").await >= 1 && count("NOT ssl").await == 0);
    store.close().await;

    // Another name than that of the certificate, and one that nobody has vouched for.
    for (host, parameters) in [("localhost", full.as_str()), ("127.0.0.1", "sslmode=verify-full")] {
        let url = server.url_of_tls(host, &database, parameters);
        let told = SqlStore::connect(&url, options).await.unwrap_err().to_string();
        assert!(told.to_lowercase().contains("certificate"), "{told}");
        assert!(!told.contains("secret-of-tests"), "{told}");
    }
}
