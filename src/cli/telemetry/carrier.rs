//! Connects spans to traces: a request continues its caller's trace, and a job that of the request which submitted it.
//!
//! Other rooms only use spans with fields, without OpenTelemetry. So the connections are derived from fields:
//! `traceparent` of a `request`, and `job` of both. A span is built as late as possible, when all its fields are
//! recorded.

use super::super::logging::AnyLayer;
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::dispatcher;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Id, Record};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context as LayerContext;
use tracing_subscriber::{Layer, Registry};

const REQUEST: &str = "request";
const JOB: &str = "job";
const TRACEPARENT: &str = "traceparent";

/// Number of submissions remembered until a worker of this process runs the job. A forgotten job, or one run by another
/// process, starts a new trace; its field `job` connects the two.
const MOST: usize = 1024;

type Submissions = Arc<Mutex<VecDeque<(String, SpanContext)>>>;

/// Only our own spans, since the HTTP client that sends them creates spans itself.
fn ours() -> Targets {
    Targets::new().with_target(env!("CARGO_PKG_NAME"), LevelFilter::INFO)
}

pub(super) fn layers(provider: &SdkTracerProvider) -> [AnyLayer; 2] {
    let submissions = Submissions::default();
    let tracer = provider.tracer(env!("CARGO_PKG_NAME"));
    let tracer = Tying { tracer, submissions: Arc::clone(&submissions) };
    let export = tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        // Entering a span would build it before all its fields are recorded.
        .with_context_activation(false);
    let noting = Noting { submissions };
    [export.with_filter(ours()).boxed(), noting.with_filter(ours()).boxed()]
}

/// Builds spans with the parents that their fields name.
struct Tying {
    tracer: SdkTracer,
    submissions: Submissions,
}

impl Tracer for Tying {
    type Span = Span;

    fn build_with_context(&self, mut builder: SpanBuilder, parent: &Context) -> Span {
        let mut attributes = builder.attributes.take().unwrap_or_default();
        let text = |attributes: &[KeyValue], name: &str| {
            let found = attributes.iter().find(|attribute| attribute.key.as_str() == name);
            found.map(|attribute| attribute.value.as_str().into_owned())
        };
        let mut tied = None;
        if builder.name == REQUEST {
            tied = text(&attributes, TRACEPARENT).and_then(|given| remote(&given));
            attributes.retain(|attribute| attribute.key.as_str() != TRACEPARENT);
            let named = (text(&attributes, "method"), text(&attributes, "route"));
            if let (Some(method), Some(route)) = named {
                builder.name = format!("{method} {route}").into();
            }
            builder.span_kind = Some(SpanKind::Server);
        } else if builder.name == JOB {
            tied = text(&attributes, JOB).and_then(|job| self.submission(&job));
            builder.span_kind = Some(SpanKind::Consumer);
        }
        builder.attributes = Some(attributes);
        match tied.filter(|_| !parent.has_active_span()) {
            Some(tied) => {
                self.tracer.build_with_context(builder, &parent.with_remote_span_context(tied))
            }
            None => self.tracer.build_with_context(builder, parent),
        }
    }
}

impl Tying {
    fn submission(&self, job: &str) -> Option<SpanContext> {
        let mut submissions = self.submissions.lock().unwrap_or_else(PoisonError::into_inner);
        let at = submissions.iter().position(|(submitted, _)| submitted == job)?;
        submissions.remove(at).map(|(_, context)| context)
    }
}

/// Parses a W3C traceparent: version, trace, span, flags.
fn remote(traceparent: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Later versions may append parts; version 00 has none.
    let known = version != "ff" && (version != "00" || parts.next().is_none());
    if !known || (version.len(), trace.len(), span.len(), flags.len()) != (2, 32, 16, 2) {
        return None;
    }
    let sampled = u8::from_str_radix(flags, 16).ok()? & 1;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(sampled);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

/// Remembers the span in which a job was submitted, as soon as it is recorded.
struct Noting {
    submissions: Submissions,
}

impl Layer<Registry> for Noting {
    fn on_record(&self, id: &Id, values: &Record<'_>, context: LayerContext<'_, Registry>) {
        let mut job = JobOf(None);
        values.record(&mut job);
        let request = context.span(id).is_some_and(|span| span.name() == REQUEST);
        let (Some(job), true) = (job.0, request) else { return };
        let submitting =
            dispatcher::get_default(|here| tracing_opentelemetry::get_otel_context(id, here));
        let Some(submitting) = submitting else { return };
        let mut submissions = self.submissions.lock().unwrap_or_else(PoisonError::into_inner);
        // If an existing job is requested again, its original request is kept.
        if submissions.iter().all(|(submitted, _)| *submitted != job) {
            if submissions.len() >= MOST {
                submissions.pop_front();
            }
            submissions.push_back((job, submitting.span().span_context().clone()));
        }
    }
}

struct JobOf(Option<String>);

impl Visit for JobOf {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == JOB {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::remote;

    #[test]
    fn a_callers_span_is_read_or_ignored() {
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = remote(given).unwrap();
        assert_eq!(context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id().to_string(), "00f067aa0ba902b7");
        assert!(context.is_sampled() && context.is_remote());
        assert!(!remote(&given.replace("-01", "-00")).unwrap().is_sampled());
        assert!(remote(&given.replace("00-4", "01-4")).is_some(), "a later version");
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        ] {
            assert!(remote(bad).is_none(), "{bad}");
        }
    }
}
