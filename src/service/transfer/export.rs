//! Makes an export: the store is read page by page, and what is packed is sent on, so that neither is ever in memory as a whole.

use super::pack::{Packer, contents_of};
use super::record::{Contents, FORMAT, FileOfPlan, Header, Record, SentMatrix, SentModel, VERSION};
use crate::domain::transfer::{Selection, SentJob, SentPlan};
use crate::domain::{Digest, Matrix, Timestamp};
use crate::service::{Result, Service, ServiceError};
use crate::store::{BlobError, LocalFile, MatrixQuery, PageRequest};
use bytes::Bytes;
use futures_util::Stream;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Rows that are read at a time. A plan may have a megabyte.
const PLANS: u32 = 16;
const JOBS: u32 = 64;
const TRIALS: u32 = 500;
const MATRICES: u32 = 100;
/// Exports that are made at once.
pub const EXPORTS_AT_ONCE: usize = 2;
/// Packed pieces that wait for whoever takes them.
const WAITING: usize = 4;

/// The bytes of an export. It ends early only with an error.
pub type ExportStream = std::pin::Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>;

/// An export that is being made.
struct Export {
    service: Service,
    selection: Selection,
    packer: Packer,
    /// `None` for whoever takes it has gone.
    out: mpsc::Sender<Result<Bytes>>,
    /// What has been written, and what is to be written of matrices.
    files: HashSet<Digest>,
    matrices: HashSet<Digest>,
}

impl Service {
    /// What is selected of the store, as the bytes of a file. It is made as it is taken: nothing is made in advance.
    pub async fn export(&self, selection: Selection) -> Result<ExportStream> {
        let header = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            store: self.store.id().await?,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            made_at: Timestamp::now().to_rfc3339(),
            selection: selection.clone(),
        };
        let (out, taken) = mpsc::channel(WAITING);
        let packer = Packer::new().map_err(not_packed)?;
        let (files, matrices) = (HashSet::new(), HashSet::new());
        let mut export = Export { service: self.clone(), selection, packer, out, files, matrices };
        export.packer.write(&Record::Header(header)).map_err(not_packed)?;
        let permit = Arc::clone(&self.inner.exports).try_acquire_owned().map_err(|_| {
            let message =
                format!("{EXPORTS_AT_ONCE} exports are being made, as many as may be at once");
            ServiceError::Unavailable { message }
        })?;
        // What is read and packed, for long if it packs well, holds no thread that answers requests.
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            runtime.block_on(async move {
                let _permit = permit;
                let out = export.out.clone();
                let ended = export.run().await;
                if let Err(error) = ended {
                    tracing::warn!(%error, "an export ended early");
                    // Whoever has gone is told nothing.
                    let _ = out.send(Err(error)).await;
                }
            })
        });
        let stream = futures_util::stream::unfold(taken, async |mut taken| {
            taken.recv().await.map(|piece| (piece, taken))
        });
        Ok(Box::pin(stream))
    }
}

impl Export {
    async fn run(mut self) -> Result<()> {
        if self.selection.plans {
            self.plans().await?;
        }
        if self.selection.trials {
            self.jobs().await?;
        }
        if self.selection.models && self.selection.matrix.is_none() {
            self.models().await?;
        }
        if self.selection.matrices {
            self.write_matrices().await?;
        }
        let rest = self.packer.finish().map_err(not_packed)?;
        send(&self.out, rest).await
    }

