//! Webhooks: addresses that are told of the ends of jobs, at least once each, by signed requests.

pub mod address;
mod send;

use super::{Page, PageRequest, Result, Service, ServiceError};
use crate::domain::webhook::{Delivery, Webhook, WebhookId};
use crate::domain::{JobState, Timestamp};
use crate::environment::random;
use crate::store::tls::Trust;
use crate::store::{AttemptEnd, Attempted, DueDelivery};
use address::Network;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How webhooks are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// Networks that may be called although they are not of the internet.
    pub allow: Vec<Network>,
    /// Time until a delivery that failed is sent again; later times are multiples of it.
    pub retry: Duration,
    /// A file with the authorities whose certificates are trusted; without one they are the system's.
    pub ca_file: Option<PathBuf>,
}

impl WebhookSettings {
    /// What is wrong with the file of authorities, if one is named.
    pub fn check_ca_file(file: &Path) -> std::result::Result<(), String> {
        Trust::of(send::RECEIVER, Some(file)).map(drop)
    }
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self { allow: Vec::new(), retry: Duration::from_secs(10), ca_file: None }
    }
}

/// A webhook that has just been made, with its secret, which is not told again.
#[derive(Clone, PartialEq, Eq)]
pub struct MadeWebhook {
    pub hook: Webhook,
    pub secret: String,
}

/// Most webhooks of a store.
const MOST: u32 = 32;
/// Most requests under way, and of one namespace; one for each webhook, so that a slow one holds up no other.
const AT_ONCE: usize = 32;
const OF_ONE: u32 = 8;
/// A receiver that takes longer to answer is paused like one that does not.
const SLOW: Duration = Duration::from_secs(5);
/// How long a claimed delivery is another process's, which is longer than any attempt takes.
const CLAIMED_FOR: Duration = Duration::from_secs(60);
/// How long a delivery may wait for its turn, in all.
pub(super) const WITHIN: Duration = Duration::from_hours(48);
/// After each failed attempt the time until the next, in multiples of the first: about 22 hours in all if that is ten seconds. After
/// the last of them it is given up.
const LATER: [u32; 8] = [1, 3, 12, 60, 360, 1080, 2160, 4320];

impl Service {
    /// Makes a webhook, which is told of jobs that end from now on.
    pub async fn make_webhook(
        &self,
        url: String,
        states: Option<Vec<JobState>>,
    ) -> Result<MadeWebhook> {
        let allowed = &self.inner.settings.webhooks.allow;
        if let Err(why) = send::url(&url, allowed) {
            return Err(ServiceError::invalid(
                "/url",
                format!("no webhook can be sent there: {why}"),
            ));
        }
        let ends = || JobState::ALL.into_iter().filter(|state| state.is_final()).collect();
        let mut states = states.unwrap_or_else(ends);
        states.sort_unstable_by_key(|state| *state as u8);
        states.dedup();
        if states.is_empty() || !states.iter().all(|state| state.is_final()) {
            let message = "webhooks are told of ends: succeeded, failed, cancelled";
            return Err(ServiceError::invalid("/states", message));
        }
        let key = random::secret().map_err(|error| ServiceError::of_io("a webhook", error))?;
        let secret = send::secret(&key);
        let created_at = Timestamp::now();
        let hook = Webhook { id: WebhookId::fresh(), url, states, created_at, paused_until: None };
        self.store.insert_webhook(&hook, &secret, MOST).await?;
        tracing::info!(webhook = %hook.id, "webhook made");
        Ok(MadeWebhook { hook, secret })
    }

    /// All webhooks, newest first.
    pub async fn webhooks(&self) -> Result<Vec<Webhook>> {
        Ok(self.store.webhooks().await?)
    }

    /// Removes a webhook and what it was still to be told.
    pub async fn delete_webhook(&self, id: &WebhookId) -> Result<()> {
        match self.store.delete_webhook(id).await? {
            true => Ok(()),
            false => Err(ServiceError::not_found("webhook", id)),
        }
    }

    /// What a webhook was or will be told, newest first.
    pub async fn deliveries(&self, id: &WebhookId, page: &PageRequest) -> Result<Page<Delivery>> {
        if !self.webhooks().await?.iter().any(|hook| hook.id == *id) {
            return Err(ServiceError::not_found("webhook", id));
        }
        Ok(self.store.deliveries(id, page).await?)
    }

    /// Sends what is due until the end. What was claimed and is not finished then is sent again by the next process.
    pub async fn deliver(self, stop: CancellationToken) {
        let mut under_way: JoinSet<WebhookId> = JoinSet::new();
        let mut busy: Vec<WebhookId> = Vec::new();
        let mut tick = tokio::time::interval(self.inner.settings.poll);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(done) = under_way.join_next(), if !under_way.is_empty() => match done {
                    Ok(hook) => busy.retain(|other| *other != hook),
                    // It panicked; who it was is not known, and a claim keeps what it sent from being lost.
                    Err(_) => busy.clear(),
                },
                _ = tick.tick() => {}
            }
            let free = AT_ONCE.saturating_sub(under_way.len()) as u32;
            if free == 0 {
                continue;
            }
            let until = after(CLAIMED_FOR);
            match self.store.claim_deliveries(&busy, until, (free, OF_ONE)).await {
                Ok(due) => {
                    for one in due {
                        busy.push(one.hook.clone());
                        under_way.spawn(self.clone().send(one));
                    }
                }
                Err(error) => tracing::warn!(%error, "webhooks could not be looked for"),
            }
        }
    }

    async fn send(self, due: DueDelivery) -> WebhookId {
        let settings = &self.inner.settings.webhooks;
        let began = Instant::now();
        let sent = send::attempt(&due, &settings.allow, settings.ca_file.as_deref()).await;
        let status = sent.as_ref().ok().copied();
        let end = match sent {
            Ok(200..=299) if began.elapsed() > SLOW => AttemptEnd::DeliveredLate,
            Ok(200..=299) => AttemptEnd::Delivered,
            failed => {
                let why = match failed {
                    Ok(status @ 300..=399) => {
                        format!("it answered {status}: redirects are not followed")
                    }
                    Ok(status) => format!("it answered {status}"),
                    Err(why) => why,
                };
                let later = (due.attempts as usize).checked_sub(1).and_then(|n| LATER.get(n));
                match later {
                    Some(times) => AttemptEnd::Again(after(settings.retry * *times), why),
                    None => AttemptEnd::GivenUp(why),
                }
            }
        };
        match &end {
            AttemptEnd::Delivered | AttemptEnd::DeliveredLate => {}
            AttemptEnd::Again(_, why) => {
                tracing::debug!(webhook = %due.hook, delivery = %due.id, why, "a delivery failed");
            }
            AttemptEnd::GivenUp(why) => {
                tracing::warn!(webhook = %due.hook, delivery = %due.id, why, "a delivery is given up");
            }
        }
        let pause_ms = i64::try_from(settings.retry.as_millis()).unwrap_or(i64::MAX);
        let end = Attempted { status, end, pause_ms };
        if let Err(error) = self.store.delivery_attempted(&due.id, due.attempts, &end).await {
            // It is sent once more when the claim ends.
            tracing::warn!(delivery = %due.id, %error, "the end of a delivery was not recorded");
        }
        due.hook
    }
}

fn after(time: Duration) -> Timestamp {
    Timestamp::now().plus_millis(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}
