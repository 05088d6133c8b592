//! Workers of a process: each opens its device in an evaluator, then runs jobs until it is stopped.

use crate::domain::DeviceId;
use crate::pool::{Evaluator, EvaluatorSpec};
use crate::service::Service;
use crate::service::tuning::{Measuring, Worker};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The loops of a process's workers; each ends when the token is cancelled.
pub type WorkerLoops = Vec<BoxFuture<'static, ()>>;

/// Workers that have not been started yet.
pub struct Workers {
    members: Vec<EvaluatorSpec>,
    tx: mpsc::UnboundedSender<Opened>,
}

/// The result of opening a device.
struct Opened {
    device: DeviceId,
    error: Option<String>,
}

/// Waits for the devices to open.
pub struct Opening {
    wanted: usize,
    /// The devices were detected rather than named: a device that does not open is left out.
    automatic: bool,
    rx: mpsc::UnboundedReceiver<Opened>,
}

/// Why there is no usable device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpeningError {
    #[error("device {device}: {error}")]
    Device { device: DeviceId, error: String },
    #[error("no device could be opened; run `sparsetune doctor` for details")]
    NoDevice,
}

impl Workers {
    /// Creates one worker for each evaluator. `automatic` means that the devices were detected rather than named: a device
    /// that does not open is then left out.
    pub fn new(members: Vec<EvaluatorSpec>, automatic: bool) -> (Self, Opening) {
        let (tx, rx) = mpsc::unbounded_channel();
        let opening = Opening { wanted: members.len(), automatic, rx };
        (Self { members, tx }, opening)
    }

    /// The workers' loops, each of which opens its device first.
    pub fn loops(self, service: &Service, stop: &CancellationToken) -> WorkerLoops {
        let Self { members, tx } = self;
        let one = |spec: EvaluatorSpec| {
            let (service, stop, tx) = (service.clone(), stop.clone(), tx.clone());
            // Registered before any of them opens: the process is not ready until all of them have.
            let coming = service.opening(spec.device.clone());
            async move {
                let device = spec.device.clone();
                let opening = Worker::open(service, Evaluator::new(spec), Measuring::default());
                let Some(opened) = stop.run_until_cancelled(opening).await else { return };
                drop(coming);
                let error = opened.as_ref().err().map(ToString::to_string);
                // Nobody receives this once the startup result is known, but it is also logged.
                let _ = tx.send(Opened { device: device.clone(), error });
                match opened {
                    Ok(worker) => worker.run(stop).await,
                    Err(error) => tracing::error!(%device, %error, "the device is not used"),
                }
            }
            .boxed()
        };
        members.into_iter().map(one).collect()
    }
}

impl Opening {
    /// Waits until every device is open or has failed, or the workers are stopped.
    ///
    /// # Errors
    /// A named device has failed, or all detected ones have.
    pub async fn verdict(mut self) -> Result<(), OpeningError> {
        let mut open = 0;
        for _ in 0..self.wanted {
            // The senders are dropped if the workers are stopped first.
            let Some(Opened { device, error }) = self.rx.recv().await else { return Ok(()) };
            match error {
                None => open += 1,
                Some(error) if !self.automatic => {
                    return Err(OpeningError::Device { device, error });
                }
                Some(_) => {}
            }
        }
        if open == 0 && self.wanted > 0 { Err(OpeningError::NoDevice) } else { Ok(()) }
    }

    /// [`Self::verdict`]; an error also cancels `stop`.
    ///
    /// # Errors
    /// As for [`Self::verdict`].
    pub async fn verdict_or_stop(self, stop: CancellationToken) -> Result<(), OpeningError> {
        let verdict = self.verdict().await;
        if verdict.is_err() {
            stop.cancel();
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::{Opened, Opening};
    use crate::domain::DeviceId;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn a_device_that_fails_stops_the_process() {
        let (tx, rx) = mpsc::unbounded_channel();
        let opening = Opening { wanted: 1, automatic: false, rx };
        let stop = CancellationToken::new();
        let verdict = tokio::spawn(opening.verdict_or_stop(stop.clone()));
        let error = Some("it is on fire".to_owned());
        tx.send(Opened { device: DeviceId("cuda:0".to_owned()), error }).unwrap();
        stop.cancelled().await;
        let error = verdict.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "device cuda:0: it is on fire");
    }
}
