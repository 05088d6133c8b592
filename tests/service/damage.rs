//! Files of the store that are damaged or gone: nothing is computed from them, clients are told what to do, and doing it heals.

use crate::world::*;
use sparsetune::domain::*;
use sparsetune::service::ServiceError;
use std::path::{Path, PathBuf};

fn blob(world: &World, digest: &Digest) -> PathBuf {
    let name = digest.to_string();
    world.folder.path().join("blobs").join(&name[..2]).join(name)
}

fn flip(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file, bytes).unwrap();
}

fn cut(file: &Path) {
    let bytes = std::fs::read(file).unwrap();
    std::fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
}

fn empty(file: &Path) {
    std::fs::write(file, "").unwrap();
}

fn remove(file: &Path) {
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn a_damaged_matrix_is_told_and_healed_by_an_upload() {
    type Damage = fn(&Path);
    let ways: [(&str, Damage); 4] =
        [("flipped", flip), ("cut", cut), ("empty", empty), ("gone", remove)];
    for (way, damage) in ways {
        let world = World::new().await;
        let text = tridiagonal(40);
        let digest = world.upload(&text).await.matrix.digest;
        let file = blob(&world, &digest);
        let sound = std::fs::read(&file).unwrap();
        damage(&file);
        // A process that has not opened it yet.
        let fresh = world.elsewhere("later").await;
        let told = fresh.spy_png(&digest, 64).await.unwrap_err();
        let ServiceError::Conflict { message } = &told else { panic!("{way}: {told:?}") };
        assert!(message.contains("upload the matrix again"), "{way}: {message}");
        assert!(!message.contains('/'), "{way}: {message}");
        assert!(!file.exists(), "{way}");
        assert_eq!(file.with_extension("damaged").exists(), way != "gone", "{way}");

        let again = fresh.upload(body(&text), None).await.unwrap();
        assert!(again.created, "{way}: it is no matrix that was known");
        assert_eq!(std::fs::read(&file).unwrap(), sound, "{way}");
        fresh.spy_png(&digest, 64).await.unwrap();
        let known = fresh.upload(body(&text), None).await.unwrap();
        assert!(!known.created, "{way}");
    }
}

#[tokio::test]
async fn an_upload_alone_finds_the_damage() {
    let world = World::new().await;
    let text = tridiagonal(40);
    let digest = world.upload(&text).await.matrix.digest;
    let sound = std::fs::read(blob(&world, &digest)).unwrap();
    flip(&blob(&world, &digest));
    let fresh = world.elsewhere("later").await;
    assert!(fresh.upload(body(&text), None).await.unwrap().created);
    assert_eq!(std::fs::read(blob(&world, &digest)).unwrap(), sound);
}

#[tokio::test]
async fn damaged_programs_are_not_served_and_are_stored_anew() {
    let world = World::new().await;
    let source = world.service.blobs().put("__global__ void f();".into()).await.unwrap();
    std::fs::write(blob(&world, &source), "__global__ void g();").unwrap();
    let fresh = world.elsewhere("later").await;
    let told = fresh.blobs().get(&source).await.unwrap_err().to_string();
    assert!(told.contains("damaged"), "{told}");
    assert!(!fresh.blobs().exists(&source).await.unwrap());
    assert_eq!(fresh.blobs().put("__global__ void f();".into()).await.unwrap(), source);
    assert_eq!(fresh.blobs().get(&source).await.unwrap(), "__global__ void f();");

    // Without a look at it in between.
    std::fs::write(blob(&world, &source), "__global__ void h();").unwrap();
    let third = world.elsewhere("third").await;
    let mut staged = third.blobs().stage().await.unwrap();
    std::io::Write::write_all(&mut staged, b"__global__ void f();").unwrap();
    assert_eq!(third.blobs().put_file(staged.into_temp_path(), None).await.unwrap(), source);
    assert_eq!(third.blobs().get(&source).await.unwrap(), "__global__ void f();");
}
