//! What happens to a stream, as it happens.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use tokio::sync::OwnedSemaphorePermit;

use super::streams::{Named, check};
use crate::api::{Event, Refusal};
use crate::failure::Failure;
use crate::front::{Front, busy};
use crate::tokens::{Caller, Role};

/// How long one call waits for something to happen. A page that went away is noticed within this time.
const WAIT: Duration = Duration::from_secs(2);

pub async fn events(
    State(front): State<Arc<Front>>,
    Extension(caller): Extension<Caller>,
    Path(named): Named,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Failure> {
    check(&front, &caller, Role::Read, &named)?;
    let place = front.watchers.clone().try_acquire_owned();
    let place = place.map_err(|_| busy("too many pages watch"))?;
    let after = match headers.get("last-event-id") {
        None => None,
        Some(value) => {
            let number = value
                .to_str()
                .ok()
                .and_then(|text| text.trim().parse().ok());
            let Some(number) = number else {
                let text =
                    format!("`Last-Event-ID`: expected the number of an event, found {value:?}");
                return Err(Refusal::Invalid(text).into());
            };
            Some(number)
        }
    };
    let mut watched = Watched {
        front,
        named,
        after,
        ready: VecDeque::new(),
        place,
    };
    // What is wrong is said before the answer begins.
    watched.fetch(Duration::ZERO).await?;
    let stream = futures_util::stream::unfold(watched, |mut watched| async move {
        let text = watched.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), watched))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(stream)))
}

/// A page that watches a stream.
struct Watched {
    front: Arc<Front>,
    named: (String, String),
    after: Option<u64>,
    ready: VecDeque<Arc<Event>>,
    #[expect(dead_code, reason = "it is given back when the page goes away")]
    place: OwnedSemaphorePermit,
}

impl Watched {
    /// Asks for what happened since the last call.
    async fn fetch(&mut self, wait: Duration) -> Result<(), Failure> {
        let ((model, stream), after) = (self.named.clone(), self.after);
        let events = self
            .front
            .call(move |service| service.events(&model, &stream, after, wait));
        self.ready.extend(events.await?);
        self.after = self.ready.back().map(|event| event.id).or(self.after);
        Ok(())
    }

    /// Returns the next piece of the answer; none at the end.
    async fn next(&mut self) -> Option<String> {
        if self.ready.is_empty() {
            if self.front.draining() {
                return None;
            }
            if let Err(failure) = self.fetch(WAIT).await {
                tracing::debug!(error = failure.text, "a page stops watching");
                return None;
            }
        }
        // A comment shows whether somebody is still there.
        if self.ready.is_empty() {
            return Some(":\n\n".to_owned());
        }
        let mut text = String::new();
        for event in self.ready.drain(..) {
            let Event { id, kind, data } = event.as_ref();
            let _ = writeln!(text, "id: {id}\nevent: {kind}");
            for line in data.lines() {
                let _ = writeln!(text, "data: {line}");
            }
            text.push('\n');
        }
        Some(text)
    }
}
