//! The files of an export: programs and arrays of plans, models, matrices. The reader has compared each with its digest.

use super::import::Import;
use super::record::{SentMatrix, SentModel};
use crate::domain::Digest;
use crate::domain::transfer::Taken;
use crate::service::ingest::temporary;
use crate::service::room::Reserved;
use crate::service::{Result, ServiceError, rankers, whole};
use crate::sparse::canonical;
use std::io::Write;
use std::sync::Arc;
use tempfile::NamedTempFile;

/// How many of those left out are named.
const NAMED: usize = 20;

/// A file that is arriving.
pub(super) enum Arriving {
    /// It is here already, or nothing is to be stored.
    Unwanted,
    Blob(NamedTempFile, Reserved),
    Model(Box<SentModel>, Vec<u8>),
    Matrix(Box<SentMatrix>, NamedTempFile, Reserved),
}

impl Import {
    pub(super) async fn file(&mut self, digest: Digest, bytes: u64) -> Result<()> {
        self.brought.insert(digest);
        let blobs = &self.service.inner.blobs;
        self.file = Some(match (blobs.exists(&digest).await?, self.dry_run) {
            (true, _) => {
                self.report.files.known += 1;
                Arriving::Unwanted
            }
            (false, true) => {
                self.report.files.new += 1;
                Arriving::Unwanted
            }
            (false, false) => {
                let reserved = self.room(bytes).await?;
                Arriving::Blob(blobs.stage().await?, reserved)
            }
        });
        Ok(())
    }

    pub(super) async fn model(&mut self, sent: Box<SentModel>) -> Result<()> {
        let known = self.service.store.learned_model(&sent.card.id).await?.is_some();
        self.file = Some(if known {
            self.report.models.known += 1;
            Arriving::Unwanted
        } else if !self.service.caller.is_operators() {
            let what = format!(
                "model {}: models are all users', and the operator's to take in",
                sent.card.id
            );
            left_out(&mut self.report.models, &mut self.report.left_out, what);
            Arriving::Unwanted
        } else {
            Arriving::Model(sent, Vec::new())
        });
        Ok(())
    }

    pub(super) async fn matrix(&mut self, sent: Box<SentMatrix>) -> Result<()> {
        let digest = sent.matrix.digest;
        let known = self.service.store.matrix(&digest).await?.is_some()
            && self.service.inner.blobs.exists(&digest).await?;
        self.file = Some(match (known, self.dry_run) {
            (true, _) => {
                self.report.matrices.known += 1;
                Arriving::Unwanted
            }
            (false, true) => {
                self.report.matrices.new += 1;
                Arriving::Unwanted
            }
            (false, false) => {
                let reserved = self.room(sent.contents.bytes).await?;
                let folder = self.service.inner.settings.temp_dir.clone();
                let file = tokio::task::spawn_blocking(move || temporary(&folder)).await??;
                Arriving::Matrix(sent, file, reserved)
            }
        });
        Ok(())
    }

    async fn room(&self, bytes: u64) -> Result<Reserved> {
        let room = Arc::clone(&self.service.inner.room);
        tokio::task::spawn_blocking(move || room.take(bytes)).await?
    }

    pub(super) async fn bytes(&mut self, bytes: Vec<u8>) -> Result<()> {
        let file = match &mut self.file {
            None | Some(Arriving::Unwanted) => return Ok(()),
            Some(Arriving::Model(_, file)) => {
                file.extend_from_slice(&bytes);
                return Ok(());
            }
            Some(Arriving::Blob(file, _) | Arriving::Matrix(_, file, _)) => file,
        };
        // Files are written where they are read, in the page cache.
        file.write_all(&bytes).map_err(|error| ServiceError::of_io("a file of an export", error))
    }

    /// The reader has compared the file with its digest.
    pub(super) async fn arrived(&mut self, arrived: Arriving) -> Result<()> {
        match arrived {
            Arriving::Unwanted => {}
            Arriving::Blob(file, _reserved) => {
                let synced = file.as_file().sync_all();
                synced.map_err(|error| ServiceError::of_io("a file of an export", error))?;
                self.service.inner.blobs.put_file(file.into_temp_path(), None).await?;
                self.report.files.new += 1;
            }
            Arriving::Model(sent, file) => {
                let card = &sent.card;
                match rankers::usable(card, &file, &card.scope) {
                    Err(why) => {
                        let what = format!("model {}: {why}", card.id);
                        left_out(&mut self.report.models, &mut self.report.left_out, what);
                    }
                    Ok(_) if self.dry_run => self.report.models.new += 1,
                    Ok(_) => match self.service.store.insert_model(card, &file).await? {
                        true => self.report.models.new += 1,
                        false => self.report.models.known += 1,
                    },
                }
            }
            Arriving::Matrix(sent, file, reserved) => {
                // Whoever stores it takes its room.
                reserved.give().await;
                self.matrix_arrived(&sent, file).await?;
            }
        }
        Ok(())
    }

    async fn matrix_arrived(&mut self, sent: &SentMatrix, file: NamedTempFile) -> Result<()> {
        let memory = self.service.inner.settings.limits.memory.clone();
        let digest = sent.matrix.digest;
        let read = tokio::task::spawn_blocking(move || -> Result<_> {
            let named = whole::name_of(file.path());
            if named.map_err(|error| ServiceError::of_io("a matrix", error))? != Some(digest) {
                return Ok(None);
            }
            Ok(Some(canonical::open_in(file.path(), &memory)?))
        });
        match read.await?? {
            Some((csr, _, _held)) => {
                let stored = self.service.store_csr(csr, sent.matrix.name.clone()).await?;
                match stored.created {
                    true => self.report.matrices.new += 1,
                    false => self.report.matrices.known += 1,
                }
            }
            None => {
                let what =
                    format!("matrix {digest}: its file is that of another matrix, or of none");
                left_out(&mut self.report.matrices, &mut self.report.left_out, what);
            }
        }
        Ok(())
    }
}

pub(super) fn left_out(kind: &mut Taken, named: &mut Vec<String>, what: String) {
    kind.left_out += 1;
    if named.len() < NAMED {
        named.push(what);
    }
}
