//! The events of a job or a training as a stream: past events, then new ones until the end.

use super::signals::JobSignal;
use super::{Result, Service, ServiceError};
use crate::domain::{Event, EventKind, JobId};
use futures_util::stream::{self, BoxStream, StreamExt};
use std::collections::VecDeque;

/// Events, oldest first. The stream ends after the last event of work that has ended.
pub type EventStream = BoxStream<'static, Result<Event>>;

/// Number of events read at a time.
const BATCH: u32 = 256;

struct Tail {
    service: Service,
    job: JobId,
    signal: JobSignal,
    last: u64,
    read: VecDeque<Event>,
    over: bool,
}

impl Service {
    /// Events after number `after`, 0 for all. A client that lost its connection sends the number of the last event it
    /// received.
    pub async fn events(&self, id: &JobId, after: u64) -> Result<EventStream> {
        let signal = self.inner.signals.job(id);
        self.work(id).await?;
        let tail = Tail {
            service: self.clone(),
            job: id.clone(),
            signal,
            last: after,
            read: VecDeque::new(),
            over: false,
        };
        Ok(stream::try_unfold(tail, |mut tail| async move {
            let event = tail.next().await?;
            Ok::<_, ServiceError>(event.map(|event| (event, tail)))
        })
        .boxed())
    }
}

impl Tail {
    async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.read.pop_front() {
                self.last = event.seq;
                self.over |= matches!(&event.kind, EventKind::Job(work) if work.state().is_final());
                return Ok(Some(event));
            }
            if self.over {
                return Ok(None);
            }
            self.signal.arm();
            // The state is read before the events, so that all events of ended work are included.
            let ended = self.service.work(&self.job).await?.state().is_final();
            let store = &self.service.store;
            self.read = store.events(&self.job, self.last, BATCH).await?.into();
            if !self.read.is_empty() {
                continue;
            }
            if ended {
                return Ok(None);
            }
            self.signal.wait(self.service.inner.settings.poll).await;
        }
    }
}
