//! The first requests to a store: whether it does what the blobs rely on, and this program may do it.

use super::bucket::{Bucket, Result};
use super::fault::{Fault, Kind};
use bytes::Bytes;

/// The folder of what is tried.
const FOLDER: &str = "probe";

/// Creates an object, and tries to create it again, which must fail: some stores overwrite it without a word. Then it is listed, copied,
/// read and deleted.
pub(super) async fn probe(bucket: &Bucket) -> Result<()> {
    let name = uuid::Uuid::now_v7().to_string();
    let (first, second) = (bucket.key(FOLDER, &name), bucket.key(FOLDER, &format!("{name}-copy")));
    let tried = attempt(bucket, &name).await;
    // What is left after a failure is small, and may not be deletable.
    let removed = async {
        bucket.delete(&first).await?;
        bucket.delete(&second).await
    };
    let removed = removed.await;
    tried?;
    removed?;
    match bucket.facts(&first).await? {
        None => Ok(()),
        Some(_) => Err(unfit("an object that was deleted is still there")),
    }
}

async fn attempt(bucket: &Bucket, name: &str) -> Result<()> {
    let (first, second) = (bucket.key(FOLDER, name), bucket.key(FOLDER, &format!("{name}-copy")));
    let contents = Bytes::from_static(b"written by sparsetune to try this store");
    bucket.create(&first, contents.clone()).await?;
    match bucket.create(&first, Bytes::from_static(b"another")).await {
        Err(fault) if fault.kind == Kind::Exists => {}
        Err(fault) => return Err(fault),
        Ok(_) => {
            return Err(unfit(
                "it overwrites an object that is to be created and is there already (it does not heed If-None-Match)",
            ));
        }
    }
    if bucket.read(&first).await? != Some(contents.clone()) {
        return Err(unfit("an object that was written is not read back"));
    }
    if !bucket.list(FOLDER).await?.iter().any(|(listed, _)| listed == name) {
        return Err(unfit("an object that was written is not listed"));
    }
    bucket.copy(&first, &second).await?;
    if bucket.read(&second).await? != Some(contents) {
        return Err(unfit("an object that was copied is not read back"));
    }
    Ok(())
}

fn unfit(why: &str) -> Fault {
    Fault::new(Kind::Lasts, format!("this store cannot keep blobs: {why}"))
}
