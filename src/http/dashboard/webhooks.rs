//! The webhooks page: where ends of jobs are told, and how the last deliveries went. For admins, as the API's routes are.

use super::moment::Moment;
use super::shell::{Place, Shell, html};
use crate::domain::webhook::{Delivery, DeliveryState, Webhook};
use crate::domain::{JobState, Timestamp};
use crate::http::behalf::OnBehalf;
use crate::http::error::Problem;
use crate::service::PageRequest;
use askama::Template;
use axum::response::Response;

/// Deliveries shown of each webhook; the API has all.
const DELIVERIES: u32 = 10;

#[derive(Template)]
#[template(path = "webhooks.html")]
struct Page {
    shell: Shell,
    hooks: Vec<Hook>,
}

struct Hook {
    id: String,
    url: String,
    /// `succeeded, failed`.
    states: String,
    made: Moment,
    /// Nothing is sent before, since attempts failed in a row.
    paused: Option<Moment>,
    deliveries: Vec<Told>,
    /// Whether there are older ones.
    more: bool,
}

struct Told {
    job: String,
    state: &'static str,
    tone: &'static str,
    attempts: u32,
    /// The status of the last answer, or why there was none.
    answer: String,
    queued: Moment,
    /// When it is sent next.
    next: Option<Moment>,
}

impl From<&Delivery> for Told {
    fn from(delivery: &Delivery) -> Self {
        let (state, tone) = match delivery.state {
            DeliveryState::Pending => ("waiting", "live"),
            DeliveryState::Delivered => ("delivered", "good"),
            DeliveryState::Failed => ("given up", "bad"),
        };
        let status = delivery.status.map(|status| status.to_string());
        let parts = status.into_iter().chain(delivery.error.clone());
        Self {
            job: delivery.job.to_string(),
            state,
            tone,
            attempts: delivery.attempts,
            answer: parts.collect::<Vec<_>>().join(": "),
            queued: Moment::of(delivery.created_at),
            next: delivery.next_at.map(Moment::of),
        }
    }
}

impl Hook {
    fn new(hook: Webhook, deliveries: &[Delivery], more: bool) -> Self {
        let paused = hook.paused_until.filter(|until| *until > Timestamp::now());
        Self {
            id: hook.id.to_string(),
            url: hook.url,
            states: hook.states.into_iter().map(JobState::name).collect::<Vec<_>>().join(", "),
            made: Moment::of(hook.created_at),
            paused: paused.map(Moment::of),
            deliveries: deliveries.iter().map(Told::from).collect(),
            more,
        }
    }
}

/// `GET /webhooks`.
pub async fn show(OnBehalf(app): OnBehalf) -> Result<Response, Problem> {
    let mut hooks = Vec::new();
    for hook in app.service.webhooks().await? {
        let told = app.service.deliveries(&hook.id, &PageRequest::first(DELIVERIES)).await?;
        hooks.push(Hook::new(hook, &told.items, told.next.is_some()));
    }
    html(&Page { shell: Shell::new(&app, Place::Elsewhere), hooks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::JobId;
    use crate::domain::webhook::{DeliveryId, WebhookId};

    #[test]
    fn a_delivery_says_how_it_was_answered() {
        let delivery = Delivery {
            id: DeliveryId("ab".repeat(16)),
            hook: WebhookId::fresh(),
            job: JobId::fresh(),
            state: DeliveryState::Failed,
            attempts: 9,
            next_at: None,
            status: Some(500),
            error: Some("the answer was no success".to_owned()),
            created_at: Timestamp(0),
            ended_at: Some(Timestamp(1)),
        };
        let told = Told::from(&delivery);
        assert_eq!(
            (told.state, told.answer.as_str()),
            ("given up", "500: the answer was no success")
        );
        let told = Told::from(&Delivery { status: None, error: None, ..delivery });
        assert_eq!(told.answer, "");
    }
}
