//! Refusals as answers of HTTP.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use crate::api::Refusal;

/// An answer that is no success: `{"error": "text"}`.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// The status.
    pub status: StatusCode,
    /// What went wrong.
    pub text: String,
    /// When it may be tried again.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// Makes a failure.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            retry_after: None,
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        let (status, retry_after) = match refusal {
            Refusal::Invalid(_) => (StatusCode::BAD_REQUEST, None),
            Refusal::NotFound(_) => (StatusCode::NOT_FOUND, None),
            Refusal::Quota { after, .. } => (StatusCode::TOO_MANY_REQUESTS, Some(after)),
            Refusal::Unavailable(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                Some(Duration::from_secs(1)),
            ),
            Refusal::Deadline => (StatusCode::GATEWAY_TIMEOUT, None),
            Refusal::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, None),
        };
        Self {
            status,
            text,
            retry_after,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, json_body(&json!({ "error": self.text }))).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            // Whole seconds, rounded up, as the header wants them.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Writes a value as a body of JSON.
pub fn json_body<T: Serialize>(value: &T) -> impl IntoResponse + use<T> {
    let json = serde_json::to_string(value).expect("what is answered is plain JSON");
    ([(header::CONTENT_TYPE, "application/json")], json)
}
