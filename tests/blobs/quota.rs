//! Two servers with one bucket and one database store no more together than one of them may.

use crate::server::S3Server;
use crate::{World, opened};
use sparsetune::service::{Lack, Service, ServiceError, ServiceSettings, StoredLimits};
use sparsetune::store::SqliteStore;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

fn diagonal(rows: usize) -> String {
    let mut text = format!("%%MatrixMarket matrix coordinate real general\n{rows} {rows} {rows}\n");
    for row in 1..=rows {
        writeln!(text, "{row} {row} {row}.5").unwrap();
    }
    text
}

async fn upload(service: &Service, rows: usize) -> Result<(), ServiceError> {
    let body = futures_util::stream::iter([Ok::<_, Infallible>(diagonal(rows).into())]);
    service.upload(body, None).await.map(drop)
}

fn bytes_of(server: &S3Server) -> u64 {
    let names = server.names("blobs");
    names.iter().map(|name| server.object("blobs", name).metadata().unwrap().len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_store_no_more_together_than_one_may() {
    let Some(world) = World::bucket().await else { return };
    let bucket = world.server.as_ref().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let most = 40_000;
    let serve = async |cache: &Path| {
        let stored =
            StoredLimits { folder: Some(cache.to_owned()), most, ..StoredLimits::default() };
        let settings = ServiceSettings {
            temp_dir: folder.path().to_owned(),
            stored,
            ..ServiceSettings::default()
        };
        let store = SqliteStore::open(&folder.path().join("store")).await.unwrap();
        Service::new(Arc::new(store), opened(&world.place).await, settings)
    };
    let servers = [serve(folder.path()).await, serve(folder.path()).await];
    let mut stored = 0;
    let refused = loop {
        // Each a little larger, so that no two are the same.
        match upload(&servers[stored % 2], 200 + stored).await {
            Ok(()) => stored += 1,
            Err(refused) => break refused,
        }
        assert!(bytes_of(bucket) <= most, "{stored} are stored");
    };
    assert!(matches!(refused, ServiceError::Shortage { lack: Lack::Full, .. }), "{refused}");
    let bytes = bytes_of(bucket);
    assert!(stored > 4 && bytes + 4_000 > most, "{stored} have {bytes} bytes");
    // The other knows it as well, and what is there already needs no room.
    assert!(upload(&servers[(stored + 1) % 2], 200 + stored).await.is_err());
    upload(&servers[0], 200).await.unwrap();
    assert_eq!(bytes_of(bucket), bytes);
}