    async fn plans(&mut self) -> Result<()> {
        let mut page = PageRequest::first(PLANS);
        loop {
            let found = self.service.store.sent_plans(&self.selection, &page).await?;
            for sent in found.items {
                self.plan(sent).await?;
            }
            match found.next {
                Some(next) => page.after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn plan(&mut self, sent: SentPlan) -> Result<()> {
        self.matrices.insert(sent.plan.matrix);
        if self.selection.files {
            let read = self.service.files_of(&sent.plan).await?;
            // In the plan's own order, so that equal stores give equal exports.
            let named = sent.plan.launch.iter().flat_map(|launch| launch.blobs()).copied();
            let named: Vec<Digest> = named.filter(|digest| read.contains(digest)).collect();
            for digest in named {
                if self.files.insert(digest)
                    && let Some((file, contents)) = self.file(&digest).await?
                {
                    let record = Record::File(FileOfPlan { contents });
                    self.with_file(&record, &file).await?;
                }
            }
        }
        self.write(&Record::Plan(Box::new(sent))).await
    }

    async fn jobs(&mut self) -> Result<()> {
        let mut page = PageRequest::first(JOBS);
        loop {
            let found = self.service.store.sent_jobs(&self.selection, &page).await?;
            for sent in found.items {
                self.job(sent).await?;
            }
            match found.next {
                Some(next) => page.after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn job(&mut self, sent: SentJob) -> Result<()> {
        self.matrices.insert(sent.request.matrix);
        let id = sent.id.clone();
        self.write(&Record::Job(Box::new(sent))).await?;
        let mut after = -1;
        loop {
            let found = self.service.store.sent_trials(&id, after, TRIALS).await?;
            let Some(last) = found.last() else { return Ok(()) };
            after = i64::from(last.trial.ordinal);
            for trial in found {
                self.write(&Record::Trial(Box::new(trial))).await?;
            }
        }
    }

    async fn models(&mut self) -> Result<()> {
        for card in self.service.store.learned_models(None).await? {
            let selected =
                self.selection.admits(card.scope.op, &card.scope.device_class, card.created_at);
            let file = match selected {
                true => self.service.store.model_file(&card.id).await?,
                false => None,
            };
            let Some(file) = file else { continue };
            let contents = Contents { bytes: file.len() as u64, digest: Digest::of(&file) };
            self.write(&Record::Model(Box::new(SentModel { card, contents }))).await?;
            self.parts(file.as_slice()).await?;
        }
        Ok(())
    }

    /// The matrices of what was written, or all if nothing else was asked for.
    async fn write_matrices(&mut self) -> Result<()> {
        let Selection { plans, trials, matrix, .. } = self.selection.clone();
        if plans || trials {
            let mut wanted: Vec<Digest> = self.matrices.drain().collect();
            wanted.sort_unstable();
            for digest in wanted {
                if let Some(facts) = self.service.store.matrix(&digest).await? {
                    self.matrix(facts).await?;
                }
            }
            return Ok(());
        }
        let mut page = PageRequest::first(MATRICES);
        loop {
            let found = self.service.store.matrices(&MatrixQuery::All, &page).await?;
            for facts in found.items {
                let named =
                    |digest: Digest| digest == facts.digest || digest == facts.pattern_digest;
                if matrix.is_none_or(named) {
                    self.matrix(facts).await?;
                }
            }
            match found.next {
                Some(next) => page.after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn matrix(&mut self, matrix: Matrix) -> Result<()> {
        let Some((file, contents)) = self.file(&matrix.digest).await? else { return Ok(()) };
        let record = Record::Matrix(Box::new(SentMatrix { matrix, contents }));
        self.with_file(&record, &file).await
    }

    /// A blob that is there and sound.
    async fn file(&self, digest: &Digest) -> Result<Option<(LocalFile, Contents)>> {
        let file = match self.service.inner.blobs.local_copy(digest).await {
            Ok(file) => file,
            Err(BlobError::NotFound(_) | BlobError::Damaged(_)) => {
                tracing::warn!(%digest, "a file is missing or damaged, and is left out of the export");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let path = file.clone();
        let contents = tokio::task::spawn_blocking(move || contents_of(&path)).await?;
        Ok(Some((file, contents.map_err(not_packed)?)))
    }

    async fn with_file(&mut self, record: &Record, file: &LocalFile) -> Result<()> {
        self.write(record).await?;
        self.parts(File::open(file).map_err(not_packed)?).await
    }

    async fn parts(&mut self, mut from: impl io::Read) -> Result<()> {
        let mut buffer = Vec::new();
        while self.packer.write_part(&mut from, &mut buffer).map_err(not_packed)? {
            self.send_ready().await?;
        }
        Ok(())
    }

    async fn write(&mut self, record: &Record) -> Result<()> {
        self.packer.write(record).map_err(not_packed)?;
        self.send_ready().await
    }

    async fn send_ready(&mut self) -> Result<()> {
        match self.packer.ready() {
            Some(piece) => send(&self.out, piece).await,
            None => Ok(()),
        }
    }
}

async fn send(out: &mpsc::Sender<Result<Bytes>>, piece: Bytes) -> Result<()> {
    let gone =
        |_| ServiceError::Unavailable { message: "nobody takes the export any more".to_owned() };
    out.send(Ok(piece)).await.map_err(gone)
}

fn not_packed(error: io::Error) -> ServiceError {
    ServiceError::of_io("an export", error)
}
